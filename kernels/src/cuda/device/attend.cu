// Attention of single rows over pages: decoding, and rows of prompts where tensor cores cannot be used. A row's tokens are
// cut over several blocks; the last of them to be done merges what all have.
#include "channels.cuh"
#include "pages.cuh"
#include "rope.cuh"
#include "rounded.cuh"

// Query heads that share a block, tokens of a tile, and parts of a row.
constexpr int HEADS = 8, TILE = 64, THREADS = 128, MOST_PARTS = 64;
// Scores of a token lie together, so that four heads' are read at once; apart by more, so that banks are not shared by eight.
constexpr int SCORES = HEADS + 4;

// Where a query's channel lies in shared memory: of each eight the first four in one half, the others in the other, so that
// lanes side by side read side by side.
template <int WIDE> DEVICE int query_at(u32 c) { return c / 4 % 2 * (WIDE / 2) + c / 8 * 4 + c % 4; }

// Four sums over `LANES` lanes each, four at a time: afterwards a lane has the sum of number `4 · (lane % LANES) / LANES`.
template <int LANES> DEVICE float sums_of_four(const float (&x)[4], u32 lane) {
    bool upper = lane & (LANES / 2), second = lane & (LANES / 4);
    float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
    a += __shfl_xor_sync(ALL_LANES, upper ? x[0] : x[2], LANES / 2);
    b += __shfl_xor_sync(ALL_LANES, upper ? x[1] : x[3], LANES / 2);
    float sum = second ? b : a;
    sum += __shfl_xor_sync(ALL_LANES, second ? a : b, LANES / 4);
#pragma unroll
    for (int by = LANES / 8; by > 0; by /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, by);
    return sum;
}

// Where rows' attention is written, and what blocks tell each other by: `sums` of values [row][head][part][channel], the largest
// score and the sum of weights in `tops`, and how many parts are `done` of a row and a block's heads: none before a launch,
// and none after it. Rows of `out` have `numbers` numbers together.
struct Mixed {
    float *sums, *tops;
    u32 *done;
    void *out;
    u64 numbers;
    u32 kind;
};

// Writes `count` mixed numbers, the first of which is number `at` of all rows. What is rounded is whole blocks.
DEVICE void write_mixed(const float *mixed, u32 count, u64 at, const Mixed &to) {
    if (to.kind < ROUNDED_32) {
        for (u32 i = threadIdx.x; i < count; i += THREADS) store_row(to.kind, to.out, at + i, mixed[i]);
        return;
    }
    RoundedRows rows(to.out, to.numbers);
    for (u32 first = threadIdx.x / 32 * 256; first < count; first += THREADS * 8) {
        u32 from = first + threadIdx.x % 32 * 8;
        float eight[8];
#pragma unroll
        for (int i = 0; i < 8; i++) eight[i] = from < count ? mixed[from + i] : 0.f;
        round_eight(eight, from < count, at + from, to.kind, rows);
    }
}

// Where a block's part of what is merged lies.
struct Part {
    u64 head;
    u32 heads, dim, parts, part;
    DEVICE u64 sums(u32 h) const { return ((head + h) * parts) * dim; }
    DEVICE u64 tops(u32 h) const { return (head + h) * parts; }
};

