// What is done row by row between products: embedding, norms, turning and storing of keys and values, gates, rounding.
// All of it is limited by memory or, with few rows, by how long a launch takes; so neighbours are fused.
#include "eights.cuh"
#include "forms.cuh"
#include "pages.cuh"
#include "rope.cuh"

// out[row] = table[tokens[row]] · scale. Limited by memory: a row is read once.
KERNEL(256) embed(const u32 *tokens, const u8 *table, u32 form, u64 vocab, u32 width, float scale, float *out) {
    after_others();
    Matrix w = {table, vocab, width};
    u64 row = blockIdx.x;
    for (u32 i = threadIdx.x; i < width; i += 256) out[row * width + i] = number_at(form, w, tokens[row], i) * scale;
}
EXPORT(embed)

// x += delta, if there is one; out = rms_norm(x) · w, or x as it is where there is no w (OLMo 2 and 3). One block a row, whose numbers
// stay in registers: with few rows limited by how long the first bytes take and by a launch, with many by memory.
constexpr u32 NORM_THREADS = 512, NORM_TURNS = 2;
KERNEL(NORM_THREADS) rms_norm(float *x, const float *delta, const float *w, float eps, u32 width, void *out, u32 kind) {
    __shared__ float few[32];
    u64 from = (u64)blockIdx.x * width, numbers = (u64)gridDim.x * width;
    bool whole = width % 8 == 0;
    float mine[NORM_TURNS][8], more[8], squares = 0.f;
    auto count_at = [&](u32 i) { return i < width ? min(width - i, 8u) : 0u; };
    // What the row is multiplied by in the end is asked for first: no kernel writes it.
    float weights[NORM_TURNS][8];
    auto weights_at = [&](float (&by)[8], u32 i, u32 count) {
#pragma unroll
        for (int k = 0; k < 8; k++) by[k] = 1.f;
        if (w && count) read_eight(by, w + i, count, whole);
    };
#pragma unroll
    for (u32 turn = 0; turn < NORM_TURNS; turn++) {
        u32 i = (turn * NORM_THREADS + threadIdx.x) * 8;
        weights_at(weights[turn], i, count_at(i));
    }
    wait_for_others();
    let_next_begin();
    auto sum_up = [&](float (&values)[8], u32 i, u32 count) {
        read_eight(values, x + from + i, count, whole);
        if (delta) {
            read_eight(more, delta + from + i, count, whole);
#pragma unroll
            for (int k = 0; k < 8; k++) values[k] += more[k];
            write_eight(values, x + from + i, count, whole);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) squares = fmaf(values[k], values[k], squares);
    };
#pragma unroll
    for (u32 turn = 0; turn < NORM_TURNS; turn++) {
        u32 i = (turn * NORM_THREADS + threadIdx.x) * 8, count = count_at(i);
#pragma unroll
        for (int k = 0; k < 8; k++) mine[turn][k] = 0.f;
        if (count) sum_up(mine[turn], i, count);
    }
    // What there are no registers for is read again.
    for (u32 i = (NORM_TURNS * NORM_THREADS + threadIdx.x) * 8; i < width; i += NORM_THREADS * 8) {
        float values[8];
        sum_up(values, i, count_at(i));
    }
    float sum = block_sum(squares, few), scale = w ? 1.f / sqrtf(sum / (float)width + eps) : 1.f;
    auto store = [&](const float (&values)[8], const float (&by)[8], u32 i, u32 count) {
        float y[8];
#pragma unroll
        for (int k = 0; k < 8; k++) y[k] = values[k] * scale * by[k];
        store_eight(kind, out, numbers, from + i, y, count, whole);
    };
#pragma unroll
    for (u32 turn = 0; turn < NORM_TURNS; turn++) {
        u32 first = turn * NORM_THREADS + threadIdx.x / 32 * 32;
        if (first * 8 >= width) break;
        u32 i = (turn * NORM_THREADS + threadIdx.x) * 8;
        store(mine[turn], weights[turn], i, count_at(i));
    }
    for (u32 first = NORM_TURNS * NORM_THREADS + threadIdx.x / 32 * 32; first * 8 < width; first += NORM_THREADS) {
        u32 i = (first + threadIdx.x % 32) * 8, count = count_at(i);
        float values[8] = {}, by[8];
        weights_at(by, i, count);
        if (count) read_eight(values, x + from + i, count, whole);
        store(values, by, i, count);
    }
}
EXPORT(rms_norm)

