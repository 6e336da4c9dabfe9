// Products of up to 64 rows with quantised weights, on tensor cores: rows rounded to 8 bits as `rounded.cuh` has them, weights
// made bytes in registers on their way from shared memory. Whole numbers within a block, then one fused multiply-add a
// block for scales and one for least values, in the order of blocks, as on the processor (`cpu/quantised.rs`).
//
// A row's sums are the same whatever rows are beside it. Columns are cut into `parts`, by the matrix's size alone; parts are
// added in pairs, pairs of pairs, and so on. How many parts a block of threads has, and how many blocks share an output,
// changes which thread adds, not what is added to what. With one part the sums are the processor's, to the bit.
#include "mmq_row.cuh"

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

// Where a lane brings a warp's 16 outputs from, and to. A step of theirs is one run of memory, of which lanes bring 16 bytes each
// at a time. What is behind the last 16 outputs lies closer together there than where it goes.
template <int FORM, int TILES> struct WeightsSource {
    using S = Step<FORM>;
    static constexpr u32 BYTES = OUTS * S::bytes, TURN = 32 * 16;
    const u8 *from;
    u32 rows, bytes, to;
    // Of both outputs that a lane has results of.
    const u16 *scales[2];

    DEVICE WeightsSource(const Matrix &w, u64 first, u32 to_warp, u32 lane) {
        u32 blocks = w.cols / Blocks<FORM>::numbers;
        rows = (u32)min(w.rows - first, (u64)OUTS), bytes = rows * blocks * Blocks<FORM>::bytes, to = to_warp + lane * 16;
        from = w.data + first * blocks * Blocks<FORM>::bytes + lane * 16;
        keep<TILES>(from), keep<TILES>(to), keep<TILES>(rows);
        const u16 *mine = scales_of<FORM>(w) + first * blocks;
#pragma unroll
        for (u32 r = 0; r < 2; r++) scales[r] = mine + min(lane / 4 + r * 8, rows - 1);
    }
    DEVICE void bring(u8 *stage, u32 step, u32 lane) const {
        if (rows < OUTS || (!WHOLE<FORM> && (step + 1) * BYTES > bytes)) return bring_less(stage, step, lane);
        const u8 *source = from + (u64)step * BYTES;
        u8 *place = stage + to;
#pragma unroll
        for (u32 at = 0; at < BYTES; at += TURN)
            if (at + TURN <= BYTES || lane * 16 < BYTES - at) stream_16_async(place + at, source + at);
    }
    // Of fewer outputs, or columns.
    DEVICE void bring_less(u8 *stage, u32 step, u32 lane) const {
        constexpr u32 HEAD = Blocks<FORM>::head / 16, PIECE = Blocks<FORM>::piece / 16;
        u32 begin = step * rows * S::bytes, heads = HEAD * rows;
        u32 count = (WHOLE<FORM> ? rows * S::bytes : min(rows * S::bytes, bytes - begin)) / 16;
        const u8 *source = from - lane * 16 + begin;
        u8 *place = stage + to - lane * 16;
#pragma unroll 1
        for (u32 i = lane; i < count; i += 32) {
            u32 piece = (i - heads) / PIECE, unit = i;
            if (HEAD == 0 || i >= heads) unit = HEAD * OUTS + (piece / rows * OUTS + piece % rows) * PIECE + (i - heads) % PIECE;
            stream_16_async(place + unit * 16, source + i * 16);
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

// What a warp does of a product: a part of the columns of 16 outputs, in steps.
struct Task {
    u32 lane, warp, warps, sixteens, part, sixteen, each, begin, end;
    u64 first;
    // What is no output's is brought by nobody.
    bool mine;

    DEVICE Task(const Matrix &w, const Cut &cut, u32 columns) {
        lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, sixteens = warps / cut.here;
        part = warp & (cut.here - 1), sixteen = warp / cut.here;
        first = ((u64)blockIdx.x * sixteens + sixteen) * OUTS;
        mine = first < w.rows;
        u32 steps = (w.cols + columns - 1) / columns;
        each = (steps + cut.parts - 1) / cut.parts;
        begin = min((blockIdx.y * cut.here + part) * each, steps), end = min(begin + each, steps);
    }
};

// Writes what warps have, once parts that the block has of the same outputs are added.
template <int TILES>
DEVICE void finish(const float (&acc)[TILES][4], const Task &task, u32 rows, u64 outs, u32 here, u8 *shared, float *out, u32 stride) {
    float *to = gridDim.y == 1 ? out : out + (u64)blockIdx.y * rows * outs;
    u64 apart = gridDim.y == 1 ? stride : outs;
    u32 lane = task.lane, results = lane % 4 * 2;
    if (here == 1) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = n * 8 + results + i % 2;
                u64 output = task.first + lane / 4 + i / 2 * 8;
                if (row < rows && output < outs) to[row * apart + output] = acc[n][i];
            }
        return;
    }
    // Parts come together where steps were, which takes more memory than they do.
    __syncthreads();
    float *mine_at = (float *)shared + task.warp * TILES * 8 * RESULT;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) mine_at[(n * 8 + results + i % 2) * RESULT + lane / 4 + i / 2 * 8] = acc[n][i];
    __syncthreads();
    // How many sixteens there are is a power of two.
    u32 wide = task.sixteens * OUTS, shift = __ffs((int)wide) - 1;
    for (u32 i = threadIdx.x; i < rows << shift; i += blockDim.x) {
        u32 row = i >> shift, o = i & (wide - 1);
        u64 output = (u64)blockIdx.x * wide + o;
        const float *at = (const float *)shared + (o / OUTS * here * TILES * 8 + row) * RESULT + o % OUTS;
        if (output < outs) to[row * apart + output] = in_pairs(here, [&](u32 i) { return at[i * TILES * 8 * RESULT]; });
    }
}