// Tells the others what this block has for its part in `own`; the last of `filled` blocks to do so merges all parts in their
// order, whichever it is, and has what is mixed in `own`. Whether it is this one. `weights`: room for HEADS x MOST_PARTS.
DEVICE bool merge(float *own, const float *top, const float *total, float *weights, const Part &at, u32 filled, const Mixed &to) {
    __shared__ bool last;
    u32 thread = threadIdx.x, lane = thread % 32, count = at.heads * at.dim;
    for (u32 i = thread * 4; i < count; i += THREADS * 4)
        *(float4 *)(to.sums + at.sums(i / at.dim) + at.part * at.dim + i % at.dim) = *(const float4 *)(own + i);
    if (thread < at.heads) ((float2 *)to.tops)[at.tops(thread) + at.part] = float2{top[thread], total[thread]};
    // All of it is to be seen by whoever sees that it is done.
    __threadfence();
    __syncthreads();
    u32 *done = to.done + blockIdx.z * gridDim.y + blockIdx.y;
    if (thread == 0) last = atomicAdd(done, 1u) + 1 == filled;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    for (u32 h = thread / 32; h < at.heads; h += THREADS / 32) {
        const float2 *mine = (const float2 *)to.tops + at.tops(h);
        float2 none = {-INFINITY, 0.f}, a = lane < filled ? mine[lane] : none, b = lane + 32 < filled ? mine[lane + 32] : none;
        float most = warp_max(fmaxf(a.x, b.x));
        float first = quick_exp(a.x - most), second = quick_exp(b.x - most), all = warp_sum(a.y * first + b.y * second);
        weights[h * MOST_PARTS + lane] = first / all;
        weights[h * MOST_PARTS + lane + 32] = second / all;
    }
    __syncthreads();
    for (u32 i = thread * 4; i < count; i += THREADS * 4) {
        u32 h = i / at.dim;
        const float *from = to.sums + at.sums(h) + i % at.dim, *mine = weights + h * MOST_PARTS;
        float4 sum = {0.f, 0.f, 0.f, 0.f};
        // So many parts are asked for at once; as a loop over single ones the last few would be waited for one after the other.
        constexpr u32 MANY = 12;
        for (u32 part = 0; part < filled; part += MANY) {
            float4 x[MANY];
#pragma unroll
            for (u32 k = 0; k < MANY; k++)
                x[k] = part + k < filled ? *(const float4 *)(from + (part + k) * at.dim) : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (u32 k = 0; k < MANY; k++) {
                if (part + k >= filled) break;
                float weight = mine[part + k];
                sum.x = fmaf(x[k].x, weight, sum.x), sum.y = fmaf(x[k].y, weight, sum.y);
                sum.z = fmaf(x[k].z, weight, sum.z), sum.w = fmaf(x[k].w, weight, sum.w);
            }
        }
        *(float4 *)(own + i) = sum;
    }
    // Nobody counts any more: the next launch, or the next run of a recorded one, begins with none.
    if (thread == 0) *done = 0;
    return true;
}

// What a row is attended by.
struct Look {
    float scale, cap;
    u32 window;
    // Scores of a token without a value, of each query head; nowhere where there is none.
    const float *sinks;
};

