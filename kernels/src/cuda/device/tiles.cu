// KV packed for links and unpacked into pages: the very bytes of the processor's codec (`kernels/src/wire.rs`), which says
// how they lie. One block of threads packs or unpacks one block of up to 64 tokens.
#include "pages.cuh"

constexpr int THREADS = 256, BLOCK = 64, GROUP = 32, MOST_DIM = 256, SHORT = 16;
// Steps from 2^-60 to 2^60 by name, mantissa bits that a step does not have, largest spread: see `wire/steps.rs`.
constexpr int CUT = 18, LEAST = (127 - 60) << 5, MOST = (127 + 60) << 5, SPREAD = 128;

// `codec` 0 copies, 4 and 8 are bits of a code.
struct Packing {
    u32 codec, side, tokens, dim;
    DEVICE u32 per_row() const { return (dim + GROUP - 1) / GROUP; }
    DEVICE u32 groups() const { return side == 0 ? dim : tokens * per_row(); }
    DEVICE u32 head_bytes() const { return codec == 8 ? 2 + groups() : side == 0 ? 2 + 2 * groups() + (groups() + 1) / 2 : 3 + groups(); }
    DEVICE u32 code_bytes() const { return codec == 8 ? tokens * dim : tokens / 2 * dim + tokens % 2 * ((dim + 1) / 2); }
    DEVICE u32 group(u32 t, u32 c) const { return side == 0 ? c : t * per_row() + c / GROUP; }
};

// How keys of a layer turn over a block: of each token `half` cosines, then as many sines. Without angles they do not.
struct Turn {
    const float *angles;
    u32 half, neighbours;
    DEVICE bool has(u32 c) const { return angles && c < 2 * half; }
    DEVICE bool is_second(u32 c) const { return neighbours ? c % 2 == 1 : c >= half; }
    // The channel that turns together with `c`.
    DEVICE u32 other(u32 c) const { return neighbours ? c ^ 1 : is_second(c) ? c - half : c + half; }
    // Channel `c`, `x`, turned by a token's angle, back or on; `y` is the other one of its pair.
    DEVICE float turned(float x, float y, u32 t, u32 c, bool back) const {
        const float *at = angles + (u64)2 * half * t + (neighbours ? c / 2 : is_second(c) ? c - half : c);
        return fmaf(x, at[0], y * (is_second(c) == back ? -at[half] : at[half]));
    }
};

// Four bits have keys without their turn.
DEVICE Turn turn_of(const Packing &form, const float *angles, u32 half, u32 neighbours) {
    Turn turn = {form.codec == 4 && form.side == 0 ? angles : (const float *)0, half, neighbours};
    return turn;
}

// Short blocks have eight bits where others have four.
DEVICE u32 bits_of(u32 codec, u32 tokens) { return codec == 4 && tokens <= SHORT ? 8 : codec; }

// A tile: which tokens and heads, and how many bytes a whole block takes and all blocks of a head, of keys and of values.
struct Tile {
    u32 first, count, first_head, heads, blocks[2];
    u64 strips[2];
};
// A block of a tile, and where its bytes begin. The grid is the tile: blocks of tokens, heads of keys and then of values, layers,
// whose bytes follow each other. So nobody has to be told of blocks, and no thread waits to read which is its.
struct TileBlock {
    u64 at;
    u32 side, head, token, tokens;
    DEVICE TileBlock(const Tile &tile) : side(blockIdx.y < tile.heads ? 0 : 1) {
        u32 before = blockIdx.x * BLOCK, row = blockIdx.y - side * tile.heads;
        head = tile.first_head + row;
        token = tile.first + before;
        tokens = min((u32)BLOCK, tile.count - before);
        u64 keys = tile.heads * tile.strips[0], all = keys + tile.heads * tile.strips[1];
        at = blockIdx.z * all + (side ? keys + row * tile.strips[1] + (u64)blockIdx.x * tile.blocks[1] : row * tile.strips[0] + (u64)blockIdx.x * tile.blocks[0]);
    }
};
#define TILE_ARGS u32 first, u32 count, u32 first_head, u32 some_heads, u32 key_block, u32 value_block, u64 key_strip, u64 value_strip
#define TILE_FROM_ARGS (Tile{first, count, first_head, some_heads, {key_block, value_block}, {key_strip, value_strip}})

