// One step of products of rounded rows with quantised weights, once both are in shared memory (`mmq.cu`): how each form's
// weights are made bytes, multiplied, and scaled.
#pragma once
#include "forms.cuh"

// Outputs of a warp: what tensor cores take at a time. A row of results in shared memory has as many, and four that keep
// rows in banks of their own.
constexpr u32 OUTS = 16, RESULT = OUTS + 4;

// A step is as many columns as are multiplied at a time. Of weights an output has `bytes` of it; those of 16 outputs lie in shared
// memory as in global memory, pieces of outputs beside each other, so that lanes that read together are in banks of their own.
// Rows lie `x_apart` there, which keeps theirs so: 8 words by 32 where a lane reads two words, 4 where it reads one. The host's
// `Staged` says the same.
template <int FORM> struct Step;
template <> struct Step<FORM_Q4_0> { static constexpr u32 columns = 256, bytes = 128, x_apart = 272; };
template <> struct Step<FORM_Q8_0> { static constexpr u32 columns = 128, bytes = 128, x_apart = 160; };
template <> struct Step<FORM_Q4_K> { static constexpr u32 columns = 256, bytes = 144, x_apart = 288; };
template <> struct Step<FORM_Q6_K> { static constexpr u32 columns = 256, bytes = 208, x_apart = 272; };
static_assert(OUTS == TOGETHER, "what a warp multiplies lies together");

// Steps of weights in shared memory where they are all that is there: one is multiplied, the others are on their way. The host's
// `STAGES` is the same.
constexpr u32 STAGES = 3;
// Bytes of a row that a lane multiplies at a time and that lie together.
template <int FORM> constexpr u32 LANE_BYTES = FORM == FORM_Q4_K || FORM == FORM_Q8_0 ? 8 : 4;
// Bytes of the sums of a row's eight parts, in two halves.
constexpr u32 HALVES = 16;
// Scales of a row in a step.
template <int FORM> constexpr u32 SCALES = Step<FORM>::columns / Blocks<FORM>::rounded;

// Whether a row of weights ends with a step: blocks of 32 do not have to fill the last one.
template <int FORM> constexpr bool WHOLE = Step<FORM>::columns == (u32)Blocks<FORM>::numbers;

// What of a step comes through registers: scales in a plane of their own, whose two bytes nothing copies. A lane has those of
// two outputs, eight apart; of eight or four blocks it has every fourth, and others' by asking their lanes.
template <int FORM> struct Held {
    static constexpr u32 COUNT = SCALES<FORM> > 4 ? 2 : 1;
    u16 scales[2][COUNT];

    // `from`: both outputs' first, of `rows` that lie together.
    DEVICE void read(const u16 *const (&from)[2], u32 rows, u32 blocks, u32 step, u32 lane) {
        if constexpr (FORM != FORM_Q4_K) {
#pragma unroll
            for (u32 r = 0; r < 2; r++)
#pragma unroll
                for (u32 i = 0; i < COUNT; i++) {
                    u32 block = step * SCALES<FORM> + (SCALES<FORM> > 1 ? lane % 4 + i * 4 : 0);
                    scales[r][i] = WHOLE<FORM> || block < blocks ? from[r][block * rows] : (u16)0;
                }
        }
    }
    // All lanes call this.
    DEVICE float scale(u32 r, u32 block, u32 lane) const {
        if (SCALES<FORM> == 1) return f16_to_f32(scales[r][0]);
        u16 mine = COUNT == 2 && block >= 4 ? scales[r][COUNT - 1] : scales[r][0];
        return f16_to_f32((u16)__shfl_sync(ALL_LANES, (u32)mine, (int)(lane / 4 * 4 + block % 4)));
    }
};

// Where a lane's part of a step lies: the weights of 16 outputs in shared memory, and there, or of few rows in global memory, the
// numbers and the sums of its row of the first tile, and scales of the two rows of that tile whose results it has.
struct Place {
    const u8 *w, *x, *halves, *scales[2];
};
template <int FORM> DEVICE float row_scale(const Place &at, u32 tile, u32 which, u32 block) {
    return *(const float *)(at.scales[which] + (tile * 8 * SCALES<FORM> + block) * 4);
}
DEVICE u32 one(const u8 *at) { return *(const u32 *)at; }
DEVICE uint2 two(const u8 *at) { return *(const uint2 *)at; }

