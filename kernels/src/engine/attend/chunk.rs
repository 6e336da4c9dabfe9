//! Attention of many rows of a prompt to one head of keys and values: both are widened once, keys laid side by side, and met
//! by tiles of rows. Every row's sums are those of [`super::mix`], in the same order.

use super::{AttendFrom, AttentionParams, QueryRows};
use crate::{
    cpu::{Cpu, KEYS},
    pages::{PagePool, SequenceKv, Side},
};
use std::cell::RefCell;
use std::ops::Range;

/// Rows of queries, of all heads of a group, that look at the same keys while those are in the first cache.
const QUERIES: usize = 16;

/// Memory of a thread, kept from step to step.
#[derive(Default)]
struct ChunkScratch {
    /// Sixteen tokens' keys as they are widened.
    widened: Vec<f32>,
    /// `[part][group of sixteen tokens][channel][token]`.
    keys: Vec<f32>,
    /// `[part][token][channel]`.
    values: Vec<f32>,
    /// Of a tile, `[row and head][token]`.
    scores: Vec<f32>,
    /// The same by one part of wide heads.
    more: Vec<f32>,
    /// `[part][row and head][channel]`.
    mixed: Vec<f32>,
    /// Of a row, `[head][part][channel]`.
    whole: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<ChunkScratch> = RefCell::default();
}

/// Attention of all rows' query heads that share one KV head.
pub(super) fn attend(
    cpu: &Cpu,
    kv: &SequenceKv,
    pool: &PagePool,
    at: AttendFrom<'_>,
    rows: QueryRows<'_>,
    look: AttentionParams,
) {
    SCRATCH.with_borrow_mut(|s| {
        let seen = at.tokens(0).start..at.tokens(rows.len - 1).end;
        widen(cpu, kv, pool, at, look.parts, seen.clone(), s);
        let each = (QUERIES / rows.group).max(1);
        for row in (0..rows.len).step_by(each) {
            tile(cpu, kv.layout().dim, at, row..rows.len.min(row + each), rows, look, seen.start, s);
        }
    });
}

/// Keys and values of some tokens, in single precision.
fn widen(
    cpu: &Cpu,
    kv: &SequenceKv,
    pool: &PagePool,
    at: AttendFrom<'_>,
    parts: usize,
    tokens: Range<usize>,
    s: &mut ChunkScratch,
) {
    let (dim, count) = (kv.layout().dim, tokens.len());
    let some = |side: Side, part: usize, tokens: Range<usize>, out: &mut [f32]| {
        let mut done = 0;
        for block in kv.blocks(pool, at.layer, side, at.head + part, tokens) {
            let numbers = block.rows() * dim;
            cpu.widen(block, &mut out[done..done + numbers]);
            done += numbers;
        }
    };
    s.values.resize(parts * count * dim, 0.0);
    let all = count.next_multiple_of(KEYS) * dim;
    s.keys.resize(parts * all, 0.0);
    // What lies behind the last token has scores that nobody looks at.
    s.widened.resize(KEYS * dim, 0.0);
    let each = s.values.chunks_exact_mut(count * dim).zip(s.keys.chunks_exact_mut(all));
    for (part, (values, keys)) in each.enumerate() {
        some(Side::Values, part, tokens.clone(), values);
        for (group, keys) in keys.chunks_exact_mut(KEYS * dim).enumerate() {
            let first = tokens.start + group * KEYS;
            some(Side::Keys, part, first..tokens.end.min(first + KEYS), &mut s.widened);
            cpu.beside(&s.widened, dim, keys);
        }
    }
}