DEVICE int step_for(float x) {
    int name = ((int)__float_as_uint(x) + (1 << CUT) - 1) >> CUT;
    return min(max(name, LEAST), MOST);
}
DEVICE int step_near(float x) { return min(max(((int)__float_as_uint(x) + (1 << (CUT - 1))) >> CUT, LEAST), MOST); }
DEVICE float step_of(int name) { return __uint_as_float((u32)min(max(name, LEAST), MOST) << CUT); }
DEVICE float centred(float low, float high, float inverse) { return rintf(fmaf((low + high) * 0.5f, inverse, -7.5f)); }
DEVICE float between(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
DEVICE bool finite_number(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

DEVICE int nearest(float x) {
    float whole = rintf(x);
    return whole >= -2147483648.f && whole < 2147483648.f ? (int)whole : (int)0x80000000;
}

// The step a group needs.
DEVICE int needed(const Packing &form, float low, float high) {
    if (form.codec == 8) return step_for(fmaxf(fmaxf(-low, high), 0.f) * (1.f / 127.f));
    if (form.side == 0) return step_near(fmaxf((high - low) * (1.f / 15.f), fmaxf(-low, high) * (1.f / 126.f)));
    return step_for((fmaxf(high, 0.f) - fminf(low, 0.f)) * (1.f / 15.f));
}

// Memory of a block: at most 64 x 256 / 32 groups of values, or 256 of keys.
constexpr int GROUPS = BLOCK * MOST_DIM / GROUP;
struct Shared {
    float low[GROUPS], high[GROUPS];
    int base, least;
    const u8 *rows[BLOCK];
};

// A number as it is packed.
DEVICE float number(const Turn &turn, u32 kind, const Shared &shared, u32 t, u32 c) {
    float x = load_as(kind, shared.rows[t], c);
    return turn.has(c) ? turn.turned(x, load_as(kind, shared.rows[t], turn.other(c)), t, c, true) : x;
}

DEVICE void ranges(const Packing &form, const Turn &turn, u32 kind, Shared &shared) {
    if (form.side == 0) {
        for (u32 c = threadIdx.x; c < form.dim; c += THREADS) {
            float low = INFINITY, high = -INFINITY;
            for (u32 t = 0; t < form.tokens; t++) {
                float x = number(turn, kind, shared, t, c);
                if (finite_number(x)) {
                    low = fminf(low, x);
                    high = fmaxf(high, x);
                }
            }
            shared.low[c] = low > high ? 0.f : low;
            shared.high[c] = low > high ? 0.f : high;
        }
        return;
    }
    // A warp a group: its lanes read neighbours.
    for (u32 g = threadIdx.x / 32; g < form.groups(); g += THREADS / 32) {
        u32 c = g % form.per_row() * GROUP + threadIdx.x % 32;
        float low = INFINITY, high = -INFINITY;
        if (c < form.dim) {
            float x = load_as(kind, shared.rows[g / form.per_row()], c);
            if (finite_number(x)) low = high = x;
        }
        high = warp_max(high);
        low = -warp_max(-low);
        if (threadIdx.x % 32 == 0) {
            shared.low[g] = low > high ? 0.f : low;
            shared.high[g] = low > high ? 0.f : high;
        }
    }
}

// Writes the head, and leaves what rows are encoded with, `x · inverse - zero`, where the ranges were.
CALLED void choose_steps(const Packing &form, Shared &shared, u8 *head) {
    u32 groups = form.groups();
    if (threadIdx.x == 0) {
        shared.base = LEAST;
        shared.least = MOST;
    }
    __syncthreads();
    bool values = form.codec == 4 && form.side == 1;
    int most = LEAST, least = MOST;
    for (u32 g = threadIdx.x; g < groups; g += THREADS) {
        int name = needed(form, shared.low[g], shared.high[g]);
        most = max(most, name);
        // All zeros fit any step.
        if (values && fmaxf(shared.high[g], 0.f) - fminf(shared.low[g], 0.f) > 0.f) least = min(least, name);
    }
    most = warp_most(most);
    least = -warp_most(-least);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&shared.base, most);
        atomicMin(&shared.least, least);
    }
    __syncthreads();
    int base = shared.base, spread = min(max((base - shared.least + 14) / 15, 1), SPREAD), part = (1 << 18) / spread + 1;
    if (threadIdx.x == 0) {
        head[0] = (u8)base;
        head[1] = (u8)(base >> 8);
        if (values) head[2] = (u8)spread;
    }
    for (u32 g = threadIdx.x; g < groups; g += THREADS) {
        float low = shared.low[g], high = shared.high[g], inverse, zero = 0.f;
        int name = needed(form, low, high);
        if (values) {
            int below = min(min(base - name, 15 * SPREAD) * part >> 18, 15);
            inverse = 1.f / step_of(base - below * spread);
            zero = between(centred(fminf(low, 0.f), fmaxf(high, 0.f), inverse), -15.f, 0.f);
            head[3 + g] = (u8)(below | (int)-zero * 16);
        } else {
            int below = min(base - name, 255);
            inverse = 1.f / step_of(base - below);
            head[2 + g] = (u8)below;
            if (form.codec == 4) {
                // Sixteenths of a step.
                float parts = rintf(fmaf((low + high) * 0.5f, inverse * 16.f, -7.5f * 16.f));
                parts = between(parts, -2048.f, 2047.f);
                zero = parts * (1.f / 16.f);
                head[2 + groups + g] = (u8)(int)parts;
            }
        }
        shared.low[g] = inverse;
        shared.high[g] = zero;
    }
    __syncthreads();
    if (form.codec == 8 || form.side == 1) return;
    // The upper bits of two zeros share a byte.
    u32 half = (groups + 1) / 2;
    for (u32 g = threadIdx.x; g < half; g += THREADS) {
        int more = half + g < groups ? (int)(shared.high[half + g] * 16.f) : 0;
        head[2 + 2 * groups + g] = (u8)(((int)(shared.high[g] * 16.f) >> 8 & 15) | (more >> 8 & 15) << 4);
    }
}

// A zero of keys, in sixteenths of a step.
DEVICE float zero_parts(const u8 *zeros, u32 groups, u32 g) {
    u32 half = (groups + 1) / 2;
    u32 upper = g < half ? zeros[groups + g] & 15 : zeros[groups + g - half] >> 4;
    return (float)((int)(upper << 28 | (u32)zeros[g] << 20) >> 20);
}

DEVICE int code_of(const Packing &form, const Turn &turn, u32 kind, const Shared &shared, u32 t, u32 c) {
    u32 g = form.group(t, c);
    int code = nearest(fmaf(number(turn, kind, shared, t, c), shared.low[g], -shared.high[g]));
    return form.codec == 4 ? min(max(code, 0), 15) : min(max(code, -127), 127);
}

// A last token without a partner has its two halves of channels share bytes.
CALLED void pack_last(const Packing &form, const Turn &turn, u32 kind, const Shared &shared, u8 *codes) {
    u32 pairs = form.tokens / 2, half = (form.dim + 1) / 2;
    if (form.tokens % 2 == 0) return;
    for (u32 c = threadIdx.x; c < half; c += THREADS) {
        int more = half + c < form.dim ? code_of(form, turn, kind, shared, form.tokens - 1, half + c) : 0;
        codes[pairs * form.dim + c] = (u8)(code_of(form, turn, kind, shared, form.tokens - 1, c) | more << 4);
    }
}

