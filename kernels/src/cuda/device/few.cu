// Products of few rows: all are limited by reading the weights once. As on the processor rows stay in single precision for
// weights of single and half precision, are rounded to bfloat16 for weights that are, and to 8 bits for quantised ones.
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

// Adds what the warps that share outputs have, and writes it. `parts` is shared memory, [warp][row][output].
template <int ROWS, int OUTS>
DEVICE void finish(float (&acc)[ROWS][OUTS], float *parts, const Share &share, u64 first, u64 outs, u32 rows, float *out, u32 stride) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUTS; o++) {
            float sum = warp_sum(acc[r][o]);
            if (lane == 0) parts[(warp * ROWS + r) * OUTS + o] = sum;
        }
    __syncthreads();
    if (warp & (share.split - 1)) return;
    for (u32 i = lane; i < ROWS * OUTS; i += 32) {
        u32 r = i / OUTS, o = i % OUTS;
        if (r >= rows || first + o >= outs) continue;
        float sum = 0.f;
        for (u32 w = 0; w < share.split; w++) sum += parts[((warp + w) * ROWS + r) * OUTS + o];
        out[(u64)r * stride + first + o] = sum;
    }
}

// The host has so many warps share outputs that all processors of the card have work. A warp has two outputs and asks for several steps of their weights before it uses the first: of one
// row 128 bytes a lane, so that half of the warps a processor has room for are enough to keep its memory busy.
template <int FORM, int ROWS>
DEVICE void dense_few(const u8 *x, u32 rows, const u8 *w, u64 outs, u32 cols, u32 split, float *out, u32 stride) {
    constexpr int OUTS = 2, OF_ROWS = FORM == FORM_BF16 ? FORM_BF16 : FORM_F32;
    constexpr int DEEP = (ROWS == 1 ? 4 : 2) / Eight<FORM>::PIECES;
    __shared__ float parts[8 * ROWS * OUTS];
    Share share(split);
    u64 first = share.output() * OUTS;
    u32 apart = share.lanes() * 8;
    float acc[ROWS][OUTS] = {};
    u64 bytes = (u64)cols / 8 * Eight<FORM>::BYTES, row_bytes = (u64)cols / 8 * Eight<OF_ROWS>::BYTES;
    if (first < outs) {
        // The last output may have no partner: then it is read twice, and written once.
        const u8 *row[OUTS] = {w + first * bytes, w + min(first + 1, outs - 1) * bytes};
        for (u32 col = share.lane() * 8; col < cols; col += DEEP * apart) {
            Eight<FORM> weights[DEEP][OUTS];
#pragma unroll
            for (int d = 0; d < DEEP; d++)
#pragma unroll
                for (int o = 0; o < OUTS; o++) weights[d][o].stream(row[o], col + d * apart, col + d * apart < cols);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= (int)rows) break;
                Eight<OF_ROWS> mine[DEEP];
#pragma unroll
                for (int d = 0; d < DEEP; d++) mine[d].read(x + r * row_bytes, col + d * apart, col + d * apart < cols);
#pragma unroll
                for (int d = 0; d < DEEP; d++)
#pragma unroll
                    for (int o = 0; o < OUTS; o++)
#pragma unroll
                        for (int i = 0; i < 8; i++)
                            acc[r][o] = fmaf(mine[d].number(i), weights[d][o].number(i), acc[r][o]);
            }
        }
    }
    finish<ROWS, OUTS>(acc, parts, share, first, outs, rows, out, stride);
}

#define DENSE_FEW(name, FORM, ROWS)                                                                                    \
    KERNEL(256) name(const u8 *x, u32 rows, const u8 *w, u64 outs, u32 cols, u32 split, float *out, u32 stride) {      \
        dense_few<FORM, ROWS>(x, rows, w, outs, cols, split, out, stride);                                             \
    }                                                                                                                  \
    EXPORT(name)
DENSE_FEW(few_f32_1, FORM_F32, 1)
DENSE_FEW(few_f32_4, FORM_F32, 4)
DENSE_FEW(few_f32_8, FORM_F32, 8)
DENSE_FEW(few_f16_1, FORM_F16, 1)
DENSE_FEW(few_f16_4, FORM_F16, 4)
DENSE_FEW(few_f16_8, FORM_F16, 8)
DENSE_FEW(few_bf16_1, FORM_BF16, 1)
DENSE_FEW(few_bf16_4, FORM_BF16, 4)
DENSE_FEW(few_bf16_8, FORM_BF16, 8)

