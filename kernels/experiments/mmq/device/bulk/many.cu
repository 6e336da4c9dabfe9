// Products of many rows on tensor cores: rows in 16 bits, weights dense or widened block by block on their way into shared
// memory. Sums are in single precision, in one order whatever the rows beside.
#include "many.cuh"

// Numbers of a row in shared memory: 32, and 8 that keep rows that are read together in banks of their own.
constexpr int DEPTH = 32, ROW = DEPTH + 8;

// out[r][o] = x[r] · w[o] for a tile of ROWS x OUTS, eight warps, each with a part of it. Columns are cut over
// gridDim.z; with more than one, what each has goes to `out` as [part][row][output] and `sum_parts` adds it.
// Limited by tensor cores for hundreds of rows: the double buffer through registers keeps them busy about half of the
// time, cuBLASLt's kernels are faster where they are found. With few rows limited by reading the weights.
template <int FORM, int ROWS, int OUTS, int WARPS_ROWS, int WARPS_OUTS>
DEVICE void product(const u16 *x, u32 rows, const Matrix &w, float *out, u32 stride) {
    constexpr bool BRAIN = FORM == FORM_BF16;
    constexpr int MINE_ROWS = ROWS / WARPS_ROWS / 16, MINE_OUTS = OUTS / WARPS_OUTS / 8;
    constexpr int N = OUTS / 8, M = ROWS / 8;
    static_assert(WARPS_ROWS * WARPS_OUTS == 8 && MINE_OUTS % 2 == 0, "eight warps, outputs in pairs of eight");
    __shared__ __align__(16) u16 xs[2][ROWS * ROW];
    __shared__ __align__(16) u16 ws[2][OUTS * ROW];
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    u64 first_row = (u64)blockIdx.x * ROWS, first_out = (u64)blockIdx.y * OUTS;
    u32 steps = (w.cols + DEPTH - 1) / DEPTH, each = (steps + gridDim.z - 1) / gridDim.z;
    u32 step = min(blockIdx.z * each, steps), end = min(step + each, steps);

    // Which numbers a thread brings.
    u32 x_row = thread * M / DEPTH, x_col = thread * M % DEPTH, w_row = thread * N / DEPTH, w_col = thread * N % DEPTH;
    u32 x_words[M / 2];
    Fetched<FORM, N> fetched;
    auto fetch = [&](u32 step) {
        u32 col = step * DEPTH + x_col;
        const u16 *at = x + (first_row + x_row) * w.cols + col;
        // Columns are a multiple of eight: pieces of four or eight lie in the row whole, or not at all.
        for (int i = 0; i < M / 2; i += M >= 8 ? 4 : 2) {
            bool real = first_row + x_row < rows && col + i * 2 < w.cols;
            if constexpr (M >= 8) {
                uint4 eight = real ? *(const uint4 *)(at + i * 2) : uint4{0, 0, 0, 0};
                x_words[i] = eight.x, x_words[i + 1] = eight.y, x_words[i + 2] = eight.z, x_words[i + 3] = eight.w;
            } else {
                uint2 four = real ? *(const uint2 *)(at + i * 2) : uint2{0, 0};
                x_words[i] = four.x, x_words[i + 1] = four.y;
            }
        }
        fetched.read(w, first_out + w_row, step * DEPTH + w_col);
    };
    auto put = [&](int buffer) {
        u32 *to = (u32 *)(xs[buffer] + x_row * ROW + x_col);
        for (int i = 0; i < M / 2; i++) to[i] = x_words[i];
        fetched.put(ws[buffer] + w_row * ROW + w_col);
    };

    float acc[MINE_ROWS][MINE_OUTS][4] = {};
    u32 row0 = warp / WARPS_OUTS * (ROWS / WARPS_ROWS), out0 = warp % WARPS_OUTS * (OUTS / WARPS_OUTS);
    if (step < end) {
        fetch(step);
        put(0);
    }
    __syncthreads();
    for (int buffer = 0; step < end; step++, buffer ^= 1) {
        if (step + 1 < end) fetch(step + 1);
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            u32 a[MINE_ROWS][4];
            for (int m = 0; m < MINE_ROWS; m++)
                load_matrices(a[m], xs[buffer] + (row0 + m * 16 + lane % 16) * ROW + k + lane / 16 * 8);
            for (int n = 0; n < MINE_OUTS; n += 2) {
                u32 b[4];
                load_matrices(b, ws[buffer] + (out0 + n * 8 + lane % 8 + lane / 16 * 8) * ROW + k + lane / 8 % 2 * 8);
                for (int m = 0; m < MINE_ROWS; m++) {
                    multiply_16x8x16<BRAIN>(acc[m][n], a[m], b[0], b[1]);
                    multiply_16x8x16<BRAIN>(acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
        if (step + 1 < end) put(buffer ^ 1);
        __syncthreads();
    }

    float *to = gridDim.z == 1 ? out : out + (u64)blockIdx.z * rows * w.rows;
    u64 apart = gridDim.z == 1 ? stride : w.rows;
    for (int m = 0; m < MINE_ROWS; m++)
        for (int n = 0; n < MINE_OUTS; n++)
            for (int i = 0; i < 4; i++) {
                u64 row = first_row + row0 + m * 16 + lane / 4 + i / 2 * 8;
                u64 output = first_out + out0 + n * 8 + lane % 4 * 2 + i % 2;
                if (row < rows && output < w.rows) to[row * apart + output] = acc[m][n][i];
            }
}

#define PRODUCT(name, FORM)                                                                                            \
    KERNEL(256) many_##name(const u16 *x, u32 rows, const u8 *w, u64 outs, u32 cols, float *out, u32 stride) {         \
        product<FORM, 128, 128, 2, 4>(x, rows, Matrix{w, outs, cols}, out, stride);                                    \
    }                                                                                                                  \
    EXPORT(many_##name)                                                                                                \
    KERNEL(256) some_##name(const u16 *x, u32 rows, const u8 *w, u64 outs, u32 cols, float *out, u32 stride) {         \
        product<FORM, 32, 64, 2, 4>(x, rows, Matrix{w, outs, cols}, out, stride);                                      \
    }                                                                                                                  \
    EXPORT(some_##name)
PRODUCT(f16, FORM_F16)
PRODUCT(bf16, FORM_BF16)
PRODUCT(q4_0, FORM_Q4_0)
PRODUCT(q8_0, FORM_Q8_0)
PRODUCT(q4_k, FORM_Q4_K)
PRODUCT(q6_k, FORM_Q6_K)

// Outputs from `first` on in half precision, the very numbers that products of many rows multiply by: for whoever multiplies dense
// weights faster. One block an output, eight numbers a thread; limited by writing them.
#define WIDEN(name, FORM)                                                                                              \
    KERNEL(256) widen_##name(const u8 *data, u64 outs, u32 cols, u64 first, u16 *out) {                                \
        Matrix w = {data, outs, cols};                                                                                 \
        for (u32 col = threadIdx.x * 8; col < cols; col += 256 * 8) {                                                  \
            Fetched<FORM, 8> eight;                                                                                    \
            eight.read(w, first + blockIdx.x, col);                                                                    \
            eight.put(out + (u64)blockIdx.x * cols + col);                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    EXPORT(widen_##name)
WIDEN(q4_0, FORM_Q4_0)
WIDEN(q8_0, FORM_Q8_0)
WIDEN(q4_k, FORM_Q4_K)
WIDEN(q6_k, FORM_Q6_K)

// Adds the parts of columns, first to last.
KERNEL(256) sum_parts(const float *parts, u32 count, u32 rows, u32 outs, float *out, u32 stride) {
    u64 all = (u64)rows * outs;
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < all; i += (u64)gridDim.x * 256) {
        float sum = 0.f;
        for (u32 part = 0; part < count; part++) sum += parts[part * all + i];
        out[i / outs * stride + i % outs] = sum;
    }
}
EXPORT(sum_parts)

// The same for weights in single precision, without tensor cores: those would round them. Tiles of 64 x 64, 16 outputs a
// thread; limited by shared memory. Models for serving are not stored so.
KERNEL(256) many_f32(const float *x, u32 rows, const u8 *weights, u64 outs, u32 cols, float *out, u32 stride) {
    __shared__ float xs[16][65], ws[16][65];
    const float *w = (const float *)weights;
    u64 first_row = (u64)blockIdx.x * 64, first_out = (u64)blockIdx.y * 64;
    u32 thread = threadIdx.x, mine_row = thread / 16, mine_out = thread % 16;
    float acc[4][4] = {};
    for (u32 from = 0; from < cols; from += 16) {
        for (u32 i = thread; i < 64 * 16; i += 256) {
            u32 r = i / 16, k = i % 16;
            bool inside = from + k < cols;
            xs[k][r] = inside && first_row + r < rows ? x[(first_row + r) * cols + from + k] : 0.f;
            ws[k][r] = inside && first_out + r < outs ? w[(first_out + r) * cols + from + k] : 0.f;
        }
        __syncthreads();
        for (int k = 0; k < 16; k++)
            for (int r = 0; r < 4; r++)
                for (int o = 0; o < 4; o++) acc[r][o] = fmaf(xs[k][mine_row + r * 16], ws[k][mine_out + o * 16], acc[r][o]);
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        for (int o = 0; o < 4; o++) {
            u64 row = first_row + mine_row + r * 16, output = first_out + mine_out + o * 16;
            if (row < rows && output < outs) out[row * stride + output] = acc[r][o];
        }
}
EXPORT(many_f32)
