// What is done row by row between products: embedding, norms, turning and storing of keys and values, gates, rounding.
// All of it is limited by memory or, with few rows, by how long a launch takes; so neighbours are fused.
#include "forms.cuh"
#include "pages.cuh"

// out[row] = table[tokens[row]] · scale. Limited by memory: a row is read once.
KERNEL(256) embed(const u32 *tokens, const u8 *table, u32 form, u64 vocab, u32 width, float scale, float *out) {
    Matrix w = {table, vocab, width};
    u64 row = blockIdx.x;
    for (u32 i = threadIdx.x; i < width; i += 256) out[row * width + i] = number_at(form, w, tokens[row], i) * scale;
}
EXPORT(embed)

// x += delta, if there is one; out = rms_norm(x) · w. One block a row; limited by memory, and by a launch for one row.
KERNEL(256) norm(float *x, const float *delta, const float *w, float eps, u32 width, void *out, u32 kind) {
    __shared__ float few[32];
    u64 from = (u64)blockIdx.x * width;
    float squares = 0.f;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float value = x[from + i];
        if (delta) {
            value += delta[from + i];
            x[from + i] = value;
        }
        squares = fmaf(value, value, squares);
    }
    float scale = 1.f / sqrtf(block_sum(squares, few) / (float)width + eps);
    for (u32 i = threadIdx.x; i < width; i += 256) store_row(kind, out, from + i, x[from + i] * scale * w[i]);
}
EXPORT(norm)

// x += rms_norm(delta) · w: Gemma's norms behind attention and MLP.
KERNEL(256) norm_add(const float *delta, const float *w, float eps, u32 width, float *x) {
    __shared__ float few[32];
    u64 from = (u64)blockIdx.x * width;
    float squares = 0.f;
    for (u32 i = threadIdx.x; i < width; i += 256) squares = fmaf(delta[from + i], delta[from + i], squares);
    float scale = 1.f / sqrtf(block_sum(squares, few) / (float)width + eps);
    for (u32 i = threadIdx.x; i < width; i += 256) x[from + i] += delta[from + i] * scale * w[i];
}
EXPORT(norm_add)

// x += delta.
KERNEL(256) add(float *x, const float *delta, u64 count) {
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) x[i] += delta[i];
}
EXPORT(add)

// Adds a bias to `width` columns of rows that lie `stride` numbers apart.
KERNEL(256) add_bias(float *x, u32 stride, const float *bias, u32 width) {
    for (u32 i = threadIdx.x; i < width; i += 256) x[(u64)blockIdx.x * stride + i] += bias[i];
}
EXPORT(add_bias)

// x = cap · tanh(x / cap).
KERNEL(256) soft_cap(float *x, u64 count, float cap) {
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) x[i] = capped(x[i], cap);
}
EXPORT(soft_cap)

// out[i] = x[rows[i]].
KERNEL(256) gather(const float *x, const u32 *rows, u32 width, float *out) {
    u64 to = (u64)blockIdx.x * width, from = (u64)rows[blockIdx.x] * width;
    for (u32 i = threadIdx.x; i < width; i += 256) out[to + i] = x[from + i];
}
EXPORT(gather)

// out = activation(x[.., i]) · x[.., width + i]: both halves of a gated MLP lie side by side. Limited by memory.
KERNEL(256) gate(const float *x, u32 width, u32 activation, void *out, u32 kind) {
    u64 row = blockIdx.x;
    u32 i = blockIdx.y * 256 + threadIdx.x;
    if (i >= width) return;
    float g = x[row * 2 * width + i], up = x[row * 2 * width + width + i], y;
    if (activation == 0) {
        y = g / (1.f + expf(-g)) * up;
    } else {
        float inner = 0.7978846f * fmaf(g * g * g, 0.044715f, g);
        y = 0.5f * g * (1.f + tanh_of(inner)) * up;
    }
    store_row(kind, out, row * width + i, y);
}
EXPORT(gate)

