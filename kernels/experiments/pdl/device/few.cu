// Products of few rows with dense weights: all are limited by reading the weights once. As on the processor rows stay in single
// precision for weights of single and half precision, and are rounded to bfloat16 for weights that are. Quantised ones: `mmq.cu`.
#include "few.cuh"

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
    let_next_begin_late();
    finish<ROWS, OUTS>(acc, parts, share, first, outs, rows, out, stride);
}

#define DENSE_FEW(name, FORM, ROWS)                                                                                    \
    KERNEL(256) name(const u8 *x, u32 rows, const u8 *w, u64 outs, u32 cols, u32 split, float *out, u32 stride) {      \
        dense_few<FORM, ROWS>(x, rows, w, outs, cols, split, out, stride);                                             \
    }                                                                                                                  \
    EXPORT(name)
DENSE_FEW(few_bf16_1, FORM_BF16, 1)