template <int FORM, int TILES>
DEVICE void product(const Rounded &x, const Matrix &w, const Cut &cut, float *out, u32 stride) {
    using S = Step<FORM>;
    DYNAMIC_SHARED(shared);
    Task task(w, cut, S::columns);
    u32 lane = task.lane, part = task.part, begin = task.begin, end = task.end, blocks = w.cols / Blocks<FORM>::numbers;
    // Of few rows only as many are kept as there are, so that more blocks have room. Rows of a tile that are none read what
    // is there: it ends in columns that nobody writes.
    u32 kept = TILES == 1 ? x.rows : TILES * 8;
    u32 weights_bytes = task.warps * OUTS * S::bytes, rows_bytes = kept * S::x_apart, scales_bytes = (kept * SCALES<FORM> + 3) / 4 * 16;
    u32 part_bytes = rows_bytes + scales_bytes + (FORM == FORM_Q4_K ? kept * HALVES : 0), stage_bytes = weights_bytes + cut.here * part_bytes;
    u32 w_at = task.warp * OUTS * S::bytes, x_at = weights_bytes + part * part_bytes, scales_at = x_at + rows_bytes, halves_at = scales_at + scales_bytes;

    // Rows are brought by all of the part's warps, also those without outputs.
    WeightsSource<FORM, TILES> weights(w, task.mine ? task.first : 0, w_at, lane);
    RowsSource<FORM, TILES> rows(w.cols, x_at, scales_at, halves_at, task.sixteen * 32 + lane, task.sixteens * 32);
    Held<FORM> now, next;
    auto bring_weights = [&](u32 step, u32 stage, Held<FORM> &held) {
        if (!task.mine || step >= end) return;
        weights.bring(shared + stage, step, lane);
        held.read(weights.scales, weights.rows, blocks, step, lane);
    };
    auto bring_rows = [&](u32 step, u32 stage) {
        if (step < end) rows.bring(shared + stage, x, step);
        copies_commit();
    };
    // A warp that has its rows to itself waits for no other.
    auto meet = [&]() {
        if (task.sixteens == 1) __syncwarp();
        else __syncthreads();
    };

    // Where this lane reads.
    u32 tile_row = lane / 4, results = lane % 4 * 2, most = TILES == 1 ? x.rows - 1 : 7;
    u32 x_mine = x_at + min(tile_row, most) * S::x_apart + lane % 4 * LANE_BYTES<FORM>;
    u32 halves_mine = halves_at + min(tile_row, most) * HALVES + lane % 2 * 4;
    u32 scale_at[2] = {scales_at + min(results, most) * SCALES<FORM> * 4, scales_at + min(results + 1, most) * SCALES<FORM> * 4};
    keep<TILES>(w_at), keep<TILES>(x_mine), keep<TILES>(scale_at[0]), keep<TILES>(scale_at[1]), keep<TILES>(stage_bytes);
    float acc[TILES][4] = {};
    // Weights of both steps are asked for before the first rows, which another kernel has just left, or has still to.
    bring_weights(begin, 0, now);
    bring_weights(begin + 1, stage_bytes, next);
    wait_for_others();
    let_next_begin();
    bring_rows(begin, 0);
    bring_rows(begin + 1, stage_bytes);
    u32 stage = 0, last = begin + task.each;
    for (u32 step = begin; step < last; step++) {
        copies_wait<1>();
        meet();
        if (task.mine && step < end) {
            const u8 *at = shared + stage;
            Place place = {at + w_at, at + x_mine, at + halves_mine, {at + scale_at[0], at + scale_at[1]}};
            Multiply<FORM>::template step<TILES>(acc, place, now, blocks - step * SCALES<FORM>, lane);
        }
        meet();
        now = next;
        bring_weights(step + 2, stage, next);
        bring_rows(step + 2, stage);
        stage = stage_bytes - stage;
    }
    finish<TILES>(acc, task, x.rows, w.rows, cut.here, shared, out, stride);
}

