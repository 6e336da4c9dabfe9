//! Attention over pages: what a model's layers see of the engine.

mod chunk;
mod states;

pub(crate) use states::{GroupState, StateLayer};

use super::{
    Shards, Slice, StageKey,
    tap::{OnStored, TappedStep},
};
use crate::{
    cpu::{Cpu, Matrix, Outputs},
    pages::{PageLayout, PagePool, SequenceKv, Side},
    ranks::Gather,
    rope::RopePairs,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use tsnode_protocol::{RequestId, Token};

/// How a layer's rows look at the tokens before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttentionParams {
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// Largest size of a score, approached smoothly ([`tanh::soft_cap`]).
    pub cap: Option<f32>,
    /// Tokens a row sees, itself included; all without one.
    pub window: Option<usize>,
    /// Heads of the pages' width that one of the layer's is as wide as.
    pub parts: usize,
}

/// Heads of a layer, as a rank has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heads {
    /// Of keys and values.
    count: usize,
    /// Query heads that share one of these.
    group: usize,
    /// Heads of the pages that each takes.
    parts: usize,
    /// Heads of the pages from the first of one to the first of the next. Those between, if there are any, are zeros: as ranks
    /// share out a page's heads, they share out a layer's, and so KV goes from any number of them to any other.
    every: usize,
}

impl Heads {
    /// By so many numbers of queries and keys in `rows` rows.
    fn of(layout: PageLayout, parts: usize, rows: usize, (queries, keys): (usize, usize)) -> Self {
        let count = keys / (rows * layout.dim * parts).max(1);
        Self { count, group: queries / keys.max(1), parts, every: layout.heads / count.max(1) }
    }
}

/// How the heads of every row turn with its position: cosines and sines `[row][half]`.
#[derive(Clone, Copy)]
pub(crate) struct RotaryTables<'a> {
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    /// Pairs of channels that turn.
    pub half: usize,
    pub pairs: RopePairs,
}

impl RotaryTables<'_> {
    /// Turns some heads of `dim` channels of a row.
    fn row(&self, cpu: &Cpu, row: usize, dim: usize, heads: &mut [f32]) {
        let (cos, sin) = (&self.cos[row * self.half..][..self.half], &self.sin[row * self.half..][..self.half]);
        cpu.simd().turn_heads(heads, dim, cos, sin, self.pairs);
    }
}

/// Keys and values that a layer has stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredKv {
    /// The layer's place in the stage.
    pub layer: usize,
    /// Its heads, as the rank has them.
    pub heads: usize,
}

/// What a rank's layers see of the engine: attention over the pages of the batch's sequences, and the other ranks.
pub(crate) struct Attend<'a> {
    pub(super) pool: &'a mut PagePool,
    pub(super) sequences: &'a BTreeMap<(StageKey, RequestId), Shards>,
    pub(super) stage: StageKey,
    pub(super) positions: &'a [u32],
    /// One for each row, where the stage begins the model.
    pub(super) tokens: &'a [Token],
    pub(super) others: &'a dyn Gather,
    pub(super) layout: PageLayout,
    pub(super) tap: Option<&'a mut dyn OnStored>,
    /// Of the batch; the same for every layer.
    pub(super) runs: Vec<RowRun<'a>>,
}

/// Rows of a prompt that are worked on together.
const CHUNK: usize = 128;
/// Rows of a prompt from which that is faster.
const CHUNK_FROM: usize = 8;

/// Consecutive rows of a sequence: whose they are, the first one's place in the batch and position.
pub(super) struct RowRun<'a> {
    kv: &'a SequenceKv,
    row: usize,
    start: usize,
    len: usize,
}

impl<'a> RowRun<'a> {
    /// Those of a batch whose sequences are `kvs`; rows of prompts `together` if they may be. They lie in memory of the step
    /// before.
    pub fn all(
        before: Vec<RowRun<'_>>,
        batch: &[Slice],
        kvs: impl Iterator<Item = &'a SequenceKv>,
        together: bool,
    ) -> Vec<Self> {
        let (mut runs, mut row) = (emptied(before), 0);
        for (slice, kv) in batch.iter().zip(kvs) {
            let (start, len) = (slice.start as usize, slice.len as usize);
            let each = if together && len >= CHUNK_FROM { CHUNK } else { 1 };
            for from in (0..len).step_by(each) {
                runs.push(Self { kv, row: row + from, start: start + from, len: each.min(len - from) });
            }
            row += len;
        }
        runs
    }

