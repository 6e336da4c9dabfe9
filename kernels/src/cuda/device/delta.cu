// Gated delta rules behind a short convolution (Yang et al. 2024, eq. 10), and gates of attention: Qwen3-Next and Qwen3.5. A group
// is a head of queries and keys with the heads of values that share it. States lie in pages, in single precision, as on the processor
// (`kernels/src/pages/state.rs`): of a layer first each group's last inputs of the convolution, token by token, then each head's
// matrix, `[channel of keys][channel of values]`. A sequence's page `i` of those is `table[sequence * pages + i]`. Rows change a state
// one by one, in their order, and what a row gets does not depend on what is computed beside it.
#include "eights.cuh"
#include "pages.cuh"

// Which columns of a row, in what matrices made of it, a group's channels are: those of its query, its key and its values, each as
// many further on from group to group.
struct GroupColumns {
    u32 query, key, value, of_keys, of_values, key_dim;
    DEVICE u32 column(u32 group, u32 channel) const {
        if (channel < key_dim) return query + group * of_keys + channel;
        if (channel < 2 * key_dim) return key + group * of_keys + channel - key_dim;
        return value + group * of_values + channel - 2 * key_dim;
    }
};

// Where a sequence has unit `unit` of so many numbers, of which `each` lie in a page from page `first` on.
DEVICE float *state_at(u8 *memory, const u32 *pages, u32 first, u32 each, u32 unit, u32 numbers) {
    return (float *)(memory + pages[first + unit / each] * PAGE_BYTES) + (u64)(unit % each) * numbers;
}

DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// A group's channels of a row behind the convolution over `kernel` tokens, `[row][group][channel]`: queries, divided by their length and
// the root of their number, keys, divided by their length, and values; and by how much the group's states fade and turn for the row,
// `[row][head][2]`. One block for a row and a group; limited by a launch for few rows, by memory for many.
constexpr u32 PASS = 128, MOST_KEYS = 128;
KERNEL(PASS) delta_pass(const float *x, u32 stride, u32 query, u32 key, u32 value, u32 of_keys, u32 of_values, u32 turn, u32 fade,
                        u32 of_turns, u32 shared, u32 key_dim, u32 value_dim, u32 kernel, const float *weights, const float *rates,
                        const float *biases, const u32 *positions, const u32 *sequences, u8 *memory, const u32 *table, u32 pages,
                        u32 tail_page, u32 tails, float *passed, float *turned) {
    after_others();
    __shared__ float looked_up[2 * MOST_KEYS], scales[2];
    u32 row = blockIdx.x, group = blockIdx.y, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    u32 width = 2 * key_dim + shared * value_dim, sequence = sequences[row];
    GroupColumns channels = {query, key, value, of_keys, of_values, key_dim};
    // Rows of the sequence that come before this one in the batch, as far as the convolution sees them.
    u32 before = 0;
    while (before + 1 < kernel && before < row && sequences[row - before - 1] == sequence) before++;
    bool begins = positions[row] == before;
    const float *tail = state_at(memory, table + (u64)sequence * pages, tail_page, tails, group, (kernel - 1) * width);
    auto pass = [&](u32 c) {
        const float *mine = x + (u64)row * stride + channels.column(group, c);
        float sum = 0.f;
        for (u32 token = 0; token < kernel; token++) {
            u32 back = kernel - 1 - token;
            float input = back <= before ? *(mine - (u64)back * stride) : begins ? 0.f : tail[(u64)(token + before) * width + c];
            sum += weights[((u64)group * kernel + token) * width + c] * input;
        }
        return sum / (1.f + expf(-sum));
    };
    float *to = passed + ((u64)row * gridDim.y + group) * width;
    for (u32 c = thread; c < 2 * key_dim; c += PASS) looked_up[c] = pass(c);
    for (u32 c = 2 * key_dim + thread; c < width; c += PASS) to[c] = pass(c);
    for (u32 i = thread; i < shared; i += PASS) {
        u32 head = group * shared + i, at = group * of_turns + i;
        float b = x[(u64)row * stride + fade + at] + biases[head];
        float grown = b > 20.f ? b : log1pf(expf(b));
        float2 both = {expf(rates[head] * grown), sigmoid(x[(u64)row * stride + turn + at])};
        ((float2 *)turned)[(u64)row * gridDim.y * shared + head] = both;
    }
    __syncthreads();
    if (warp < 2) {
        float squares = 0.f;
        for (u32 c = lane; c < key_dim; c += 32) squares = fmaf(looked_up[warp * key_dim + c], looked_up[warp * key_dim + c], squares);
        float factor = warp == 0 ? 1.f / sqrtf((float)key_dim) : 1.f, length = sqrtf(warp_sum(squares) + 1e-6f);
        if (lane == 0) scales[warp] = factor / length;
    }
    __syncthreads();
    for (u32 c = thread; c < 2 * key_dim; c += PASS) to[c] = looked_up[c] * scales[c / key_dim];
}
EXPORT(delta_pass)

