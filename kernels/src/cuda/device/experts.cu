// Mixtures of experts: which experts a row passes, and products of rows with the matrices of theirs. A pair is a row at one of
// the experts that it passes, numbered row by row; pairs of an expert are multiplied together, in tiles, so that its weights
// are read once a tile. No sum depends on what rows are beside: columns are cut by the matrix alone, and parts are added in the
// order of experts' numbers, as on the processor. Rows are rounded as `few.cu` has them; only where
// there are many pairs of each they are multiplied on tensor cores, by rows of 16 bits.
#include "few.cuh"
#include "many.cuh"

// Of a layer, as the host says too; a row passes as many as a warp has lanes at most.
constexpr u32 MOST_EXPERTS = 512;
// Pairs of a tile, on tensor cores and elsewhere.
constexpr u32 TILE = 8, LARGE_TILE = 64;

// Pairs of one expert: `rows` from place `from` of their order on; of none nothing is computed.
struct Tile { u32 expert, from, rows, none; };

// scores[row][expert] = x[row] · w[expert], single precision throughout: they decide something. A warp an expert, up to eight rows a
// block. Limited by how long the first bytes take with few rows, by the second-level cache with many.
KERNEL(256) router(const float *x, u32 rows, const float *w, u32 experts, u32 cols, float *scores) {
    constexpr int ROWS = 8, DEEP = 4;
    u32 expert = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.y * ROWS;
    if (expert >= experts) return;
    const float *mine = w + (u64)expert * cols, *from = x + (u64)first * cols;
    u32 here = min(rows - first, (u32)ROWS);
    float acc[ROWS] = {};
    for (u32 col = lane * 4; col < cols; col += DEEP * 128) {
        float4 weights[DEEP];
#pragma unroll
        for (int d = 0; d < DEEP; d++)
            weights[d] = col + d * 128 < cols ? *(const float4 *)(mine + col + d * 128) : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= (int)here) break;
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                if (col + d * 128 >= cols) break;
                float4 four = *(const float4 *)(from + (u64)r * cols + col + d * 128);
                acc[r] = fmaf(four.x, weights[d].x, acc[r]);
                acc[r] = fmaf(four.y, weights[d].y, acc[r]);
                acc[r] = fmaf(four.z, weights[d].z, acc[r]);
                acc[r] = fmaf(four.w, weights[d].w, acc[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(acc[r]);
        if (lane == 0 && r < (int)here) scores[(u64)(first + r) * experts + expert] = sum;
    }
}
EXPORT(router)

DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// The experts that a row passes, in the order of their numbers, and how much of each counts: a warp a row. Chances are the
// softmax of its scores; with a correction each is a sigmoid, to which that is added for choosing alone. Of equal ones the lower
// number is taken. Parts are multiplied by their experts' factors in the end, if there are some. With `tiles` each pair is a tile of
// its own. Limited by a launch.
KERNEL(32) route(const float *scores, const float *bias, const float *correction, u32 experts, u32 used, u32 normed, float scale,
                 const float *factors, u32 *chosen, float *parts, Tile *tiles) {
    __shared__ float chances[MOST_EXPERTS], counts[MOST_EXPERTS];
    u32 row = blockIdx.x, lane = threadIdx.x;
    // A lane reads and writes what is its own: every 32nd.
    float top = -INFINITY, sum = 0.f;
    for (u32 e = lane; e < experts; e += 32) {
        float score = scores[(u64)row * experts + e] + (bias ? bias[e] : 0.f);
        chances[e] = score;
        top = score > top ? score : top;
    }
    if (correction) {
        for (u32 e = lane; e < experts; e += 32) {
            counts[e] = sigmoid(chances[e]);
            chances[e] = counts[e] + correction[e];
        }
    } else {
        top = warp_max(top);
        for (u32 e = lane; e < experts; e += 32) {
            chances[e] = expf(chances[e] - top);
            sum += chances[e];
        }
        float whole = 1.f / warp_sum(sum);
        for (u32 e = lane; e < experts; e += 32) {
            chances[e] *= whole;
            counts[e] = chances[e];
        }
    }
    // Lane `slot` keeps the expert that was chosen in that turn.
    u32 mine = 0;
    float part = 0.f;
    for (u32 slot = 0; slot < used; slot++) {
        u32 at = ~0u;
        float best = -INFINITY;
        for (u32 e = lane; e < experts; e += 32)
            if (chances[e] > best) at = e, best = chances[e];
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            u32 other = __shfl_xor_sync(ALL_LANES, at, lanes);
            float its = __shfl_xor_sync(ALL_LANES, best, lanes);
            if (its > best || (its == best && other < at)) at = other, best = its;
        }
        // Of scores that are no numbers nobody is best: then the first is as good.
        if (at >= experts) at = 0;
        float count = 0.f;
        if (lane == at % 32) {
            count = counts[at];
            chances[at] = -INFINITY;
        }
        count = __shfl_sync(ALL_LANES, count, (int)(at % 32));
        if (lane == slot) mine = at, part = count;
    }
    if (normed) {
        float all = 0.f;
        for (u32 slot = 0; slot < used; slot++) all += __shfl_sync(ALL_LANES, part, (int)slot);
        part /= all;
    }
    part *= scale;
    if (factors) part *= factors[mine];
    u32 place = 0;
    for (u32 slot = 0; slot < used; slot++) {
        u32 other = __shfl_sync(ALL_LANES, mine, (int)slot);
        place += other < mine || (other == mine && slot < lane);
    }
    if (lane >= used) return;
    u64 pair = (u64)row * used + place;
    chosen[pair] = mine;
    parts[pair] = part;
    if (tiles) tiles[pair] = Tile{mine, (u32)pair, 1, 0};
}
EXPORT(route)

