// Products of up to 64 rows with quantised weights, on tensor cores: rows rounded to 8 bits as `rounded.cuh` has them, weights
// made bytes in registers on their way from shared memory. Whole numbers within a block, then one fused multiply-add a
// block for scales and one for least values, in the order of blocks, as on the processor (`cpu/quantised.rs`).
//
// A row's sums are the same whatever rows are beside it. Columns are cut into `parts`, by the matrix's size alone; parts are
// added in pairs, pairs of pairs, and so on. How many parts a block of threads has, and how many blocks share an output,
// changes which thread adds, not what is added to what. With one part the sums are the processor's, to the bit.
#include "mmq.cuh"

// `count` numbers, a power of two up to eight, that `number` hands out: added in pairs, pairs of pairs, and so on.
template <class F> DEVICE float in_pairs(u32 count, const F &number) {
    if (count == 1) return number(0);
    float sum = number(0) + number(1);
    if (count == 2) return sum;
    sum += number(2) + number(3);
    if (count == 4) return sum;
    return sum + ((number(4) + number(5)) + (number(6) + number(7)));
}

// Rows rounded to 8 bits, and how they are cut: a block has `here` of an output's `parts`, a warp each, and with warps left
// several sixteens of outputs. Other parts are other blocks', by blockIdx.y.
struct Rounded {
    const i8 *bytes;
    const float *scales;
    const i8 *halves;
    u32 rows;
};
struct Cut { u32 parts, here; };

// Keeps a number in its register, where there are registers: the compiler would rather compute it again in every step.
template <int TILES> DEVICE void keep(u32 &x) {
#ifndef TSNODE_EMULATOR
    if (TILES < 8) asm volatile("" : "+r"(x));
#endif
}
template <int TILES> DEVICE void keep(const u8 *&x) {
#ifndef TSNODE_EMULATOR
    if (TILES < 8) asm volatile("" : "+l"(x));
#endif
}

// Where a lane brings a warp's 16 outputs from, and to: eight lanes read 128 bytes of a row together, what a row has more
// comes then. Outputs behind the last are the last once more.
template <int FORM, int TILES> struct WeightsSource {
    using S = Step<FORM>;
    static constexpr int MORE = S::bytes / 16 - 8, TURNS = (OUTS * MORE + 31) / 32, SIZE = TURNS ? TURNS : 1;
    const u8 *base;
    u32 row_bytes, piece, from[OUTS / 4], to, more_from[SIZE], more_to[SIZE];
    // Of both outputs that a lane has results of.
    const u16 *scales[2];

    DEVICE WeightsSource(const Matrix &w, u64 first, u32 to_warp, u32 lane) {
        u32 blocks = w.cols / Blocks<FORM>::numbers, last = (u32)min(w.rows - 1 - first, (u64)OUTS - 1), row = lane / 8;
        row_bytes = blocks * Blocks<FORM>::bytes;
        base = w.data + first * row_bytes;
        keep<TILES>(base);
        piece = lane % 8 * 16;
        to = to_warp + row * S::apart + piece;
        keep<TILES>(to);
#pragma unroll
        for (u32 k = 0; k < OUTS / 4; k++) {
            from[k] = min(row + k * 4, last) * row_bytes + piece;
            keep<TILES>(from[k]);
        }
        if constexpr (MORE > 0) {
#pragma unroll
            for (int k = 0; k < TURNS; k++) {
                u32 i = lane + k * 32, row = i / MORE, piece = 128 + i % MORE * 16;
                more_from[k] = min(row, last) * row_bytes + piece, more_to[k] = to_warp + row * S::apart + piece;
                keep<TILES>(more_from[k]), keep<TILES>(more_to[k]);
            }
        }
        const u16 *plane = (const u16 *)(w.data + w.rows * row_bytes);
#pragma unroll
        for (u32 r = 0; r < 2; r++) scales[r] = plane + (first + min(lane / 4 + r * 8, last)) * blocks;
    }
    DEVICE void bring(u8 *stage, u32 step, u32 lane) const {
        const u8 *at = base + (u64)step * S::bytes;
        bool real = WHOLE<FORM> || step * S::bytes + piece < row_bytes;
#pragma unroll
        for (u32 k = 0; k < OUTS / 4; k++) stream_16_async(stage + to + k * 4 * S::apart, at + from[k], real);
        if constexpr (MORE > 0) {
#pragma unroll
            for (int k = 0; k < TURNS; k++)
                if ((k + 1) * 32 <= OUTS * MORE || lane + k * 32 < OUTS * MORE) stream_16_async(stage + more_to[k], at + more_from[k], true);
        }
    }
};