// Where a block's rows lie, once threads have met; behind the last one the last again.
DEVICE void find_rows(const Pool &pool, const TileBlock &block, Shared &shared) {
    if (threadIdx.x < BLOCK)
        shared.rows[threadIdx.x] = place(pool, blockIdx.z, block.token + min(threadIdx.x, block.tokens - 1), block.side, block.head);
}

// A block of any kind, size and codec: pages are read twice, the second time from a cache. Limited by instructions.
CALLED void pack_any(const Packing &form, const Turn &turn, u32 kind, Shared &shared, u8 *to) {
    u32 dim = form.dim;
    if (form.codec == 0) {
        // Rows are whole sixteens of bytes, and begin at one in pages and in tiles.
        u32 row = dim * (kind == F32 ? 4 : 2) / 16;
        for (u32 i = threadIdx.x; i < form.tokens * row; i += THREADS)
            ((uint4 *)to)[i] = ((const uint4 *)shared.rows[i / row])[i % row];
        return;
    }
    ranges(form, turn, kind, shared);
    __syncthreads();
    choose_steps(form, shared, to);
    u8 *codes = to + form.head_bytes();
    if (form.codec == 8) {
        for (u32 i = threadIdx.x; i < form.tokens * dim; i += THREADS)
            codes[i] = (u8)(i8)code_of(form, turn, kind, shared, i / dim, i % dim);
        return;
    }
    for (u32 i = threadIdx.x; i < form.tokens / 2 * dim; i += THREADS) {
        u32 t = i / dim * 2, c = i % dim;
        codes[i] = (u8)(code_of(form, turn, kind, shared, t, c) | code_of(form, turn, kind, shared, t + 1, c) << 4);
    }
    pack_last(form, turn, kind, shared, codes);
}

KERNEL(THREADS) pack_tiles(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind,
                       u8 *out, const float *angles, u32 half_turn, u32 neighbours) {
    __shared__ Shared shared;
    TileBlock block(TILE_FROM_ARGS);
    Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};
    find_rows(Pool{memory, table, most, tokens, heads, dim, kind}, block, shared);
    __syncthreads();
    pack_any(form, turn_of(form, angles, half_turn, neighbours), kind, shared, out + block.at);
}
EXPORT(pack_tiles)

// A number as it was packed, of the steps and shifts in `shared`.
DEVICE float unpacked(const Packing &form, const Shared &shared, const u8 *codes, u32 t, u32 c) {
    u32 dim = form.dim, half = (dim + 1) / 2, g = form.group(t, c);
    float code;
    if (form.codec == 8) code = (float)(i8)codes[t * dim + c];
    else if (t % 2 == 1) code = (float)(codes[t / 2 * dim + c] >> 4);
    else if (t + 1 < form.tokens || c < half) code = (float)(codes[t / 2 * dim + c] & 15);
    else code = (float)(codes[t / 2 * dim + c - half] >> 4);
    return fmaf(code, shared.low[g], shared.high[g]);
}

// Leaves steps and shifts of groups where ranges are.
CALLED void read_steps(const Packing &form, const u8 *head, Shared &shared) {
    u32 groups = form.groups();
    int base = head[0] | head[1] << 8;
    for (u32 g = threadIdx.x; g < groups; g += THREADS) {
        bool values = form.codec == 4 && form.side == 1;
        float step = values ? step_of(base - (head[3 + g] & 15) * (int)head[2]) : step_of(base - (int)head[2 + g]);
        float shift = values ? -(float)(head[3 + g] >> 4) * step : form.codec == 4 ? zero_parts(head + 2 + groups, groups, g) * (step * (1.f / 16.f)) : 0.f;
        shared.low[g] = step;
        shared.high[g] = shift;
    }
    __syncthreads();
}

// The tokens from `first` on, a number a thread.
CALLED void unpack_from(u32 first, const Packing &form, const Turn &turn, u32 kind, const Shared &shared, const u8 *codes) {
    u32 dim = form.dim;
    for (u32 i = first * dim + threadIdx.x; i < form.tokens * dim; i += THREADS) {
        u32 t = i / dim, c = i % dim;
        float x = unpacked(form, shared, codes, t, c);
        if (turn.has(c)) x = turn.turned(x, unpacked(form, shared, codes, t, turn.other(c)), t, c, false);
        // What is too large for half precision becomes its largest number.
        store_row(kind, (u8 *)shared.rows[t], c, x);
    }
}

// A block of any kind, size and codec. Limited by instructions.
CALLED void unpack_any(const Packing &form, const Turn &turn, u32 kind, Shared &shared, const u8 *head) {
    if (form.codec == 0) {
        u32 row = form.dim * (kind == F32 ? 4 : 2) / 16;
        for (u32 i = threadIdx.x; i < form.tokens * row; i += THREADS)
            ((uint4 *)shared.rows[i / row])[i % row] = ((const uint4 *)head)[i];
        return;
    }
    read_steps(form, head, shared);
    unpack_from(0, form, turn, kind, shared, head + form.head_bytes());
}

KERNEL(THREADS) unpack_tiles(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind,
                         const u8 *in, const float *angles, u32 half_turn, u32 neighbours) {
    __shared__ Shared shared;
    TileBlock block(TILE_FROM_ARGS);
    Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};
    find_rows(Pool{memory, table, most, tokens, heads, dim, kind}, block, shared);
    __syncthreads();
    unpack_any(form, turn_of(form, angles, half_turn, neighbours), kind, shared, in + block.at);
}
EXPORT(unpack_tiles)

// From here on: four bits, pages of 16-bit numbers, heads of whole groups, at most `WIDE` channels: what is sent most. A thread asks
// for all its numbers before it looks at one, they are read once and stay in registers while their steps are found, and a
// block's bytes are put together in shared memory, because they begin anywhere. Threads meet as seldom as can be: what a block
// takes is mostly waiting. Short blocks and a last odd token are packed as above.

