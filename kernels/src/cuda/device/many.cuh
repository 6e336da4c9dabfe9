// Weights of every form as products on tensor cores take them: widened to 16 bits on their way into shared memory.
#pragma once
#include "forms.cuh"

// `N` consecutive numbers of a row of weights as they were read, widened only when they are put into shared memory: what
// is read meanwhile is not waited for.
template <int FORM, int N> struct Fetched {
    u32 low[N / 2], high[N / 4];
    float scale, least;
    int shift, two;

    DEVICE void words(u32 *to, const u8 *from, int count) {
        for (int i = 0; i < count; i++) to[i] = ((const u32 *)from)[i];
    }

    DEVICE void read(const Matrix &w, u64 row, u32 col) {
        if (FORM <= FORM_BF16) {
            for (int i = 0; i < N / 2; i++) low[i] = 0;
            const u8 *at = w.data + (row * w.cols + col) * 2;
            for (int i = 0; i < N / 8; i++) {
                if (row >= w.rows || col + i * 8 >= w.cols) break;
                uint4 all = ((const uint4 *)at)[i];
                low[4 * i] = all.x, low[4 * i + 1] = all.y, low[4 * i + 2] = all.z, low[4 * i + 3] = all.w;
            }
            return;
        }
        scale = least = 0.f;
        shift = two = 0;
        for (int i = 0; i < N / 4; i++) low[i] = high[i] = 0;
        if (row >= w.rows || col >= w.cols) return;
        constexpr u32 NUMBERS = Blocks<FORM <= FORM_BF16 ? FORM_Q4_0 : FORM>::numbers;
        RowPlace place = place_of(w, row, w.cols / NUMBERS);
        u32 block = col / NUMBERS, i = col % NUMBERS;
        if constexpr (FORM == FORM_Q4_0) {
            words(low, block_at<FORM>(w, place, block).at(i % 16), N / 4);
            shift = i / 16 * 4;
            scale = scale_at<FORM>(w, place, block);
            least = 8.f * scale;
        } else if constexpr (FORM == FORM_MXFP4) {
            words(low, block_at<FORM>(w, place, block).at(i % 16), N / 4);
            shift = i / 16 * 4;
            // Times what a number of half precision with those bits is less than twice the one of four.
            scale = half_power(power_byte(w, place, block)) * 32768.f;
        } else if constexpr (FORM == FORM_Q8_0) {
            words(low, block_at<FORM>(w, place, block).at(i), N / 4);
            scale = scale_at<FORM>(w, place, block);
        } else if constexpr (FORM == FORM_Q4_K) {
            Block<FORM> mine = block_at<FORM>(w, place, block);
            const u8 *header = mine.at(0);
            int part_scale, part_least;
            six_bits(header + 4, i / 32, part_scale, part_least);
            words(low, mine.at(16 + i / 64 * 32 + i % 32), N / 4);
            shift = i % 64 / 32 * 4;
            scale = f16_to_f32(*(const u16 *)header) * (float)part_scale;
            least = f16_to_f32(*(const u16 *)(header + 2)) * (float)part_least;
        } else if constexpr (FORM == FORM_Q6_K) {
            Block<FORM> mine = block_at<FORM>(w, place, block);
            words(low, mine.at(i / 128 * 64 + i % 64), N / 4);
            words(high, mine.at(128 + i / 128 * 32 + i % 32), N / 4);
            shift = i % 128 / 64 * 4;
            two = i % 128 / 32 * 2;
            scale = scale_at<FORM>(w, place, block) * (float)(i8)*mine.at(192 + i / 16);
            least = 32.f * scale;
        }
    }

    DEVICE float number(int i) const {
        u32 byte = low[i / 4] >> (i % 4 * 8);
        if (FORM == FORM_Q8_0) return scale * (float)(i8)byte;
        int q = (int)((byte & 0xff) >> shift) & 15;
        // A sign, two bits of the exponent and one behind the point, where half precision has them.
        if (FORM == FORM_MXFP4) return scale * f16_to_f32((u16)((q & 7) << 9 | (q & 8) << 12));
        if (FORM == FORM_Q6_K) q |= (int)(((high[i / 4] >> (i % 4 * 8)) >> two) & 3) << 4;
        return scale * (float)q - least;
    }

    DEVICE void put(u16 *to) const {
        u32 out[N / 2];
        for (int i = 0; i < N / 2; i++) out[i] = FORM <= FORM_BF16 ? low[i] : two_as(false, number(2 * i), number(2 * i + 1));
        for (int i = 0; i < N / 8; i++) ((uint4 *)to)[i] = uint4{out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]};
    }
};
