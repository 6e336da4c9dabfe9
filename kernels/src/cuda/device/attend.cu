// Attention of single rows over pages: decoding, and rows of prompts where tensor cores cannot be used. A row's tokens are
// cut over several blocks, and what those have is merged.
#include "pages.cuh"

// Query heads that share a block, and tokens of a tile.
constexpr int HEADS = 8, TILE = 64, THREADS = 128, MOST_DIM = 256;

DEVICE void eight_channels(u32 kind, const u8 *row, u32 channel, float (&out)[8]) {
    if (kind == F32) {
        const float *at = (const float *)row + channel;
        for (int i = 0; i < 8; i++) out[i] = at[i];
    } else {
        uint4 all = *(const uint4 *)(row + channel * 2);
        u32 words[4] = {all.x, all.y, all.z, all.w};
        for (int i = 0; i < 8; i++) out[i] = of_two(kind, words[i / 2], i % 2);
    }
}

// One block for a row, a head of keys and values with up to eight of its query heads, and a part of the tokens:
// grid (parts, heads of keys and values x eights of their queries, number of `rows`). With one part the result is written to `out`;
// with more, sums of values go to `sums` [row][head][part][channel], the largest score and the sum of weights to `tops`.
// Limited by reading keys and values once; with few tokens by the launch.
KERNEL(THREADS) attend_rows(const float *q, u32 stride, u32 group, const u32 *rows, const u32 *positions,
                        const u32 *sequences, float scale, float cap, u32 window, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 kv_heads, u32 dim,
                        u32 kind, float *sums, float *tops, void *out, u32 out_kind) {
    __shared__ float queries[HEADS * MOST_DIM];
    __shared__ float scores[HEADS][TILE];
    __shared__ float top[HEADS], total[HEADS], shrink[HEADS];
    Pool pool = {memory, table, most, tokens, kv_heads, dim, kind};
    u32 parts = gridDim.x, part = blockIdx.x, row = rows[blockIdx.z];
    u32 passes = (group + HEADS - 1) / HEADS, kv_head = blockIdx.y / passes, first_head = blockIdx.y % passes * HEADS;
    u32 heads = min(group - first_head, (u32)HEADS);
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    u32 position = positions[row], sequence = sequences[row];
    u32 begin = first_seen(position, window), end = position + 1;
    // Parts are whole tiles, so that nothing is read twice.
    u32 each = ((end - begin + parts - 1) / parts + TILE - 1) / TILE * TILE;
    u32 from = min(begin + part * each, end), to = min(from + each, end);

    const float *mine = q + (u64)row * stride + (u64)(kv_head * group + first_head) * dim;
    for (u32 i = thread; i < heads * dim; i += THREADS) queries[i] = mine[i];
    if (thread < HEADS) {
        top[thread] = -INFINITY;
        total[thread] = 0.f;
    }
    __syncthreads();

    // Lanes that share a token's keys, eight channels each.
    u32 lanes = 1;
    while (lanes * 8 < dim) lanes *= 2;
    u32 at_once = 32 / lanes, channel = lane % lanes * 8;
    // Two channels a thread for values, and as many tokens at once as there are threads for.
    u32 pairs = dim / 2, teams = THREADS / pairs, team = thread / pairs, pair = thread % pairs;
    float mixed[HEADS][2] = {};

    for (u32 tile = from; tile < to; tile += TILE) {
        u32 count = min(to - tile, (u32)TILE);
        for (u32 t = warp * at_once; t < TILE; t += THREADS / 32 * at_once) {
            u32 token = t + lane / lanes;
            bool real = token < count;
            float keys[8] = {};
            if (real && channel < dim) eight_channels(kind, place(pool, sequence, tile + token, 0, kv_head), channel, keys);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= (int)heads) break;
                float dot = 0.f;
                if (channel < dim)
                    for (int i = 0; i < 8; i++) dot = fmaf(queries[h * dim + channel + i], keys[i], dot);
                for (u32 by = lanes / 2; by > 0; by /= 2) dot += __shfl_xor_sync(ALL_LANES, dot, by);
                if (lane % lanes == 0) {
                    float score = dot * scale;
                    if (cap > 0.f) score = capped(score, cap);
                    scores[h][token] = real ? score : -INFINITY;
                }
            }
        }
        __syncthreads();
        for (u32 h = warp; h < heads; h += THREADS / 32) {
            float a = scores[h][lane], b = scores[h][lane + 32];
            float before = top[h], now = fmaxf(before, warp_max(fmaxf(a, b)));
            a = quick_exp(a - now);
            b = quick_exp(b - now);
            scores[h][lane] = a;
            scores[h][lane + 32] = b;
            float sum = warp_sum(a + b);
            if (lane == 0) {
                shrink[h] = quick_exp(before - now);
                total[h] = total[h] * shrink[h] + sum;
                top[h] = now;
            }
        }
        __syncthreads();
        if (team < teams) {
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= (int)heads) break;
                mixed[h][0] *= shrink[h];
                mixed[h][1] *= shrink[h];
            }
            for (u32 t = team; t < count; t += teams) {
                const u8 *at = place(pool, sequence, tile + t, 1, kv_head);
                float a, b;
                if (kind == F32) {
                    a = ((const float *)at)[pair * 2];
                    b = ((const float *)at)[pair * 2 + 1];
                } else {
                    u32 two = ((const u32 *)at)[pair];
                    a = of_two(kind, two, 0);
                    b = of_two(kind, two, 1);
                }
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    if (h >= (int)heads) break;
                    mixed[h][0] = fmaf(scores[h][t], a, mixed[h][0]);
                    mixed[h][1] = fmaf(scores[h][t], b, mixed[h][1]);
                }
            }
        }
        __syncthreads();
    }

    // Teams add what they have, one after the other, where the queries were.
    for (u32 turn = 0; turn < teams; turn++) {
        if (team == turn)
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= (int)heads) break;
                float *to_add = queries + h * dim + pair * 2;
                to_add[0] = (turn ? to_add[0] : 0.f) + mixed[h][0];
                to_add[1] = (turn ? to_add[1] : 0.f) + mixed[h][1];
            }
        __syncthreads();
    }
    u64 first = kv_head * group + first_head, head = (u64)blockIdx.z * kv_heads * group + first;
    for (u32 i = thread; i < heads * dim; i += THREADS) {
        u32 h = i / dim;
        if (parts == 1) store_row(out_kind, out, ((u64)row * kv_heads * group + first) * dim + i, queries[i] / total[h]);
        else sums[((head + h) * parts + part) * dim + i % dim] = queries[i];
    }
    if (parts > 1 && thread < heads) {
        tops[((head + thread) * parts + part) * 2] = top[thread];
        tops[((head + thread) * parts + part) * 2 + 1] = total[thread];
    }
}
EXPORT(attend_rows)

// Merges the parts of every row and head. Limited by a launch.
KERNEL(THREADS) attend_merge(const float *sums, const float *tops, const u32 *rows, u32 parts, u32 dim, void *out,
                         u32 kind) {
    u64 head = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    const float *mine = tops + head * parts * 2;
    float top = -INFINITY, total = 0.f;
    for (u32 part = 0; part < parts; part++) top = fmaxf(top, mine[part * 2]);
    for (u32 part = 0; part < parts; part++) total += mine[part * 2 + 1] * quick_exp(mine[part * 2] - top);
    for (u32 i = threadIdx.x; i < dim; i += THREADS) {
        float sum = 0.f;
        for (u32 part = 0; part < parts; part++)
            sum = fmaf(sums[(head * parts + part) * dim + i], quick_exp(mine[part * 2] - top), sum);
        store_row(kind, out, ((u64)rows[blockIdx.y] * gridDim.x + blockIdx.x) * dim + i, sum / total);
    }
}
EXPORT(attend_merge)