// The same of rows, which `of` threads bring.
template <int FORM, int TILES> struct RowsSource {
    using S = Step<FORM>;
    static constexpr u32 PIECES = S::columns / 16;
    u32 cols, blocks, row, apart, piece, to, scale_row, scale_apart, scale, to_scale, to_halves;

    DEVICE RowsSource(u32 cols, u32 to_rows, u32 to_scales, u32 to_halves, u32 me, u32 of)
        : cols(cols), blocks(cols / Blocks<FORM>::rounded), to_halves(to_halves + me * HALVES) {
        row = me / PIECES, apart = of / PIECES, piece = me % PIECES * 16;
        to = to_rows + row * S::x_apart + piece;
        scale_row = me / SCALES<FORM>, scale_apart = of / SCALES<FORM>, scale = me % SCALES<FORM>;
        to_scale = to_scales + me * 4;
        keep<TILES>(row), keep<TILES>(piece), keep<TILES>(to), keep<TILES>(to_scale);
    }
    DEVICE void bring(u8 *stage, const Rounded &x, u32 step) const {
        u32 col = step * S::columns + piece, block = step * SCALES<FORM> + scale;
        const i8 *from = x.bytes + (u64)row * cols + col;
        u8 *place = stage + to;
        for (u32 r = row; r < x.rows; r += apart, from += apart * cols, place += apart * S::x_apart)
            copy_16_async(place, from, WHOLE<FORM> || col < cols);
        const float *scales = x.scales + (u64)scale_row * blocks + block;
        const i8 *halves = x.halves + ((u64)scale_row * blocks + block) * HALVES;
        u8 *scale_place = stage + to_scale, *halves_place = stage + to_halves;
        for (u32 r = scale_row; r < x.rows; r += scale_apart) {
            copy_4_async(scale_place, scales, WHOLE<FORM> || block < blocks);
            scales += scale_apart * blocks, scale_place += scale_apart * SCALES<FORM> * 4;
            if constexpr (FORM == FORM_Q4_K) {
                copy_16_async(halves_place, halves, true);
                halves += scale_apart * blocks * HALVES, halves_place += scale_apart * HALVES;
            }
        }
    }
};

