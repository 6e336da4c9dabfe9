// What products of few rows read at a time: eight dense numbers, or a piece of a block of quants, and how warps share outputs.
#pragma once
#include "forms.cuh"

DEVICE u32 word(const uint4 &all, int i) { return i == 0 ? all.x : i == 1 ? all.y : i == 2 ? all.z : all.w; }

// Eight numbers of a row of weights, or of a row they are multiplied by, as they lie; none of it is waited for before
// the first is asked for. What is not `real` is zeros.
template <int FORM> struct Eight {
    static constexpr int PIECES = FORM == FORM_F32 ? 2 : 1, BYTES = PIECES * 16;
    uint4 pieces[PIECES];

    // Weights: each is read once.
    DEVICE void stream(const u8 *row, u32 col, bool real) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) pieces[i] = stream_16(row + (u64)(col / 8) * BYTES + i * 16, real);
    }
    // Rows: read again for each output, from the first-level cache.
    DEVICE void read(const u8 *row, u32 col, bool real) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            pieces[i] = real ? *(const uint4 *)(row + (u64)(col / 8) * BYTES + i * 16) : uint4{0, 0, 0, 0};
    }
    DEVICE float number(int i) const {
        if (FORM == FORM_F32) return bits_to_float(word(pieces[i / 4 % PIECES], i % 4));
        return of_two(FORM, word(pieces[0], i / 2), i % 2);
    }
};

// How a block's eight warps share outputs and cut their columns: `split`, a power of two, work on the same ones. Shifts,
// because two divisions would take as long as the first bytes from memory.
struct Share {
    u32 split, shift;
    DEVICE Share(u32 split) : split(split), shift(__ffs((int)split) - 1) {}
    DEVICE u64 output() const { return ((u64)blockIdx.x * 8 + threadIdx.x / 32) >> shift; }
    // A lane among all that cut an output's columns, and how many those are.
    DEVICE u32 lane() const { return threadIdx.x & (lanes() - 1); }
    DEVICE u32 lanes() const { return 32u << shift; }
};

// Rounded rows as `rounded.cuh` has them, whose sums are added up where they are wanted.
struct RoundedBytes {
    const i8 *bytes;
    const float *scales;
    u32 cols;
    // Of 16 numbers, the first of which is number `at` of all.
    DEVICE int sum(u64, const uint4 &x) const {
        return dot4(0x01010101, (int)x.w, dot4(0x01010101, (int)x.z, dot4(0x01010101, (int)x.y, dot4(0x01010101, (int)x.x, 0))));
    }
};
DEVICE uint4 sixteen(const i8 *at) { return *(const uint4 *)at; }
DEVICE uint4 none() { return uint4{0, 0, 0, 0}; }

// What a lane multiplies at a time: `LANES` lanes share a block. `read` asks for the weights as they lie, `ready` makes of them what
// is multiplied, once all that was asked for is under way; `Input` is what a row has to be multiplied by.
template <int FORM> struct Piece;

template <> struct Piece<FORM_Q4_0> {
    static constexpr int LANES = 1;
    uint4 quants;
    u16 stored;
    float scale;
    DEVICE void read(const Matrix &w, const RowPlace &row, u32 block, u32, bool real) {
        quants = stream_16(block_at<FORM_Q4_0>(w, row, block).at(0), real);
        stored = real ? scale_bits<FORM_Q4_0>(w, row, block) : 0;
    }
    DEVICE void ready(u32) { scale = f16_to_f32(stored); }
    struct Input {
        uint4 low, high;
        int below;
        float scale;
        template <class ROWS> DEVICE Input(const ROWS &x, u64 row, u32 block, u32) {
            u64 at = row * x.cols + block * 32;
            low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 16);
            below = -8 * (x.sum(at, low) + x.sum(at + 16, high));
            scale = x.scales[at / 32];
        }
    };
    DEVICE float times(const Input &x) const {
        int sum = x.below;
        for (int i = 0; i < 4; i++) {
            sum = dot4((int)(word(quants, i) & 0x0f0f0f0f), (int)word(x.low, i), sum);
            sum = dot4((int)(word(quants, i) >> 4 & 0x0f0f0f0f), (int)word(x.high, i), sum);
        }
        return (float)sum * (scale * x.scale);
    }
};