    /// Tokens that its rows see, at most.
    fn work(&self, window: Option<usize>) -> usize {
        self.len * (self.start + self.len).min(window.unwrap_or(usize::MAX))
    }
}

/// The memory of some runs, for runs of others' sequences.
#[expect(clippy::unnecessary_filter_map, reason = "a filter would leave what they borrow as it is")]
pub(super) fn emptied<'b>(runs: Vec<RowRun<'_>>) -> Vec<RowRun<'b>> {
    // Collecting what is made of a vector's items, one for one or fewer, keeps its memory; that it does is tested.
    runs.into_iter().filter_map(|_| None).collect()
}

impl<'a> Attend<'a> {
    /// Position of every row.
    pub(crate) fn positions(&self) -> &[u32] {
        self.positions
    }

    /// Token of every row, where the stage begins the model; none elsewhere.
    pub(crate) fn tokens(&self) -> &[Token] {
        self.tokens
    }

    /// Puts the columns of all ranks side by side: [`Gather::gather`].
    pub(crate) fn gather(&self, rows: usize, x: &mut Vec<f32>) {
        self.others.gather(rows, x);
    }

    /// Turns queries and keys, stores keys and values of every row in `layer` of the stage, then mixes values by softmax of
    /// scaled products. `q` and `out` are `[row][head][channel]`, `k` and `v` `[row][kv_head][channel]`. `sinks`, of each
    /// head or of none, are scores of a token without a value.
    pub(crate) fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        (look, sinks): (AttentionParams, &[f32]),
        turn: Option<RotaryTables<'_>>,
        (q, k, v): (&mut [f32], &mut [f32], &[f32]),
        out: &mut [f32],
    ) {
        let heads = Heads::of(self.layout, look.parts, self.positions.len(), (q.len(), k.len()));
        self.store(cpu, layer, heads, turn, (q, k, v));
        self.tap(layer);
        self.mix(cpu, (layer, heads), (look, sinks), q, out);
    }

    /// Turns queries, then mixes values that a layer before has stored in this step and in those before, as [`Self::attend`]
    /// does.
    pub(crate) fn attend_stored(
        &self,
        cpu: &Cpu,
        stored: StoredKv,
        look: AttentionParams,
        turn: RotaryTables<'_>,
        q: &mut [f32],
        out: &mut [f32],
    ) {
        let (rows, dim) = (self.positions.len(), look.parts * self.layout.dim);
        let heads = Heads::of(self.layout, look.parts, rows, (q.len(), rows * stored.heads * dim));
        let (width, work) = (q.len() / rows.max(1), 4 * q.len());
        cpu.for_each_part(q, width.max(1), work, |row, q| turn.row(cpu, row, dim, q));
        self.mix(cpu, (stored.layer, heads), (look, &[]), q, out);
    }

    /// Mixes values of `layer` by softmax of scaled products with its keys.
    fn mix(
        &self,
        cpu: &Cpu,
        (layer, heads): (usize, Heads),
        (look, sinks): (AttentionParams, &[f32]),
        q: &[f32],
        out: &mut [f32],
    ) {
        let Heads { count: kv_heads, group, parts, every } = heads;
        let pool = &*self.pool;
        let part = group * parts * self.layout.dim;
        let runs = &self.runs;
        let work: usize = runs.iter().map(|run| run.work(look.window)).sum();
        let out = Outputs::new(out, self.positions.len(), kv_heads * part);
        cpu.share(runs.len() * kv_heads, work * kv_heads * part * 2, |i| {
            let (run, head) = (&runs[i / kv_heads], i % kv_heads);
            let sinks = if sinks.is_empty() { sinks } else { &sinks[head * group..][..group] };
            let at = AttendFrom { layer, head: head * every, start: run.start, window: look.window, sinks };
            if run.len > 1 {
                let rows = QueryRows { q, out: &out, first: run.row, len: run.len, kv_heads, head, group };
                return chunk::attend(cpu, run.kv, pool, at, rows, look);
            }
            let q = &q[(run.row * kv_heads + head) * part..][..part];
            MIXED.with_borrow_mut(|mixed| {
                mixed.resize(part, 0.0);
                mix(cpu, run.kv, pool, at, q, look, mixed);
                // SAFETY: every row and head is in one run, and each run is handed out once for each head.
                #[expect(unsafe_code, reason = "the lines above say why it is sound")]
                unsafe {
                    out.put(run.row, head * part, mixed);
                }
            });
        });
    }

    /// Turns a head of keys with the queries that share it and stores it with its values, for some rows at a time.
    fn store(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        heads: Heads,
        turn: Option<RotaryTables<'_>>,
        (q, k, v): (&mut [f32], &mut [f32], &[f32]),
    ) {
        let (PageLayout { dim: narrow, .. }, Heads { count, group, parts, every }) = (self.layout, heads);
        let dim = parts * narrow;
        let (rows, part, work) = (self.positions.len(), group * dim, 4 * (q.len() + 2 * k.len()));
        let (q, k) = (Outputs::new(q, rows, count * part), Outputs::new(k, rows, count * dim));
        let (runs, memory) = (&self.runs, self.pool.cut());
        cpu.share(runs.len() * count, work, |i| {
            let (&RowRun { kv, row, start, len }, head) = (&runs[i / count], i % count);
            for (row, position) in (row..row + len).zip(start..) {
                // SAFETY: every row and head is in one run, and each run is handed out once for each head; rows of a
                // sequence have positions of their own, and sequences pages of their own where they write.
                #[expect(unsafe_code, reason = "the lines above say why it is sound")]
                unsafe {
                    let key = k.some(row, head * dim..(head + 1) * dim);
                    if let Some(turn) = turn {
                        turn.row(cpu, row, dim, key);
                        turn.row(cpu, row, dim, q.some(row, head * part..(head + 1) * part));
                    }
                    let value = &v[(row * count + head) * dim..][..dim];
                    for (side, numbers) in [(Side::Keys, &*key), (Side::Values, value)] {
                        for (n, numbers) in numbers.chunks_exact(narrow).enumerate() {
                            kv.write_beside(&memory, layer, side, (head * every + n, position), numbers);
                        }
                        for n in parts..every {
                            kv.clear_beside(&memory, layer, side, (head * every + n, position));
                        }
                    }
                }
            }
        });
    }

    /// Whoever takes KV out is told that this layer's is there.
    fn tap(&mut self, layer: usize) {
        let step = TappedStep { stage: self.stage, sequences: self.sequences };
        if let Some(tap) = &mut self.tap {
            tap.stored(layer, self.layout.heads, self.pool, step);
        }
    }
}

