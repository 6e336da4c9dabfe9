// KV packed for links and unpacked into pages: the kernels. Blocks of any kind are in `packed.cuh`; four bits of pages of 16-bit
// numbers, which is what is sent most, in `four_bits.cuh`.
#include "four_keys.cuh"
#include "four_values.cuh"

KERNEL(THREADS) pack_tiles(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind,
                       u8 *out, const float *angles, u32 half_turn, u32 neighbours) {
    __shared__ Shared shared;
    TileBlock block(TILE_FROM_ARGS);
    Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};
    find_rows(Pool{memory, table, most, tokens, heads, dim, kind}, block, shared);
    __syncthreads();
    pack_any(form, turn_of(form, angles, half_turn, neighbours), kind, shared, out + block.at);
}
EXPORT(pack_tiles)

KERNEL(THREADS) unpack_tiles(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind,
                         const u8 *in, const float *angles, u32 half_turn, u32 neighbours) {
    __shared__ Shared shared;
    TileBlock block(TILE_FROM_ARGS);
    Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};
    find_rows(Pool{memory, table, most, tokens, heads, dim, kind}, block, shared);
    __syncthreads();
    unpack_any(form, turn_of(form, angles, half_turn, neighbours), kind, shared, in + block.at);
}
EXPORT(unpack_tiles)

template <int KIND, int WIDE>
DEVICE void pack_four(const Packing &form, const Turn &turn, Shared &shared, Staged<WIDE> &staged, u8 *to) {
    if (form.codec != 4) return pack_any(form, turn, KIND, shared, to);
    if (form.side == 0) pack_keys<KIND, WIDE>(form, turn, shared, staged);
    else pack_values<KIND, WIDE>(form, shared, staged);
    __syncthreads();
    if (form.tokens % 2 == 1) {
        pack_last(form, turn, KIND, shared, (u8 *)staged.codes);
        __syncthreads();
    }
    put_bytes(to, staged.head, form.head_bytes());
    put_bytes(to + form.head_bytes(), staged.codes, form.code_bytes());
}

template <int KIND, int WIDE>
DEVICE void unpack_four(const Packing &form, const Turn &turn, Shared &shared, const u8 *head) {
    if (form.side == 0) unpack_keys<KIND, WIDE>(form, turn, shared, head);
    else unpack_values<KIND, WIDE>(form, shared, head);
    if (form.tokens % 2 == 0) return;
    __syncthreads();
    unpack_from(form.tokens - 1, form, turn, KIND, shared, head + form.head_bytes());
}

#define FOUR_BITS(name, KIND, WIDE)                                                                                    \
    KERNEL(THREADS, WIDE == 256 ? 2 : 4)                                                                               \
    pack_##name(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind, \
                u8 *out, const float *angles, u32 half_turn, u32 neighbours) {                                         \
        __shared__ Shared shared;                                                                                      \
        __shared__ Staged<WIDE> staged;                                                                                \
        TileBlock block(TILE_FROM_ARGS);                                                                               \
        find_rows(Pool{memory, table, most, tokens, heads, dim, KIND}, block, shared);                                 \
        Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};                                  \
        Turn turn = turn_of(form, angles, half_turn, neighbours);                                                      \
        __syncthreads();                                                                                               \
        pack_four<KIND, WIDE>(form, turn, shared, staged, out + block.at);                                             \
    }                                                                                                                  \
    EXPORT(pack_##name)                                                                                                \
    KERNEL(THREADS, WIDE == 256 ? 4 : 6)                                                                               \
    unpack_##name(u32 codec, TILE_ARGS, u8 *memory, const u32 *table, u32 most, u32 tokens, u32 heads, u32 dim, u32 kind, \
                  const u8 *in, const float *angles, u32 half_turn, u32 neighbours) {                                  \
        __shared__ Shared shared;                                                                                      \
        __shared__ uint4 bytes[(BLOCK * WIDE / 2 + 2 * WIDE + WIDE / 2 + 8) / 16 + 3];                                 \
        TileBlock block(TILE_FROM_ARGS);                                                                               \
        find_rows(Pool{memory, table, most, tokens, heads, dim, KIND}, block, shared);                                 \
        Packing form = {bits_of(codec, block.tokens), block.side, block.tokens, dim};                                  \
        Turn turn = turn_of(form, angles, half_turn, neighbours);                                                      \
        u32 size = form.head_bytes() + form.code_bytes(), before = 0;                                                  \
        if (form.codec == 4) before = get_bytes(bytes, in + block.at, size);                                           \
        __syncthreads();                                                                                               \
        if (form.codec == 4) unpack_four<KIND, WIDE>(form, turn, shared, (const u8 *)bytes + before);                  \
        else unpack_any(form, turn, KIND, shared, in + block.at);                                                      \
    }                                                                                                                  \
    EXPORT(unpack_##name)
FOUR_BITS(64_f16, F16, 64)
FOUR_BITS(128_f16, F16, 128)
FOUR_BITS(256_f16, F16, 256)
FOUR_BITS(64_bf16, BF16, 64)
FOUR_BITS(128_bf16, BF16, 128)
FOUR_BITS(256_bf16, BF16, 256)
