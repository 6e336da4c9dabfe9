// Weights as they lie on the card. Dense numbers lie as in the file; blocks lie so that they can be read 16 bytes at a
// time: what breaks alignment (a scale before 16 or 32 bytes of quants) lies in a plane of its own behind all quants.
//
// | form | for every block | pieces | then for every block |
// |---|---|---|---|
// | Q4_0 | 16 bytes: numbers i and i + 16 | 16 | scale, 2 bytes |
// | MXFP4 (experts alone) | 16 bytes as of Q4_0 | 16 | power of two, 1 byte |
// | Q8_0 | 32 bytes | 32 | scale, 2 bytes |
// | Q4_K | 144 bytes as in the file: scale, step, 12 bytes of scales and least values, 128 bytes | 16, then 32 | |
// | Q6_K | 208 bytes as in the file: 128 of low bits, 64 of high bits, 16 scales | 16 | scale, 2 bytes |
//
// Blocks of the same columns of 16 rows lie together, piece by piece: the first piece of each row's, the second of each, and so
// on; then those of the next columns. So what 16 outputs need of some columns is one run of memory, and lanes that read pieces of
// rows beside each other read what lies side by side. Scales go with their blocks. What is behind the last 16 rows lies so among
// itself. Experts' matrices have one row together, which is a row after the other. The host's `weights/interleaved.rs` says the same.
#pragma once
#include "common.cuh"

// Of a block: numbers, bytes but for its scale, numbers of a rounded row with one scale, and bytes of its first piece and of others.
template <int FORM> struct Blocks;
template <> struct Blocks<FORM_Q4_0> { static constexpr int numbers = 32, bytes = 16, rounded = 32, head = 0, piece = 16; };
template <> struct Blocks<FORM_MXFP4> { static constexpr int numbers = 32, bytes = 16, rounded = 32, head = 0, piece = 16; };
template <> struct Blocks<FORM_Q8_0> { static constexpr int numbers = 32, bytes = 32, rounded = 32, head = 0, piece = 32; };
template <> struct Blocks<FORM_Q4_K> { static constexpr int numbers = 256, bytes = 144, rounded = 256, head = 16, piece = 32; };
template <> struct Blocks<FORM_Q6_K> { static constexpr int numbers = 256, bytes = 208, rounded = 256, head = 0, piece = 16; };

// Rows that lie together.
constexpr u32 TOGETHER = 16;

// A matrix of `rows` x `cols` numbers.
struct Matrix {
    const u8 *data;
    u64 rows;
    u32 cols, together = TOGETHER;
};

// Where a row's blocks lie: it is number `row` of `rows` together, whose first block is number `first` of all.
struct RowPlace {
    u64 first;
    u32 rows, row;
};
DEVICE RowPlace place_of(const Matrix &w, u64 row, u32 blocks) {
    u64 begin = row / w.together * w.together;
    return {begin * blocks, w.together == 1 ? 1 : (u32)min((u64)w.together, w.rows - begin), (u32)(row - begin)};
}

// A block's bytes among those of the rows that lie together.
template <int FORM> struct Block {
    const u8 *all;
    u32 rows, row;
    // Byte `i`; those behind it are the next up to the piece's end.
    DEVICE const u8 *at(u32 i) const {
        constexpr u32 HEAD = Blocks<FORM>::head, PIECE = Blocks<FORM>::piece;
        if (HEAD > 0 && i < HEAD) return all + row * HEAD + i;
        return all + rows * HEAD + ((i - HEAD) / PIECE * rows + row) * PIECE + (i - HEAD) % PIECE;
    }
};
template <int FORM> DEVICE Block<FORM> block_at(const Matrix &w, const RowPlace &place, u32 block) {
    return {w.data + (place.first + (u64)block * place.rows) * Blocks<FORM>::bytes, place.rows, place.row};
}
template <int FORM> DEVICE const u16 *scales_of(const Matrix &w) {
    return (const u16 *)(w.data + w.rows * (w.cols / Blocks<FORM>::numbers) * Blocks<FORM>::bytes);
}
template <int FORM> DEVICE u16 scale_bits(const Matrix &w, const RowPlace &place, u32 block) {
    return scales_of<FORM>(w)[place.first + (u64)block * place.rows + place.row];
}
template <int FORM> DEVICE float scale_at(const Matrix &w, const RowPlace &place, u32 block) {
    return f16_to_f32(scale_bits<FORM>(w, place, block));
}
// Of MXFP4: the byte that half a block's power of two is said by, and what it stands for.
DEVICE u8 power_byte(const Matrix &w, const RowPlace &place, u32 block) {
    return ((const u8 *)scales_of<FORM_MXFP4>(w))[place.first + (u64)block * place.rows + place.row];
}
DEVICE float half_power(u32 byte) { return bits_to_float(byte > 1 ? (byte - 1) << 23 : 0x00200000u << byte); }

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

// Scales, and least values, of parts `2 · pair` and the next of a block of Q4_K, each in a byte, from a whole header: without an
// array that an index chooses of, which would lie in memory, and without branches.
DEVICE void two_of_six_bits(const uint4 &header, u32 pair, u32 &scales, u32 &least) {
    bool late = pair >= 2;
    u32 shift = pair % 2 * 16, low = late ? 0x0f0f : 0x3f3f, high = late ? 0x3030 : 0;
    u32 a = header.y >> shift, b = header.z >> shift, c = header.w >> shift;
    scales = ((late ? c : a) & low) | (a >> 2 & high);
    least = ((late ? c >> 4 : b) & low) | (b >> 2 & high);
}

// One number: for tables that rows are taken out of.
DEVICE float number_at(int form, const Matrix &w, u64 row, u32 col) {
    if (form <= FORM_BF16) return load_as(form, w.data, row * w.cols + col);
    if (form == FORM_Q4_0) {
        RowPlace place = place_of(w, row, w.cols / 32);
        u32 block = col / 32, i = col % 32;
        int q = (*block_at<FORM_Q4_0>(w, place, block).at(i % 16) >> (i / 16 * 4)) & 15;
        return scale_at<FORM_Q4_0>(w, place, block) * (float)(q - 8);
    }
    if (form == FORM_Q8_0) {
        RowPlace place = place_of(w, row, w.cols / 32);
        u32 block = col / 32;
        return scale_at<FORM_Q8_0>(w, place, block) * (float)(i8)*block_at<FORM_Q8_0>(w, place, block).at(col % 32);
    }
    RowPlace place = place_of(w, row, w.cols / 256);
    u32 block = col / 256, i = col % 256;
    if (form == FORM_Q4_K) {
        Block<FORM_Q4_K> mine = block_at<FORM_Q4_K>(w, place, block);
        const u8 *header = mine.at(0);
        int scale, least;
        six_bits(header + 4, i / 32, scale, least);
        int q = (*mine.at(16 + i / 64 * 32 + i % 32) >> (i % 64 / 32 * 4)) & 15;
        float all = f16_to_f32(*(const u16 *)header), step = f16_to_f32(*(const u16 *)(header + 2));
        return all * (float)scale * (float)q - step * (float)least;
    }
    Block<FORM_Q6_K> mine = block_at<FORM_Q6_K>(w, place, block);
    int low = (*mine.at(i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4)) & 15;
    int high = (*mine.at(128 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2)) & 3;
    int scale = (i8)*mine.at(192 + i / 16);
    return scale_at<FORM_Q6_K>(w, place, block) * (float)scale * (float)((low | high << 4) - 32);
}
