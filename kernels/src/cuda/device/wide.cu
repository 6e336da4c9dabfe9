// Attention of layers whose heads lie in several heads of a page, or have heads of none beside them (Gemma 4): up to 512 channels.
// A head's channels lie in consecutive heads of a page, as many tokens apart as a page has; of those that belong to it and are not
// needed all are zeros. Few layers are such: rows are attended one by one, those of prompts too.
#include "channels.cuh"
#include "pages.cuh"
#include "rope.cuh"

constexpr u32 WIDE = 512, HEADS = 8, TILE = 64, THREADS = 256;

// How a layer's heads lie in pages: `heads` of keys and values of `dim` channels, a page's heads `apart`.
struct Heads {
    u32 heads, dim, apart;
    DEVICE Heads(const Pool &pool, u32 heads, u32 dim) : heads(heads), dim(dim), apart(pool.heads / heads) {}
};

// Turns queries and keys, after each head's norm where there is one, norms values without weights, and stores keys and values. A warp
// for each row and head: `heads` of queries, then of keys, then of values, which with `has_values` 0 are the keys as they were.
// Limited by a launch for few rows, by memory for many.
KERNEL(32) append_wide(float *x, u32 stride, u32 heads, u32 kv_heads, u32 dim, u32 has_values, float value_eps, const u32 *positions,
                       const u32 *sequences, const float *frequencies, float amplitude, u32 half, u32 neighbours,
                       const float *query_norm, const float *key_norm, float eps, float beta, u32 every, u8 *memory, const u32 *table,
                       u32 most, u32 tokens, u32 page_heads, u32 page_dim, u32 kind) {
    after_others();
    u32 row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    Rope rope = {frequencies, amplitude, half, neighbours, query_norm, key_norm, eps, beta, every};
    Pool pool = {memory, table, most, tokens, page_heads, page_dim, kind};
    Heads own(pool, kv_heads, dim);
    bool is_query = head < heads, is_value = head >= heads + kv_heads;
    u32 of_side = is_query ? 0 : head - heads - (is_value ? kv_heads : 0);
    float *at = x + (u64)row * stride + (u64)(is_value && !has_values ? heads + of_side : head) * dim;
    const float *w = is_value ? nullptr : is_query ? query_norm : key_norm;
    u32 position = positions[row], sequence = sequences[row];
    float scale = 1.f, grown = rope.grown(is_query, position);
    if (w || (is_value && value_eps > 0.f)) {
        float squares = 0.f;
        for (u32 c = lane; c < dim; c += 32) squares = fmaf(at[c], at[c], squares);
        scale = 1.f / sqrtf(warp_sum(squares) / (float)dim + (is_value ? value_eps : eps));
    }
    auto number = [&](u32 c) { return (w ? at[c] * scale * w[c] : at[c] * scale) * grown; };
    auto put = [&](u32 c, float y) {
        if (is_query) at[c] = y;
        else store_as(kind, place(pool, sequence, position, is_value, of_side * own.apart + c / page_dim), c % page_dim, y);
    };
    u32 turning = is_value ? 0 : half;
    for (u32 i = lane; i < turning; i += 32) {
        u32 first = rope.first(i), second = rope.second(i);
        float a = number(first), b = number(second), angle = (float)position * frequencies[i];
        float c = cosf(angle) * amplitude, s = sinf(angle) * amplitude;
        put(first, a * c - b * s);
        put(second, b * c + a * s);
    }
    for (u32 c = 2 * turning + lane; c < dim; c += 32) put(c, number(c));
    if (is_query) return;
    for (u32 c = dim + lane; c < own.apart * page_dim; c += 32) put(c, 0.f);
}
EXPORT(append_wide)

// Where rows' attention goes, and what parts of it have: `sums` of values [row][head][part][channel], the largest score and the sum of
// weights in `tops`; of one part neither.
struct Parts {
    float *sums, *tops;
    void *out;
    u32 kind;
};

// What of a row's tokens part `part` of `parts` has, and how many parts have some: whole tiles.
struct Share {
    u32 from, to, filled;
    DEVICE Share(u32 position, u32 window, u32 parts, u32 part) {
        u32 begin = first_seen(position, window), end = position + 1;
        u32 each = ((end - begin + parts - 1) / parts + TILE - 1) / TILE * TILE;
        filled = (end - begin + each - 1) / each;
        from = begin + part * each, to = min(from + each, end);
    }
};