// x = (x + rms_norm(delta) · w) · factor: Gemma's and OLMo's norms behind attention and MLP, and a layer's factor (Gemma 4).
KERNEL(256) norm_add(const float *delta, const float *w, float eps, u32 width, float *x, float factor) {
    after_others();
    __shared__ float few[32];
    u64 from = (u64)blockIdx.x * width;
    float squares = 0.f;
    for (u32 i = threadIdx.x; i < width; i += 256) squares = fmaf(delta[from + i], delta[from + i], squares);
    float scale = 1.f / sqrtf(block_sum(squares, few) / (float)width + eps);
    for (u32 i = threadIdx.x; i < width; i += 256) x[from + i] = (x[from + i] + delta[from + i] * scale * w[i]) * factor;
}
EXPORT(norm_add)

// x += delta.
KERNEL(256) add(float *x, const float *delta, u64 count) {
    after_others();
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) x[i] += delta[i];
}
EXPORT(add)

// Adds a bias to `width` columns of rows that lie `stride` numbers apart.
KERNEL(256) add_bias(float *x, u32 stride, const float *bias, u32 width) {
    after_others();
    for (u32 i = threadIdx.x; i < width; i += 256) x[(u64)blockIdx.x * stride + i] += bias[i];
}
EXPORT(add_bias)

// x = cap · tanh(x / cap).
KERNEL(256) soft_cap(float *x, u64 count, float cap) {
    after_others();
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) x[i] = capped(x[i], cap);
}
EXPORT(soft_cap)

// out[i] = x[rows[i]].
KERNEL(256) gather(const float *x, const u32 *rows, u32 width, float *out) {
    after_others();
    u64 to = (u64)blockIdx.x * width, from = (u64)rows[blockIdx.x] * width;
    for (u32 i = threadIdx.x; i < width; i += 256) out[to + i] = x[from + i];
}
EXPORT(gather)

// out = activation(x[.., i]) · x[.., width + i]: both halves of a gated MLP lie side by side. Limited by memory.
KERNEL(128) gate(const float *x, u32 width, u32 activation, void *out, u32 kind) {
    after_others();
    u64 row = blockIdx.x, from = row * 2 * width;
    u32 i = (blockIdx.y * 128 + threadIdx.x) * 8, count = i < width ? min(width - i, 8u) : 0;
    // Of several GPUs each writes its columns where they belong in one row, which may be anywhere in it.
    bool whole = width % 8 == 0 && ((u64)out & 15) == 0;
    float gates[8] = {}, ups[8] = {}, y[8];
    if (count) {
        read_eight(gates, x + from + i, count, whole);
        read_eight(ups, x + from + width + i, count, whole);
    }
    if (activation == 0) {
#pragma unroll
        for (int k = 0; k < 8; k++) y[k] = gates[k] / (1.f + expf(-gates[k])) * ups[k];
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float g = gates[k], inner = 0.7978846f * fmaf(g * g * g, 0.044715f, g);
            y[k] = 0.5f * g * (1.f + tanh_of(inner)) * ups[k];
        }
    }
    store_eight(kind, out, (u64)gridDim.x * width, row * width + i, y, count, whole);
}
EXPORT(gate)