// The rows of a sequence change a head's matrix, and get what it says for their queries then, `[row][head][channel]`. A block has 32
// columns of a head's matrix for all rows of a sequence: grid (32s of columns and one more, heads, sequences). A warp has eight of them,
// of which each lane keeps every fourth four of keys' channels in registers: the matrix is read once and written once. Rows come to
// shared memory by eights, the next while these are worked on. The last block of a group's first head puts the last inputs of the
// convolution where the next step finds them. Single rows are limited by memory; prompts by how long a row's sums take.
constexpr u32 RULE = 128, COLUMNS = 32, STAGED = 8;
struct DeltaRule {
    const float *passed, *turned, *x;
    u32 stride;
    GroupColumns channels;
    u32 shared, value_dim, kernel;
    const u32 *firsts, *positions;
    u8 *memory;
    const u32 *table;
    u32 pages, tail_page, tails, matrix_page, matrices;
    float *said;
};

// The last inputs of the convolution, of those that were there and of `len` rows from `first` on. A thread moves its channels alone.
DEVICE void keep_tail(const DeltaRule &d, u32 group, u32 run, u32 first, u32 len, bool begins) {
    u32 width = 2 * d.channels.key_dim + d.shared * d.value_dim, kept = d.kernel - 1;
    float *tail = state_at(d.memory, d.table + (u64)run * d.pages, d.tail_page, d.tails, group, kept * width);
    for (u32 c = threadIdx.x; c < width; c += RULE) {
        const float *mine = d.x + (u64)first * d.stride + d.channels.column(group, c);
        for (u32 token = 0; token < kept; token++) {
            u32 from = token + len;
            float was = from >= kept ? mine[(u64)(from - kept) * d.stride] : begins ? 0.f : tail[(u64)from * width + c];
            tail[(u64)token * width + c] = was;
        }
    }
}

