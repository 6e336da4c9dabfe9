// Four bits, pages of 16-bit numbers, heads of whole groups, at most `WIDE` channels: what is sent most. A thread asks
// for all its numbers before it looks at one, they are read once and stay in registers while their steps are found, and a
// block's bytes are put together in shared memory, because they begin anywhere. Threads meet as seldom as can be: what a block
// takes is mostly waiting. Short blocks and a last odd token are packed as any are.
#pragma once
#include "packed.cuh"

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

// Two numbers as pages have them; none of them can be no number. What is too large for half precision becomes its largest.
template <int KIND> DEVICE u32 two_stored(float low, float high) {
    constexpr u32 MOST_F16 = 0x7bff7bffu;
    u32 two = two_as(KIND == BF16, low, high);
    return KIND == BF16 ? two : two_most(false, two_least(false, two, MOST_F16), MOST_F16 | MINUS);
}
