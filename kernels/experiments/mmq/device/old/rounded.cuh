// Rows rounded to 8 bits by blocks of 32 or 256 numbers, as the processor does (`cpu/rounded.rs`): what products of up to 64
// rows with quantised weights read. They lie as bytes, then a scale for each block, then for blocks of 256 the sums of their
// eight parts in two halves that tensor cores take: eight bytes of sums modulo 32, eight of how many 32s. The host's
// `rounded_parts` says the same.
#pragma once
#include "common.cuh"

struct RoundedRows {
    i8 *bytes;
    float *scales;
    i8 *halves;
    // `numbers` of all rows.
    DEVICE RoundedRows(void *at, u64 numbers) {
        u64 sixteens = (numbers + 15) / 16 * 16, scales_bytes = ((numbers + 31) / 32 + 3) / 4 * 16;
        bytes = (i8 *)at;
        scales = (float *)((u8 *)at + sixteens);
        halves = (i8 *)at + sixteens + scales_bytes;
    }
};

// Rounds eight consecutive numbers, the first of which is number `at` of all; a block's are in lanes side by side, so all lanes
// of a warp call this, those behind the last number with `real` false.
DEVICE void round_eight(const float (&x)[8], bool real, u64 at, u32 kind, const RoundedRows &to) {
    float top = 0.f;
    // A comparison lets no NaN in.
#pragma unroll
    for (int i = 0; i < 8; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    bool large = kind == ROUNDED_256;
    for (int lanes = large ? 16 : 2; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, lanes));
    float steps = top > 0.f ? 127.f / top : 0.f;
    u32 words[2] = {0, 0};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float scaled = x[i] * steps;
        int q = scaled == scaled ? (int)rintf(fminf(fmaxf(scaled, -127.f), 127.f)) : 0;
        words[i / 4] |= (u32)(q & 255) << (i % 4 * 8);
        sum += q;
    }
    for (int lanes = 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
    if (!real) return;
    u32 block = large ? 256 : 32;
    *(uint2 *)(to.bytes + at) = uint2{words[0], words[1]};
    if (at % block == 0) to.scales[at / block] = top / 127.f;
    if (large && at % 32 == 0) {
        i8 *halves = to.halves + at / 256 * 16 + at / 32 % 8;
        halves[0] = (i8)(sum & 31), halves[8] = (i8)(sum >> 5);
    }
}