// One block for a row, a head of keys and values with up to eight of its query heads, and a part of the tokens: grid (parts, heads of
// keys and values x eights of their queries, rows). Limited by reading keys and values, of prompts by multiply-adds.
template <int KIND>
DEVICE void attend_wide(const float *q, u32 stride, u32 group, const u32 *positions, const u32 *sequences, float scale, float cap,
                        u32 window, const float *sinks, const Pool &pool, const Heads &own, const Parts &out) {
    constexpr int EIGHTS = WIDE / 256, DEEP = KIND == F32 ? 2 : 4, WARPS = THREADS / 32, MANY = 8;
    static_assert(TILE % (DEEP * WARPS) == 0 && TILE % MANY == 0, "a tile is whole turns");
    __shared__ __align__(16) float queries[HEADS * WIDE], scores[TILE * HEADS];
    __shared__ float top[HEADS], total[HEADS], shrink[HEADS];
    __shared__ const u8 *at_keys[TILE], *at_values[TILE];
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, dim = own.dim;
    u32 passes = (group + HEADS - 1) / HEADS, kv_head = blockIdx.y / passes, first_head = blockIdx.y % passes * HEADS;
    u32 heads = min(group - first_head, HEADS), row = blockIdx.z, first = kv_head * group + first_head;
    Share share(positions[row], window, gridDim.x, blockIdx.x);
    if (blockIdx.x >= share.filled) return;
    for (u32 i = thread; i < HEADS * WIDE; i += THREADS) {
        u32 h = i / WIDE, c = i % WIDE;
        queries[i] = h < heads && c < dim ? q[(u64)row * stride + (u64)(first + h) * dim + c] : 0.f;
    }
    if (thread < HEADS) {
        // A sink is as if the first part had seen it.
        bool has = sinks && blockIdx.x == 0 && thread < heads;
        top[thread] = has ? sinks[first + thread] : -INFINITY;
        total[thread] = has ? 1.f : 0.f;
    }
    // Where a channel lies from a token's first.
    u32 bytes = KIND == F32 ? 4 : 2;
    auto beside = [&](u32 c) { return ((u64)(c / pool.dim) * pool.tokens * pool.dim + c % pool.dim) * bytes; };
    u64 eight_at[EIGHTS], two_at = beside(thread * 2 < dim ? thread * 2 : 0);
#pragma unroll
    for (int k = 0; k < EIGHTS; k++) eight_at[k] = lane * 8 + k * 256 < dim ? beside(lane * 8 + k * 256) : 0;
    float mixed[HEADS][2] = {};
    for (u32 tile = share.from; tile < share.to; tile += TILE) {
        u32 count = min(share.to - tile, TILE);
        __syncthreads();
        if (thread < 2 * TILE) {
            // Behind the last token the last is read again, and weighs nothing.
            u32 token = min(tile + thread % TILE, share.to - 1);
            (thread < TILE ? at_keys : at_values)[thread % TILE] =
                place(pool, sequences[row], token, thread / TILE, kv_head * own.apart);
        }
        __syncthreads();
#pragma unroll 1
        for (u32 t = warp; t < TILE; t += DEEP * WARPS) {
            Channels<KIND> keys[DEEP][EIGHTS];
#pragma unroll
            for (int d = 0; d < DEEP; d++)
#pragma unroll
                for (int k = 0; k < EIGHTS; k++)
                    keys[d][k].read(at_keys[t + d * WARPS] + eight_at[k], 0, lane * 8 + k * 256 < dim);
#pragma unroll 1
            for (u32 h = 0; h < heads; h++) {
                float dots[DEEP] = {};
#pragma unroll
                for (int k = 0; k < EIGHTS; k++) {
                    const float4 *query = (const float4 *)(queries + h * WIDE + k * 256 + lane * 8);
                    float4 a = query[0], b = query[1];
                    float eight[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                    for (int d = 0; d < DEEP; d++)
#pragma unroll
                        for (int i = 0; i < 8; i++) dots[d] = fmaf(eight[i], keys[d][k].number(i), dots[d]);
                }
#pragma unroll
                for (int d = 0; d < DEEP; d++) {
                    float score = warp_sum(dots[d]) * scale;
                    if (cap > 0.f) score = capped(score, cap);
                    u32 which = t + d * WARPS;
                    if (lane == 0) scores[which * HEADS + h] = which < count ? score : -INFINITY;
                }
            }
        }
        __syncthreads();
        if (warp < heads) {
            float *two[2] = {scores + lane * HEADS + warp, scores + (lane + 32) * HEADS + warp};
            float before = top[warp], now = fmaxf(before, warp_max(fmaxf(*two[0], *two[1])));
            float a = quick_exp(*two[0] - now), b = quick_exp(*two[1] - now);
            *two[0] = a;
            *two[1] = b;
            float sum = warp_sum(a + b);
            if (lane == 0) {
                shrink[warp] = quick_exp(before - now);
                total[warp] = total[warp] * shrink[warp] + sum;
                top[warp] = now;
            }
        }
        __syncthreads();
        if (thread * 2 < dim) {
#pragma unroll
            for (u32 h = 0; h < HEADS; h++) {
                if (h >= heads) break;
                mixed[h][0] *= shrink[h];
                mixed[h][1] *= shrink[h];
            }
#pragma unroll 1
            for (u32 t = 0; t < count; t += MANY) {
                Pair<KIND> values[MANY];
#pragma unroll
                for (int d = 0; d < MANY; d++) values[d].read(at_values[t + d] + two_at, 0);
#pragma unroll
                for (u32 h = 0; h < HEADS; h += 4) {
                    if (h >= heads) break;
                    // Heads that there are not are computed with whatever lies there, and not written.
#pragma unroll
                    for (int d = 0; d < MANY; d++) {
                        float4 all = *(const float4 *)(scores + (t + d) * HEADS + h);
                        float weights[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
                        for (int i = 0; i < 4; i++)
#pragma unroll
                            for (int c = 0; c < 2; c++)
                                mixed[h + i][c] = fmaf(weights[i], values[d].number(c), mixed[h + i][c]);
                    }
                }
            }
        }
    }
    u64 all = (u64)row * own.heads * group + first;
    u32 parts = gridDim.x;
    if (parts > 1 && thread < heads) ((float2 *)out.tops)[(all + thread) * parts + blockIdx.x] = float2{top[thread], total[thread]};
    if (thread * 2 >= dim) return;
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        if (h >= heads) break;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 channel = thread * 2 + c;
            if (parts == 1) store_row(out.kind, out.out, (all + h) * dim + channel, mixed[h][c] / total[h]);
            else out.sums[((all + h) * parts + blockIdx.x) * dim + channel] = mixed[h][c];
        }
    }
}

