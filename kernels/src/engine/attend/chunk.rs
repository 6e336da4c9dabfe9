//! Attention of many rows of a prompt to one head of keys and values: both are widened once, keys laid side by side, and met
//! by tiles of rows. Every row's sums are those of [`super::mix`], in the same order.

use super::{Look, Place, Rows};
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
struct Scratch {
    /// Sixteen tokens' keys as they are widened.
    widened: Vec<f32>,
    /// `[group of sixteen tokens][channel][token]`.
    keys: Vec<f32>,
    /// `[token][channel]`.
    values: Vec<f32>,
    /// Of a tile, `[row and head][token]`.
    scores: Vec<f32>,
    /// `[row and head][channel]`.
    mixed: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Attention of all rows' query heads that share one KV head.
pub(super) fn attend(cpu: &Cpu, kv: &SequenceKv, pool: &PagePool, at: Place<'_>, rows: Rows<'_>, look: Look) {
    SCRATCH.with_borrow_mut(|s| {
        let seen = at.tokens(0).start..at.tokens(rows.len - 1).end;
        widen(cpu, kv, pool, at, seen.clone(), s);
        let each = (QUERIES / rows.group).max(1);
        for row in (0..rows.len).step_by(each) {
            tile(cpu, kv.layout().dim, at, row..rows.len.min(row + each), rows, look, seen.start, s);
        }
    });
}

/// Keys and values of some tokens, in single precision.
fn widen(cpu: &Cpu, kv: &SequenceKv, pool: &PagePool, at: Place<'_>, tokens: Range<usize>, s: &mut Scratch) {
    let (dim, count) = (kv.layout().dim, tokens.len());
    let some = |side: Side, tokens: Range<usize>, out: &mut [f32]| {
        let mut done = 0;
        for block in kv.blocks(pool, at.layer, side, at.head, tokens) {
            let numbers = block.rows() * dim;
            cpu.widen(block, &mut out[done..done + numbers]);
            done += numbers;
        }
    };
    s.values.resize(count * dim, 0.0);
    some(Side::Values, tokens.clone(), &mut s.values);
    s.keys.resize(count.next_multiple_of(KEYS) * dim, 0.0);
    // What lies behind the last token has scores that nobody looks at.
    s.widened.resize(KEYS * dim, 0.0);
    for (group, keys) in s.keys.chunks_exact_mut(KEYS * dim).enumerate() {
        let first = tokens.start + group * KEYS;
        some(Side::Keys, first..tokens.end.min(first + KEYS), &mut s.widened);
        cpu.beside(&s.widened, dim, keys);
    }
}

/// Attention of some rows; `from` is the first token that was widened.
#[expect(clippy::too_many_arguments, reason = "a chunk's, and which of its rows")]
fn tile(
    cpu: &Cpu,
    dim: usize,
    at: Place<'_>,
    tile: Range<usize>,
    rows: Rows<'_>,
    look: Look,
    from: usize,
    s: &mut Scratch,
) {
    let (count, part) = (tile.len() * rows.group, rows.group * dim);
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
    s.mixed.clear();
    s.mixed.resize(count * dim, 0.0);
    // A group may be larger than a tile.
    for first in (0..count).step_by(q.len()) {
        let some = &mut q[..(count - first).min(2 * QUERIES)];
        for (i, q) in (first..).zip(some.iter_mut()) {
            let row = rows.first + tile.start + i / rows.group;
            *q = &rows.q[(row * rows.kv_heads + at.head) * part + i % rows.group * dim..][..dim];
        }
        let keys = &s.keys[start * dim..][..stride * dim];
        cpu.chunk_scores(some, dim, keys, look.scale, stride, &mut s.scores[first * stride..]);
    }
    for (i, scores) in s.scores.chunks_exact_mut(stride).take(count).enumerate() {
        let seen = seen(tile.start + i / rows.group);
        let scores = &mut scores[seen.start - start..seen.end - start];
        if let Some(cap) = look.cap {
            cpu.simd().soft_cap(scores, cap);
        }
        super::softmax(cpu, scores, at.sinks.get(i % rows.group));
    }
    mix(cpu, dim, tile.clone(), rows.group, seen, start, stride, s);
    for (row, mixed) in tile.zip(s.mixed.chunks_exact(part)) {
        // SAFETY: each run of rows is handed out once for each head.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            rows.out.put(rows.first + row, at.head * part, mixed);
        }
    }
}

/// Mixes values in token order: those that all rows see together, what only some see before and after row by row.
#[expect(clippy::too_many_arguments, reason = "as `tile`")]
fn mix(
    cpu: &Cpu,
    dim: usize,
    tile: Range<usize>,
    group: usize,
    seen: impl Fn(usize) -> Range<usize>,
    start: usize,
    stride: usize,
    s: &mut Scratch,
) {
    let last = seen(tile.end - 1).start;
    let common = last..seen(tile.start).end.max(last);
    let Scratch { values, scores, mixed, .. } = s;
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
        pages::{Layout, PAGE_BYTES},
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
        dim: usize,
        group: usize,
        (start, len): (usize, usize),
        look: Look,
        sinks: &[f32],
    ) -> [Vec<u32>; 2] {
        let layout = Layout { heads: KV_HEADS, dim, dtype: KvDtype::F16, tokens: 24 };
        let mut pool = PagePool::new(16 * PAGE_BYTES);
        let kv = SequenceKv::reserve(&mut pool, layout, 1, start + len).unwrap();
        for token in 0..start + len {
            for (side, more) in [(Side::Keys, 0), (Side::Values, 5)] {
                let values: Vec<f32> = (0..dim).map(|d| number(token * dim + d + more)).collect();
                kv.write(&mut pool, 0, side, 1, token, &values);
            }
        }
        let part = group * dim;
        let q: Vec<f32> = (0..len * KV_HEADS * part).map(|i| number(3 * i)).collect();
        let at = |start| Place { layer: 0, head: 1, start, window: look.window, sinks };
        let mut chunk = vec![0.0; q.len()];
        let out = Outputs::new(&mut chunk, len, KV_HEADS * part);
        attend(cpu, &kv, &pool, at(start), Rows { q: &q, out: &out, first: 0, len, kv_heads: KV_HEADS, group }, look);
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
            for (dim, group) in [(16, 1), (64, 3), (80, 4), (24, 2), (32, 40)] {
                for (start, len) in [(0, 1), (0, 9), (5, 21), (50, 40)] {
                    for (window, cap) in [(None, None), (Some(1), None), (Some(11), Some(2.0)), (Some(64), None)] {
                        let look = Look { scale: 0.3, cap, window };
                        let sinks: Vec<f32> = (0..group).map(|i| number(i + 77)).collect();
                        for sinks in [&[], &sinks[..]] {
                            let [chunk, single] = both(&cpu, dim, group, (start, len), look, sinks);
                            assert!(chunk == single, "{simd:?} {dim} {group} {start} {len} {window:?}");
                        }
                    }
                }
            }
        }
    }
}
