// KV packed for links and unpacked into pages: the very bytes of the processor's codec (`kernels/src/wire.rs`), which says
// how they lie. One block of threads packs or unpacks one block of up to 64 tokens.
#include "pages.cuh"

constexpr int THREADS = 256, BLOCK = 64, GROUP = 32, MOST_DIM = 256, SHORT = 16;
// Steps from 2^-60 to 2^60 by name, mantissa bits that a step does not have, largest spread: see `wire/steps.rs`.
constexpr int CUT = 18, LEAST = (127 - 60) << 5, MOST = (127 + 60) << 5, SPREAD = 128;

// A block of a tile; the host's `TileBlock` lies the same way. `at` is where its bytes begin.
struct TileBlock {
    u64 at;
    u32 side, head, token, tokens;
};

// `codec` 0 copies, 4 and 8 are bits of a code.
struct Packing {
    u32 codec, side, tokens, dim;
    DEVICE u32 per_row() const { return (dim + GROUP - 1) / GROUP; }
    DEVICE u32 groups() const { return side == 0 ? dim : tokens * per_row(); }
    DEVICE u32 head_bytes() const { return codec == 8 ? 2 + groups() : side == 0 ? 2 + 2 * groups() + (groups() + 1) / 2 : 3 + groups(); }
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

// Where a block's rows lie.
DEVICE void find_rows(const Pool &pool, const TileBlock &block, Shared &shared) {
    for (u32 t = threadIdx.x; t < block.tokens; t += THREADS)
        shared.rows[t] = place(pool, 0, block.token + t, block.side, block.head);
    __syncthreads();
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

KERNEL(THREADS) pack_tiles(const TileBlock *blocks, u32 codec, u8 *memory, const u32 *table, u32 tokens, u32 heads, u32 dim,
                       u32 kind, u8 *out, const float *angles, u32 half_turn, u32 neighbours) {
    __shared__ Shared shared;
    TileBlock block = blocks[blockIdx.x];
    Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};
    find_rows(Pool{memory, table, 0, tokens, heads, dim, kind}, block, shared);
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

KERNEL(THREADS) unpack_tiles(const TileBlock *blocks, u32 codec, u8 *memory, const u32 *table, u32 tokens, u32 heads, u32 dim,
                         u32 kind, const u8 *in, const float *angles, u32 half_turn, u32 neighbours) {
    __shared__ Shared shared;
    TileBlock block = blocks[blockIdx.x];
    Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};
    find_rows(Pool{memory, table, 0, tokens, heads, dim, kind}, block, shared);
    unpack_any(form, turn_of(form, angles, half_turn, neighbours), kind, shared, in + block.at);
}
EXPORT(unpack_tiles)

// From here on: four bits, pages of 16-bit numbers, heads of whole groups, at most `WIDE` channels: what is sent most. Numbers
// are read once and stay in registers while their steps are found, and a block's bytes are put together in shared memory,
// because they begin anywhere. Short blocks and a last odd token are packed as above.

// A block's bytes; behind them room for the rest of a last word.
template <int WIDE> struct Staged {
    u32 head[(2 * WIDE + WIDE / 2 + 3) / 4 + 2], codes[BLOCK * WIDE / 8 + 1];
    float low[THREADS * 4], high[THREADS * 4];
};

// Copies bytes from shared memory to any place, four at a time.
DEVICE void put_bytes(u8 *to, const u32 *from, u32 bytes) {
    u32 before = min((u32)(-(u64)to & 3), bytes), words = (bytes - before) / 4, done = before + words * 4;
    for (u32 i = threadIdx.x; i < words; i += THREADS)
        ((u32 *)(to + before))[i] = (u32)(((u64)from[i + 1] << 32 | from[i]) >> (8 * before));
    if (threadIdx.x < before) to[threadIdx.x] = ((const u8 *)from)[threadIdx.x];
    if (done + threadIdx.x < bytes) to[done + threadIdx.x] = ((const u8 *)from)[done + threadIdx.x];
}

// Brings bytes to shared memory by whole words, and says where in the first word they begin.
DEVICE u32 get_bytes(u32 *to, const u8 *from, u32 bytes) {
    u32 before = (u32)((u64)from & 3);
    const u32 *words = (const u32 *)(from - before);
    for (u32 i = threadIdx.x; i < (before + bytes + 3) / 4; i += THREADS) to[i] = words[i];
    __syncthreads();
    return before;
}

// A code in the lowest bits of what is returned: `nearest`, and between 0 and 15. Adding 3 · 2^22 rounds to the nearest.
DEVICE u32 code_bits(float x, float inverse, float zero) {
    float y = fmaf(x, inverse, -zero);
    y = y < 2147483648.f ? y : 0.f;
    return __float_as_uint(fminf(fmaxf(y, 0.f), 15.f) + 12582912.f);
}
// Codes of two tokens in the lowest byte.
DEVICE u32 two_codes(u32 first, u32 second) { return first + (second << 4); }
// The number of a code that begins at a bit.
DEVICE float code_at(u32 word, int bit) { return __uint_as_float((word >> bit & 15) | 0x4b000000u) - 8388608.f; }

// Least and largest of numbers that are some: minima let no NaN in, and infinity is seen by its being the result.
template <int N> DEVICE void widen_range(const float (&x)[N], float &low, float &high) {
    float a = low, b = high;
#pragma unroll
    for (int i = 0; i < N; i++) {
        a = fminf(a, x[i]);
        b = fmaxf(b, x[i]);
    }
    if (a == -INFINITY || b == INFINITY) {
        a = low;
        b = high;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (finite_number(x[i])) {
                a = fminf(a, x[i]);
                b = fmaxf(b, x[i]);
            }
    }
    low = a;
    high = b;
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
    // By a token's angle; back with `sign` -1.
    DEVICE void turn(const Turn &turn, float (&x)[4], u32 t, float sign) const {
        const float *at = turn.angles + (u64)2 * turn.half * t;
        if (!turn.neighbours) {
            if (!turns[0]) return;
            float2 cosine = ((const float2 *)at)[index], sine = ((const float2 *)(at + turn.half))[index];
            turn_two(x[0], x[2], cosine.x, sine.x * sign);
            turn_two(x[1], x[3], cosine.y, sine.y * sign);
        } else {
            for (int i = 0; i < 2; i++)
                if (turns[i]) turn_two(x[2 * i], x[2 * i + 1], at[word[i]], at[turn.half + word[i]] * sign);
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

template <int KIND, int WIDE> DEVICE void pack_keys(const Packing &form, const Turn &turn, Shared &shared, Staged<WIDE> &staged) {
    using Mine = Part<WIDE>;
    Quad quad(turn, form.dim, Mine::quad());
    bool real = Mine::quad() < form.dim / 4;
    float x[Mine::TOKENS][4];
    if (real) {
        u32 words[Mine::TOKENS][2];
        // Behind the last token the last is read again.
#pragma unroll
        for (int t = 0; t < Mine::TOKENS; t++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                words[t][i] = ((const u32 *)shared.rows[min(Mine::token(t), form.tokens - 1)])[quad.word[i]];
#pragma unroll
        for (int t = 0; t < Mine::TOKENS; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[t][i] = of_two(KIND, words[t][i / 2], i % 2);
            quad.turn(turn, x[t], min(Mine::token(t), form.tokens - 1), -1.f);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float low = INFINITY, high = -INFINITY, channel[Mine::TOKENS];
#pragma unroll
            for (int t = 0; t < Mine::TOKENS; t++) channel[t] = x[t][i];
            widen_range(channel, low, high);
            staged.low[Mine::part() * WIDE + quad.channel(i)] = low;
            staged.high[Mine::part() * WIDE + quad.channel(i)] = high;
        }
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < form.dim; c += THREADS) {
        float low = INFINITY, high = -INFINITY;
#pragma unroll
        for (int part = 0; part < Mine::PARTS; part++) {
            low = fminf(low, staged.low[part * WIDE + c]);
            high = fmaxf(high, staged.high[part * WIDE + c]);
        }
        shared.low[c] = low > high ? 0.f : low;
        shared.high[c] = low > high ? 0.f : high;
    }
    __syncthreads();
    choose_steps(form, shared, (u8 *)staged.head);
    if (!real) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 c = quad.word[i] * 2;
        float inverse[2] = {shared.low[c], shared.low[c + 1]}, zero[2] = {shared.high[c], shared.high[c + 1]};
#pragma unroll
        for (int t = 0; t < Mine::TOKENS; t += 2) {
            u32 both[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                both[k] = two_codes(code_bits(x[t][2 * i + k], inverse[k], zero[k]), code_bits(x[t + 1][2 * i + k], inverse[k], zero[k]));
            if (Mine::token(t) + 1 < form.tokens)
                ((u16 *)staged.codes)[Mine::token(t) / 2 * (form.dim / 2) + quad.word[i]] = (u16)((both[0] & 0xff) | both[1] << 8);
        }
    }
}

// Which two tokens and eight channels of values a thread has, the `i`-th time.
template <int WIDE> struct Patch {
    static constexpr int TIMES = BLOCK / 2 * (WIDE / 8) / THREADS;
    u32 pair, eight;
    bool real;
    DEVICE Patch(const Packing &form, int i) {
        u32 number = i * THREADS + threadIdx.x;
        pair = number / (WIDE / 8);
        eight = number % (WIDE / 8);
        real = eight < form.dim / 8 && pair * 2 < form.tokens;
    }
};

template <int KIND, int WIDE> DEVICE void pack_values(const Packing &form, Shared &shared, Staged<WIDE> &staged) {
    constexpr int TIMES = Patch<WIDE>::TIMES;
    uint4 all[TIMES][2];
#pragma unroll
    for (int i = 0; i < TIMES; i++)
#pragma unroll
        for (int t = 0; t < 2; t++) {
            Patch<WIDE> patch(form, i);
            u32 token = min(patch.pair * 2 + t, form.tokens - 1);
            all[i][t] = patch.real ? ((const uint4 *)shared.rows[token])[patch.eight] : uint4{0, 0, 0, 0};
        }
    auto number = [&](int i, int t, int k) {
        u32 words[4] = {all[i][t].x, all[i][t].y, all[i][t].z, all[i][t].w};
        return of_two(KIND, words[k / 2], k % 2);
    };
#pragma unroll
    for (int i = 0; i < TIMES; i++)
#pragma unroll
        for (int t = 0; t < 2; t++) {
            Patch<WIDE> patch(form, i);
            float low = INFINITY, high = -INFINITY, eight[8];
#pragma unroll
            for (int k = 0; k < 8; k++) eight[k] = number(i, t, k);
            widen_range(eight, low, high);
            // Four lanes have a group.
#pragma unroll
            for (int by = 1; by < 4; by *= 2) {
                low = fminf(low, __shfl_xor_sync(ALL_LANES, low, by));
                high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, by));
            }
            u32 token = patch.pair * 2 + t, g = form.group(token, patch.eight * 8);
            if (!patch.real || token >= form.tokens || threadIdx.x % 4 != 0) continue;
            shared.low[g] = low > high ? 0.f : low;
            shared.high[g] = low > high ? 0.f : high;
        }
    __syncthreads();
    choose_steps(form, shared, (u8 *)staged.head);
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        Patch<WIDE> patch(form, i);
        if (!patch.real || patch.pair * 2 + 1 >= form.tokens) continue;
        u32 g = form.group(patch.pair * 2, patch.eight * 8), next = g + form.per_row();
        float inverse[2] = {shared.low[g], shared.low[next]}, zero[2] = {shared.high[g], shared.high[next]};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 four = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 first = code_bits(number(i, 0, half * 4 + k), inverse[0], zero[0]);
                u32 second = code_bits(number(i, 1, half * 4 + k), inverse[1], zero[1]);
                four |= (two_codes(first, second) & 0xff) << (8 * k);
            }
            staged.codes[(patch.pair * form.dim + patch.eight * 8) / 4 + half] = four;
        }
    }
}

