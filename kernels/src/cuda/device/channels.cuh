// What attention reads of a token at a time: eight channels of a key, two of a value.
#pragma once
#include "common.cuh"

// Eight channels of a token as they lie.
template <int KIND> struct Channels {
    static constexpr int PIECES = KIND == F32 ? 2 : 1;
    uint4 pieces[PIECES];
    // Of a head's row; what is not `real` is zeros.
    DEVICE void read(const u8 *row, u32 channel, bool real) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            pieces[i] = real ? *(const uint4 *)(row + channel * (2 * PIECES) + i * 16) : uint4{0, 0, 0, 0};
    }
    DEVICE float number(int i) const {
        const uint4 &all = pieces[KIND == F32 ? i / 4 : 0];
        u32 words[4] = {all.x, all.y, all.z, all.w};
        return KIND == F32 ? bits_to_float(words[i % 4]) : of_two(KIND, words[i / 2], i % 2);
    }
};

// Two channels of a token as they lie.
template <int KIND> struct Pair {
    u32 words[KIND == F32 ? 2 : 1];
    DEVICE void read(const u8 *row, u32 pair) {
        if constexpr (KIND == F32) {
            uint2 both = ((const uint2 *)row)[pair];
            words[0] = both.x, words[1] = both.y;
        } else {
            words[0] = ((const u32 *)row)[pair];
        }
    }
    DEVICE float number(int i) const {
        return KIND == F32 ? bits_to_float(words[KIND == F32 ? i : 0]) : of_two(KIND, words[0], i);
    }
};