// Rounded rows: bytes, a scale for each block, and the sum of each 16.
struct Rounded {
    const i8 *bytes;
    const float *scales;
    const short *sums;
    u32 cols;
};
DEVICE uint4 sixteen(const i8 *at) { return *(const uint4 *)at; }

// What a lane multiplies at a time: `LANES` lanes share a block. `read` takes the weights, `times` multiplies by a row.
template <int FORM> struct Piece;

template <> struct Piece<FORM_Q4_0> {
    static constexpr int LANES = 1;
    uint4 quants;
    float scale;
    DEVICE void read(const Matrix &w, u64 block, u32) {
        quants = *(const uint4 *)block_at<FORM_Q4_0>(w, block);
        scale = scale_at<FORM_Q4_0>(w, block);
    }
    DEVICE float times(const Rounded &x, u64 row, u32 block, u32) const {
        u64 at = row * x.cols + block * 32;
        uint4 low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 16);
        int sum = -8 * ((int)x.sums[at / 16] + (int)x.sums[at / 16 + 1]);
        for (int i = 0; i < 4; i++) {
            sum = dot4((int)(word(quants, i) & 0x0f0f0f0f), (int)word(low, i), sum);
            sum = dot4((int)(word(quants, i) >> 4 & 0x0f0f0f0f), (int)word(high, i), sum);
        }
        return (float)sum * (scale * x.scales[at / 32]);
    }
};

template <> struct Piece<FORM_Q8_0> {
    static constexpr int LANES = 2;
    uint4 quants;
    float scale;
    DEVICE void read(const Matrix &w, u64 block, u32 part) {
        quants = *(const uint4 *)(block_at<FORM_Q8_0>(w, block) + part * 16);
        scale = scale_at<FORM_Q8_0>(w, block);
    }
    DEVICE float times(const Rounded &x, u64 row, u32 block, u32 part) const {
        u64 at = row * x.cols + block * 32;
        uint4 numbers = sixteen(x.bytes + at + part * 16);
        int sum = 0;
        for (int i = 0; i < 4; i++) sum = dot4((int)word(quants, i), (int)word(numbers, i), sum);
        return (float)sum * (scale * x.scales[at / 32]);
    }
};

// Of each 64 numbers 32 bytes hold numbers 32 apart: a lane has 16 of those bytes, 16 numbers each of two parts.
template <> struct Piece<FORM_Q4_K> {
    static constexpr int LANES = 8;
    uint4 quants;
    float scale, step;
    int scales[2], least[2];
    DEVICE void read(const Matrix &w, u64 block, u32 part) {
        const u8 *at = block_at<FORM_Q4_K>(w, block);
        uint4 header = *(const uint4 *)at;
        u8 bytes[12];
        for (int i = 0; i < 12; i++) bytes[i] = (u8)(word(header, 1 + i / 4) >> (i % 4 * 8));
        scale = f16_to_f32((u16)header.x);
        step = f16_to_f32((u16)(header.x >> 16));
        six_bits(bytes, part / 2 * 2, scales[0], least[0]);
        six_bits(bytes, part / 2 * 2 + 1, scales[1], least[1]);
        quants = *(const uint4 *)(at + 16 + part * 16);
    }
    DEVICE float times(const Rounded &x, u64 row, u32 block, u32 part) const {
        u64 at = row * x.cols + block * 256 + part / 2 * 64 + part % 2 * 16;
        uint4 low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 32);
        int a = 0, b = 0;
        for (int i = 0; i < 4; i++) {
            a = dot4((int)(word(quants, i) & 0x0f0f0f0f), (int)word(low, i), a);
            b = dot4((int)(word(quants, i) >> 4 & 0x0f0f0f0f), (int)word(high, i), b);
        }
        int below = least[0] * (int)x.sums[at / 16] + least[1] * (int)x.sums[at / 16 + 2];
        float rounded = x.scales[(row * x.cols + block * 256) / 256];
        return fmaf((float)(a * scales[0] + b * scales[1]), scale * rounded, -((float)below * (step * rounded)));
    }
};