// Where a lane finds what it needs of a step's row in global memory: few rows stay in the first-level cache, and warps that read them
// there need not meet.
template <int FORM> struct FewRows {
    const i8 *bytes, *halves;
    const float *scales[2];
    DEVICE FewRows(const Rounded &x, u32 cols, u32 lane) {
        u32 blocks = cols / Blocks<FORM>::rounded, most = x.rows - 1, row = min(lane / 4, most), results = lane % 4 * 2;
        bytes = x.bytes + (u64)row * cols + lane % 4 * LANE_BYTES<FORM>;
        halves = x.halves + (u64)row * blocks * HALVES + lane % 2 * 4;
        scales[0] = x.scales + (u64)min(results, most) * blocks, scales[1] = x.scales + (u64)min(results + 1, most) * blocks;
    }
    DEVICE Place place(const u8 *w, u32 step) const {
        u32 block = step * SCALES<FORM>;
        return {w, (const u8 *)(bytes + step * Step<FORM>::columns), (const u8 *)(halves + block * HALVES),
                {(const u8 *)(scales[0] + block), (const u8 *)(scales[1] + block)}};
    }
};

// Of up to four rows: weights alone are in shared memory, several steps of them on their way, and no warp waits for another.
// With `ONE` of a single row. Limited by reading weights.
template <int FORM, bool ONE>
DEVICE void product_of_few(const Rounded &x, const Matrix &w, const Cut &cut, float *out, u32 stride) {
    using S = Step<FORM>;
    constexpr u32 BYTES = OUTS * S::bytes;
    DYNAMIC_SHARED(shared);
    Task task(w, cut, S::columns);
    keep<1>(task.lane);
    u32 lane = task.lane, begin = task.begin, end = task.mine ? task.end : task.begin, blocks = w.cols / Blocks<FORM>::numbers;
    u32 w_at = task.warp * BYTES, stage_bytes = task.warps * BYTES;
    WeightsSource<FORM, 1> weights(w, task.mine ? task.first : 0, w_at, lane);
    auto bring = [&](u32 step, u32 stage) {
        if (step < end) weights.bring(shared + stage, step, lane);
        copies_commit();
    };
    auto hold = [&](u32 step, Held<FORM> &held) {
        if (step < end) held.read(weights.scales, weights.rows, blocks, step, lane);
    };
    Held<FORM> now, next;
#pragma unroll
    for (u32 k = 0; k < STAGES - 1; k++) bring(begin + k, k * stage_bytes);
    hold(begin, now);
    hold(begin + 1, next);
    wait_for_others();
    let_next_begin();
    FewRows<FORM> rows(x, w.cols, lane);
    float acc[1][4] = {}, sum = 0.f;
    u32 stage = 0, before = (STAGES - 1) * stage_bytes;
    for (u32 step = begin; step < end; step++) {
        const u8 *at = shared + stage + w_at;
        if constexpr (ONE) {
            // Asked for before weights are waited for.
            RowStep<FORM> row(x.bytes + step * S::columns, x.halves + step * HALVES, x.scales + step, lane);
            copies_wait<STAGES - 2>();
            __syncwarp();
            bring(step + STAGES - 1, before);
            row.multiply(sum, at, now, lane);
        } else {
            copies_wait<STAGES - 2>();
            __syncwarp();
            bring(step + STAGES - 1, before);
            Multiply<FORM>::template step<1>(acc, rows.place(at, step), now, blocks - step * SCALES<FORM>, lane);
        }
        now = next;
        hold(step + 2, next);
        before = stage;
        stage = stage == (STAGES - 1) * stage_bytes ? 0 : stage + stage_bytes;
    }
    if constexpr (ONE) acc[0][0] = sum, acc[0][2] = __shfl_xor_sync(ALL_LANES, sum, 1);
    finish<1>(acc, task, x.rows, w.rows, cut.here, shared, out, stride);
}