// Twice what four bits stand for, of each of eight fours of a word: of the lower halves of its bytes, and of the upper ones.
DEVICE void twice_fp4(u32 word, u32 &lower, u32 &upper) {
    // Without the sign 0 to 12, with it 0 to -12; then which of the two, by bit 3.
    u32 pairs[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 which = word >> (16 * i) & 0xffff;
        u32 above = four_of_eight(0x03020100, 0x0c080604, which), below = four_of_eight(0xfdfeff00, 0xf4f8fafc, which);
        pairs[i] = four_of_eight(above, below, 0x3210 | (which & 0x8888) >> 1);
    }
    lower = four_of_eight(pairs[0], pairs[1], 0x6420), upper = four_of_eight(pairs[0], pairs[1], 0x7531);
}

template <> struct Piece<FORM_MXFP4> {
    static constexpr int LANES = 1;
    uint4 quants;
    u8 stored;
    u32 lower[4], upper[4];
    float scale;
    DEVICE void read(const Matrix &w, const RowPlace &row, u32 block, u32, bool real) {
        quants = stream_16(block_at<FORM_MXFP4>(w, row, block).at(0), real);
        stored = real ? power_byte(w, row, block) : 0;
    }
    DEVICE void ready(u32) {
        scale = half_power(stored);
#pragma unroll
        for (int i = 0; i < 4; i++) twice_fp4(word(quants, i), lower[i], upper[i]);
    }
    struct Input {
        uint4 low, high;
        float scale;
        template <class ROWS> DEVICE Input(const ROWS &x, u64 row, u32 block, u32) {
            u64 at = row * x.cols + block * 32;
            low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 16);
            scale = x.scales[at / 32];
        }
    };
    DEVICE float times(const Input &x) const {
        int sum = 0;
        for (int i = 0; i < 4; i++) {
            sum = dot4((int)lower[i], (int)word(x.low, i), sum);
            sum = dot4((int)upper[i], (int)word(x.high, i), sum);
        }
        return (float)sum * (scale * x.scale);
    }
};

template <> struct Piece<FORM_Q8_0> {
    static constexpr int LANES = 2;
    uint4 quants;
    u16 stored;
    float scale;
    DEVICE void read(const Matrix &w, const RowPlace &row, u32 block, u32 part, bool real) {
        quants = stream_16(block_at<FORM_Q8_0>(w, row, block).at(part * 16), real);
        stored = real ? scale_bits<FORM_Q8_0>(w, row, block) : 0;
    }
    DEVICE void ready(u32) { scale = f16_to_f32(stored); }
    struct Input {
        uint4 numbers;
        float scale;
        template <class ROWS> DEVICE Input(const ROWS &x, u64 row, u32 block, u32 part) {
            u64 at = row * x.cols + block * 32;
            numbers = sixteen(x.bytes + at + part * 16);
            scale = x.scales[at / 32];
        }
    };
    DEVICE float times(const Input &x) const {
        int sum = 0;
        for (int i = 0; i < 4; i++) sum = dot4((int)word(quants, i), (int)word(x.numbers, i), sum);
        return (float)sum * (scale * x.scale);
    }
};