// One block for a row, a head of keys and values with up to eight of its query heads, and a part of the tokens:
// grid (parts, heads of keys and values x eights of their queries, number of `rows`). Heads are of up to `WIDE` channels. Limited
// by reading keys and values once: addresses are found once for a tile, and four tokens' keys and sixteen tokens' values are asked
// for before the first is used; with few tokens limited by the launch.
//
// With a `rope` rows are as products leave them: a block turns its queries, and the one with the row's own token, which no other
// block reads then, stores that token's keys and values. Each row is of a sequence of its own, and of at most eight heads a block.
template <int KIND, int WIDE>
DEVICE void attend(const float *q, u32 stride, u32 group, const u32 *rows, const u32 *positions, const u32 *sequences,
                   const Look &look, const Pool &pool, const Mixed &to_write, const Rope &rope) {
    constexpr int LANES = WIDE / 8, AT_ONCE = 32 / LANES, DEEP = 4, APART = THREADS / 32 * AT_ONCE;
    constexpr int PAIRS = WIDE / 2, TEAMS = THREADS / PAIRS, MANY = WIDE == 256 || KIND == F32 ? 8 : 16;
    static_assert(TILE % (DEEP * APART) == 0 && TILE % (MANY * TEAMS) == 0, "a tile is whole turns");
    __shared__ __align__(16) float queries[HEADS * WIDE], scores[TILE * SCORES];
    __shared__ float top[HEADS], total[HEADS], shrink[HEADS];
    __shared__ const u8 *at_keys[TILE], *at_values[TILE];
    float speeds[ROPE_PAIRS];
    if (rope.frequencies) rope.read(speeds, threadIdx.x % 32);
    wait_for_others();
    let_next_begin();
    u32 parts = gridDim.x, part = blockIdx.x, row = rows[blockIdx.z], dim = pool.dim;
    u32 passes = (group + HEADS - 1) / HEADS, kv_head = blockIdx.y / passes, first_head = blockIdx.y % passes * HEADS;
    u32 heads = min(group - first_head, (u32)HEADS);
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    u32 position = positions[row], sequence = sequences[row];
    u32 begin = first_seen(position, look.window), end = position + 1;
    // Parts are whole tiles, so that nothing is read twice.
    u32 each = ((end - begin + parts - 1) / parts + TILE - 1) / TILE * TILE;
    u32 filled = (end - begin + each - 1) / each;
    if (part >= filled) return;
    u32 from = begin + part * each, to = min(from + each, end);

    const float *mine = q + (u64)row * stride + (u64)(kv_head * group + first_head) * dim;
    for (u32 i = thread; i < HEADS * WIDE; i += THREADS) {
        u32 h = i / WIDE, c = i % WIDE;
        bool has = h < heads && c < dim;
        if (!has || !rope.frequencies) queries[h * WIDE + query_at<WIDE>(c)] = has ? mine[h * dim + c] : 0.f;
    }
    if (rope.frequencies) {
        // A warp a head: the block's queries, then the token's own key and value.
#pragma unroll 1
        for (u32 h = warp; h < heads + (to == end ? 2 : 0); h += THREADS / 32) {
            bool is_query = h < heads, is_value = h == heads + 1;
            u32 line = is_query ? h : pool.heads * group - kv_head * group + kv_head + (is_value ? pool.heads : 0);
            const float *head = mine + (u64)line * dim, *w = is_value ? nullptr : is_query ? rope.query_norm : rope.key_norm;
            LaneOfHead lanes;
            if (is_value || w) lanes.read_all(head, dim, lane);
            if (!is_value) lanes.read_pairs(head, rope, lane);
            if (is_query) {
                lanes.turned(head, dim, rope, speeds, w, rope.grown(true, position), position, lane,
                             [&](u32 c, float x) { queries[h * WIDE + query_at<WIDE>(c)] = x; });
            } else {
                u8 *page = place(pool, sequence, position, is_value, kv_head);
                auto put = [&](u32 c, float x) { store_as(KIND, page, c, x); };
                if (is_value) lanes.plain(dim, lane, put);
                else lanes.turned(head, dim, rope, speeds, w, 1.f, position, lane, put);
            }
        }
    }
    if (thread < HEADS) {
        // A sink is as if the first part had seen it.
        bool sinks = look.sinks && part == 0 && thread < heads;
        top[thread] = sinks ? look.sinks[kv_head * group + first_head + thread] : -INFINITY;
        total[thread] = sinks ? 1.f : 0.f;
    }
    __syncthreads();
    // Lanes that share a token's keys, eight channels each; two channels a thread for values, as many tokens at once as there
    // are threads for.
    u32 channel = lane % LANES * 8, team = thread / PAIRS, pair = thread % PAIRS;
    bool real = channel < dim, has_pair = pair * 2 < dim;
    float mixed[HEADS][2] = {};

    for (u32 tile = from; tile < to; tile += TILE) {
        u32 count = min(to - tile, (u32)TILE);
        // Behind the last token the last is read again, and weighs nothing.
        u32 token = min(tile + thread % TILE, to - 1);
        (thread < TILE ? at_keys : at_values)[thread % TILE] = place(pool, sequence, token, thread / TILE, kv_head);
        __syncthreads();
        for (u32 t = warp * AT_ONCE + lane / LANES; t < TILE; t += DEEP * APART) {
            Channels<KIND> keys[DEEP];
#pragma unroll
            for (int d = 0; d < DEEP; d++) keys[d].read(at_keys[t + d * APART], channel, real);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= (int)heads) break;
                const float4 *query = (const float4 *)(queries + h * WIDE) + channel / 8;
                float4 a = query[0], b = query[WIDE / 8];
                float eight[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, dots[DEEP] = {};
#pragma unroll
                for (int d = 0; d < DEEP; d++)
#pragma unroll
                    for (int i = 0; i < 8; i++) dots[d] = fmaf(eight[i], keys[d].number(i), dots[d]);
                float score = sums_of_four<LANES>(dots, lane) * look.scale;
                u32 which = t + lane % LANES / (LANES / 4) * APART;
                if (look.cap > 0.f) score = capped(score, look.cap);
                if (lane % (LANES / 4) == 0) scores[which * SCORES + h] = which < count ? score : -INFINITY;
            }
        }
        __syncthreads();
        for (u32 h = warp; h < heads; h += THREADS / 32) {
            float *two[2] = {scores + lane * SCORES + h, scores + (lane + 32) * SCORES + h};
            float before = top[h], now = fmaxf(before, warp_max(fmaxf(*two[0], *two[1])));
            float a = quick_exp(*two[0] - now), b = quick_exp(*two[1] - now);
            *two[0] = a;
            *two[1] = b;
            float sum = warp_sum(a + b);
            if (lane == 0) {
                shrink[h] = quick_exp(before - now);
                total[h] = total[h] * shrink[h] + sum;
                top[h] = now;
            }
        }
        __syncthreads();
        if (has_pair) {
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= (int)heads) break;
                mixed[h][0] *= shrink[h];
                mixed[h][1] *= shrink[h];
            }
            for (u32 t = team; t < count; t += MANY * TEAMS) {
                Pair<KIND> values[MANY];
#pragma unroll
                for (int d = 0; d < MANY; d++) values[d].read(at_values[t + d * TEAMS], pair);
#pragma unroll
                for (int h = 0; h < HEADS; h += 4) {
                    if (h >= (int)heads) break;
                    // Heads that there are not are computed with whatever lies there, and not written.
#pragma unroll
                    for (int d = 0; d < MANY; d++) {
                        float4 all = *(const float4 *)(scores + (t + d * TEAMS) * SCORES + h);
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
        __syncthreads();
    }

    // Teams add what they have, one after the other, where the queries were.
    for (u32 turn = 0; turn < TEAMS; turn++) {
        if (team == turn && has_pair)
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= (int)heads) break;
                float *to_add = queries + h * dim + pair * 2;
                to_add[0] = (turn ? to_add[0] : 0.f) + mixed[h][0];
                to_add[1] = (turn ? to_add[1] : 0.f) + mixed[h][1];
            }
        __syncthreads();
    }
    u64 first = kv_head * group + first_head;
    if (parts == 1) {
        for (u32 i = thread; i < heads * dim; i += THREADS) queries[i] = queries[i] / total[i / dim];
    } else if (filled == 1) {
        // What merging a single part comes to.
        for (u32 i = thread; i < heads * dim; i += THREADS) queries[i] = queries[i] * (1.f / total[i / dim]);
    } else {
        static_assert(TILE * SCORES >= HEADS * MOST_PARTS, "scores lie where weights of parts are to be");
        Part at = {(u64)blockIdx.z * pool.heads * group + first, heads, dim, parts, part};
        if (!merge(queries, top, total, scores, at, filled, to_write)) return;
    }
    __syncthreads();
    write_mixed(queries, heads * dim, ((u64)row * pool.heads * group + first) * dim, to_write);
}