/// Where attention looks from.
#[derive(Clone, Copy)]
struct AttendFrom<'a> {
    layer: usize,
    /// The first of the pages' heads that the keys are.
    head: usize,
    /// Position of the first row.
    start: usize,
    window: Option<usize>,
    /// Of the query heads that share the head of keys, or none.
    sinks: &'a [f32],
}

impl AttendFrom<'_> {
    /// Tokens that row number `row` sees.
    fn tokens(self, row: usize) -> Range<usize> {
        let end = self.start + row + 1;
        self.window.map_or(0, |w| end.saturating_sub(w))..end
    }
}

/// Rows of queries `[row][kv_head][head of the group][channel]`, and where what they mix goes in the same order.
#[derive(Clone, Copy)]
struct QueryRows<'a> {
    q: &'a [f32],
    out: &'a Outputs<'a>,
    first: usize,
    len: usize,
    kv_heads: usize,
    /// Which of these.
    head: usize,
    group: usize,
}

thread_local! {
    /// Scores of one row's query heads, kept from step to step.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Scores of one query head, and its sink.
    static BESIDE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// What they mix.
    static MIXED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Queries of wide heads by their parts, and what these mix.
    static PARTS: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
    /// Scores by a part of wide heads.
    static MORE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Attention of the query heads that share one KV head, for the first row.
fn mix(
    cpu: &Cpu,
    kv: &SequenceKv,
    pool: &PagePool,
    at: AttendFrom<'_>,
    q: &[f32],
    look: AttentionParams,
    out: &mut [f32],
) {
    let (parts, dim) = (look.parts, kv.layout().dim);
    if parts == 1 {
        return mix_parts(cpu, kv, pool, at, q, look, out);
    }
    let group = q.len() / (parts * dim);
    // `[head][part]` becomes `[part][head]`, and what is mixed the other way round.
    let pairs = || (0..parts).flat_map(|part| (0..group).map(move |head| (head * parts + part) * dim));
    PARTS.with_borrow_mut(|[queries, mixed]| {
        queries.clear();
        pairs().for_each(|from| queries.extend_from_slice(&q[from..][..dim]));
        mixed.resize(q.len(), 0.0);
        mix_parts(cpu, kv, pool, at, queries, look, mixed);
        for (to, mixed) in pairs().zip(mixed.chunks_exact(dim)) {
            out[to..][..dim].copy_from_slice(mixed);
        }
    });
}

/// The same, queries and what is mixed being `[part][head of the group][channel]`. Scores, sums and mixing run in token order;
/// a score is the sum of those by each part.
fn mix_parts(
    cpu: &Cpu,
    kv: &SequenceKv,
    pool: &PagePool,
    at: AttendFrom<'_>,
    q: &[f32],
    look: AttentionParams,
    out: &mut [f32],
) {
    let part = q.len() / look.parts;
    let group = part / kv.layout().dim;
    let tokens = at.tokens(0);
    let context = tokens.len();
    let score = |n: usize, q: &[f32], scores: &mut [f32]| {
        let mut done = 0;
        read_ahead(cpu, kv.blocks(pool, at.layer, Side::Keys, at.head + n, tokens.clone()), |keys| {
            cpu.scores(q, keys, context, &mut scores[done..]);
            done += keys.rows();
        });
    };
    SCORES.with_borrow_mut(|scores| {
        scores.resize(group * context, 0.0);
        for (n, q) in q.chunks_exact(part).enumerate() {
            if n == 0 {
                score(n, q, scores);
                continue;
            }
            MORE.with_borrow_mut(|more| {
                more.resize(group * context, 0.0);
                score(n, q, more);
                add(scores, more);
            });
        }
        scores.iter_mut().for_each(|score| *score *= look.scale);
        if let Some(cap) = look.cap {
            cpu.simd().soft_cap(scores, cap);
        }
        scores.chunks_exact_mut(context).enumerate().for_each(|(i, p)| softmax(cpu, p, at.sinks.get(i)));
        out.fill(0.0);
        for (n, out) in out.chunks_exact_mut(part).enumerate() {
            let mut from = 0;
            read_ahead(cpu, kv.blocks(pool, at.layer, Side::Values, at.head + n, tokens.clone()), |values| {
                cpu.weighted_rows(&scores[from..], context, values, out);
                from += values.rows();
            });
        }
    });
}

/// `scores[i] += more[i]`.
fn add(scores: &mut [f32], more: &[f32]) {
    scores.iter_mut().zip(more).for_each(|(score, more)| *score += more);
}

/// Softmax of a query head's scores, which its sink takes part in, if it has one.
fn softmax(cpu: &Cpu, scores: &mut [f32], sink: Option<&f32>) {
    let Some(sink) = sink else { return cpu.softmax(scores) };
    BESIDE.with_borrow_mut(|beside| {
        beside.clear();
        beside.extend_from_slice(scores);
        beside.push(*sink);
        cpu.softmax(beside);
        scores.copy_from_slice(&beside[..scores.len()]);
    });
}

/// Calls `work` with each block, having asked for the next: pages lie apart, and the processor cannot guess where.
fn read_ahead<'p>(cpu: &Cpu, blocks: impl Iterator<Item = Matrix<'p>>, mut work: impl FnMut(Matrix<'p>)) {
    let mut blocks = blocks.peekable();
    while let Some(block) = blocks.next() {
        if let Some(next) = blocks.peek() {
            cpu.simd().ask_for(*next);
        }
        work(block);
    }
}