// A block's bytes, with room for the rest of a last sixteen; largest and smallest steps by warps; least and largest of parts.
template <int WIDE> struct __align__(16) Staged {
    u32 codes[BLOCK * WIDE / 8 + 5], head[(2 * WIDE + WIDE / 2 + 3) / 4 + 5];
    int most[THREADS / 32], least[THREADS / 32];
    float low[THREADS * 4], high[THREADS * 4];
};

// Copies bytes from shared memory to any place, sixteen at a time.
DEVICE void put_bytes(u8 *to, const u32 *from, u32 bytes) {
    u32 before = min((u32)(-(u64)to & 15), bytes), sixteens = (bytes - before) / 16, done = before + sixteens * 16;
    u32 word = before / 4, shift = before % 4 * 8;
    for (u32 i = threadIdx.x; i < sixteens; i += THREADS) {
        u32 in[5], out[4];
#pragma unroll
        for (int k = 0; k < 5; k++) in[k] = from[word + 4 * i + k];
#pragma unroll
        for (int k = 0; k < 4; k++) out[k] = (u32)(((u64)in[k + 1] << 32 | in[k]) >> shift);
        ((uint4 *)(to + before))[i] = uint4{out[0], out[1], out[2], out[3]};
    }
    if (threadIdx.x < before) to[threadIdx.x] = ((const u8 *)from)[threadIdx.x];
    if (done + threadIdx.x < bytes) to[done + threadIdx.x] = ((const u8 *)from)[done + threadIdx.x];
}

// Brings bytes to shared memory by whole sixteens, and says where in the first one they begin, once threads have met.
DEVICE u32 get_bytes(uint4 *to, const u8 *from, u32 bytes) {
    u32 before = (u32)((u64)from & 15);
    const uint4 *sixteens = (const uint4 *)(from - before);
    for (u32 i = threadIdx.x; i < (before + bytes + 15) / 16; i += THREADS) to[i] = sixteens[i];
    return before;
}

