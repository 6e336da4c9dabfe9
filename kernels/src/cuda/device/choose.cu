// Chooses tokens from logits as `kernels/src/sampling.rs` does: the likeliest, or a draw by the counter-based generator
// keyed by seed and position. What cuts leave are the first tokens of one order, likeliest first, of equals the first; so
// instead of sorting, the token that a sum of weights falls on is searched for, eight bits of its logit at a time.
//
// Weights and sums are in double precision as on the processor, added in another order: a draw differs from the
// processor's where it falls within about 1e-15 of the border between two tokens.
#include "common.cuh"

constexpr int THREADS = 1024;

// How one row's token is chosen; the host's `Choice` lies the same way.
struct Choice {
    u64 seed;
    float temperature, top_p, min_p;
    u32 top_k, position, unused;
};

// A row's token and the natural logarithm of its probability; the host's `Chosen` lies the same way.
struct Chosen {
    u32 token;
    float logprob;
};

// Tokens before a place in the order: all with larger keys than `key`, and the first `ties` of those with that key.
struct Cut {
    u32 key, ties;
};

// Numbers in the order of their logits.
DEVICE u32 key_of(float x) {
    u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float of_key(u32 key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }
DEVICE float logit(const float *logits, u32 i) {
    float x = logits[i];
    return x == x ? x : -INFINITY;
}

constexpr u32 BINS = 256;
struct Shared {
    double mass[BINS], sums[32];
    u32 counts[BINS], found;
    double passed;
};

DEVICE double sum_over_warp(double x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

DEVICE double sum_over_block(double x, Shared &shared) {
    x = sum_over_warp(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = x;
    __syncthreads();
    double all = 0.;
    for (int warp = 0; warp < THREADS / 32; warp++) all += shared.sums[warp];
    return all;
}

// What a token counts: one each to cut by number, its probability relative to the likeliest otherwise.
struct Weigh {
    float top, temperature, min_p;
    bool by_number;
    DEVICE double operator()(float x) const {
        if (by_number) return 1.;
        double weight = exp((double)((x - top) / temperature));
        return weight >= (double)min_p ? weight : 0.;
    }
};

DEVICE double mass(const float *logits, u32 vocab, const Weigh &weigh, Cut cut, Shared &shared) {
    double sum = 0.;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS)
        if (key_of(logit(logits, i)) > cut.key) sum += weigh(logit(logits, i));
    sum = sum_over_block(sum, shared);
    return sum + (cut.ties ? (double)cut.ties * weigh(of_key(cut.key)) : 0.);
}

// What a thread has for a few bins before it tells the block: nearly all logits fall into a handful of the bins of their
// first eight bits, and a sum in double precision is added to in shared memory by trying until nobody was between.
struct Kept {
    static constexpr int SLOTS = 4;
    u32 bins[SLOTS] = {BINS, BINS, BINS, BINS};
    double mass[SLOTS] = {};

    // Whether there was room for it.
    DEVICE bool add(u32 bin, double more) {
        bool kept = false;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            bool here = !kept && (bins[i] == bin || bins[i] == BINS);
            bins[i] = here ? bin : bins[i];
            mass[i] += here ? more : 0.;
            kept |= here;
        }
        return kept;
    }

    // Lanes with the same bin are one addition. All lanes come here.
    DEVICE void tell(Shared &shared) const {
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            for (u32 left = __ballot_sync(ALL_LANES, bins[i] < BINS); left;) {
                int first = __ffs((int)left) - 1;
                u32 bin = __shfl_sync(ALL_LANES, bins[i], first);
                double sum = sum_over_warp(bins[i] == bin ? mass[i] : 0.);
                if (threadIdx.x % 32 == (u32)first) atomicAdd(&shared.mass[bin], sum);
                left &= ~__ballot_sync(ALL_LANES, bins[i] == bin);
            }
    }
};

// Finds the bin, from the last to the first, with which the sum passes `target`, and what was passed before it. The first
// warp's, each lane has eight bins.
DEVICE void find_bin(double passed, double target, bool reaching, Shared &shared) {
    constexpr int EACH = BINS / 32;
    u32 lane = threadIdx.x;
    int from = BINS - 1 - (int)lane * EACH;
    double mine = 0.;
    for (int i = 0; i < EACH; i++) mine += shared.mass[from - i];
    double before = mine;
    for (int by = 1; by < 32; by *= 2) {
        double other = __shfl_sync(ALL_LANES, before, max((int)lane - by, 0));
        if ((int)lane >= by) before += other;
    }
    // All that lanes before this one have.
    before = __shfl_sync(ALL_LANES, before, max((int)lane - 1, 0));
    before = passed + (lane ? before : 0.);
    // Where rounding has the sum end before the target, the last token that counts is it.
    int last = -1, hit = -1;
    double before_last = 0., before_hit = 0.;
    for (int bin = from; bin > from - EACH; bin--) {
        if (shared.counts[bin] == 0) continue;
        double after = before + shared.mass[bin];
        if (shared.mass[bin] > 0.) {
            last = bin;
            before_last = before;
        }
        if (hit < 0 && (after > target || (reaching && after >= target))) {
            hit = bin;
            before_hit = before;
        }
        before = after;
    }
    u32 hits = __ballot_sync(ALL_LANES, hit >= 0), counted = __ballot_sync(ALL_LANES, last >= 0);
    if (!hits && !counted) {
        if (lane == 0) shared.found = BINS - 1;
    } else if (lane == (u32)(hits ? __ffs((int)hits) - 1 : 31 - __clz((int)counted))) {
        shared.found = (u32)(hits ? hit : last);
        shared.passed = hits ? before_hit : before_last;
    }
}

// The place behind the first token with which the sum passes `target`, or reaches it where that is enough.
DEVICE Cut passing(const float *logits, u32 vocab, const Weigh &weigh, double target, bool reaching, Shared &shared) {
    double passed = 0.;
    u32 key = 0, ties = 0;
    if (threadIdx.x == 0) shared.passed = 0.;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < BINS; i += THREADS) {
            shared.mass[i] = 0.;
            shared.counts[i] = 0;
        }
        __syncthreads();
        Kept kept;
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
            float x = logit(logits, i);
            u32 mine = key_of(x), bin = mine >> shift & (BINS - 1);
            if (shift < 24 && mine >> (shift + 8) != key >> (shift + 8)) continue;
            double weight = weigh(x);
            if (!kept.add(bin, weight)) atomicAdd(&shared.mass[bin], weight);
            atomicAdd(&shared.counts[bin], 1u);
        }
        kept.tell(shared);
        __syncthreads();
        if (threadIdx.x < 32) find_bin(passed, target, reaching, shared);
        __syncthreads();
        passed = shared.passed;
        key |= shared.found << shift;
        ties = shared.counts[shared.found];
        __syncthreads();
    }
    double each = weigh(of_key(key)), many = each > 0. ? (target - passed) / each : 0.;
    double needed = reaching ? ceil(many) : floor(many) + 1.;
    u32 taken = needed < 1. ? 1u : needed > (double)ties ? ties : (u32)needed;
    return Cut{key, taken};
}

