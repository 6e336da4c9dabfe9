// One step of the product of a single rounded row (`mmq.cu`). Tensor cores take eight rows at a time: a single row's parts take
// their places, part n in column n, and with its own scales. A lane has two parts of two outputs, so that scales are multiplied by
// once. The sums are those of `mmq.cuh`, whole numbers, and scaled in the same order.
#pragma once
#include "mmq.cuh"

// What a lane has of a step: its word or two of its part of the row, and the row's scale.
template <int FORM> struct RowStep;

// A lane has two outputs, eight apart, and two parts of each. Four lanes have all parts of the same two: of a lane's two numbers
// the one of the other output goes to its neighbour. Then even lanes have the first output's sum, odd ones the second's.
DEVICE int summed(int first, int second, u32 lane) {
    bool odd = lane % 2;
    int mine = odd ? second : first, others = odd ? first : second;
    mine += __shfl_xor_sync(ALL_LANES, others, 1);
    return mine + __shfl_xor_sync(ALL_LANES, mine, 2);
}

template <> struct RowStep<FORM_Q4_K> {
    uint2 x;
    u32 rest, whole;
    float scale;
    // Where this lane's lie of the step.
    DEVICE RowStep(const i8 *bytes, const i8 *halves, const float *scales, u32 lane) {
        x = *(const uint2 *)(bytes + lane * 8);
        halves += lane % 4 * 2;
        rest = *(const u16 *)halves, whole = *(const u16 *)(halves + 8);
        scale = *scales;
    }
    DEVICE int sum(int which) const { return (int)(i8)(rest >> (8 * which)) + 32 * (int)(i8)(whole >> (8 * which)); }

    DEVICE void multiply(float &acc, const u8 *w, const Held<FORM_Q4_K> &, u32 lane) const {
        const u8 *quants = w + OUTS * 16 + lane * 8, *header = w + lane / 4 * 16;
        uint4 headers[2] = {*(const uint4 *)header, *(const uint4 *)(header + 8 * 16)};
        // Even parts are lower halves of bytes, odd ones upper halves: sixteen times as much, which the sum is divided by. Of all
        // products of a part's weights with the row's parts a lane keeps those with the same part, if it has them.
        int even[2] = {}, odd[2] = {};
#pragma unroll
        for (u32 pair = 0; pair < 4; pair++) {
            uint2 a = two(quants + pair * OUTS * 32), b = two(quants + (pair * OUTS + 8) * 32);
            u32 low[4] = {a.x & 0x0f0f0f0f, b.x & 0x0f0f0f0f, a.y & 0x0f0f0f0f, b.y & 0x0f0f0f0f};
            u32 high[4] = {a.x & 0xf0f0f0f0, b.x & 0xf0f0f0f0, a.y & 0xf0f0f0f0, b.y & 0xf0f0f0f0};
            int c[4] = {}, d[4] = {};
            multiply_16x8x32_unsigned(c, low, x.x, x.y);
            multiply_16x8x32_unsigned(d, high, x.x, x.y);
            bool mine = lane % 4 == pair;
            even[0] = mine ? c[0] : even[0], even[1] = mine ? c[2] : even[1];
            odd[0] = mine ? d[1] : odd[0], odd[1] = mine ? d[3] : odd[1];
        }
        int sums[2], least[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 found, below;
            two_of_six_bits(headers[r], lane % 4, found, below);
            sums[r] = even[r] * (int)(found & 255) + (odd[r] >> 4) * (int)(found >> 8);
            least[r] = sum(0) * (int)(below & 255) + sum(1) * (int)(below >> 8);
        }
        int all = summed(sums[0], sums[1], lane), below = summed(least[0], least[1], lane);
        u32 both = lane % 2 ? headers[1].x : headers[0].x;
        acc = fmaf((float)all, f16_to_f32((u16)both) * scale, acc);
        acc = fmaf(-(float)below, f16_to_f32((u16)(both >> 16)) * scale, acc);
    }
};

// Sixteen parts, in two tiles, in which products of all add up side by side: what is multiplied by a part's weights is zeros in other
// parts' columns.
template <> struct RowStep<FORM_Q6_K> {
    u32 x[2];
    float scale;
    DEVICE RowStep(const i8 *bytes, const i8 *, const float *scales, u32 lane) {
        x[0] = *(const u32 *)(bytes + lane * 4), x[1] = *(const u32 *)(bytes + 128 + lane * 4);
        scale = *scales;
    }

    DEVICE void multiply(float &acc, const u8 *w, const Held<FORM_Q6_K> &held, u32 lane) const {
        int sums[2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int c[4] = {};
#pragma unroll
            for (int side = 0; side < 2; side++) {
                u32 low[2][2], high[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const u8 *from = w + r * 8 * 16 + lane * 4;
                    low[r][0] = one(from + (half * 4 + side) * OUTS * 16), low[r][1] = one(from + (half * 4 + side + 2) * OUTS * 16);
                    high[r] = one(from + (8 + half * 2 + side) * OUTS * 16) ^ 0xaaaaaaaa;
                }
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    u32 six[2];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        u32 four = part < 2 ? low[r][part] << 2 : low[r][part - 2] >> 2;
                        six[r] = (four & 0x3c3c3c3c) | (high[r] << (6 - 2 * part) & 0xc0c0c0c0);
                    }
                    multiply_16x8x16_bytes(c, six, lane / 4 == (u32)(part * 2 + side) ? x[half] : 0);
                }
            }
            const u8 *scales = w + (12 * OUTS + lane / 4) * 16 + half * 8 + lane % 4 * 2;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                u32 both = *(const u16 *)(scales + r * 8 * 16);
                sums[r] += c[r * 2] * (int)(i8)both + c[r * 2 + 1] * (int)(i8)(both >> 8);
            }
        }
        float of_weights = (lane % 2 ? held.scale(1, 0, lane) : held.scale(0, 0, lane)) * 0.25f;
        acc = fmaf((float)summed(sums[0], sums[1], lane), of_weights * scale, acc);
    }
};
