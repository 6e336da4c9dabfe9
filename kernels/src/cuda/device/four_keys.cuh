// Keys in four bits: a channel of a block has a step. Threads have some tokens of four channels, two and two that turn together.
#pragma once
#include "four_bits.cuh"

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
