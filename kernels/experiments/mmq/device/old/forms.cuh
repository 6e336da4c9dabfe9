// Weights as they lie on the card. Dense numbers lie as in the file; blocks lie so that they can be read 16 bytes at a
// time: what breaks alignment (a scale before 16 or 32 bytes of quants) lies in a plane of its own behind all quants.
//
// | form | for every block | then for every block |
// |---|---|---|
// | Q4_0 | 16 bytes: numbers i and i + 16 | scale, 2 bytes |
// | Q8_0 | 32 bytes | scale, 2 bytes |
// | Q4_K | 144 bytes as in the file: scale, step, 12 bytes of scales and least values, 128 bytes | |
// | Q6_K | 208 bytes as in the file: 128 of low bits, 64 of high bits, 16 scales | scale, 2 bytes |
#pragma once
#include "common.cuh"

template <int FORM> struct Blocks;
template <> struct Blocks<FORM_Q4_0> { static constexpr int numbers = 32, bytes = 16, rounded = 32; };
template <> struct Blocks<FORM_Q8_0> { static constexpr int numbers = 32, bytes = 32, rounded = 32; };
template <> struct Blocks<FORM_Q4_K> { static constexpr int numbers = 256, bytes = 144, rounded = 256; };
template <> struct Blocks<FORM_Q6_K> { static constexpr int numbers = 256, bytes = 208, rounded = 256; };

// A matrix of `rows` x `cols` numbers.
struct Matrix {
    const u8 *data;
    u64 rows;
    u32 cols;
};

template <int FORM> DEVICE const u8 *block_at(const Matrix &w, u64 block) { return w.data + block * Blocks<FORM>::bytes; }
template <int FORM> DEVICE u16 scale_bits(const Matrix &w, u64 block) {
    const u16 *scales = (const u16 *)(w.data + w.rows * (w.cols / Blocks<FORM>::numbers) * Blocks<FORM>::bytes);
    return scales[block];
}
template <int FORM> DEVICE float scale_at(const Matrix &w, u64 block) { return f16_to_f32(scale_bits<FORM>(w, block)); }

// Scale and least value of part `j` of eight, of Q4_K's 12 bytes.
DEVICE void six_bits(const u8 *bytes, int j, int &scale, int &least) {
    if (j < 4) {
        scale = bytes[j] & 63;
        least = bytes[j + 4] & 63;
    } else {
        scale = (bytes[j + 4] & 15) | (bytes[j - 4] >> 6) << 4;
        least = (bytes[j + 4] >> 4) | (bytes[j] >> 6) << 4;
    }
}

// One number: for tables that rows are taken out of.
DEVICE float number_at(int form, const Matrix &w, u64 row, u32 col) {
    if (form <= FORM_BF16) return load_as(form, w.data, row * w.cols + col);
    if (form == FORM_Q4_0) {
        u64 block = row * (w.cols / 32) + col / 32;
        u32 i = col % 32;
        int q = (block_at<FORM_Q4_0>(w, block)[i % 16] >> (i / 16 * 4)) & 15;
        return scale_at<FORM_Q4_0>(w, block) * (float)(q - 8);
    }
    if (form == FORM_Q8_0) {
        u64 block = row * (w.cols / 32) + col / 32;
        return scale_at<FORM_Q8_0>(w, block) * (float)(i8)block_at<FORM_Q8_0>(w, block)[col % 32];
    }
    u64 block = row * (w.cols / 256) + col / 256;
    u32 i = col % 256;
    if (form == FORM_Q4_K) {
        const u8 *at = block_at<FORM_Q4_K>(w, block);
        int scale, least;
        six_bits(at + 4, i / 32, scale, least);
        int q = (at[16 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 15;
        float all = f16_to_f32(*(const u16 *)at), step = f16_to_f32(*(const u16 *)(at + 2));
        return all * (float)scale * (float)q - step * (float)least;
    }
    const u8 *at = block_at<FORM_Q6_K>(w, block);
    int low = (at[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 15;
    int high = (at[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    int scale = (i8)at[192 + i / 16];
    return scale_at<FORM_Q6_K>(w, block) * (float)scale * (float)((low | high << 4) - 32);
}