// Of each 64 numbers 32 bytes hold numbers 32 apart: a lane has 16 of those bytes, 16 numbers each of two parts.
template <> struct Piece<FORM_Q4_K> {
    static constexpr int LANES = 8;
    uint4 quants, header;
    float scale, step;
    int scales[2], least[2];
    DEVICE void read(const Matrix &w, const RowPlace &row, u32 block, u32 part, bool real) {
        Block<FORM_Q4_K> mine = block_at<FORM_Q4_K>(w, row, block);
        header = real ? *(const uint4 *)mine.at(0) : none();
        quants = stream_16(mine.at(16 + part * 16), real);
    }
    DEVICE void ready(u32 part) {
        scale = f16_to_f32((u16)header.x);
        step = f16_to_f32((u16)(header.x >> 16));
        u32 found, below;
        two_of_six_bits(header, part / 2, found, below);
        scales[0] = found & 255, scales[1] = found >> 8;
        least[0] = below & 255, least[1] = below >> 8;
    }
    struct Input {
        uint4 low, high;
        int sums[2];
        float scale;
        template <class ROWS> DEVICE Input(const ROWS &x, u64 row, u32 block, u32 part) {
            u64 at = row * x.cols + block * 256 + part / 2 * 64 + part % 2 * 16;
            low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 32);
            sums[0] = x.sum(at, low), sums[1] = x.sum(at + 32, high);
            scale = x.scales[(row * x.cols + block * 256) / 256];
        }
    };
    DEVICE float times(const Input &x) const {
        int a = 0, b = 0;
        for (int i = 0; i < 4; i++) {
            a = dot4((int)(word(quants, i) & 0x0f0f0f0f), (int)word(x.low, i), a);
            b = dot4((int)(word(quants, i) >> 4 & 0x0f0f0f0f), (int)word(x.high, i), b);
        }
        int below = least[0] * x.sums[0] + least[1] * x.sums[1];
        return fmaf((float)(a * scales[0] + b * scales[1]), scale * x.scale, -((float)below * (step * x.scale)));
    }
};

// Of each 128 numbers 64 bytes hold low halves of numbers 64 apart, 32 bytes two bits each of numbers 32 apart: a lane has
// eight numbers of each of four parts.
template <> struct Piece<FORM_Q6_K> {
    static constexpr int LANES = 8;
    uint2 low, low_more, high;
    u16 stored;
    i8 scales[4];
    float scale;
    DEVICE void read(const Matrix &w, const RowPlace &row, u32 block, u32 part, bool real) {
        Block<FORM_Q6_K> mine = block_at<FORM_Q6_K>(w, row, block);
        u32 half = part / 4, from = part % 4 * 8;
        uint2 zeros = {0, 0};
        low = real ? *(const uint2 *)mine.at(half * 64 + from) : zeros;
        low_more = real ? *(const uint2 *)mine.at(half * 64 + 32 + from) : zeros;
        high = real ? *(const uint2 *)mine.at(128 + half * 32 + from) : zeros;
        for (int i = 0; i < 4; i++) scales[i] = real ? (i8)*mine.at(192 + half * 8 + i * 2 + from / 16) : (i8)0;
        stored = real ? scale_bits<FORM_Q6_K>(w, row, block) : 0;
    }
    DEVICE void ready(u32) { scale = f16_to_f32(stored); }
    struct Input {
        uint2 numbers[4];
        int ones[4];
        float scale;
        template <class ROWS> DEVICE Input(const ROWS &x, u64 row, u32 block, u32 part) {
            u64 at = row * x.cols + block * 256 + part / 4 * 128 + part % 4 * 8;
            for (int i = 0; i < 4; i++) {
                numbers[i] = *(const uint2 *)(x.bytes + at + i * 32);
                ones[i] = dot4(0x01010101, (int)numbers[i].y, dot4(0x01010101, (int)numbers[i].x, 0));
            }
            scale = x.scales[(row * x.cols + block * 256) / 256];
        }
    };
    DEVICE float times(const Input &x) const {
        int all = 0;
        for (int i = 0; i < 4; i++) {
            uint2 four = i % 2 == 0 ? low : low_more;
            int shift = i / 2 * 4, two = i * 2;
            int a = (int)(((four.x >> shift) & 0x0f0f0f0f) | (((high.x >> two) & 0x03030303) << 4));
            int b = (int)(((four.y >> shift) & 0x0f0f0f0f) | (((high.y >> two) & 0x03030303) << 4));
            int sum = dot4(b, (int)x.numbers[i].y, dot4(a, (int)x.numbers[i].x, 0));
            all += (int)scales[i] * (sum - 32 * x.ones[i]);
        }
        return (float)all * (scale * x.scale);
    }
};
