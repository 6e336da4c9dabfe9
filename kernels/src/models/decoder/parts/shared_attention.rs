//! Attention of layers that have no keys and values of their own: their queries look at those of a layer before them.

use super::{
    super::{Angles, LayerStep, Scratch},
    Attention, Linear, Part, RmsNorm,
};
use crate::{
    config::KvHeads,
    engine::{AttentionParams, RotaryTables, StoredKv},
    models::{outline::AttentionOutline, sized},
    rope::RopePairs,
    weights::WeightsError,
};
use std::mem::swap;

/// Queries of heads that turn with their positions, each normed before.
pub(in crate::models) struct SharedAttention {
    query: Linear,
    norm: RmsNorm,
    output: Linear,
    /// At what the rank's queries look.
    stored: StoredKv,
    head_dim: usize,
    look: AttentionParams,
    /// Which of the stack's ropes turns it.
    rope: usize,
    pairs: RopePairs,
}

impl SharedAttention {
    /// At the keys and values of `layer`, which has as many heads. Layers are counted over the model, which one stage holds.
    pub(in crate::models) fn load(part: &Part<'_>, layer: usize) -> Result<Self, WeightsError> {
        let c = part.config;
        let KvHeads { count, parts } = c.heads_of(part.layer);
        let head_dim = parts * c.head_dim;
        let [query, ..] = Attention::inputs(part);
        let (look, rope) = Attention::look(part);
        Ok(Self {
            query: part.linear("self_attn.q_proj", query, c.hidden)?,
            norm: part.norm_over("self_attn.q_norm", head_dim)?,
            output: part.linear("self_attn.o_proj", part.outputs(c.hidden), c.heads * head_dim)?,
            stored: StoredKv { layer, heads: part.rank.heads(count).len() },
            head_dim,
            look,
            rope,
            pairs: c.rope_pairs,
        })
    }

    pub(in crate::models) fn forward(&self, step: &mut LayerStep<'_, '_>, s: &mut Scratch) {
        let LayerStep { cpu, rows, .. } = *step;
        self.query.forward(cpu, rows, &s.normed, &mut s.q);
        self.norm.forward(cpu, &s.q, &mut s.mixed);
        swap(&mut s.q, &mut s.mixed);
        let Angles { cos, sin, half } = &s.angles[self.rope];
        let turn = RotaryTables { cos, sin, half: *half, pairs: self.pairs };
        let mixed = sized(&mut s.mixed, s.q.len());
        step.attend.attend_stored(cpu, self.stored, self.look, turn, &mut s.q, mixed);
        step.attend.gather(rows, &mut s.mixed);
        self.output.forward(cpu, rows, &s.mixed, &mut s.out);
        step.attend.gather(rows, &mut s.out);
    }

    pub(in crate::models) fn outline(&self) -> AttentionOutline<'_> {
        AttentionOutline {
            // No device that takes outlines computes families with such layers.
            inputs: [&self.query; 3].map(Linear::outline),
            is_gated: false,
            has_values: false,
            value_norm: None,
            output: self.output.outline(),
            head_norms: None,
            row_norms: None,
            head_dim: self.head_dim,
            look: self.look,
            rope: self.rope,
            pairs: self.pairs,
            growth: None,
            sinks: None,
        }
    }
}