/// Attention of some rows; `from` is the first token that was widened.
#[expect(clippy::too_many_arguments, reason = "a chunk's, and which of its rows")]
fn tile(
    cpu: &Cpu,
    dim: usize,
    at: AttendFrom<'_>,
    tile: Range<usize>,
    rows: QueryRows<'_>,
    look: AttentionParams,
    from: usize,
    s: &mut ChunkScratch,
) {
    let (parts, count) = (look.parts, tile.len() * rows.group);
    // Of a head, and of all of a row's that look at these keys.
    let (wide, row_wide) = (parts * dim, rows.group * parts * dim);
    // As `super::mix_parts` has it, a score is the sum of those by each part, and then scaled.
    let scale = if parts == 1 { look.scale } else { 1.0 };
    let seen = |row: usize| {
        let tokens = at.tokens(row);
        tokens.start - from..tokens.end - from
    };
    // Whole groups of keys, from the first token that any of the rows sees to the last.
    let start = seen(tile.start).start / KEYS * KEYS;
    let end = seen(tile.end - 1).end;
    let stride = (end - start).next_multiple_of(KEYS);
    let mut q: [&[f32]; 2 * QUERIES] = [&[]; 2 * QUERIES];
    s.scores.resize(count.max(QUERIES) * stride, 0.0);
    if parts > 1 {
        s.more.resize(count.max(QUERIES) * stride, 0.0);
    }
    s.mixed.clear();
    s.mixed.resize(parts * count * dim, 0.0);
    let (keys_of_part, values_of_part) = (s.keys.len() / parts, s.values.len() / parts);
    // A group may be larger than a tile.
    for first in (0..count).step_by(q.len()) {
        let some = &mut q[..(count - first).min(2 * QUERIES)];
        for part in 0..parts {
            for (i, q) in (first..).zip(some.iter_mut()) {
                let row = rows.first + tile.start + i / rows.group;
                let from = (row * rows.kv_heads + rows.head) * row_wide + i % rows.group * wide + part * dim;
                *q = &rows.q[from..][..dim];
            }
            let keys = &s.keys[part * keys_of_part + start * dim..][..stride * dim];
            if part == 0 {
                cpu.chunk_scores(some, dim, keys, scale, stride, &mut s.scores[first * stride..]);
            } else {
                cpu.chunk_scores(some, dim, keys, scale, stride, &mut s.more[first * stride..]);
                super::add(&mut s.scores[first * stride..][..some.len() * stride], &s.more[first * stride..]);
            }
        }
    }
    if parts > 1 {
        s.scores[..count * stride].iter_mut().for_each(|score| *score *= look.scale);
    }
    for (i, scores) in s.scores.chunks_exact_mut(stride).take(count).enumerate() {
        let seen = seen(tile.start + i / rows.group);
        let scores = &mut scores[seen.start - start..seen.end - start];
        if let Some(cap) = look.cap {
            cpu.simd().soft_cap(scores, cap);
        }
        super::softmax(cpu, scores, at.sinks.get(i % rows.group));
    }
    let ChunkScratch { values, scores, mixed, whole, .. } = s;
    for (values, mixed) in values.chunks_exact(values_of_part).zip(mixed.chunks_exact_mut(count * dim)) {
        mix(cpu, dim, tile.clone(), rows.group, seen, (start, stride), (&scores[..], values, mixed));
    }
    if parts > 1 {
        beside_each_other(mixed, parts, dim, whole);
        std::mem::swap(mixed, whole);
    }
    for (row, mixed) in tile.zip(mixed.chunks_exact(row_wide)) {
        // SAFETY: each run of rows is handed out once for each head.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            rows.out.put(rows.first + row, rows.head * row_wide, mixed);
        }
    }
}

/// `[part][row and head][channel]` becomes `[row and head][part][channel]`.
fn beside_each_other(mixed: &[f32], parts: usize, dim: usize, out: &mut Vec<f32>) {
    out.clear();
    let each = mixed.len() / parts;
    for from in (0..each).step_by(dim) {
        (0..parts).for_each(|part| out.extend_from_slice(&mixed[part * each + from..][..dim]));
    }
}