#define MMQ_FEW(name, FORM, ONE, BLOCKS)                                                                               \
    KERNEL(256, BLOCKS) mmq_##name(const i8 *bytes, const float *scales, const i8 *halves, u32 rows, const u8 *w, u64 outs, \
                              u32 cols, u32 parts, u32 here, float *out, u32 stride) {                                 \
        product_of_few<FORM, ONE>(Rounded{bytes, scales, halves, rows}, Matrix{w, outs, cols}, Cut{parts, here}, out, stride); \
    }                                                                                                                  \
    EXPORT(mmq_##name)
#define MMQ(name, FORM, TILES, BLOCKS)                                                                                 \
    KERNEL(256, BLOCKS) mmq_##name##_##TILES(const i8 *bytes, const float *scales, const i8 *halves, u32 rows,         \
                                             const u8 *w, u64 outs, u32 cols, u32 parts, u32 here, float *out,         \
                                             u32 stride) {                                                             \
        product<FORM, TILES>(Rounded{bytes, scales, halves, rows}, Matrix{w, outs, cols}, Cut{parts, here}, out, stride); \
    }                                                                                                                  \
    EXPORT(mmq_##name##_##TILES)
#define MMQ_OF(name, FORM)                                                                                             \
    MMQ_FEW(name##_few, FORM, false, 3)                                                                                \
    MMQ(name, FORM, 1, 3)                                                                                              \
    MMQ(name, FORM, 2, 2)                                                                                              \
    MMQ(name, FORM, 4, 2)                                                                                              \
    MMQ(name, FORM, 8, 2)
MMQ_OF(q4_0, FORM_Q4_0)
MMQ_OF(q8_0, FORM_Q8_0)
MMQ_OF(q4_k, FORM_Q4_K)
MMQ_OF(q6_k, FORM_Q6_K)
MMQ_FEW(q4_k_row, FORM_Q4_K, true, 3)
MMQ_FEW(q6_k_row, FORM_Q6_K, true, 4)

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
