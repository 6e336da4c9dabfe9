// Attention of many rows of a prompt on tensor cores, over pages of 16-bit numbers: scores never leave the registers
// (Dao et al., FlashAttention-2). The query heads that share keys and values lie in one tile with their rows.
#include "pages.cuh"

constexpr int TILE = 64;

// Where a tile's rows are: sequence, first row in the batch, its position, how many tokens.
struct Rows {
    u32 sequence, row, position, tokens;
};

// Four warps, 16 of a tile's 64 rows and heads each. Limited by tensor cores; half of the products of the last key tiles
// are of tokens that rows do not see.
template <int DIM, bool BRAIN>
DEVICE void attend_chunk(const float *q, u32 stride, u32 group, const Rows *tiles, float scale, float cap, u32 window,
                         const float *sinks, const Pool &pool, void *out, u32 out_kind) {
    constexpr int ROW = DIM + 8;
    DYNAMIC_SHARED(memory);
    __shared__ const u8 *places[2 * TILE];
    u16 *qs = (u16 *)memory, *ks = qs + TILE * ROW, *vs = ks + TILE * ROW;
    Rows rows = tiles[blockIdx.x];
    u32 kv_head = blockIdx.y, dim = pool.dim, used = rows.tokens * group;
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    for (u32 i = thread; i < TILE * DIM / 2; i += 128) {
        u32 r = i / (DIM / 2), c = i % (DIM / 2) * 2;
        float a = 0.f, b = 0.f;
        if (r < used && c < dim) {
            const float *at = q + (u64)(rows.row + r / group) * stride + (u64)(kv_head * group + r % group) * dim + c;
            a = at[0];
            b = at[1];
        }
        *(u32 *)(qs + r * ROW + c) = two_as(BRAIN, a, b);
    }

    u32 end = rows.position + rows.tokens, begin = first_seen(rows.position, window) / TILE * TILE;
    // Where a tile's keys lie, and its values: found once, a thread each, because it takes two divisions.
    auto find = [&](u32 tile) {
        places[thread] = place(pool, rows.sequence, min(tile + thread % TILE, end - 1), thread / TILE, kv_head);
    };
    auto fetch = [&](u16 *to, u32 side, u32 tile) {
#pragma unroll 4
        for (u32 i = thread; i < TILE * DIM / 8; i += 128) {
            u32 r = i / (DIM / 8), c = i % (DIM / 8) * 8;
            bool real = tile + r < end && c < dim;
            copy_16_async(to + r * ROW + c, places[side * TILE + r] + (real ? c * 2 : 0), real);
        }
    };
    find(begin);
    __syncthreads();
    fetch(ks, 0, begin);
    copies_commit();
    fetch(vs, 1, begin);
    copies_commit();

    // The last token that each of a thread's two rows sees, and how many before it; where there is no row, none.
    int last[2];
    u32 wide = window ? window : 0x7fffffffu;
    for (int half = 0; half < 2; half++) {
        u32 r = warp * 16 + lane / 4 + half * 8;
        last[half] = r < used ? (int)(rows.position + r / group) : -1;
    }
    float mixed[DIM / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
    // A sink is as if a row had seen it before the first tile: of the four lanes that have a row, one counts it.
    for (int half = 0; half < 2; half++) {
        u32 r = warp * 16 + lane / 4 + half * 8;
        if (!sinks || r >= used) continue;
        top[half] = sinks[kv_head * group + r % group];
        total[half] = lane % 4 == 0 ? 1.f : 0.f;
    }
    for (u32 tile = begin; tile < end; tile += TILE) {
        copies_wait<1>();
        __syncthreads();
        if (tile + TILE < end) find(tile + TILE);
        float s[TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < DIM; k += 16) {
            u32 a[4];
            load_matrices(a, qs + (warp * 16 + lane % 16) * ROW + k + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < TILE / 8; n += 2) {
                u32 b[4];
                load_matrices(b, ks + (n * 8 + lane % 8 + lane / 16 * 8) * ROW + k + lane / 8 % 2 * 8);
                multiply_16x8x16<BRAIN>(s[n], a, b[0], b[1]);
                multiply_16x8x16<BRAIN>(s[n + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();
        if (tile + TILE < end) fetch(ks, 0, tile + TILE);
        copies_commit();

        float now[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = (int)(tile + n * 8 + lane % 4 * 2) + i % 2;
                float score = s[n][i] * scale;
                if (cap > 0.f) score = capped(score, cap);
                // Tokens behind the last are an endless number before it.
                bool seen = (u32)(last[i / 2] - key) < wide;
                s[n][i] = seen ? score : -INFINITY;
                now[i / 2] = fmaxf(now[i / 2], s[n][i]);
            }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            now[half] = fmaxf(now[half], __shfl_xor_sync(ALL_LANES, now[half], 1));
            now[half] = fmaxf(now[half], __shfl_xor_sync(ALL_LANES, now[half], 2));
            // A row that has seen nothing yet keeps nothing.
            float base = now[half] == -INFINITY ? 0.f : now[half];
            float shrink = quick_exp(top[half] - base);
            top[half] = now[half];
            total[half] *= shrink;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                mixed[n][2 * half] *= shrink;
                mixed[n][2 * half + 1] *= shrink;
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[n][i] = quick_exp(s[n][i] - base);
                    total[half] += s[n][i];
                }
        }

        copies_wait<1>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            u32 a[4] = {two_as(BRAIN, s[2 * k][0], s[2 * k][1]), two_as(BRAIN, s[2 * k][2], s[2 * k][3]),
                        two_as(BRAIN, s[2 * k + 1][0], s[2 * k + 1][1]), two_as(BRAIN, s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 8; n += 2) {
                u32 b[4];
                load_matrices_turned(b, vs + (k * 16 + lane % 16) * ROW + n * 8 + lane / 16 * 8);
                multiply_16x8x16<BRAIN>(mixed[n], a, b[0], b[1]);
                multiply_16x8x16<BRAIN>(mixed[n + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();
        if (tile + TILE < end) fetch(vs, 1, tile + TILE);
        copies_commit();
    }
    copies_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(ALL_LANES, total[half], 1);
        total[half] += __shfl_xor_sync(ALL_LANES, total[half], 2);
        u32 r = warp * 16 + lane / 4 + half * 8;
        if (r >= used) continue;
        u64 at = ((u64)(rows.row + r / group) * pool.heads * group + kv_head * group + r % group) * dim;
        // Unrolled, because numbers that are chosen by a counter would all lie in memory.
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 c = n * 8 + lane % 4 * 2 + i;
                if (c < dim) store_row(out_kind, out, at + c, mixed[n][2 * half + i] / total[half]);
            }
    }
}

// Blocks that a processor is to have room for, by its registers.
#define CHUNK_BLOCKS(DIM) (DIM == 256 ? 1 : DIM == 128 ? 3 : 4)
#define CHUNK(name, DIM, BRAIN, KIND)                                                                                  \
    KERNEL(128, CHUNK_BLOCKS(DIM)) name(const float *q, u32 stride, u32 group, const Rows *tiles, float scale, float cap, u32 window,     \
                     const float *sinks, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 kv_heads, u32 dim, \
                     void *out, u32 out_kind) {                                                                        \
        Pool pool = {memory, table, most, tokens, kv_heads, dim, KIND};                                                \
        attend_chunk<DIM, BRAIN>(q, stride, group, tiles, scale, cap, window, sinks, pool, out, out_kind);             \
    }                                                                                                                  \
    EXPORT(name)
CHUNK(chunk_64_f16, 64, false, F16)
CHUNK(chunk_128_f16, 128, false, F16)
CHUNK(chunk_256_f16, 256, false, F16)
CHUNK(chunk_64_bf16, 64, true, BF16)
CHUNK(chunk_128_bf16, 128, true, BF16)
CHUNK(chunk_256_bf16, 256, true, BF16)