// The least and the largest of two pairs of 16-bit numbers, half by half; what is no number loses against one.
#ifdef TSNODE_EMULATOR
template <class Wins> DEVICE u32 two_better(bool brain, u32 a, u32 b, Wins wins) {
    u32 out = 0;
    for (int i = 0; i < 2; i++) {
        float x = of_two(brain ? BF16 : F16, a, i), y = of_two(brain ? BF16 : F16, b, i);
        out |= ((wins(x, y) || y != y ? a : b) >> (16 * i) & 0xffff) << (16 * i);
    }
    return out;
}
DEVICE u32 two_least(bool brain, u32 a, u32 b) { return two_better(brain, a, b, [](float x, float y) { return x < y; }); }
DEVICE u32 two_most(bool brain, u32 a, u32 b) { return two_better(brain, a, b, [](float x, float y) { return x > y; }); }
#else
DEVICE u32 two_least(bool brain, u32 a, u32 b) {
    u32 out;
    if (brain) asm("min.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    else asm("min.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
DEVICE u32 two_most(bool brain, u32 a, u32 b) {
    u32 out;
    if (brain) asm("max.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    else asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
#endif
constexpr u32 MINUS = 0x80008000u;

// A sixteenth of a code in the lowest bits of what is returned: `nearest`, and between 0 and 15. `inverse` and `zero` are a
// sixteenth of a group's, so that the card's own cut at 0 and 1 does for the most part; it makes 0 of what is no number. What is
// `too_large` must be none. Adding 3 · 2^18 rounds to the nearest sixteenth.
DEVICE u32 code_bits(float x, float inverse, float zero) {
    float y;
#ifdef TSNODE_EMULATOR
    y = fmaf(x, inverse, -zero);
    y = y > 0.f ? fminf(y, 1.f) : 0.f;
#else
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(x), "f"(inverse), "f"(-zero));
#endif
    return __float_as_uint(fminf(y, 15.f / 16.f) + 786432.f);
}
// What the processor has as code 0, though it is no small number: infinity, and what is 2^31 steps away, which numbers in
// bfloat16 can be beside the largest step there is.
DEVICE bool too_large(float x, float inverse, float zero) { return !(fmaf(x, inverse, -zero) < 2147483648.f); }
// Whether among numbers up to this one can be some that are too large.
DEVICE bool suspicious(int kind, float most) { return kind == F16 ? most == INFINITY : !(most < 1.2379400392853803e27f); }
// Its code is 0 whatever the step.
constexpr float LOWEST = -3.4028234663852886e38f;

// Codes of two tokens in the lowest byte.
DEVICE u32 two_codes(u32 first, u32 second) { return first + (second << 4); }
// The lowest bytes of four words.
DEVICE u32 four_bytes(u32 a, u32 b, u32 c, u32 d) { return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24; }
// The number of a code that begins at a bit below 20, where a number of this size has its units.
template <int BIT> DEVICE float code_at(u32 word) {
    return __uint_as_float((word & 15u << BIT) | (150u - BIT) << 23) - __uint_as_float((150u - BIT) << 23);
}

// Least and largest of numbers that are some; returns the largest with infinity counted.
template <int N> DEVICE float widen_range(const float (&x)[N], float &low, float &high) {
    float least = x[0], most = x[0];
#pragma unroll
    for (int i = 1; i < N; i++) {
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
    }
    low = least;
    high = most;
    // Minima let no NaN in that has a number beside it, and infinity is seen by its being the result.
    if (finite_number(least) && finite_number(most)) return most;
    low = INFINITY;
    high = -INFINITY;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (finite_number(x[i])) {
            low = fminf(low, x[i]);
            high = fmaxf(high, x[i]);
        }
    return most;
}

// The largest and the least step of a block: each warp says its own, and once threads have met each reads all.
template <int WIDE> DEVICE void tell_steps(Staged<WIDE> &staged, int most, int least) {
    most = warp_most(most);
    least = -warp_most(-least);
    if (threadIdx.x % 32 == 0) {
        staged.most[threadIdx.x / 32] = most;
        staged.least[threadIdx.x / 32] = least;
    }
}
template <int N> DEVICE int most_of(const int (&all)[N]) {
    int most = all[0];
#pragma unroll
    for (int i = 1; i < N; i++) most = max(most, all[i]);
    return most;
}
template <int N> DEVICE int least_of(const int (&all)[N]) {
    int least = all[0];
#pragma unroll
    for (int i = 1; i < N; i++) least = min(least, all[i]);
    return least;
}

// Four channels of a key: two words of a row. Channels that turn together are in the same place of both words, or neighbours
// in one.
struct Quad {
    u32 word[2], index;
    bool turns[2];
    DEVICE Quad(const Turn &turn, u32 dim, u32 q) : index(q) {
        u32 half = turn.angles ? turn.half : 0;
        bool halves = !turn.neighbours, together = halves && q < half / 2;
        // Behind what turns come pairs of words that do not.
        word[0] = halves && !together ? half / 2 + q : q;
        word[1] = together ? q + half / 2 : halves ? word[0] + (dim / 2 - half) / 2 : q + dim / 4;
        for (int i = 0; i < 2; i++) turns[i] = together || (!halves && word[i] < half);
    }
    DEVICE u32 channel(int i) const { return word[i / 2] * 2 + i % 2; }

    DEVICE static void turn_two(float &first, float &second, float cosine, float sine) {
        float a = fmaf(first, cosine, second * -sine);
        second = fmaf(second, cosine, first * sine);
        first = a;
    }
    // Tokens from `t` on by their angles, none of them behind the last one; back with `sign` -1.
    template <int N> DEVICE void turn(const Turn &turn, float (&x)[N][4], u32 t, u32 last, float sign) const {
        if (!turns[0] && !turns[1]) return;
        if (!turn.neighbours) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float *at = turn.angles + 2 * turn.half * min(t + n, last);
                float2 cosine = ((const float2 *)at)[index], sine = ((const float2 *)(at + turn.half))[index];
                turn_two(x[n][0], x[n][2], cosine.x, sine.x * sign);
                turn_two(x[n][1], x[n][3], cosine.y, sine.y * sign);
            }
            return;
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float *at = turn.angles + 2 * turn.half * min(t + n, last);
            for (int i = 0; i < 2; i++)
                if (turns[i]) turn_two(x[n][2 * i], x[n][2 * i + 1], at[word[i]], at[turn.half + word[i]] * sign);
        }
    }
};

// Which channels and tokens of keys a thread has.
template <int WIDE> struct Part {
    static constexpr int QUADS = WIDE / 4, PARTS = THREADS / QUADS, TOKENS = BLOCK / PARTS;
    DEVICE static u32 quad() { return threadIdx.x % QUADS; }
    DEVICE static u32 part() { return threadIdx.x / QUADS; }
    DEVICE static u32 token(int i) { return part() * TOKENS + i; }
};

// The head of a block of keys, a channel a thread or two; leaves `inverse` and `zero`.
template <int WIDE> DEVICE void keys_head(const Packing &form, Shared &shared, Staged<WIDE> &staged) {
    using Mine = Part<WIDE>;
    constexpr int CHANNELS = (WIDE + THREADS - 1) / THREADS;
    float low[CHANNELS], high[CHANNELS];
    int name[CHANNELS], most = LEAST;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        u32 c = threadIdx.x + i * THREADS;
        low[i] = INFINITY;
        high[i] = -INFINITY;
        if (c < form.dim) {
#pragma unroll
            for (int part = 0; part < Mine::PARTS; part++) {
                low[i] = fminf(low[i], staged.low[part * WIDE + c]);
                high[i] = fmaxf(high[i], staged.high[part * WIDE + c]);
            }
        }
        if (low[i] > high[i]) low[i] = high[i] = 0.f;
        name[i] = needed(form, low[i], high[i]);
        most = max(most, name[i]);
    }
    tell_steps(staged, most, MOST);
    __syncthreads();
    int base = most_of(staged.most);
    u8 *head = (u8 *)staged.head;
    if (threadIdx.x < 2) head[threadIdx.x] = (u8)(base >> (8 * threadIdx.x));
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        u32 c = threadIdx.x + i * THREADS;
        if (c >= form.dim) continue;
        int below = min(base - name[i], 255);
        float inverse = 1.f / step_of(base - below);
        // Sixteenths of a step.
        float parts = between(rintf(fmaf((low[i] + high[i]) * 0.5f, inverse * 16.f, -7.5f * 16.f)), -2048.f, 2047.f);
        head[2 + c] = (u8)below;
        head[2 + form.dim + c] = (u8)(int)parts;
        shared.low[c] = inverse;
        shared.high[c] = parts * (1.f / 16.f);
    }
    __syncthreads();
    // The upper bits of two zeros share a byte.
    u32 half = form.dim / 2;
    for (u32 c = threadIdx.x; c < half; c += THREADS)
        head[2 + 2 * form.dim + c] = (u8)(((int)(shared.high[c] * 16.f) >> 8 & 15) | ((int)(shared.high[half + c] * 16.f) >> 8 & 15) << 4);
}