// Limited by memory: about fifteen instructions for a number.
template <int KIND, int WIDE>
DEVICE void pack_four(const Packing &form, const Turn &turn, Shared &shared, Staged<WIDE> &staged, u8 *to) {
    if (form.codec != 4) return pack_any(form, turn, KIND, shared, to);
    if (form.side == 0) pack_keys<KIND, WIDE>(form, turn, shared, staged);
    else pack_values<KIND, WIDE>(form, shared, staged);
    pack_last(form, turn, KIND, shared, (u8 *)staged.codes);
    __syncthreads();
    put_bytes(to, staged.head, form.head_bytes());
    put_bytes(to + form.head_bytes(), staged.codes, form.tokens / 2 * form.dim + form.tokens % 2 * (form.dim / 2));
}

// Two numbers as pages have them; none of them can be no number.
template <int KIND> DEVICE u32 two_stored(float low, float high) {
    constexpr float MOST_F16 = 65504.f;
    if (KIND == F16) {
        low = fminf(fmaxf(low, -MOST_F16), MOST_F16);
        high = fminf(fmaxf(high, -MOST_F16), MOST_F16);
    }
    return two_as(KIND == BF16, low, high);
}

template <int KIND, int WIDE>
DEVICE void unpack_keys(const Packing &form, const Turn &turn, const Shared &shared, const u8 *codes) {
    using Mine = Part<WIDE>;
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
        u32 bytes[4];
#pragma unroll
        for (int i = 0; i < 4; i++) bytes[i] = codes[token / 2 * form.dim + quad.channel(i)];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = fmaf(code_at(bytes[i], 4 * k), step[i], shift[i]);
            quad.turn(turn, x, token + k, 1.f);
            u32 *row = (u32 *)shared.rows[token + k];
            row[quad.word[0]] = two_stored<KIND>(x[0], x[1]);
            row[quad.word[1]] = two_stored<KIND>(x[2], x[3]);
        }
    }
}

