// Products of few rows with dense weights: all are limited by reading the weights once. As on the processor rows stay in single
// precision for weights of single and half precision, and are rounded to bfloat16 for weights that are. Quantised ones: `mmq.cu`.
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
