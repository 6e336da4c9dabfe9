// Rows read and written by eights of numbers, one eight a lane.
#pragma once
#include "rounded.cuh"

// Eight consecutive numbers of a row. Where all of them lie as whole sixteens of bytes they are read so.
DEVICE void read_eight(float (&to)[8], const float *from, u32 count, bool whole) {
    if (whole) {
        float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = (u32)i < count ? from[i] : 0.f;
    }
}
DEVICE void write_eight(const float (&x)[8], float *to, u32 count, bool whole) {
    if (whole) {
        ((float4 *)to)[0] = float4{x[0], x[1], x[2], x[3]};
        ((float4 *)to)[1] = float4{x[4], x[5], x[6], x[7]};
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if ((u32)i < count) to[i] = x[i];
    }
}
// Writes eight numbers as `kind` has them; `at` is the number of the first among all `numbers`. All lanes call this.
DEVICE void store_eight(u32 kind, void *to, u64 numbers, u64 at, const float (&x)[8], u32 count, bool whole) {
    if (kind >= ROUNDED_32) return round_eight(x, count > 0, at, kind, RoundedRows(to, numbers));
    if (count == 0) return;
    if (kind == F32) {
        write_eight(x, (float *)to + at, count, whole);
    } else if (whole) {
        u32 words[4];
        float limit = kind == F16 ? 65504.f : INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            if (kind == F16) a = fminf(fmaxf(a, -limit), limit), b = fminf(fmaxf(b, -limit), limit);
            words[i] = two_as(kind == BF16, a, b);
        }
        ((uint4 *)to)[at / 8] = uint4{words[0], words[1], words[2], words[3]};
    } else {
        for (u32 i = 0; i < count; i++) store_row(kind, to, at + i, x[i]);
    }
}