template <int KIND, int WIDE> DEVICE void unpack_values(const Packing &form, const Shared &shared, const u8 *codes) {
#pragma unroll
    for (int i = 0; i < Patch<WIDE>::TIMES; i++) {
        Patch<WIDE> patch(form, i);
        if (!patch.real || patch.pair * 2 + 1 >= form.tokens) continue;
        u32 before = (u32)((u64)codes & 3), g = form.group(patch.pair * 2, patch.eight * 8);
        const u32 *words = (const u32 *)(codes - before) + (patch.pair * form.dim + patch.eight * 8) / 4;
        u32 eight[2] = {(u32)(((u64)words[1] << 32 | words[0]) >> (8 * before)), (u32)(((u64)words[2] << 32 | words[1]) >> (8 * before))};
#pragma unroll
        for (int t = 0; t < 2; t++) {
            float step = shared.low[g + t * form.per_row()], shift = shared.high[g + t * form.per_row()];
            u32 out[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 word = eight[k / 2];
                int bit = k % 2 * 16 + 4 * t;
                out[k] = two_stored<KIND>(fmaf(code_at(word, bit), step, shift), fmaf(code_at(word, bit + 8), step, shift));
            }
            ((uint4 *)shared.rows[patch.pair * 2 + t])[patch.eight] = uint4{out[0], out[1], out[2], out[3]};
        }
    }
}