/// Mixes values in token order: those that all rows see together, what only some see before and after row by row.
fn mix(
    cpu: &Cpu,
    dim: usize,
    tile: Range<usize>,
    group: usize,
    seen: impl Fn(usize) -> Range<usize>,
    (start, stride): (usize, usize),
    (scores, values, mixed): (&[f32], &[f32], &mut [f32]),
) {
    let last = seen(tile.end - 1).start;
    let common = last..seen(tile.start).end.max(last);
    let mut some = |rows: Range<usize>, tokens: Range<usize>| {
        if tokens.is_empty() {
            return;
        }
        let mixed = &mut mixed[rows.start * group * dim..rows.end * group * dim];
        let p = &scores[rows.start * group * stride + tokens.start - start..];
        cpu.chunk_mix(p, stride, &values[tokens.start * dim..tokens.end * dim], dim, mixed);
    };
    for (i, row) in tile.clone().enumerate() {
        let seen = seen(row);
        some(i..i + 1, seen.start..common.start.min(seen.end));
    }
    some(0..tile.len(), common.clone());
    for (i, row) in tile.enumerate() {
        let seen = seen(row);
        some(i..i + 1, common.end.max(seen.start)..seen.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cpu::{Outputs, Simd},
        pages::{PAGE_BYTES, PageLayout},
    };
    use tsnode_protocol::KvDtype;

    /// Heads of keys and values; the second is looked at.
    const KV_HEADS: usize = 2;

    fn number(i: usize) -> f32 {
        ((i * 7919 + 13) % 1009) as f32 / 500.0 - 1.0
    }

    /// Bits of `len` rows from position `start` on: as a chunk, and row by row.
    fn both(
        cpu: &Cpu,
        (dim, group): (usize, usize),
        (start, len): (usize, usize),
        look: AttentionParams,
        sinks: &[f32],
    ) -> [Vec<u32>; 2] {
        let parts = look.parts;
        let layout = PageLayout { heads: KV_HEADS * parts, dim, dtype: KvDtype::F16, tokens: 24 };
        let mut pool = PagePool::new(16 * PAGE_BYTES);
        let kv = SequenceKv::reserve(&mut pool, layout, 1, start + len).unwrap();
        for token in 0..start + len {
            for (side, more) in [(Side::Keys, 0), (Side::Values, 5)] {
                for part in 0..parts {
                    let from = (part * 1000 + token) * dim + more;
                    let values: Vec<f32> = (0..dim).map(|d| number(from + d)).collect();
                    kv.write(&mut pool, 0, side, parts + part, token, &values);
                }
            }
        }
        let part = group * parts * dim;
        let q: Vec<f32> = (0..len * KV_HEADS * part).map(|i| number(3 * i)).collect();
        let at = |start| AttendFrom { layer: 0, head: parts, start, window: look.window, sinks };
        let mut chunk = vec![0.0; q.len()];
        let out = Outputs::new(&mut chunk, len, KV_HEADS * part);
        let rows = QueryRows { q: &q, out: &out, first: 0, len, kv_heads: KV_HEADS, head: 1, group };
        attend(cpu, &kv, &pool, at(start), rows, look);
        let mut single = vec![0.0; q.len()];
        for row in 0..len {
            let place = (row * KV_HEADS + 1) * part..(row * KV_HEADS + 2) * part;
            super::super::mix(cpu, &kv, &pool, at(start + row), &q[place.clone()], look, &mut single[place]);
        }
        [chunk, single].map(|rows| rows.iter().map(|x| x.to_bits()).collect())
    }

    #[test]
    fn a_chunk_gives_the_bits_of_its_rows() {
        for simd in Simd::all() {
            let cpu = Cpu::new(simd, 1).unwrap();
            for (dim, group, parts) in
                [(16, 1, 1), (64, 3, 1), (80, 4, 1), (24, 2, 1), (32, 40, 1), (16, 5, 2), (24, 1, 3)]
            {
                for (start, len) in [(0, 1), (0, 9), (5, 21), (50, 40)] {
                    for (window, cap) in [(None, None), (Some(1), None), (Some(11), Some(2.0)), (Some(64), None)] {
                        let look = AttentionParams { scale: 0.3, cap, window, parts };
                        let sinks: Vec<f32> = (0..group).map(|i| number(i + 77)).collect();
                        for sinks in [&[], &sinks[..]] {
                            let [chunk, single] = both(&cpu, (dim, group), (start, len), look, sinks);
                            assert!(chunk == single, "{simd:?} {dim} {group} {parts} {start} {len} {window:?}");
                        }
                    }
                }
            }
        }
    }
}