template <u32 KEYS> DEVICE void delta_rule(const DeltaRule &d) {
    constexpr u32 OWN = KEYS / 4, LINE = 2 * KEYS + COLUMNS + 4, PIECES = LINE / 4;
    __shared__ __align__(16) float staged[2][STAGED * LINE];
    u32 thread = threadIdx.x, lane = thread % 32, quarter = lane / 8, run = blockIdx.z, head = blockIdx.y, heads = gridDim.y;
    u32 group = head / d.shared, first = d.firsts[run], len = d.firsts[run + 1] - first;
    if (len == 0) return;
    bool begins = d.positions[first] == 0;
    if (blockIdx.x == gridDim.x - 1) {
        if (head % d.shared == 0) keep_tail(d, group, run, first, len, begins);
        return;
    }
    u32 key_dim = d.channels.key_dim, value_dim = d.value_dim, width = 2 * key_dim + d.shared * value_dim;
    u32 begin = blockIdx.x * COLUMNS, mine = thread / 32 * 8 + lane % 8, column = begin + mine;
    bool real = column < value_dim;
    float *matrix = state_at(d.memory, d.table + (u64)run * d.pages, d.matrix_page, d.matrices, head, key_dim * value_dim) + column;
    // Number i is of the keys' channel that is fourth i % 4 of a quarter of sixteen.
    float own[OWN];
    auto channel = [&](u32 i) { return i / 4 * 16 + quarter * 4 + i % 4; };
#pragma unroll
    for (u32 i = 0; i < OWN; i++) own[i] = real && !begins && channel(i) < key_dim ? matrix[(u64)channel(i) * value_dim] : 0.f;

    // Of a row: keys, queries, both padded with zeros, values, and by how much the matrix fades and turns.
    auto fetch = [&](u32 step) {
        u32 from = step * STAGED, count = min(len - from, STAGED);
        for (u32 i = thread; i < count * PIECES; i += RULE) {
            u32 row = first + from + i / PIECES, piece = i % PIECES;
            float *to = staged[step % 2] + i / PIECES * LINE + piece * 4;
            const float *line = d.passed + ((u64)row * (heads / d.shared) + group) * width;
            if (piece < KEYS / 2) {
                u32 c = piece % (KEYS / 4) * 4;
                bool is_real = c < key_dim;
                copy_16_async(to, line + (piece < KEYS / 4 ? key_dim : 0) + (is_real ? c : 0), is_real);
            } else if (piece < KEYS / 2 + COLUMNS / 4) {
                u32 c = begin + (piece - KEYS / 2) * 4;
                bool is_real = c < value_dim;
                copy_16_async(to, line + 2 * key_dim + head % d.shared * value_dim + (is_real ? c : 0), is_real);
            } else {
                const float *both = d.turned + ((u64)row * heads + head) * 2;
                copy_4_async(to, both, true);
                copy_4_async(to + 1, both + 1, true);
            }
        }
        copies_commit();
    };
    u32 steps = (len + STAGED - 1) / STAGED;
    fetch(0);
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        if (step + 1 < steps) fetch(step + 1);
        else copies_commit();
        copies_wait<1>();
        __syncthreads();
        u32 count = min(len - step * STAGED, STAGED);
#pragma unroll 1
        for (u32 t = 0; t < count; t++) {
            const float *line = staged[step % 2] + t * LINE;
            const float4 *key = (const float4 *)line + quarter, *query = (const float4 *)(line + KEYS) + quarter;
            float value = line[2 * KEYS + mine], fade = line[2 * KEYS + COLUMNS], turn = line[2 * KEYS + COLUMNS + 1];
            auto together = [&](const float (&sums)[4]) {
                float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
                sum += __shfl_xor_sync(ALL_LANES, sum, 8);
                return sum + __shfl_xor_sync(ALL_LANES, sum, 16);
            };
            float sums[4] = {};
#pragma unroll
            for (u32 i = 0; i < OWN; i += 4) {
                float4 k = key[i];
                sums[0] = fmaf(k.x, own[i], sums[0]);
                sums[1] = fmaf(k.y, own[i + 1], sums[1]);
                sums[2] = fmaf(k.z, own[i + 2], sums[2]);
                sums[3] = fmaf(k.w, own[i + 3], sums[3]);
            }
            float change = (value - fade * together(sums)) * turn;
            float says[4] = {};
#pragma unroll
            for (u32 i = 0; i < OWN; i += 4) {
                float4 k = key[i], q = query[i];
                own[i] = fade * own[i] + k.x * change;
                own[i + 1] = fade * own[i + 1] + k.y * change;
                own[i + 2] = fade * own[i + 2] + k.z * change;
                own[i + 3] = fade * own[i + 3] + k.w * change;
                says[0] = fmaf(q.x, own[i], says[0]);
                says[1] = fmaf(q.y, own[i + 1], says[1]);
                says[2] = fmaf(q.z, own[i + 2], says[2]);
                says[3] = fmaf(q.w, own[i + 3], says[3]);
            }
            float out = together(says);
            u64 row = first + step * STAGED + t;
            if (real && quarter == 0) d.said[(row * heads + head) * value_dim + column] = out;
        }
        // What comes next but one goes where all are done with these.
        __syncthreads();
    }
    if (!real) return;
#pragma unroll
    for (u32 i = 0; i < OWN; i++)
        if (channel(i) < key_dim) matrix[(u64)channel(i) * value_dim] = own[i];
}