template <int KIND, int WIDE> DEVICE void pack_keys(const Packing &form, const Turn &turn, Shared &shared, Staged<WIDE> &staged) {
    using Mine = Part<WIDE>;
    Quad quad(turn, form.dim, Mine::quad());
    bool real = Mine::quad() < form.dim / 4, suspect = false;
    float x[Mine::TOKENS][4];
    if (real) {
        u32 words[Mine::TOKENS][2];
        // Behind the last token the last is read again.
#pragma unroll
        for (int t = 0; t < Mine::TOKENS; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) words[t][i] = ((const u32 *)shared.rows[Mine::token(t)])[quad.word[i]];
#pragma unroll
        for (int t = 0; t < Mine::TOKENS; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[t][i] = of_two(KIND, words[t][i / 2], i % 2);
        quad.turn(turn, x, Mine::token(0), form.tokens - 1, -1.f);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float low, high, channel[Mine::TOKENS];
#pragma unroll
            for (int t = 0; t < Mine::TOKENS; t++) channel[t] = x[t][i];
            suspect |= suspicious(KIND, widen_range(channel, low, high));
            staged.low[Mine::part() * WIDE + quad.channel(i)] = low;
            staged.high[Mine::part() * WIDE + quad.channel(i)] = high;
        }
    }
    __syncthreads();
    keys_head(form, shared, staged);
    if (!real) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 c = quad.word[i] * 2;
        float2 inverse = *(const float2 *)&shared.low[c], zero = *(const float2 *)&shared.high[c];
        if (suspect) {
#pragma unroll
            for (int t = 0; t < Mine::TOKENS; t++) {
                if (too_large(x[t][2 * i], inverse.x, zero.x)) x[t][2 * i] = LOWEST;
                if (too_large(x[t][2 * i + 1], inverse.y, zero.y)) x[t][2 * i + 1] = LOWEST;
            }
        }
        inverse = float2{inverse.x * (1.f / 16.f), inverse.y * (1.f / 16.f)};
        zero = float2{zero.x * (1.f / 16.f), zero.y * (1.f / 16.f)};
#pragma unroll
        for (int t = 0; t < Mine::TOKENS; t += 2) {
            u32 first = two_codes(code_bits(x[t][2 * i], inverse.x, zero.x), code_bits(x[t + 1][2 * i], inverse.x, zero.x));
            u32 second = two_codes(code_bits(x[t][2 * i + 1], inverse.y, zero.y), code_bits(x[t + 1][2 * i + 1], inverse.y, zero.y));
            if (Mine::token(t) + 1 < form.tokens)
                ((u16 *)staged.codes)[Mine::token(t) / 2 * (form.dim / 2) + quad.word[i]] = (u16)((first & 0xff) | second << 8);
        }
    }
}

// Which two tokens and eight channels of values a thread has, the `i`-th time. Four neighbouring lanes have a group of each
// token, and so one or two groups each are a lane's own to find the steps of: number `n` is the lane's that counts `n` up to four.
template <int WIDE> struct Patch {
    static constexpr int TIMES = BLOCK / 2 * (WIDE / 8) / THREADS, ALL = 2 * TIMES, OWN = (ALL + 3) / 4;
    u32 pair, eight;
    bool real;
    DEVICE Patch(const Packing &form, int i) {
        u32 number = i * THREADS + threadIdx.x;
        pair = number / (WIDE / 8);
        eight = number % (WIDE / 8);
        real = eight < form.dim / 8 && pair * 2 < form.tokens;
    }
    // Which of the lane's own is to be its `k`-th: number, group of the block, whether there is one.
    DEVICE static u32 own(int k) { return (4 * k + threadIdx.x % 4) % ALL; }
    DEVICE static u32 own_group(const Packing &form, int k, bool &real) {
        u32 number = own(k) / 2 * THREADS + threadIdx.x, token = number / (WIDE / 8) * 2 + own(k) % 2;
        real = number % (WIDE / 8) < form.dim / 8 && token < form.tokens;
        return token * form.per_row() + number % (WIDE / 8) / 4;
    }
    // What lanes have of their own as all four are to have it.
    DEVICE static float shared_by(const float (&own)[OWN], int number) {
        return __shfl_sync(ALL_LANES, own[number / 4], (int)(threadIdx.x % 32 / 4 * 4) + number % 4);
    }
};

template <int KIND> DEVICE float of_eight(const uint4 &eight, int k) {
    u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
    return of_two(KIND, words[k / 2], k % 2);
}

// Least and largest of what four lanes have of a token's group, in all of them.
template <int KIND> DEVICE void group_range(const uint4 &eight, float &low, float &high) {
    constexpr bool BRAIN = KIND == BF16;
    u32 least = two_least(BRAIN, two_least(BRAIN, eight.x, eight.y), two_least(BRAIN, eight.z, eight.w));
    u32 most = two_most(BRAIN, two_most(BRAIN, eight.x, eight.y), two_most(BRAIN, eight.z, eight.w)) ^ MINUS;
    // The least, and what is least with the other sign, side by side.
    u32 both = two_least(BRAIN, (least & 0xffff) | most << 16, least >> 16 | (most & 0xffff0000u));
#pragma unroll
    for (int by = 1; by < 4; by *= 2) both = two_least(BRAIN, both, __shfl_xor_sync(ALL_LANES, both, by));
    low = of_two(KIND, both, 0);
    high = -of_two(KIND, both, 1);
}

// The same where some are no numbers.
template <int KIND> DEVICE void finite_range(const uint4 &eight, float &low, float &high) {
    low = INFINITY;
    high = -INFINITY;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float x = of_eight<KIND>(eight, k);
        if (!finite_number(x)) continue;
        low = fminf(low, x);
        high = fmaxf(high, x);
    }
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
        low = fminf(low, __shfl_xor_sync(ALL_LANES, low, by));
        high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, by));
    }
    if (low > high) low = high = 0.f;
}

