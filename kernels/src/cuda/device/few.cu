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
    // The last output may have no partner: then it is read twice, and written once.
    const u8 *row[OUTS] = {w + min(first, outs - 1) * bytes, w + min(first + 1, outs - 1) * bytes};
    u32 col = share.lane() * 8;
    Eight<FORM> weights[DEEP][OUTS];
    auto ask = [&]() {
#pragma unroll
        for (int d = 0; d < DEEP; d++)
#pragma unroll
            for (int o = 0; o < OUTS; o++) weights[d][o].stream(row[o], col + d * apart, col + d * apart < cols);
    };
    // The first weights are on their way while kernels before this one are not done.
    let_next_begin();
    if (first < outs) ask();
    wait_for_others();
    if (first < outs) {
        while (col < cols) {
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
            col += DEEP * apart;
            if (col < cols) ask();
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

// Rounded rows as `rounded.cuh` has them.
struct Rounded {
    const i8 *bytes;
    const float *scales;
    const short *sums;
    u32 cols;
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
    DEVICE void read(const Matrix &w, u64 block, u32, bool real) {
        quants = stream_16(block_at<FORM_Q4_0>(w, block), real);
        stored = real ? scale_bits<FORM_Q4_0>(w, block) : 0;
    }
    DEVICE void ready(u32) { scale = f16_to_f32(stored); }
    struct Input {
        uint4 low, high;
        int below;
        float scale;
        DEVICE Input(const Rounded &x, u64 row, u32 block, u32) {
            u64 at = row * x.cols + block * 32;
            low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 16);
            below = -8 * ((int)x.sums[at / 16] + (int)x.sums[at / 16 + 1]);
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

template <> struct Piece<FORM_Q8_0> {
    static constexpr int LANES = 2;
    uint4 quants;
    u16 stored;
    float scale;
    DEVICE void read(const Matrix &w, u64 block, u32 part, bool real) {
        quants = stream_16(block_at<FORM_Q8_0>(w, block) + part * 16, real);
        stored = real ? scale_bits<FORM_Q8_0>(w, block) : 0;
    }
    DEVICE void ready(u32) { scale = f16_to_f32(stored); }
    struct Input {
        uint4 numbers;
        float scale;
        DEVICE Input(const Rounded &x, u64 row, u32 block, u32 part) {
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
    DEVICE void read(const Matrix &w, u64 block, u32 part, bool real) {
        const u8 *at = block_at<FORM_Q4_K>(w, block);
        header = real ? *(const uint4 *)at : none();
        quants = stream_16(at + 16 + part * 16, real);
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
        DEVICE Input(const Rounded &x, u64 row, u32 block, u32 part) {
            u64 at = row * x.cols + block * 256 + part / 2 * 64 + part % 2 * 16;
            low = sixteen(x.bytes + at), high = sixteen(x.bytes + at + 32);
            sums[0] = x.sums[at / 16], sums[1] = x.sums[at / 16 + 2];
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
    DEVICE void read(const Matrix &w, u64 block, u32 part, bool real) {
        const u8 *at = block_at<FORM_Q6_K>(w, block);
        u32 half = part / 4, from = part % 4 * 8;
        uint2 zeros = {0, 0};
        low = real ? *(const uint2 *)(at + half * 64 + from) : zeros;
        low_more = real ? *(const uint2 *)(at + half * 64 + 32 + from) : zeros;
        high = real ? *(const uint2 *)(at + 128 + half * 32 + from) : zeros;
        for (int i = 0; i < 4; i++) scales[i] = real ? (i8)at[192 + half * 8 + i * 2 + from / 16] : (i8)0;
        stored = real ? scale_bits<FORM_Q6_K>(w, block) : 0;
    }
    DEVICE void ready(u32) { scale = f16_to_f32(stored); }
    struct Input {
        uint2 numbers[4];
        int ones[4];
        float scale;
        DEVICE Input(const Rounded &x, u64 row, u32 block, u32 part) {
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

// As for dense weights a warp has two outputs, whose rows' pieces are read once for both, and asks for several pieces of each
// before it uses the first.
template <int FORM, int ROWS>
DEVICE void quantised_few(const Rounded &x, u32 rows, const Matrix &w, u32 split, float *out, u32 stride) {
    // Registers for two blocks a processor are left: Q6_K's pieces have many.
    constexpr int OUTS = 2, DEEP = ROWS == 1 && FORM != FORM_Q6_K ? 4 : 2;
    constexpr u32 LANES = Piece<FORM>::LANES;
    __shared__ float parts[8 * ROWS * OUTS];
    Share share(split);
    u64 first = share.output() * OUTS;
    u32 blocks = w.cols / Blocks<FORM>::numbers, pieces = blocks * LANES, apart = share.lanes();
    float acc[ROWS][OUTS] = {};
    // The last output may have no partner: then it is read twice, and written once.
    u64 row[OUTS] = {min(first, w.rows - 1) * blocks, min(first + 1, w.rows - 1) * blocks};
    u32 piece = share.lane();
    Piece<FORM> mine[DEEP][OUTS];
    auto ask = [&]() {
#pragma unroll
        for (int d = 0; d < DEEP; d++)
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                u32 which = piece + d * apart;
                mine[d][o].read(w, row[o] + which / LANES, which % LANES, which < pieces);
            }
    };
    // The first weights are on their way while kernels before this one are not done.
    let_next_begin();
    if (first < w.rows) ask();
    wait_for_others();
    if (first < w.rows) {
        while (piece < pieces) {
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                u32 which = piece + d * apart;
                if (which >= pieces) break;
#pragma unroll
                for (int o = 0; o < OUTS; o++) mine[d][o].ready(which % LANES);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (r >= (int)rows) break;
                    typename Piece<FORM>::Input input(x, r, which / LANES, which % LANES);
#pragma unroll
                    for (int o = 0; o < OUTS; o++) acc[r][o] += mine[d][o].times(input);
                }
            }
            piece += DEEP * apart;
            if (piece < pieces) ask();
        }
    }
    finish<ROWS, OUTS>(acc, parts, share, first, w.rows, rows, out, stride);
}

#define QUANTISED_FEW(name, FORM, ROWS)                                                                                \
    KERNEL(256) name(const i8 *bytes, const float *scales, const short *sums, u32 rows, const u8 *w, u64 outs,         \
                     u32 cols, u32 split, float *out, u32 stride) {                                                    \
        quantised_few<FORM, ROWS>(Rounded{bytes, scales, sums, cols}, rows, Matrix{w, outs, cols}, split, out, stride);\
    }                                                                                                                  \
    EXPORT(name)
QUANTISED_FEW(few_q4_0_1, FORM_Q4_0, 1)
QUANTISED_FEW(few_q4_0_4, FORM_Q4_0, 4)
QUANTISED_FEW(few_q4_0_8, FORM_Q4_0, 8)
QUANTISED_FEW(few_q8_0_1, FORM_Q8_0, 1)
QUANTISED_FEW(few_q8_0_4, FORM_Q8_0, 4)
QUANTISED_FEW(few_q8_0_8, FORM_Q8_0, 8)
QUANTISED_FEW(few_q4_k_1, FORM_Q4_K, 1)
QUANTISED_FEW(few_q4_k_4, FORM_Q4_K, 4)
QUANTISED_FEW(few_q4_k_8, FORM_Q4_K, 8)
QUANTISED_FEW(few_q6_k_1, FORM_Q6_K, 1)
QUANTISED_FEW(few_q6_k_4, FORM_Q6_K, 4)
QUANTISED_FEW(few_q6_k_8, FORM_Q6_K, 8)