// Limited by memory: about nine instructions for a number.
template <int KIND, int WIDE>
DEVICE void unpack_four(const Packing &form, const Turn &turn, Shared &shared, u32 *bytes, const u8 *from) {
    if (form.codec != 4) return unpack_any(form, turn, KIND, shared, from);
    u32 size = form.head_bytes() + form.tokens / 2 * form.dim + form.tokens % 2 * (form.dim / 2);
    const u8 *head = (const u8 *)bytes + get_bytes(bytes, from, size), *codes = head + form.head_bytes();
    read_steps(form, head, shared);
    if (form.side == 0) unpack_keys<KIND, WIDE>(form, turn, shared, codes);
    else unpack_values<KIND, WIDE>(form, shared, codes);
    unpack_from(form.tokens / 2 * 2, form, turn, KIND, shared, codes);
}

#define FOUR_BITS(name, KIND, WIDE)                                                                                    \
    KERNEL(THREADS, WIDE == 256 ? 2 : 3)                                                                               \
    pack_##name(const TileBlock *blocks, u32 codec, u8 *memory, const u32 *table, u32 tokens, u32 heads, u32 dim,      \
                u32 kind, u8 *out, const float *angles, u32 half_turn, u32 neighbours) {                               \
        __shared__ Shared shared;                                                                                      \
        __shared__ Staged<WIDE> staged;                                                                                \
        TileBlock block = blocks[blockIdx.x];                                                                          \
        Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};                                  \
        find_rows(Pool{memory, table, 0, tokens, heads, dim, KIND}, block, shared);                                    \
        Turn turn = turn_of(form, angles, half_turn, neighbours);                                                      \
        pack_four<KIND, WIDE>(form, turn, shared, staged, out + block.at);                                             \
    }                                                                                                                  \
    EXPORT(pack_##name)                                                                                                \
    KERNEL(THREADS) unpack_##name(const TileBlock *blocks, u32 codec, u8 *memory, const u32 *table, u32 tokens,        \
                                  u32 heads, u32 dim, u32 kind, const u8 *in, const float *angles, u32 half_turn,      \
                                  u32 neighbours) {                                                                    \
        __shared__ Shared shared;                                                                                      \
        __shared__ u32 bytes[(BLOCK * WIDE / 2 + 2 * WIDE + WIDE / 2 + 8) / 4 + 2];                                    \
        TileBlock block = blocks[blockIdx.x];                                                                          \
        Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};                                  \
        find_rows(Pool{memory, table, 0, tokens, heads, dim, KIND}, block, shared);                                    \
        Turn turn = turn_of(form, angles, half_turn, neighbours);                                                      \
        unpack_four<KIND, WIDE>(form, turn, shared, bytes, in + block.at);                                             \
    }                                                                                                                  \
    EXPORT(unpack_##name)
FOUR_BITS(64_f16, F16, 64)
FOUR_BITS(128_f16, F16, 128)
FOUR_BITS(256_f16, F16, 256)
FOUR_BITS(64_bf16, BF16, 64)
FOUR_BITS(128_bf16, BF16, 128)
FOUR_BITS(256_bf16, BF16, 256)
