//! Attention of many rows of a prompt to one head of keys and values: both are widened once, keys laid side by side, and met
//! by tiles of rows. Every row's sums are those of [`super::mix`], in the same order.

use super::{Look, Place, Rows};
use crate::{
    cpu::{Cpu, KEYS},
    pages::{PagePool, SequenceKv, Side},
    tanh,
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
pub(super) fn attend(cpu: &Cpu, kv: &SequenceKv, pool: &PagePool, at: Place, rows: Rows<'_>, look: Look) {
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
fn widen(cpu: &Cpu, kv: &SequenceKv, pool: &PagePool, at: Place, tokens: Range<usize>, s: &mut Scratch) {
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
#[allow(clippy::too_many_arguments)] // A chunk's, and which of its rows.
fn tile(
    cpu: &Cpu,
    dim: usize,
    at: Place,
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
            tanh::soft_cap(scores, cap);
        }
        cpu.softmax(scores);
    }
    mix(cpu, dim, tile.clone(), rows.group, seen, start, stride, s);
    for (row, mixed) in tile.zip(s.mixed.chunks_exact(part)) {
        // SAFETY: each run of rows is handed out once for each head.
        #[allow(unsafe_code)]
        unsafe {
            rows.out.put(rows.first + row, at.head * part, mixed);
        }
    }
}

/// Mixes values in token order: those that all rows see together, what only some see before and after row by row.
#[allow(clippy::too_many_arguments)] // As `tile`.
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
