// Values in four bits: 32 channels of a token have a step. Threads have eight channels of two tokens at a time.
#pragma once
#include "four_bits.cuh"

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
