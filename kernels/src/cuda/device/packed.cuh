// KV packed for links and unpacked into pages: the very bytes of the processor's codec (`kernels/src/wire.rs`), which says
// how they lie. One block of threads packs or unpacks one block of up to 64 tokens, of any kind, size and codec.
#pragma once
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