#define ATTEND(name, KIND, WIDE)                                                                                       \
    KERNEL(THREADS, 5) name(const float *q, u32 stride, u32 group, const u32 *rows, const u32 *positions,                 \
                         const u32 *sequences, float scale, float cap, u32 window, const float *sinks, u8 *memory,     \
                         const u32 *table, u32 most, u32 tokens, u32 kv_heads, u32 dim, float *sums, float *tops,      \
                         u32 *done, void *out, u64 numbers, u32 out_kind, const float *frequencies, float amplitude,   \
                         u32 half, u32 neighbours, const float *query_norm, const float *key_norm, float eps,          \
                         float beta, u32 every) {                                                                      \
        Pool pool = {memory, table, most, tokens, kv_heads, dim, KIND};                                                \
        attend<KIND, WIDE>(q, stride, group, rows, positions, sequences, Look{scale, cap, window, sinks}, pool,        \
                           Mixed{sums, tops, done, out, numbers, out_kind},                                            \
                           Rope{frequencies, amplitude, half, neighbours, query_norm, key_norm, eps, beta, every});    \
    }                                                                                                                  \
    EXPORT(name)
ATTEND(attend_64_f32, F32, 64)
ATTEND(attend_128_f32, F32, 128)
ATTEND(attend_256_f32, F32, 256)
ATTEND(attend_64_f16, F16, 64)
ATTEND(attend_128_f16, F16, 128)
ATTEND(attend_256_f16, F16, 256)
ATTEND(attend_64_bf16, BF16, 64)
ATTEND(attend_128_bf16, BF16, 128)
ATTEND(attend_256_bf16, BF16, 256)