// acc += sum · (scale · row's scale), for two outputs and two rows of every tile.
template <int FORM, int TILES>
DEVICE void scaled(float (&acc)[TILES][4], const int (&sums)[TILES][4], float first, float second, const Place &at, float sign = 1.f) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] = fmaf(sign * (float)sums[n][i], (i < 2 ? first : second) * row_scale<FORM>(at, n, i % 2, 0), acc[n][i]);
}
template <int TILES> DEVICE void weighed(int (&sums)[TILES][4], int n, const int (&c)[4], int first, int second) {
    sums[n][0] += c[0] * first, sums[n][1] += c[1] * first;
    sums[n][2] += c[2] * second, sums[n][3] += c[3] * second;
}

// What was read before is not kept.
template <int TILES> DEVICE void read_anew() {
#ifndef TSNODE_EMULATOR
    if (TILES == 8) asm volatile("" ::: "memory");
#endif
}

// One step of 16 outputs times `TILES` tiles of eight rows. In which order the 32 columns of a product come is no matter, as
// long as it is the same for both: a lane has what lies together.
template <int FORM> struct Multiply;

template <> struct Multiply<FORM_Q4_K> {
    template <int TILES> static DEVICE void step(float (&acc)[TILES][4], const Place &at, const Held<FORM_Q4_K> &, u32, u32 lane) {
        constexpr u32 X_TILE = 8 * Step<FORM_Q4_K>::x_apart;
        const u8 *quants = at.w + OUTS * 16 + lane * 8, *header = at.w + lane / 4 * 16;
        // Eight scales of six bits, each a byte.
        u32 found[2][2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint4 h = *(const uint4 *)(header + r * 8 * 16);
            found[r][0] = h.y & 0x3f3f3f3f, found[r][1] = (h.w & 0x0f0f0f0f) | (h.y >> 2 & 0x30303030);
        }
        int sums[TILES][4] = {};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint2 a = two(quants + j / 2 * OUTS * 32), b = two(quants + (j / 2 * OUTS + 8) * 32);
            int shift = j % 2 * 4;
            u32 w[4] = {a.x >> shift & 0x0f0f0f0f, b.x >> shift & 0x0f0f0f0f, a.y >> shift & 0x0f0f0f0f, b.y >> shift & 0x0f0f0f0f};
            int scales[2] = {byte_at(found[0][j / 4], j % 4), byte_at(found[1][j / 4], j % 4)};
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint2 x = two(at.x + n * X_TILE + j * 32);
                int c[4] = {};
                multiply_16x8x32(c, w, x.x, x.y);
                weighed<TILES>(sums, n, c, scales[0], scales[1]);
            }
        }
        // What else headers have is read then: of many rows there are no registers for it meanwhile.
        read_anew<TILES>();
        uint4 headers[2] = {*(const uint4 *)header, *(const uint4 *)(header + 8 * 16)};
        scaled<FORM_Q4_K, TILES>(acc, sums, f16_to_f32((u16)headers[0].x), f16_to_f32((u16)headers[1].x), at);
        // Least values times the sums of rows, by the same tensor cores: of 16 columns eight are parts of the block. A lane has
        // four, of the first two of every four lanes; rows are zeros for the others, whose least values do not matter.
        int least[TILES][4] = {};
        bool late = lane % 2;
        u32 w[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 &h = headers[r];
            w[r] = late ? (h.w >> 4 & 0x0f0f0f0f) | (h.z >> 2 & 0x30303030) : h.z & 0x3f3f3f3f;
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            u32 rest = one(at.halves + n * 8 * HALVES), whole = one(at.halves + n * 8 * HALVES + 8);
            multiply_16x8x16_bytes(least[n], w, lane % 4 < 2 ? whole : 0);
#pragma unroll
            for (int i = 0; i < 4; i++) least[n][i] *= 32;
            multiply_16x8x16_bytes(least[n], w, lane % 4 < 2 ? rest : 0);
        }
        scaled<FORM_Q4_K, TILES>(acc, least, f16_to_f32((u16)(headers[0].x >> 16)), f16_to_f32((u16)(headers[1].x >> 16)), at, -1.f);
    }
};