DEVICE u32 warp_total(u32 x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

// Puts pairs in the order of their experts, those of one in their own, and cuts it into tiles of `each`; tiles up to `most` that there are
// no pairs for are of none. A block an expert, which looks at all pairs. Limited by that: a few microseconds for thousands.
KERNEL(256) by_expert(const u32 *chosen, u32 pairs, u32 experts, u32 each, u32 *order, Tile *tiles, u32 most) {
    __shared__ u32 counts[MOST_EXPERTS], before[2], by_warp[8];
    u32 expert = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    for (u32 e = thread; e < experts; e += 256) counts[e] = 0;
    __syncthreads();
    for (u32 i = thread; i < pairs; i += 256) atomicAdd(&counts[chosen[i]], 1u);
    __syncthreads();
    if (warp == 0) {
        u32 some = 0, cut = 0;
        for (u32 e = lane; e < expert; e += 32) some += counts[e], cut += (counts[e] + each - 1) / each;
        some = warp_total(some), cut = warp_total(cut);
        if (lane == 0) before[0] = some, before[1] = cut;
    }
    __syncthreads();
    u32 count = counts[expert], from = before[0], tile = before[1], of_expert = (count + each - 1) / each;
    for (u32 i = thread; i < of_expert; i += 256)
        tiles[tile + i] = Tile{expert, from + i * each, min(count - i * each, each), 0};
    if (expert + 1 == experts)
        for (u32 i = tile + of_expert + thread; i < most; i += 256) tiles[i] = Tile{0, 0, 0, 0};
    for (u32 first = 0, found = 0; first < pairs && found < count; first += 256) {
        u32 pair = first + thread;
        bool is_its = pair < pairs && chosen[pair] == expert;
        u32 lanes = __ballot_sync(ALL_LANES, is_its);
        if (lane == 0) by_warp[warp] = (u32)__popc(lanes);
        __syncthreads();
        u32 at = found + (u32)__popc(lanes & ((1u << lane) - 1));
        for (u32 w = 0; w < 8; w++) {
            if (w < warp) at += by_warp[w];
            found += by_warp[w];
        }
        if (is_its) order[from + at] = pair;
        __syncthreads();
    }
}
EXPORT(by_expert)

// All matrices of a layer's experts, each whole, `every` bytes apart, and where products go: a pair's from number pair · stride on.
struct Experts {
    const u8 *data;
    u64 every;
    u32 outs, cols;
};
// Pairs of a block's tile, in shared memory. Without an order they follow each other.
template <int ROWS> DEVICE void read_pairs(u32 (&pairs)[ROWS], const u32 *order, const Tile &tile) {
    if (threadIdx.x < ROWS && threadIdx.x < tile.rows)
        pairs[threadIdx.x] = order ? order[tile.from + threadIdx.x] : tile.from + threadIdx.x;
    __syncthreads();
}
// `finish` of few.cu, into pairs' rows.
template <int ROWS, int OUTS>
DEVICE void finish_pairs(float (&acc)[ROWS][OUTS], float *parts, const Share &share, u64 first, u32 outs, const u32 (&pairs)[ROWS],
                         u32 rows, float *out, u32 stride) {
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
        out[(u64)pairs[r] * stride + first + o] = sum;
    }
}

