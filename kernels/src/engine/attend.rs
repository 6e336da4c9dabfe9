//! Attention over pages: what a model's layers see of the engine.

use super::{
    Shards, Slice, StageKey,
    tap::{Step, Stored},
};
use crate::{
    cpu::Cpu,
    pages::{Layout, PagePool, SequenceKv, Side},
    ranks::Gather,
    tanh,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use tsnode_protocol::RequestId;

/// How a layer's rows look at the tokens before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// Largest size of a score, approached smoothly ([`tanh::soft_cap`]).
    pub cap: Option<f32>,
    /// Tokens a row sees, itself included; all without one.
    pub window: Option<usize>,
}

/// What a rank's layers see of the engine: attention over the pages of the batch's sequences, and the other ranks.
pub(crate) struct Attend<'a> {
    pub(super) pool: &'a mut PagePool,
    pub(super) sequences: &'a BTreeMap<(StageKey, RequestId), Shards>,
    pub(super) stage: StageKey,
    pub(super) batch: &'a [Slice],
    pub(super) positions: &'a [u32],
    pub(super) rank: usize,
    pub(super) others: &'a dyn Gather,
    /// Query heads that share one of keys and values.
    pub(super) group: usize,
    pub(super) layout: Layout,
    pub(super) tap: Option<&'a mut dyn Stored>,
}

/// A row of the batch: whose it is, and which tokens it looks at.
struct Row<'a> {
    kv: &'a SequenceKv,
    tokens: Range<usize>,
}

impl<'a> Attend<'a> {
    /// Position of every row.
    pub(crate) fn positions(&self) -> &[u32] {
        self.positions
    }

    /// Puts the columns of all ranks side by side: [`Gather::gather`].
    pub(crate) fn gather(&self, rows: usize, x: &mut Vec<f32>) {
        self.others.gather(rows, x);
    }

    /// Stores keys and values of every row in `layer` of the stage, then mixes values by softmax of scaled products.
    /// `q` and `out` are `[row][head][channel]`, `k` and `v` `[row][kv_head][channel]`.
    #[allow(clippy::too_many_arguments)] // Three inputs and an output, as everyone calls them.
    pub(crate) fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        look: Look,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) {
        let Layout { heads: kv_heads, dim, .. } = self.layout;
        self.store(layer, k, v);
        self.tap(layer);
        let rows = self.rows(look.window);
        let pool = &*self.pool;
        let part = self.group * dim;
        let work: usize = rows.iter().map(|r| r.tokens.len() * kv_heads * part * 2).sum();
        cpu.for_each_part(out, part, work, |i, out| {
            let (row, head) = (i / kv_heads, i % kv_heads);
            let Row { kv, tokens } = &rows[row];
            let q = &q[(row * kv_heads + head) * part..][..part];
            mix(cpu, kv, pool, Place { layer, head, tokens: tokens.clone() }, q, look, out);
        });
    }

    fn store(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let Layout { heads, dim, .. } = self.layout;
        let mut row = 0;
        for slice in self.batch {
            let Some(kv) = self.kv(slice) else { continue };
            for position in slice.start..slice.start + slice.len {
                for head in 0..heads {
                    let at = (row * heads + head) * dim;
                    kv.write(self.pool, layer, Side::Keys, head, position as usize, &k[at..at + dim]);
                    kv.write(self.pool, layer, Side::Values, head, position as usize, &v[at..at + dim]);
                }
                row += 1;
            }
        }
    }

    /// Whoever takes KV out is told that this layer's is there.
    fn tap(&mut self, layer: usize) {
        let step = Step { stage: self.stage, sequences: self.sequences };
        if let Some(tap) = &mut self.tap {
            tap.stored(layer, self.layout.heads, self.pool, step);
        }
    }

    fn rows(&self, window: Option<usize>) -> Vec<Row<'_>> {
        let seen = |end: usize| window.map_or(0, |w| end.saturating_sub(w))..end;
        let mut rows = Vec::with_capacity(self.positions.len());
        for slice in self.batch {
            // `Engine::check` has seen every sequence of the batch.
            let Some(kv) = self.kv(slice) else { continue };
            rows.extend((slice.start..slice.start + slice.len).map(|p| Row { kv, tokens: seen(p as usize + 1) }));
        }
        rows
    }

    fn kv(&self, slice: &Slice) -> Option<&'a SequenceKv> {
        Some(self.sequences.get(&(self.stage, slice.request))?.of(self.rank))
    }
}

/// Where attention looks.
struct Place {
    layer: usize,
    head: usize,
    tokens: Range<usize>,
}

thread_local! {
    /// Scores of one row's query heads, kept from step to step.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Attention of the query heads that share one KV head, for one row. Scores, sums and mixing run in token order.
fn mix(cpu: &Cpu, kv: &SequenceKv, pool: &PagePool, at: Place, q: &[f32], look: Look, out: &mut [f32]) {
    let group = q.len() / kv.layout().dim;
    let context = at.tokens.len();
    SCORES.with_borrow_mut(|scores| {
        scores.resize(group * context, 0.0);
        let mut done = 0;
        for keys in kv.blocks(pool, at.layer, Side::Keys, at.head, at.tokens.clone()) {
            cpu.scores(q, keys, context, &mut scores[done..]);
            done += keys.rows();
        }
        scores.iter_mut().for_each(|score| *score *= look.scale);
        if let Some(cap) = look.cap {
            tanh::soft_cap(scores, cap);
        }
        scores.chunks_exact_mut(context).for_each(|p| cpu.softmax(p));
        out.fill(0.0);
        let mut from = 0;
        for values in kv.blocks(pool, at.layer, Side::Values, at.head, at.tokens.clone()) {
            cpu.weighted_rows(&scores[from..], context, values, out);
            from += values.rows();
        }
    });
}