#define WIDE_ATTEND(name, KIND)                                                                                        \
    KERNEL(THREADS, 2) name(const float *q, u32 stride, u32 group, const u32 *positions, const u32 *sequences,            \
                            float scale, float cap, u32 window, const float *sinks, u8 *memory, const u32 *table,      \
                            u32 most, u32 tokens, u32 page_heads, u32 page_dim, u32 kv_heads, u32 dim, float *sums,    \
                            float *tops, void *out, u32 out_kind) {                                                    \
        after_others();                                                                                                \
        Pool pool = {memory, table, most, tokens, page_heads, page_dim, KIND};                                         \
        attend_wide<KIND>(q, stride, group, positions, sequences, scale, cap, window, sinks, pool,                     \
                          Heads(pool, kv_heads, dim), Parts{sums, tops, out, out_kind});                               \
    }                                                                                                                  \
    EXPORT(name)
WIDE_ATTEND(attend_wide_f32, F32)
WIDE_ATTEND(attend_wide_f16, F16)
WIDE_ATTEND(attend_wide_bf16, BF16)

// Merges the parts of a row's head, in their order: grid (heads, rows). Limited by a launch.
KERNEL(128) merge_wide(const float *sums, const float *tops, u32 parts, u32 dim, const u32 *positions, u32 window, void *out,
                       u32 out_kind) {
    after_others();
    u64 at = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    u32 filled = Share(positions[blockIdx.y], window, parts, 0).filled;
    const float2 *mine = (const float2 *)tops + at * parts;
    float most = -INFINITY, all = 0.f;
    for (u32 part = 0; part < filled; part++) most = fmaxf(most, mine[part].x);
    for (u32 part = 0; part < filled; part++) all += mine[part].y * quick_exp(mine[part].x - most);
    for (u32 c = threadIdx.x; c < dim; c += 128) {
        float sum = 0.f;
        for (u32 part = 0; part < filled; part++)
            sum = fmaf(sums[(at * parts + part) * dim + c], quick_exp(mine[part].x - most) / all, sum);
        store_row(out_kind, out, at * dim + c, sum);
    }
}
EXPORT(merge_wide)