// As `dense_few`: a warp has two outputs, and asks for several steps of their weights before it uses the first. `of_row` pairs
// read the same row. Limited by reading the weights.
template <int FORM, int ROWS>
DEVICE void dense_experts(const u8 *x, u32 of_row, const u32 *order, const Tile *tiles, const Experts &experts, u32 split, float *out,
                          u32 stride) {
    constexpr int OUTS = 2, OF_ROWS = FORM == FORM_BF16 ? FORM_BF16 : FORM_F32;
    constexpr int DEEP = (ROWS == 1 ? 4 : 2) / Eight<FORM>::PIECES;
    __shared__ float parts[8 * ROWS * OUTS];
    __shared__ u32 pairs[ROWS];
    Tile tile = tiles[blockIdx.y];
    if (tile.rows == 0) return;
    read_pairs<ROWS>(pairs, order, tile);
    Share share(split);
    u32 outs = experts.outs, cols = experts.cols, apart = share.lanes() * 8;
    u64 first = share.output() * OUTS;
    float acc[ROWS][OUTS] = {};
    u64 bytes = (u64)cols / 8 * Eight<FORM>::BYTES, row_bytes = (u64)cols / 8 * Eight<OF_ROWS>::BYTES;
    if (first < outs) {
        const u8 *w = experts.data + tile.expert * experts.every;
        const u8 *row[OUTS] = {w + first * bytes, w + min(first + 1, (u64)outs - 1) * bytes};
        const u8 *from[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) from[r] = x + (u64)(r < (int)tile.rows ? pairs[r] / of_row : 0) * row_bytes;
        for (u32 col = share.lane() * 8; col < cols; col += DEEP * apart) {
            Eight<FORM> weights[DEEP][OUTS];
#pragma unroll
            for (int d = 0; d < DEEP; d++)
#pragma unroll
                for (int o = 0; o < OUTS; o++) weights[d][o].stream(row[o], col + d * apart, col + d * apart < cols);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= (int)tile.rows) break;
                Eight<OF_ROWS> mine[DEEP];
#pragma unroll
                for (int d = 0; d < DEEP; d++) mine[d].read(from[r], col + d * apart, col + d * apart < cols);
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
    finish_pairs<ROWS, OUTS>(acc, parts, share, first, outs, pairs, tile.rows, out, stride);
}

// As `quantised_few`, of rows rounded to 8 bits.
template <int FORM, int ROWS>
DEVICE void quantised_experts(const RoundedBytes &x, u32 of_row, const u32 *order, const Tile *tiles, const Experts &experts, u32 split,
                              float *out, u32 stride) {
    constexpr int OUTS = 2, DEEP = ROWS == 1 && FORM != FORM_Q6_K ? 4 : 2;
    constexpr u32 LANES = Piece<FORM>::LANES;
    __shared__ float parts[8 * ROWS * OUTS];
    __shared__ u32 pairs[ROWS];
    Tile tile = tiles[blockIdx.y];
    if (tile.rows == 0) return;
    read_pairs<ROWS>(pairs, order, tile);
    Share share(split);
    u64 first = share.output() * OUTS;
    u32 outs = experts.outs, blocks = experts.cols / Blocks<FORM>::numbers, pieces = blocks * LANES, apart = share.lanes();
    float acc[ROWS][OUTS] = {};
    if (first < outs) {
        Matrix w = {experts.data + tile.expert * experts.every, outs, experts.cols, 1};
        RowPlace row[OUTS] = {place_of(w, first, blocks), place_of(w, min(first + 1, (u64)outs - 1), blocks)};
        u32 from[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) from[r] = r < (int)tile.rows ? pairs[r] / of_row : 0;
        for (u32 piece = share.lane(); piece < pieces; piece += DEEP * apart) {
            Piece<FORM> mine[DEEP][OUTS];
#pragma unroll
            for (int d = 0; d < DEEP; d++)
#pragma unroll
                for (int o = 0; o < OUTS; o++) {
                    u32 which = piece + d * apart;
                    mine[d][o].read(w, row[o], which / LANES, which % LANES, which < pieces);
                }
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                u32 which = piece + d * apart;
                if (which >= pieces) break;
#pragma unroll
                for (int o = 0; o < OUTS; o++) mine[d][o].ready(which % LANES);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (r >= (int)tile.rows) break;
                    typename Piece<FORM>::Input input(x, from[r], which / LANES, which % LANES);
#pragma unroll
                    for (int o = 0; o < OUTS; o++) acc[r][o] += mine[d][o].times(input);
                }
            }
        }
    }
    finish_pairs<ROWS, OUTS>(acc, parts, share, first, outs, pairs, tile.rows, out, stride);
}