// The head of a block of values; `low` and `high` become `inverse` and `zero`.
template <int WIDE>
DEVICE void values_head(const Packing &form, Shared &shared, Staged<WIDE> &staged, float (&low)[Patch<WIDE>::OWN], float (&high)[Patch<WIDE>::OWN]) {
    constexpr int OWN = Patch<WIDE>::OWN;
    int name[OWN], most = LEAST, least = MOST;
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        bool real;
        Patch<WIDE>::own_group(form, k, real);
        name[k] = needed(form, low[k], high[k]);
        if (!real) continue;
        most = max(most, name[k]);
        // All zeros fit any step.
        if (fmaxf(high[k], 0.f) - fminf(low[k], 0.f) > 0.f) least = min(least, name[k]);
    }
    tell_steps(staged, most, least);
    __syncthreads();
    int base = most_of(staged.most), spread = min(max((base - least_of(staged.least) + 14) / 15, 1), SPREAD), part = (1 << 18) / spread + 1;
    u8 *head = (u8 *)staged.head;
    if (threadIdx.x < 2) head[threadIdx.x] = (u8)(base >> (8 * threadIdx.x));
    if (threadIdx.x == 2) head[2] = (u8)spread;
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        bool real;
        u32 g = Patch<WIDE>::own_group(form, k, real);
        int below = min(min(base - name[k], 15 * SPREAD) * part >> 18, 15);
        float inverse = 1.f / step_of(base - below * spread);
        float zero = between(centred(fminf(low[k], 0.f), fmaxf(high[k], 0.f), inverse), -15.f, 0.f);
        low[k] = inverse;
        high[k] = zero;
        if (!real) continue;
        head[3 + g] = (u8)(below | (int)-zero * 16);
        shared.low[g] = inverse;
        shared.high[g] = zero;
    }
}

template <int KIND, int WIDE> DEVICE void pack_values(const Packing &form, Shared &shared, Staged<WIDE> &staged) {
    using Mine = Patch<WIDE>;
    uint4 all[Mine::TIMES][2];
#pragma unroll
    for (int i = 0; i < Mine::TIMES; i++)
#pragma unroll
        for (int t = 0; t < 2; t++) {
            Mine patch(form, i);
            all[i][t] = patch.real ? ((const uint4 *)shared.rows[patch.pair * 2 + t])[patch.eight] : uint4{0, 0, 0, 0};
        }
    float low[Mine::OWN], high[Mine::OWN];
    bool odd = false, suspect = false;
#pragma unroll
    for (int n = 0; n < Mine::ALL; n++) {
        float a, b;
        group_range<KIND>(all[n / 2][n % 2], a, b);
        odd |= !finite_number(a) || !finite_number(b);
        suspect |= suspicious(KIND, b);
        if (Mine::own(n / 4) == n) {
            low[n / 4] = a;
            high[n / 4] = b;
        }
    }
    if (__ballot_sync(ALL_LANES, odd)) {
#pragma unroll
        for (int n = 0; n < Mine::ALL; n++) {
            float a, b;
            finite_range<KIND>(all[n / 2][n % 2], a, b);
            if (Mine::own(n / 4) == n) {
                low[n / 4] = a;
                high[n / 4] = b;
            }
        }
    }
    values_head(form, shared, staged, low, high);
#pragma unroll
    for (int i = 0; i < Mine::TIMES; i++) {
        float inverse[2], zero[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            inverse[t] = Mine::shared_by(low, 2 * i + t);
            zero[t] = Mine::shared_by(high, 2 * i + t);
        }
        Mine patch(form, i);
        if (!patch.real || patch.pair * 2 + 1 >= form.tokens) continue;
        u32 bytes[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            u32 codes[2];
#pragma unroll
            for (int t = 0; t < 2; t++) {
                float x = of_eight<KIND>(all[i][t], k);
                if (suspect && too_large(x, inverse[t], zero[t])) x = LOWEST;
                codes[t] = code_bits(x, inverse[t] * (1.f / 16.f), zero[t] * (1.f / 16.f));
            }
            bytes[k] = two_codes(codes[0], codes[1]);
        }
        uint2 *to = (uint2 *)&staged.codes[(patch.pair * form.dim + patch.eight * 8) / 4];
        *to = uint2{four_bytes(bytes[0], bytes[1], bytes[2], bytes[3]), four_bytes(bytes[4], bytes[5], bytes[6], bytes[7])};
    }
}

template <int KIND, int WIDE>
DEVICE void pack_four(const Packing &form, const Turn &turn, Shared &shared, Staged<WIDE> &staged, u8 *to) {
    if (form.codec != 4) return pack_any(form, turn, KIND, shared, to);
    if (form.side == 0) pack_keys<KIND, WIDE>(form, turn, shared, staged);
    else pack_values<KIND, WIDE>(form, shared, staged);
    __syncthreads();
    if (form.tokens % 2 == 1) {
        pack_last(form, turn, KIND, shared, (u8 *)staged.codes);
        __syncthreads();
    }
    put_bytes(to, staged.head, form.head_bytes());
    put_bytes(to + form.head_bytes(), staged.codes, form.code_bytes());
}

// Two numbers as pages have them; none of them can be no number. What is too large for half precision becomes its largest.
template <int KIND> DEVICE u32 two_stored(float low, float high) {
    constexpr u32 MOST_F16 = 0x7bff7bffu;
    u32 two = two_as(KIND == BF16, low, high);
    return KIND == BF16 ? two : two_most(false, two_least(false, two, MOST_F16), MOST_F16 | MINUS);
}

template <int KIND, int WIDE>
DEVICE void unpack_keys(const Packing &form, const Turn &turn, Shared &shared, const u8 *head) {
    using Mine = Part<WIDE>;
    const u8 *codes = head + form.head_bytes();
    read_steps(form, head, shared);
    if (Mine::quad() >= form.dim / 4) return;
    Quad quad(turn, form.dim, Mine::quad());
    float step[4], shift[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        step[i] = shared.low[quad.channel(i)];
        shift[i] = shared.high[quad.channel(i)];
    }
#pragma unroll
    for (int t = 0; t < Mine::TOKENS; t += 2) {
        u32 token = Mine::token(t);
        if (token + 1 >= form.tokens) break;
        float x[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 byte = codes[token / 2 * form.dim + quad.channel(i)];
            x[0][i] = fmaf(code_at<0>(byte), step[i], shift[i]);
            x[1][i] = fmaf(code_at<4>(byte), step[i], shift[i]);
        }
        quad.turn(turn, x, token, token + 1, 1.f);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u32 *row = (u32 *)shared.rows[token + k];
            row[quad.word[0]] = two_stored<KIND>(x[k][0], x[k][1]);
            row[quad.word[1]] = two_stored<KIND>(x[k][2], x[k][3]);
        }
    }
}