template <int FORM, int TILES>
DEVICE void product(const Rounded &x, const Matrix &w, const Cut &cut, float *out, u32 stride) {
    using S = Step<FORM>;
    DYNAMIC_SHARED(shared);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, sixteens = warps / cut.here;
    u32 part = warp & (cut.here - 1), sixteen = warp / cut.here;
    u64 first = ((u64)blockIdx.x * sixteens + sixteen) * OUTS;
    // Of few rows only as many are kept as there are, so that more blocks have room. Rows of a tile that are none read what
    // is there: it ends in columns that nobody writes.
    u32 kept = TILES == 1 ? x.rows : TILES * 8;
    u32 weights_bytes = warps * OUTS * S::apart, rows_bytes = kept * S::x_apart, scales_bytes = (kept * SCALES<FORM> + 3) / 4 * 16;
    u32 part_bytes = rows_bytes + scales_bytes + (FORM == FORM_Q4_K ? kept * HALVES : 0), stage_bytes = weights_bytes + cut.here * part_bytes;
    u32 w_at = warp * OUTS * S::apart, x_at = weights_bytes + part * part_bytes, scales_at = x_at + rows_bytes, halves_at = scales_at + scales_bytes;

    u32 steps = (w.cols + S::columns - 1) / S::columns, each = (steps + cut.parts - 1) / cut.parts;
    u32 begin = min((blockIdx.y * cut.here + part) * each, steps), end = min(begin + each, steps), blocks = w.cols / Blocks<FORM>::numbers;
    // What is no output's is brought by nobody, and its rows are by all of the part's warps.
    bool mine = first < w.rows;
    WeightsSource<FORM, TILES> weights(w, mine ? first : 0, w_at, lane);
    RowsSource<FORM, TILES> rows(w.cols, x_at, scales_at, halves_at, sixteen * 32 + lane, sixteens * 32);
    Held<FORM> now, next;
    auto bring_weights = [&](u32 step, u32 stage, Held<FORM> &held) {
        if (!mine || step >= end) return;
        weights.bring(shared + stage, step, lane);
        held.read(weights.scales, blocks, step, lane);
    };
    auto bring_rows = [&](u32 step, u32 stage) {
        if (step < end) rows.bring(shared + stage, x, step);
        copies_commit();
    };
    // A warp that has its rows to itself waits for no other.
    auto meet = [&]() {
        if (sixteens == 1) __syncwarp();
        else __syncthreads();
    };

    // Where this lane reads.
    u32 tile_row = lane / 4, results = lane % 4 * 2, most = TILES == 1 ? x.rows - 1 : 7;
    u32 w_mine = w_at + tile_row * S::apart;
    u32 x_mine = x_at + min(tile_row, most) * S::x_apart + lane % 4 * (FORM == FORM_Q4_K || FORM == FORM_Q8_0 ? 8 : 4);
    u32 halves_mine = halves_at + min(tile_row, most) * HALVES + lane % 2 * 4;
    u32 scale_at[2] = {scales_at + min(results, most) * SCALES<FORM> * 4, scales_at + min(results + 1, most) * SCALES<FORM> * 4};
    keep<TILES>(w_mine), keep<TILES>(x_mine), keep<TILES>(scale_at[0]), keep<TILES>(scale_at[1]), keep<TILES>(stage_bytes);
    float acc[TILES][4] = {};
    // Weights of both steps are asked for before the first rows, which another kernel has just left, or has still to.
    let_next_begin();
    bring_weights(begin, 0, now);
    bring_weights(begin + 1, stage_bytes, next);
    wait_for_others();
    bring_rows(begin, 0);
    bring_rows(begin + 1, stage_bytes);
    u32 stage = 0, last = begin + each;
    for (u32 step = begin; step < last; step++) {
        copies_wait<1>();
        meet();
        if (mine && step < end) {
            const u8 *at = shared + stage;
            Place place = {at + w_mine, at + x_mine, at + halves_mine, {at + scale_at[0], at + scale_at[1]}};
            Multiply<FORM>::template step<TILES>(acc, place, now, blocks - step * SCALES<FORM>, lane);
        }
        meet();
        now = next;
        bring_weights(step + 2, stage, next);
        bring_rows(step + 2, stage);
        stage = stage_bytes - stage;
    }

    let_next_begin_late();
    float *to = gridDim.y == 1 ? out : out + (u64)blockIdx.y * x.rows * w.rows;
    u64 apart = gridDim.y == 1 ? stride : w.rows;
    if (cut.here == 1) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = n * 8 + results + i % 2;
                u64 output = first + lane / 4 + i / 2 * 8;
                if (row < x.rows && output < w.rows) to[row * apart + output] = acc[n][i];
            }
        return;
    }
    // Parts come together where steps were, which takes more memory than they do.
    __syncthreads();
    float *mine_at = (float *)shared + warp * TILES * 8 * RESULT;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) mine_at[(n * 8 + results + i % 2) * RESULT + lane / 4 + i / 2 * 8] = acc[n][i];
    __syncthreads();
    // How many sixteens there are is a power of two.
    u32 wide = sixteens * OUTS, shift = __ffs((int)wide) - 1;
    for (u32 i = threadIdx.x; i < x.rows << shift; i += blockDim.x) {
        u32 row = i >> shift, o = i & (wide - 1);
        u64 output = (u64)blockIdx.x * wide + o;
        const float *at = (const float *)shared + (o / OUTS * cut.here * TILES * 8 + row) * RESULT + o % OUTS;
        if (output < w.rows) to[row * apart + output] = in_pairs(cut.here, [&](u32 i) { return at[i * TILES * 8 * RESULT]; });
    }
}

#define MMQ(name, FORM, TILES, BLOCKS)                                                                                 \
    KERNEL(256, BLOCKS) mmq_##name##_##TILES(const i8 *bytes, const float *scales, const i8 *halves, u32 rows,         \
                                             const u8 *w, u64 outs, u32 cols, u32 parts, u32 here, float *out,         \
                                             u32 stride) {                                                             \
        product<FORM, TILES>(Rounded{bytes, scales, halves, rows}, Matrix{w, outs, cols}, Cut{parts, here}, out, stride); \
    }                                                                                                                  \
    EXPORT(mmq_##name##_##TILES)
#define MMQ_OF(name, FORM)                                                                                             \
    MMQ(name, FORM, 1, 3)                                                                                              \
    MMQ(name, FORM, 2, 2)                                                                                              \
    MMQ(name, FORM, 4, 2)                                                                                              \
    MMQ(name, FORM, 8, 2)
MMQ(q4_k, FORM_Q4_K, 1, 3)

// Adds what blocks have of the same outputs, `count` times `[row][output]`, as a block adds what its warps have. A row by
// blockIdx.y; limited by a launch.
KERNEL(256) mmq_sum(const float *blocks, u32 count, u32 rows, u32 outs, float *out, u32 stride) {
    after_others();
    u32 row = blockIdx.y, output = blockIdx.x * 256 + threadIdx.x;
    if (output >= outs) return;
    const float *at = blocks + (u64)row * outs + output;
    u64 apart = (u64)rows * outs;
    out[(u64)row * stride + output] = in_pairs(count, [&](u32 block) { return at[block * apart]; });
}
EXPORT(mmq_sum)