#define DELTA_RULE(KEYS)                                                                                               \
    KERNEL(RULE) delta_rule_##KEYS(const float *passed, const float *turned, const float *x, u32 stride, u32 query,    \
                                   u32 key, u32 value, u32 of_keys, u32 of_values, u32 shared, u32 key_dim,            \
                                   u32 value_dim, u32 kernel, const u32 *firsts, const u32 *positions, u8 *memory,     \
                                   const u32 *table, u32 pages, u32 tail_page, u32 tails, u32 matrix_page,             \
                                   u32 matrices, float *said) {                                                        \
        after_others();                                                                                                \
        GroupColumns channels = {query, key, value, of_keys, of_values, key_dim};                                          \
        delta_rule<KEYS>(DeltaRule{passed, turned, x, stride, channels, shared, value_dim, kernel, firsts, positions,  \
                                   memory, table, pages, tail_page, tails, matrix_page, matrices, said});              \
    }                                                                                                                  \
    EXPORT(delta_rule_##KEYS)
DELTA_RULE(32)
DELTA_RULE(64)
DELTA_RULE(128)

// out = silu(gates) · rms_norm(said) · w, head by head: of a row `values` numbers, heads of `value_dim`, a multiple of eight. A group's
// gates are `in_group` columns of what matrices made of the row. Grid (rows, 2,048s of numbers); limited by a launch for few rows.
constexpr u32 NORMED = 256;
KERNEL(NORMED) delta_norm(const float *said, u32 values, u32 value_dim, const float *w, float eps, const float *x, u32 stride, u32 gate,
                          u32 of_values, u32 in_group, void *out, u32 kind) {
    after_others();
    __shared__ float scales[NORMED + 1];
    u32 thread = threadIdx.x, lane = thread % 32, begin = blockIdx.y * NORMED * 8, end = min(begin + NORMED * 8, values);
    u64 row = blockIdx.x;
    const float *mine = said + row * values;
    u32 first = begin / value_dim, heads = (end - 1) / value_dim - first + 1;
    for (u32 i = thread / 32; i < heads; i += NORMED / 32) {
        const float *head = mine + (u64)(first + i) * value_dim;
        float squares = 0.f;
        for (u32 c = lane; c < value_dim; c += 32) squares = fmaf(head[c], head[c], squares);
        squares = warp_sum(squares);
        if (lane == 0) scales[i] = 1.f / sqrtf(squares / (float)value_dim + eps);
    }
    __syncthreads();
    u32 i = begin + thread * 8, count = i < values ? 8 : 0;
    float y[8] = {};
    if (count) {
        float numbers[8], gates[8], weights[8], scale = scales[i / value_dim - first];
        const float *from = x + row * stride + gate + i / in_group * of_values + i % in_group;
        read_eight(numbers, mine + i, 8, true);
        read_eight(weights, w + i % value_dim, 8, true);
        read_eight(gates, from, 8, ((u64)from & 15) == 0);
#pragma unroll
        for (int k = 0; k < 8; k++) y[k] = gates[k] / (1.f + expf(-gates[k])) * (numbers[k] * scale * weights[k]);
    }
    store_eight(kind, out, (u64)gridDim.x * values, row * values + i, y, count, true);
}
EXPORT(delta_norm)

// out = mixed · σ(gates): what attention mixed of `width` numbers a row, and its gates, of which rows lie `stride` numbers apart.
// Limited by a launch for few rows, by memory for many.
KERNEL(128) open_gates(const float *mixed, u32 width, const float *gates, u32 stride, void *out, u32 kind) {
    after_others();
    u64 row = blockIdx.x;
    u32 i = (blockIdx.y * 128 + threadIdx.x) * 8, count = i < width ? min(width - i, 8u) : 0;
    const float *from = gates + row * stride + i;
    bool whole = width % 8 == 0;
    float numbers[8] = {}, open[8] = {}, y[8];
    if (count) {
        read_eight(numbers, mixed + row * width + i, count, whole);
        read_eight(open, from, count, whole && ((u64)from & 15) == 0);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) y[k] = numbers[k] / (1.f + expf(-open[k]));
    store_eight(kind, out, (u64)gridDim.x * width, row * width + i, y, count, whole);
}
EXPORT(open_gates)
