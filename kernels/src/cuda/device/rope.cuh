// Turning a head's channels by a position, after the head's norm where there is one: the work of a warp. Heads are of 256 channels
// at most, of which a lane has eight, or four pairs that turn together; all it reads is asked for at once.
#pragma once
#include "common.cuh"

constexpr u32 ROPE_CHANNELS = 8, ROPE_PAIRS = 4;

struct Rope {
    const float *frequencies;
    float amplitude;
    u32 half, neighbours;
    const float *query_norm, *key_norm;
    float eps;
    // How queries grow with their position (Ministral 3); not at all with 0.
    float beta;
    u32 every;
    DEVICE u32 first(u32 i) const { return neighbours ? 2 * i : i; }
    DEVICE u32 second(u32 i) const { return neighbours ? 2 * i + 1 : i + half; }
    // What a query at a position is multiplied by, and a key by 1.
    DEVICE float grown(bool is_query, u32 position) const {
        return is_query && beta > 0.f ? 1.f + beta * logf(1.f + (float)(position / every)) : 1.f;
    }
    // A lane's frequencies: no kernel writes them.
    DEVICE void read(float (&speeds)[ROPE_PAIRS], u32 lane) const {
#pragma unroll
        for (u32 k = 0; k < ROPE_PAIRS; k++) speeds[k] = lane + 32 * k < half ? frequencies[lane + 32 * k] : 0.f;
    }
};

// What a lane has of a head.
struct LaneOfHead {
    float all[ROPE_CHANNELS], firsts[ROPE_PAIRS], seconds[ROPE_PAIRS];

    // Channels one by one, as they are stored or normed.
    DEVICE void read_all(const float *head, u32 dim, u32 lane) {
#pragma unroll
        for (u32 k = 0; k < ROPE_CHANNELS; k++) all[k] = lane + 32 * k < dim ? head[lane + 32 * k] : 0.f;
    }
    DEVICE void read_pairs(const float *head, const Rope &rope, u32 lane) {
#pragma unroll
        for (u32 k = 0; k < ROPE_PAIRS; k++) {
            u32 i = lane + 32 * k;
            firsts[k] = i < rope.half ? head[rope.first(i)] : 0.f;
            seconds[k] = i < rope.half ? head[rope.second(i)] : 0.f;
        }
    }
    // Hands `put` channels as they are.
    template <class Put> DEVICE void plain(u32 dim, u32 lane, const Put &put) const {
#pragma unroll
        for (u32 k = 0; k < ROPE_CHANNELS; k++)
            if (lane + 32 * k < dim) put(lane + 32 * k, all[k]);
    }
    // Hands `put` channels as they are turned, after the norm by `w`, if there is one, and times `grown`.
    template <class Put>
    DEVICE void turned(const float *head, u32 dim, const Rope &rope, const float (&speeds)[ROPE_PAIRS], const float *w, float grown,
                       u32 position, u32 lane, const Put &put) const {
        float scale = 1.f;
        if (w) {
            float squares = 0.f;
#pragma unroll
            for (u32 k = 0; k < ROPE_CHANNELS; k++) squares = fmaf(all[k], all[k], squares);
            scale = 1.f / sqrtf(warp_sum(squares) / (float)dim + rope.eps);
        }
#pragma unroll
        for (u32 k = 0; k < ROPE_PAIRS; k++) {
            u32 i = lane + 32 * k;
            if (i >= rope.half) break;
            u32 first = rope.first(i), second = rope.second(i);
            float a = firsts[k], b = seconds[k];
            if (w) {
                a = a * scale * w[first];
                b = b * scale * w[second];
            }
            a *= grown, b *= grown;
            float angle = (float)position * speeds[k];
            float c = cosf(angle) * rope.amplitude, s = sinf(angle) * rope.amplitude;
            put(first, a * c - b * s);
            put(second, b * c + a * s);
        }
        for (u32 i = 2 * rope.half + lane; i < dim; i += 32) put(i, (w ? head[i] * scale * w[i] : head[i]) * grown);
    }
};