// Codes of four channels of a token, bits 0 to 3 of each byte for the first one of two.
template <int KIND, int TOKEN> DEVICE uint2 four_stored(u32 word, float step, float shift) {
    constexpr int BIT = 4 * TOKEN;
    float x[4] = {code_at<BIT>(word), code_at<BIT + 8>(word), code_at<BIT>(word >> 16), code_at<BIT + 8>(word >> 16)};
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = fmaf(x[k], step, shift);
    return uint2{two_stored<KIND>(x[0], x[1]), two_stored<KIND>(x[2], x[3])};
}

template <int KIND, int WIDE> DEVICE void unpack_values(const Packing &form, Shared &shared, const u8 *head) {
    using Mine = Patch<WIDE>;
    const u8 *codes = head + form.head_bytes();
    int base = head[0] | head[1] << 8, spread = head[2];
    float steps[Mine::OWN], shifts[Mine::OWN];
#pragma unroll
    for (int k = 0; k < Mine::OWN; k++) {
        bool real;
        u32 g = Mine::own_group(form, k, real), name = real ? head[3 + g] : 0;
        steps[k] = step_of(base - (int)(name & 15) * spread);
        shifts[k] = -(float)(name >> 4) * steps[k];
        if (!real) continue;
        shared.low[g] = steps[k];
        shared.high[g] = shifts[k];
    }
    u32 before = (u32)((u64)codes & 3);
#pragma unroll
    for (int i = 0; i < Mine::TIMES; i++) {
        float step[2], shift[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            step[t] = Mine::shared_by(steps, 2 * i + t);
            shift[t] = Mine::shared_by(shifts, 2 * i + t);
        }
        Mine patch(form, i);
        if (!patch.real || patch.pair * 2 + 1 >= form.tokens) continue;
        const u32 *words = (const u32 *)(codes - before) + (patch.pair * form.dim + patch.eight * 8) / 4;
        u32 three[3] = {words[0], words[1], words[2]}, eight[2];
#pragma unroll
        for (int k = 0; k < 2; k++) eight[k] = (u32)(((u64)three[k + 1] << 32 | three[k]) >> (8 * before));
        uint2 low = four_stored<KIND, 0>(eight[0], step[0], shift[0]), high = four_stored<KIND, 0>(eight[1], step[0], shift[0]);
        ((uint4 *)shared.rows[patch.pair * 2])[patch.eight] = uint4{low.x, low.y, high.x, high.y};
        low = four_stored<KIND, 1>(eight[0], step[1], shift[1]);
        high = four_stored<KIND, 1>(eight[1], step[1], shift[1]);
        ((uint4 *)shared.rows[patch.pair * 2 + 1])[patch.eight] = uint4{low.x, low.y, high.x, high.y};
    }
}

template <int KIND, int WIDE>
DEVICE void unpack_four(const Packing &form, const Turn &turn, Shared &shared, const u8 *head) {
    if (form.side == 0) unpack_keys<KIND, WIDE>(form, turn, shared, head);
    else unpack_values<KIND, WIDE>(form, shared, head);
    if (form.tokens % 2 == 0) return;
    __syncthreads();
    unpack_from(form.tokens - 1, form, turn, KIND, shared, head + form.head_bytes());
}

#define FOUR_BITS(name, KIND, WIDE)                                                                                    \
    KERNEL(THREADS, WIDE == 256 ? 2 : 4)                                                                               \
    pack_##name(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind, \
                u8 *out, const float *angles, u32 half_turn, u32 neighbours) {                                         \
        __shared__ Shared shared;                                                                                      \
        __shared__ Staged<WIDE> staged;                                                                                \
        TileBlock block(TILE_FROM_ARGS);                                                                               \
        find_rows(Pool{memory, table, most, tokens, heads, dim, KIND}, block, shared);                                 \
        Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};                                  \
        Turn turn = turn_of(form, angles, half_turn, neighbours);                                                      \
        __syncthreads();                                                                                               \
        pack_four<KIND, WIDE>(form, turn, shared, staged, out + block.at);                                             \
    }                                                                                                                  \
    EXPORT(pack_##name)                                                                                                \
    KERNEL(THREADS, WIDE == 256 ? 4 : 6)                                                                               \
    unpack_##name(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind, \
                  const u8 *in, const float *angles, u32 half_turn, u32 neighbours) {                                  \
        __shared__ Shared shared;                                                                                      \
        __shared__ uint4 bytes[(BLOCK * WIDE / 2 + 2 * WIDE + WIDE / 2 + 8) / 16 + 3];                                 \
        TileBlock block(TILE_FROM_ARGS);                                                                               \
        find_rows(Pool{memory, table, most, tokens, heads, dim, KIND}, block, shared);                                 \
        Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};                                  \
        Turn turn = turn_of(form, angles, half_turn, neighbours);                                                      \
        u32 size = form.head_bytes() + form.code_bytes(), before = 0;                                                  \
        if (form.codec == 4) before = get_bytes(bytes, in + block.at, size);                                           \
        __syncthreads();                                                                                               \
        if (form.codec == 4) unpack_four<KIND, WIDE>(form, turn, shared, (const u8 *)bytes + before);                  \
        else unpack_any(form, turn, KIND, shared, in + block.at);                                                      \
    }                                                                                                                  \
    EXPORT(unpack_##name)
FOUR_BITS(64_f16, F16, 64)
FOUR_BITS(128_f16, F16, 128)
FOUR_BITS(256_f16, F16, 256)
FOUR_BITS(64_bf16, BF16, 64)
FOUR_BITS(128_bf16, BF16, 128)
FOUR_BITS(256_bf16, BF16, 256)