// The token at the end of a cut: the `ties`-th of those with its key. A warp counts the tokens of one stretch, 32 at a time.
DEVICE u32 token_at(const float *logits, u32 vocab, Cut cut, Shared &shared) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 each = (vocab + THREADS - 1) / THREADS * 32, from = min(warp * each, vocab), to = min(from + each, vocab);
    auto same = [&](u32 i) { return __ballot_sync(ALL_LANES, i + lane < to && key_of(logit(logits, i + lane)) == cut.key); };
    u32 mine = 0;
    for (u32 i = from; i < to; i += 32) mine += (u32)__popc(same(i));
    if (lane == 0) shared.counts[warp] = mine;
    __syncthreads();
    u32 before = lane < warp ? shared.counts[lane] : 0;
    for (int lanes = 16; lanes > 0; lanes /= 2) before += __shfl_xor_sync(ALL_LANES, before, lanes);
    if (before < cut.ties && cut.ties <= before + mine)
        for (u32 i = from; i < to; i += 32) {
            u32 mask = same(i), rank = before + (u32)__popc(mask & ((1u << lane) - 1)) + 1;
            if (mask >> lane & 1 && rank == cut.ties) shared.found = i + lane;
            before += (u32)__popc(mask);
        }
    __syncthreads();
    return shared.found;
}

// What a part of a row comes to: its likeliest token, of equals the first, and the sum of all relative to that.
struct Best {
    double sum;
    float logit;
    u32 token;
    DEVICE void meet(float other, u32 where) {
        // Zeros of both signs are equal, as in a comparison.
        if (other > logit || (other == logit && where < token)) {
            logit = other;
            token = where;
        }
    }
    DEVICE void meet_warp() {
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, logit, lanes);
            meet(other, __shfl_xor_sync(ALL_LANES, token, lanes));
        }
    }
};

// Tokens of a part that a thread has, all of which are asked for at once; the host cuts rows by as many.
constexpr int EACH = 8;

// The block's part of a row, for every thread.
DEVICE Best best_of_part(const float *logits, u32 vocab, Shared &shared) {
    u32 from = blockIdx.y * (EACH * THREADS) + threadIdx.x;
    float mine[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) mine[k] = from + k * THREADS < vocab ? logit(logits, from + k * THREADS) : -INFINITY;
    Best best = {0., -INFINITY, vocab};
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (from + k * THREADS < vocab) best.meet(mine[k], from + k * THREADS);
    best.meet_warp();
    if (threadIdx.x % 32 == 0) {
        shared.mass[threadIdx.x / 32] = (double)best.logit;
        shared.counts[threadIdx.x / 32] = best.token;
    }
    __syncthreads();
    // There are as many warps as lanes.
    best = {0., (float)shared.mass[threadIdx.x % 32], shared.counts[threadIdx.x % 32]};
    best.meet_warp();
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (from + k * THREADS < vocab && best.logit > -INFINITY) sum += expf(mine[k] - best.logit);
    best.sum = sum_over_block((double)sum, shared);
    return best;
}