// Rows of numbers of 16 bits, clipped to what those hold.
KERNEL(256) narrow(const float *x, u64 count, void *out, u32 kind) {
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) store_row(kind, out, i, x[i]);
}
EXPORT(narrow)

// Rounds rows to 8 bits by blocks, as the processor does (`cpu/rounded.rs`), and adds up each 16 of them. One warp a block
// of 32 or 256; limited by a launch.
KERNEL(128) round_rows(const float *x, u32 block, u64 blocks, i8 *out, float *scales, short *sums) {
    u64 number = (u64)blockIdx.x * 4 + threadIdx.x / 32;
    if (number >= blocks) return;
    u32 lane = threadIdx.x % 32;
    const float *from = x + number * block;
    float top = 0.f;
    // A comparison lets no NaN in.
    for (u32 i = lane; i < block; i += 32) top = fabsf(from[i]) > top ? fabsf(from[i]) : top;
    top = warp_max(top);
    float steps = top > 0.f ? 127.f / top : 0.f;
    for (u32 i = lane; i < block; i += 32) {
        float scaled = from[i] * steps;
        int q = scaled == scaled ? (int)rintf(fminf(fmaxf(scaled, -127.f), 127.f)) : 0;
        out[number * block + i] = (i8)q;
        for (int lanes = 8; lanes > 0; lanes /= 2) q += __shfl_xor_sync(ALL_LANES, q, lanes);
        if (lane % 16 == 0) sums[(number * block + i) / 16] = (short)q;
    }
    if (lane == 0) scales[number] = top / 127.f;
}
EXPORT(round_rows)

// Turns queries and keys by their positions, after each head's norm where there is one, and stores keys and values in
// pages. One block of a warp for each row and head: `heads` of queries, then of keys, then of values, side by side in `x`.
// Limited by a launch for few rows, by memory for many.
KERNEL(32) rope_append(float *x, u32 stride, u32 heads, u32 kv_heads, u32 dim, const u32 *positions, const u32 *sequences,
                       const float *frequencies, float amplitude, u32 half, u32 neighbours, const float *query_norm,
                       const float *key_norm, float eps, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 kind) {
    u32 row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    u32 position = positions[row], sequence = sequences[row];
    float *at = x + (u64)row * stride + (u64)head * dim;
    Pool pool = {memory, table, most, tokens, kv_heads, dim, kind};
    bool is_query = head < heads, is_value = head >= heads + kv_heads;
    if (is_value) {
        u8 *to = place(pool, sequence, position, 1, head - heads - kv_heads);
        for (u32 i = lane; i < dim; i += 32) store_as(kind, to, i, at[i]);
        return;
    }
    const float *w = is_query ? query_norm : key_norm;
    float scale = 1.f;
    if (w) {
        float squares = 0.f;
        for (u32 i = lane; i < dim; i += 32) squares = fmaf(at[i], at[i], squares);
        scale = 1.f / sqrtf(warp_sum(squares) / (float)dim + eps);
    }
    u8 *to = is_query ? (u8 *)at : place(pool, sequence, position, 0, head - heads);
    u32 stored = is_query ? (u32)F32 : kind;
    for (u32 i = lane; i < half; i += 32) {
        u32 first = neighbours ? 2 * i : i, second = neighbours ? 2 * i + 1 : i + half;
        float a = at[first], b = at[second];
        if (w) {
            a = a * scale * w[first];
            b = b * scale * w[second];
        }
        float angle = (float)position * frequencies[i];
        float c = cosf(angle) * amplitude, s = sinf(angle) * amplitude;
        store_as(stored, to, first, a * c - b * s);
        store_as(stored, to, second, b * c + a * s);
    }
    for (u32 i = 2 * half + lane; i < dim; i += 32) store_as(stored, to, i, w ? at[i] * scale * w[i] : at[i]);
}
EXPORT(rope_append)
