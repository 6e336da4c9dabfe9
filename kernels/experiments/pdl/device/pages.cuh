// How a layer's keys and values lie: as in the processor's pages (`kernels/src/pages.rs`). A layer's page `i` of a sequence
// is `table[sequence * most + i]`.
#pragma once
#include "common.cuh"

constexpr u64 PAGE_BYTES = 64 * 1024;

struct Pool {
    u8 *memory;
    const u32 *table;
    u32 most;
    u32 tokens, heads, dim, kind;
};

// One head's channels of one token: keys for side 0, values for side 1.
DEVICE u8 *place(const Pool &pool, u32 sequence, u32 token, u32 side, u32 head) {
    u32 row = pool.dim * (pool.kind == F32 ? 4 : 2);
    u64 page = pool.table[(u64)sequence * pool.most + token / pool.tokens];
    return pool.memory + page * PAGE_BYTES + ((u64)(side * pool.heads + head) * pool.tokens + token % pool.tokens) * row;
}

// The first of the tokens that the row at `position` sees; `window` 0 is none.
DEVICE u32 first_seen(u32 position, u32 window) { return window && position + 1 > window ? position + 1 - window : 0; }