// The whole row's, of what all blocks have, `between` them; the last of them to be done has it, and goes on.
DEVICE bool best_of_row(Best &best, u32 vocab, Best *between, u32 *done, Shared &shared) {
    u32 parts = gridDim.y, lane = threadIdx.x % 32;
    if (parts == 1) return true;
    Best *mine = between + (u64)blockIdx.x * parts;
    if (threadIdx.x == 0) {
        mine[blockIdx.y] = best;
        __threadfence();
        shared.found = atomicAdd(done + blockIdx.x, 1u);
    }
    __syncthreads();
    bool last = shared.found + 1 == parts;
    if (!last) return false;
    __threadfence();
    best = {0., -INFINITY, vocab};
    for (u32 part = lane; part < parts; part += 32) best.meet(mine[part].logit, mine[part].token);
    best.meet_warp();
    for (u32 part = lane; part < parts; part += 32)
        if (mine[part].logit > -INFINITY) best.sum += mine[part].sum * (double)expf(mine[part].logit - best.logit);
    best.sum = sum_over_warp(best.sum);
    // Nobody counts any more: the next launch, or the next run of a recorded one, begins with none.
    if (threadIdx.x == 0) done[blockIdx.x] = 0;
    return true;
}

// Ten rounds of Philox4x32 (Salmon et al. 2011); the first two words as a number in [0, 1).
DEVICE double uniform(u64 seed, u32 position) {
    u32 counter[4] = {position, 0, 0, 0}, key[2] = {(u32)seed, (u32)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        u32 a_high = __umulhi(0xD2511F53u, counter[0]), a_low = 0xD2511F53u * counter[0];
        u32 b_high = __umulhi(0xCD9E8D57u, counter[2]), b_low = 0xCD9E8D57u * counter[2];
        u32 next[4] = {b_high ^ counter[1] ^ key[0], b_low, a_high ^ counter[3] ^ key[1], a_low};
        for (int i = 0; i < 4; i++) counter[i] = next[i];
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    u64 bits = ((u64)counter[0] << 32 | counter[1]) >> 11;
    return (double)bits / 9007199254740992.;
}

// Blocks for a row and a part of its tokens each: grid (rows, parts). The last of a row's to be done knows the likeliest token, and
// what its probability is a part of: the sum of all, relative to it, before cuts and temperature, as it is reported. That is
// limited by a launch; draws by the double precision of one processor of the card, some tens of microseconds for a vocabulary
// of 128 thousand.
KERNEL(THREADS, 1) choose(const float *logits, u32 vocab, const Choice *choices, Chosen *chosen, Best *between, u32 *done) {
    __shared__ Shared shared;
    const float *mine = logits + (u64)blockIdx.x * vocab;
    Best best = best_of_part(mine, vocab, shared);
    if (!best_of_row(best, vocab, between, done, shared)) return;
    __syncthreads();
    Choice choice = choices[blockIdx.x];
    u32 greedy = best.token < vocab ? best.token : 0;
    float top = best.logit, all_log = top + (float)log(best.sum);
    if (choice.temperature == 0.f) {
        if (threadIdx.x == 0) chosen[blockIdx.x] = Chosen{greedy, logit(mine, greedy) - all_log};
        return;
    }
    Weigh number = {top, 1.f, 0.f, true}, weight = {top, choice.temperature, 0.f, false};
    Cut cut = {0, 0};
    if (choice.top_k > 0 && choice.top_k < vocab) cut = passing(mine, vocab, number, (double)choice.top_k, true, shared);
    if (choice.top_p < 1.f) {
        double all = mass(mine, vocab, weight, cut, shared);
        Cut nearer = passing(mine, vocab, weight, (double)choice.top_p * all, true, shared);
        if (nearer.key > cut.key || (nearer.key == cut.key && nearer.ties < cut.ties)) cut = nearer;
    }
    weight.min_p = choice.min_p;
    double all = mass(mine, vocab, weight, cut, shared);
    u32 token = greedy;
    if (all > 0.) {
        Cut end = passing(mine, vocab, weight, uniform(choice.seed, choice.position) * all, false, shared);
        // Rounding must not carry a draw behind the cut.
        if (end.key < cut.key || (end.key == cut.key && cut.ties && end.ties > cut.ties)) end = cut;
        token = token_at(mine, vocab, end, shared);
    }
    if (threadIdx.x == 0) chosen[blockIdx.x] = Chosen{token, logit(mine, token) - all_log};
}
EXPORT(choose)