// The same for rows that experts get, whose gates end at `limit`, with the other half between the limits and 1 more; before that
// each row has the bias of its expert `chosen`, if there are some: gpt-oss. Limited by memory.
KERNEL(128) gate_clamped(const float *x, u32 width, const u32 *chosen, const float *bias, float sharpness, float limit, void *out,
                         u32 kind) {
    after_others();
    u64 row = blockIdx.x, from = row * 2 * width;
    u32 i = (blockIdx.y * 128 + threadIdx.x) * 8, count = i < width ? min(width - i, 8u) : 0;
    bool whole = width % 8 == 0;
    float gates[8] = {}, ups[8] = {}, of_gates[8] = {}, of_ups[8] = {}, y[8];
    if (count) {
        read_eight(gates, x + from + i, count, whole);
        read_eight(ups, x + from + width + i, count, whole);
    }
    if (count && bias) {
        const float *mine = bias + (u64)chosen[row] * 2 * width + i;
        read_eight(of_gates, mine, count, whole);
        read_eight(of_ups, mine + width, count, whole);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float open = fminf(gates[k] + of_gates[k], limit), up = fminf(fmaxf(ups[k] + of_ups[k], -limit), limit);
        y[k] = open / (1.f + expf(-sharpness * open)) * (up + 1.f);
    }
    store_eight(kind, out, (u64)gridDim.x * width, row * width + i, y, count, whole);
}
EXPORT(gate_clamped)

// Rows of numbers of 16 bits, clipped to what those hold.
KERNEL(256) narrow(const float *x, u64 count, void *out, u32 kind) {
    after_others();
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) store_row(kind, out, i, x[i]);
}
EXPORT(narrow)

// Rounds rows that are wanted in another form, too. Eight numbers a lane; limited by a launch.
KERNEL(128) round_rows(const float *x, u64 numbers, void *out, u32 kind) {
    after_others();
    u64 i = ((u64)blockIdx.x * 128 + threadIdx.x) * 8;
    float eight[8] = {};
    // Blocks are whole: so are their eights.
    bool real = i < numbers;
    if (real) read_eight(eight, x + i, 8, true);
    round_eight(eight, real, i, kind, RoundedRows(out, numbers));
}
EXPORT(round_rows)

// Turns queries and keys by their positions, after each head's norm where there is one, and stores keys and values in
// pages. One block of a warp for each row and head: `heads` of queries, then of keys, then of values, side by side in `x`.
// Limited by a launch for few rows, by memory for many.
KERNEL(32) rope_append(float *x, u32 stride, u32 heads, u32 kv_heads, u32 dim, const u32 *positions, const u32 *sequences,
                       const float *frequencies, float amplitude, u32 half, u32 neighbours, const float *query_norm,
                       const float *key_norm, float eps, float beta, u32 every, u8 *memory, const u32 *table, u32 most,
                       u32 tokens, u32 kind) {
    u32 row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    Rope rope = {frequencies, amplitude, half, neighbours, query_norm, key_norm, eps, beta, every};
    float speeds[ROPE_PAIRS];
    rope.read(speeds, lane);
    wait_for_others();
    let_next_begin();
    float *at = x + (u64)row * stride + (u64)head * dim;
    bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const float *w = is_value ? nullptr : is_query ? query_norm : key_norm;
    LaneOfHead mine;
    if (is_value || w) mine.read_all(at, dim, lane);
    if (!is_value) mine.read_pairs(at, rope, lane);
    u32 position = positions[row], sequence = sequences[row];
    Pool pool = {memory, table, most, tokens, kv_heads, dim, kind};
    u32 of_side = head - heads - (is_value ? kv_heads : 0);
    u8 *to = is_query ? (u8 *)at : place(pool, sequence, position, is_value, of_side);
    u32 stored = is_query ? (u32)F32 : kind;
    auto put = [&](u32 channel, float number) { store_as(stored, to, channel, number); };
    if (is_value) mine.plain(dim, lane, put);
    else mine.turned(at, dim, rope, speeds, w, rope.grown(is_query, position), position, lane, put);
}
EXPORT(rope_append)