// Numbers are six bits less 32. Those bits on top of a byte with its sign turned are four times as much, with a sign.
template <> struct Multiply<FORM_Q6_K> {
    // A lane's word of a piece of one of its two outputs.
    static DEVICE const u8 *six(const Place &at, int piece, int output, u32 lane) { return at.w + (piece * OUTS + output * 8) * 16 + lane * 4; }

    template <int TILES> static DEVICE void step(float (&acc)[TILES][4], const Place &at, const Held<FORM_Q6_K> &held, u32, u32 lane) {
        constexpr u32 X_TILE = 8 * Step<FORM_Q6_K>::x_apart;
        const u8 *scales = at.w + (12 * OUTS + lane / 4) * 16;
        int sums[TILES][4] = {};
#pragma unroll(TILES == 8 ? 1 : 2)
        for (int half = 0; half < 2; half++) {
            uint2 all[2] = {two(scales + half * 8), two(scales + 8 * 16 + half * 8)};
#pragma unroll
            for (int side = 0; side < 2; side++) {
                u32 low[2][2], high[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    low[r][0] = one(six(at, half * 4 + side, r, lane)), low[r][1] = one(six(at, half * 4 + side + 2, r, lane));
                    high[r] = one(six(at, 8 + half * 2 + side, r, lane)) ^ 0xaaaaaaaa;
                }
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    u32 w[2];
                    int scale[2], number = part * 2 + side;
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        u32 four = part < 2 ? low[r][part] << 2 : low[r][part - 2] >> 2;
                        w[r] = (four & 0x3c3c3c3c) | (high[r] << (6 - 2 * part) & 0xc0c0c0c0);
                        scale[r] = (int)(i8)((number < 4 ? all[r].x : all[r].y) >> (number % 4 * 8));
                    }
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        u32 x = one(at.x + n * X_TILE + half * 128 + number * 16);
                        int c[4] = {};
                        multiply_16x8x16_bytes(c, w, x);
                        weighed<TILES>(sums, n, c, scale[0], scale[1]);
                    }
                }
            }
        }
        scaled<FORM_Q6_K, TILES>(acc, sums, held.scale(0, 0, lane) * 0.25f, held.scale(1, 0, lane) * 0.25f, at);
    }
};

// Blocks of 32: each has a scale in single precision, so whole numbers end with it.
template <int FORM, int TILES>
DEVICE void multiply_block(float (&acc)[TILES][4], const u32 (&w)[4], const u8 *x, u32 block, float first, float second, const Place &at) {
    constexpr u32 X_TILE = 8 * Step<FORM>::x_apart;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int c[4] = {};
        u32 low, high;
        if (FORM == FORM_Q8_0) {
            uint2 both = two(x + n * X_TILE);
            low = both.x, high = both.y;
        } else {
            low = one(x + n * X_TILE), high = one(x + n * X_TILE + 16);
        }
        multiply_16x8x32(c, w, low, high);
        float scales[2] = {row_scale<FORM>(at, n, 0, block), row_scale<FORM>(at, n, 1, block)};
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = fmaf((float)c[i], (i < 2 ? first : second) * scales[i % 2], acc[n][i]);
    }
}

template <> struct Multiply<FORM_Q8_0> {
    template <int TILES> static DEVICE void step(float (&acc)[TILES][4], const Place &at, const Held<FORM_Q8_0> &held, u32 blocks, u32 lane) {
        const u8 *quants = at.w + lane * 8;
#pragma unroll(TILES == 8 ? 2 : 4)
        for (u32 j = 0; j < 4; j++) {
            if (j >= blocks) break;
            uint2 a = two(quants + j * OUTS * 32), b = two(quants + (j * OUTS + 8) * 32);
            u32 w[4] = {a.x, b.x, a.y, b.y};
            multiply_block<FORM_Q8_0, TILES>(acc, w, at.x + j * 32, j, held.scale(0, j, lane), held.scale(1, j, lane), at);
        }
    }
};

// Numbers are four bits less 8. Those bits on top of a byte with its sign turned are sixteen times as much, with a sign.
template <> struct Multiply<FORM_Q4_0> {
    template <int TILES> static DEVICE void step(float (&acc)[TILES][4], const Place &at, const Held<FORM_Q4_0> &held, u32 blocks, u32 lane) {
        const u8 *quants = at.w + lane * 4;
#pragma unroll(TILES == 8 ? 2 : 8)
        for (u32 j = 0; j < 8; j++) {
            if (j >= blocks) break;
            u32 a = one(quants + j * OUTS * 16) ^ 0x88888888, b = one(quants + (j * OUTS + 8) * 16) ^ 0x88888888;
            u32 w[4] = {a << 4 & 0xf0f0f0f0, b << 4 & 0xf0f0f0f0, a & 0xf0f0f0f0, b & 0xf0f0f0f0};
            float first = held.scale(0, j, lane) * 0.0625f, second = held.scale(1, j, lane) * 0.0625f;
            multiply_block<FORM_Q4_0, TILES>(acc, w, at.x + j * 32, j, first, second, at);
        }
    }
};