#define DENSE_EXPERTS(name, FORM)                                                                                      \
    KERNEL(256) one_##name(const u8 *x, u32 of_row, const u32 *order, const Tile *tiles, const u8 *w, u64 every,       \
                           u32 outs, u32 cols, u32 split, float *out, u32 stride) {                                    \
        dense_experts<FORM, 1>(x, of_row, order, tiles, Experts{w, every, outs, cols}, split, out, stride);            \
    }                                                                                                                  \
    EXPORT(one_##name)                                                                                                 \
    KERNEL(256) tile_##name(const u8 *x, u32 of_row, const u32 *order, const Tile *tiles, const u8 *w, u64 every,      \
                            u32 outs, u32 cols, u32 split, float *out, u32 stride) {                                   \
        dense_experts<FORM, TILE>(x, of_row, order, tiles, Experts{w, every, outs, cols}, split, out, stride);         \
    }                                                                                                                  \
    EXPORT(tile_##name)
DENSE_EXPERTS(f32, FORM_F32)
DENSE_EXPERTS(f16, FORM_F16)
DENSE_EXPERTS(bf16, FORM_BF16)

#define QUANTISED_EXPERTS(name, FORM)                                                                                  \
    KERNEL(256) one_##name(const i8 *bytes, const float *scales, u32 of_row, const u32 *order,      \
                           const Tile *tiles, const u8 *w, u64 every, u32 outs, u32 cols, u32 split, float *out,       \
                           u32 stride) {                                                                               \
        quantised_experts<FORM, 1>(RoundedBytes{bytes, scales, cols}, of_row, order, tiles,                           \
                                   Experts{w, every, outs, cols}, split, out, stride);                                 \
    }                                                                                                                  \
    EXPORT(one_##name)                                                                                                 \
    KERNEL(256) tile_##name(const i8 *bytes, const float *scales, u32 of_row, const u32 *order,     \
                            const Tile *tiles, const u8 *w, u64 every, u32 outs, u32 cols, u32 split, float *out,      \
                            u32 stride) {                                                                              \
        quantised_experts<FORM, TILE>(RoundedBytes{bytes, scales, cols}, of_row, order, tiles,                        \
                                      Experts{w, every, outs, cols}, split, out, stride);                              \
    }                                                                                                                  \
    EXPORT(tile_##name)
QUANTISED_EXPERTS(q4_0, FORM_Q4_0)
QUANTISED_EXPERTS(mxfp4, FORM_MXFP4)
QUANTISED_EXPERTS(q8_0, FORM_Q8_0)
QUANTISED_EXPERTS(q4_k, FORM_Q4_K)
QUANTISED_EXPERTS(q6_k, FORM_Q6_K)

// The same on tensor cores, rows in 16 bits: 64 pairs by 128 outputs, eight warps with 32 by 32 each. Rows, and weights of 16 bits, are
// on their way two steps of 32 columns before they are used; quantised weights are read one step before, and widened when
// that is done. Limited by tensor cores with hundreds of pairs of an expert, with fewer by reading weights.
constexpr int DEPTH = 32, ROW = DEPTH + 8, LARGE_OUTS = 128, STEPS = 3;

// What a warp multiplies of a step that is in shared memory.
template <bool BRAIN> DEVICE void multiply_step(float (&acc)[2][4][4], const u16 *xs, const u16 *ws) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        u32 a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) load_matrices(a[m], xs + (m * 16 + lane % 16) * ROW + k + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            u32 b[4];
            load_matrices(b, ws + (n * 8 + lane % 8 + lane / 16 * 8) * ROW + k + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply_16x8x16<BRAIN>(acc[m][n], a[m], b[0], b[1]);
                multiply_16x8x16<BRAIN>(acc[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int FORM>
DEVICE void large_tile(const u16 *x, u32 of_row, const u32 *order, const Tile *tiles, const Experts &experts, float *out, u32 stride) {
    constexpr bool WIDENS = FORM > FORM_BF16;
    __shared__ __align__(16) u16 xs[STEPS][LARGE_TILE * ROW], ws[WIDENS ? 2 : STEPS][LARGE_OUTS * ROW];
    __shared__ u32 pairs[LARGE_TILE];
    Tile tile = tiles[blockIdx.y];
    if (tile.rows == 0) return;
    read_pairs<LARGE_TILE>(pairs, order, tile);
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, outs = experts.outs, cols = experts.cols;
    u32 first = blockIdx.x * LARGE_OUTS, steps = (cols + DEPTH - 1) / DEPTH;
    Matrix w = {experts.data + tile.expert * experts.every, outs, cols, 1};
    // A thread brings eight numbers of a row; and eight of two outputs, or sixteen of one that are widened.
    u32 line = thread / 4, part = thread % 4 * 8, output = thread / 2, half = thread % 2 * 16;
    bool has_row = line < tile.rows;
    const u16 *row = x + (u64)(has_row ? pairs[line] / of_row : 0) * cols;
    auto fetch = [&](u32 step) {
        u32 col = step * DEPTH + part, buffer = step % STEPS;
        bool inside = col < cols;
        copy_16_async(xs[buffer] + line * ROW + part, inside ? row + col : x, has_row && inside);
        if constexpr (!WIDENS) {
#pragma unroll
            for (u32 more = 0; more < LARGE_OUTS; more += LARGE_OUTS / 2) {
                bool real = inside && first + more + line < outs;
                const u16 *from = (const u16 *)w.data;
                if (real) from += (u64)(first + more + line) * cols + col;
                copy_16_async(ws[buffer] + (more + line) * ROW + part, from, real);
            }
        }
    };
    Fetched<FORM, 16> fetched;
    auto read = [&](u32 step) {
        if constexpr (WIDENS) fetched.read(w, first + output, step * DEPTH + half);
    };
    auto put = [&](u32 step) {
        if constexpr (WIDENS) fetched.put(ws[step % 2] + output * ROW + half);
    };
    float acc[2][4][4] = {};
    u32 row0 = warp / 4 * 32, out0 = warp % 4 * 32;
#pragma unroll
    for (u32 step = 0; step < STEPS - 1; step++) {
        if (step < steps) fetch(step);
        copies_commit();
    }
    read(0);
    put(0);
    for (u32 step = 0; step < steps; step++) {
        copies_wait<STEPS - 2>();
        // What comes next goes where all were done with the step before this.
        __syncthreads();
        if (step + STEPS - 1 < steps) fetch(step + STEPS - 1);
        copies_commit();
        if (step + 1 < steps) read(step + 1);
        multiply_step<FORM == FORM_BF16>(acc, xs[step % STEPS] + row0 * ROW, ws[step % (WIDENS ? 2 : STEPS)] + out0 * ROW);
        if (step + 1 < steps) put(step + 1);
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            u32 at = row0 + m * 16 + lane / 4 + i / 2 * 8;
            if (at >= tile.rows) continue;
            float *to = out + (u64)pairs[at] * stride;
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    u32 to_output = first + out0 + n * 8 + lane % 4 * 2 + j;
                    if (to_output < outs) to[to_output] = acc[m][n][i + j];
                }
        }
}

#define LARGE_TILES(name, FORM)                                                                                        \
    KERNEL(256) large_##name(const u16 *x, u32 of_row, const u32 *order, const Tile *tiles, const u8 *w, u64 every,    \
                             u32 outs, u32 cols, float *out, u32 stride) {                                             \
        large_tile<FORM>(x, of_row, order, tiles, Experts{w, every, outs, cols}, out, stride);                         \
    }                                                                                                                  \
    EXPORT(large_##name)
LARGE_TILES(f16, FORM_F16)
LARGE_TILES(bf16, FORM_BF16)
LARGE_TILES(q4_0, FORM_Q4_0)
LARGE_TILES(mxfp4, FORM_MXFP4)
LARGE_TILES(q8_0, FORM_Q8_0)
LARGE_TILES(q4_k, FORM_Q4_K)
LARGE_TILES(q6_k, FORM_Q6_K)

// out[row] = the row's pairs, each with its expert's bias, if there are some, and times its part, added in their order; and, where
// `out` has what an expert made that all rows pass, that in the end, times a sigmoid of the row's number in `gates` if there are any.
// Four numbers a thread; limited by memory.
KERNEL(256) mix_experts(const float *y, const float *parts, u32 used, u32 width, u32 shared, const float *gates, const u32 *chosen,
                        const float *bias, float *out) {
    u32 i = (blockIdx.y * 256 + threadIdx.x) * 4;
    if (i >= width) return;
    u64 row = blockIdx.x;
    float4 sum = {0.f, 0.f, 0.f, 0.f};
    for (u32 slot = 0; slot < used; slot++) {
        u64 pair = row * used + slot;
        float part = parts[pair];
        float4 some = *(const float4 *)(y + pair * width + i);
        if (bias) {
            float4 more = *(const float4 *)(bias + (u64)chosen[pair] * width + i);
            some.x += more.x, some.y += more.y, some.z += more.z, some.w += more.w;
        }
        sum.x += part * some.x, sum.y += part * some.y, sum.z += part * some.z, sum.w += part * some.w;
    }
    float4 *to = (float4 *)(out + row * width + i);
    if (shared) {
        float4 all = *to;
        float part = gates ? sigmoid(gates[row]) : 1.f;
        sum.x += part * all.x, sum.y += part * all.y, sum.z += part * all.z, sum.w += part * all.w;
    }
    *to = sum;
}
EXPORT(mix_experts)

// x = rms_norm(x) · w over `width` columns of rows that lie `stride` numbers apart: OLMoE's norms over the queries of all heads.
KERNEL(256) norm_columns(float *x, u32 stride, const float *w, float eps, u32 width) {
    __shared__ float few[32];
    float *mine = x + (u64)blockIdx.x * stride, squares = 0.f;
    for (u32 i = threadIdx.x; i < width; i += 256) squares = fmaf(mine[i], mine[i], squares);
    float scale = 1.f / sqrtf(block_sum(squares, few) / (float)width + eps);
    for (u32 i = threadIdx.x; i < width; i += 256) mine[i] = mine[i] * scale * w[i];
}
EXPORT(norm_columns)