// Of each 128 numbers 64 bytes hold low halves of numbers 64 apart, 32 bytes two bits each of numbers 32 apart: a lane has
// eight numbers of each of four parts.
template <> struct Piece<FORM_Q6_K> {
    static constexpr int LANES = 8;
    uint2 low, low_more, high;
    float scale;
    int scales[4];
    DEVICE void read(const Matrix &w, u64 block, u32 part) {
        const u8 *at = block_at<FORM_Q6_K>(w, block);
        u32 half = part / 4, from = part % 4 * 8;
        low = *(const uint2 *)(at + half * 64 + from);
        low_more = *(const uint2 *)(at + half * 64 + 32 + from);
        high = *(const uint2 *)(at + 128 + half * 32 + from);
        for (int i = 0; i < 4; i++) scales[i] = (int)(i8)at[192 + half * 8 + i * 2 + from / 16];
        scale = scale_at<FORM_Q6_K>(w, block);
    }
    DEVICE float times(const Rounded &x, u64 row, u32 block, u32 part) const {
        u64 at = row * x.cols + block * 256 + part / 4 * 128 + part % 4 * 8;
        int all = 0;
        for (int i = 0; i < 4; i++) {
            uint2 four = i % 2 == 0 ? low : low_more, numbers = *(const uint2 *)(x.bytes + at + i * 32);
            int shift = i / 2 * 4, two = i * 2;
            int a = (int)(((four.x >> shift) & 0x0f0f0f0f) | (((high.x >> two) & 0x03030303) << 4));
            int b = (int)(((four.y >> shift) & 0x0f0f0f0f) | (((high.y >> two) & 0x03030303) << 4));
            int sum = dot4(b, (int)numbers.y, dot4(a, (int)numbers.x, 0));
            int ones = dot4(0x01010101, (int)numbers.y, dot4(0x01010101, (int)numbers.x, 0));
            all += scales[i] * (sum - 32 * ones);
        }
        return (float)all * (scale * x.scales[(row * x.cols + block * 256) / 256]);
    }
};

template <int FORM, int ROWS>
DEVICE void quantised_few(const Rounded &x, u32 rows, const Matrix &w, u32 split, float *out, u32 stride) {
    __shared__ float parts[8 * ROWS];
    constexpr u32 LANES = Piece<FORM>::LANES;
    Share share(split);
    u64 output = share.output();
    u32 blocks = w.cols / Blocks<FORM>::numbers;
    float acc[ROWS][1] = {};
    if (output < w.rows) {
        for (u32 piece = share.lane(); piece < blocks * LANES; piece += share.lanes()) {
            Piece<FORM> mine;
            mine.read(w, output * blocks + piece / LANES, piece % LANES);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= (int)rows) break;
                acc[r][0] += mine.times(x, r, piece / LANES, piece % LANES);
            }
        }
    }
    finish<ROWS, 1>(acc, parts, share, output, w.rows, rows, out, stride);
}

#define QUANTISED_FEW(name, FORM, ROWS)                                                                                \
    KERNEL(256) name(const i8 *bytes, const float *scales, const short *sums, u32 rows, const u8 *w, u64 outs,         \
                     u32 cols, u32 split, float *out, u32 stride) {                                                    \
        quantised_few<FORM, ROWS>(Rounded{bytes, scales, sums, cols}, rows, Matrix{w, outs, cols}, split, out, stride);\
    }                                                                                                                  \
    EXPORT(name)
QUANTISED_FEW(few_q4_0_1, FORM_Q4_0, 1)
QUANTISED_FEW(few_q4_0_8, FORM_Q4_0, 8)
QUANTISED_FEW(few_q8_0_1, FORM_Q8_0, 1)
QUANTISED_FEW(few_q8_0_8, FORM_Q8_0, 8)
QUANTISED_FEW(few_q4_k_1, FORM_Q4_K, 1)
QUANTISED_FEW(few_q4_k_8, FORM_Q4_K, 8)
QUANTISED_FEW(few_q6_k_1, FORM_Q6_K, 1)
QUANTISED_FEW(few_q6_k_8, FORM_Q6_K, 8)
