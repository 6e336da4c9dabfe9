//! Attention of rotary decoders: queries, keys and values with their norms, turned, looked up and mixed.

use super::{
    super::{Angles, LayerStep, Scratch},
    Linear, Part, RmsNorm,
};
use crate::{
    config::{Growth, KvHeads},
    cpu::{Cpu, plain::exp},
    engine::{AttentionParams, RotaryTables},
    models::{outline::AttentionOutline, sized},
    ranks::RankOutputs,
    rope::RopePairs,
    weights::WeightsError,
};
use std::mem::swap;

/// Attention of heads that turn with their positions, several to a head of keys and values.
pub(in crate::models) struct Attention {
    query: Linear,
    key: Linear,
    /// None where values are keys, before norms and turning.
    value: Option<Linear>,
    output: Linear,
    /// Of queries and keys, before they turn.
    norms: Option<Norms>,
    /// Whether behind each head of queries comes one that gates what it mixes.
    gated: bool,
    /// Of each head's values.
    value_norm: Option<RmsNorm>,
    head_dim: usize,
    look: AttentionParams,
    /// Which of the stack's ropes turns it.
    rope: usize,
    pairs: RopePairs,
    growth: Option<Growth>,
    /// Scores of a token without a value, of each query head of the rank, or of none.
    sinks: Vec<f32>,
}

/// Norms of queries and of keys.
enum Norms {
    /// Of each head's.
    Heads([RmsNorm; 2]),
    /// Of all heads' together, those of other ranks too.
    Rows([RmsNorm; 2]),
}

impl Attention {
    /// From a matrix each for queries, keys and values.
    pub(in crate::models) fn load(part: &Part<'_>) -> Result<Self, WeightsError> {
        let [query, key, value] = Self::inputs(part);
        let linear = |name: &str, outputs| part.linear(name, outputs, part.config.hidden);
        let inputs = [linear("self_attn.q_proj", query)?, linear("self_attn.k_proj", key)?];
        let has_matrix = !part.config.values_are_keys(part.layer);
        let value = if has_matrix { Some(linear("self_attn.v_proj", value)?) } else { None };
        Self::with_inputs(part, inputs, value)
    }

    /// The same where the matrix for queries has behind each head's rows as many for its gate.
    pub(in crate::models) fn load_gated(part: &Part<'_>) -> Result<Self, WeightsError> {
        let [RankOutputs { all, mine }, key, value] = Self::inputs(part);
        let query = RankOutputs { all: 2 * all, mine: 2 * mine.start..2 * mine.end };
        let linear = |name: &str, outputs| part.linear(name, outputs, part.config.hidden);
        let inputs = [linear("self_attn.q_proj", query)?, linear("self_attn.k_proj", key)?];
        let value = linear("self_attn.v_proj", value)?;
        Ok(Self { gated: true, ..Self::with_inputs(part, inputs, Some(value))? })
    }

    /// From one matrix with the rows of queries, keys and values.
    pub(in crate::models) fn load_fused(part: &Part<'_>) -> Result<Self, WeightsError> {
        let [query, key, value] = part.fused("self_attn.qkv_proj", Self::inputs(part), part.config.hidden)?;
        Self::with_inputs(part, [query, key], Some(value))
    }

    fn with_inputs(part: &Part<'_>, [query, key]: [Linear; 2], value: Option<Linear>) -> Result<Self, WeightsError> {
        let c = part.config;
        let head_dim = c.heads_of(part.layer).parts * c.head_dim;
        let output = part.linear("self_attn.o_proj", part.outputs(c.hidden), c.heads * head_dim)?;
        let (look, rope) = Self::look(part);
        let (pairs, growth) = (c.rope_pairs, c.growth);
        Ok(Self {
            query,
            key,
            value,
            output,
            norms: None,
            gated: false,
            value_norm: None,
            head_dim,
            look,
            rope,
            pairs,
            growth,
            sinks: Vec::new(),
        })
    }

    /// With norms over each head's queries and keys.
    pub(in crate::models) fn with_head_norms(self, part: &Part<'_>) -> Result<Self, WeightsError> {
        let norm = |name| part.norm_over(name, self.head_dim);
        let norms = Some(Norms::Heads([norm("self_attn.q_norm")?, norm("self_attn.k_norm")?]));
        Ok(Self { norms, ..self })
    }

    /// With norms over each head's values, without weights.
    pub(in crate::models) fn with_value_norms(self, part: &Part<'_>) -> Self {
        Self { value_norm: Some(part.plain_norm(self.head_dim)), ..self }
    }

    /// With norms over the queries of all heads, and over their keys.
    pub(in crate::models) fn with_row_norms(self, part: &Part<'_>) -> Result<Self, WeightsError> {
        let norms = [("self_attn.q_norm", self.query.outputs.all), ("self_attn.k_norm", self.key.outputs.all)];
        let [query, key] = norms.map(|(name, width)| part.norm_over(name, width));
        Ok(Self { norms: Some(Norms::Rows([query?, key?])), ..self })
    }

    /// With a sink for each query head.
    pub(in crate::models) fn with_sinks(self, part: &Part<'_>) -> Result<Self, WeightsError> {
        const NAMES: [&str; 2] = ["self_attn.sinks", "self_attn.sinks.weight"];
        let name = NAMES.into_iter().find(|name| part.has(name)).unwrap_or(NAMES[0]);
        let (heads, mine) = (part.config.heads, &self.query.outputs.mine);
        let sinks = part.vector(name, heads, mine.start / self.head_dim..mine.end / self.head_dim)?;
        Ok(Self { sinks, ..self })
    }

    /// How the layer looks, and which of the stack's ropes turns it.
    pub(super) fn look(part: &Part<'_>) -> (AttentionParams, usize) {
        let c = part.config;
        let (window, parts) = (c.windows[part.layer], c.heads_of(part.layer).parts);
        let other = c.other_rope.as_ref().is_some_and(|other| other.layers.get(part.layer) == Some(&true));
        let look = AttentionParams { scale: c.attention_scale, cap: c.attention_cap, window, parts };
        (look, usize::from(other))
    }

    /// Queries, keys and values: those of the rank's KV heads and of the query heads that share them.
    pub(super) fn inputs(part: &Part<'_>) -> [RankOutputs; 3] {
        let c = part.config;
        let KvHeads { count, parts } = c.heads_of(part.layer);
        let heads = part.rank.heads(count);
        [c.heads / count, 1, 1].map(|each| {
            let width = each * parts * c.head_dim;
            RankOutputs { all: count * width, mine: heads.start * width..heads.end * width }
        })
    }

    pub(in crate::models) fn forward(&self, step: &mut LayerStep<'_, '_>, s: &mut Scratch) {
        let LayerStep { cpu, rows, layer, .. } = *step;
        let (query, key) = ((&self.query, &mut s.q), (&self.key, &mut s.k));
        match &self.value {
            Some(value) => Linear::forward_all(cpu, rows, &s.normed, [query, key, (value, &mut s.v)]),
            None => {
                Linear::forward_all(cpu, rows, &s.normed, [query, key]);
                s.v.clear();
                s.v.extend_from_slice(&s.k);
            }
        }
        if self.gated {
            self.part_gates(s);
        }
        if let Some(norm) = &self.value_norm {
            norm.forward(cpu, &s.v, &mut s.mixed);
            swap(&mut s.v, &mut s.mixed);
        }
        match &self.norms {
            None => {}
            Some(Norms::Heads([query, key])) => {
                query.forward(cpu, &s.q, &mut s.mixed);
                swap(&mut s.q, &mut s.mixed);
                key.forward(cpu, &s.k, &mut s.mixed);
                swap(&mut s.k, &mut s.mixed);
            }
            Some(Norms::Rows([query, key])) => {
                let Scratch { q, k, mixed, .. } = s;
                for (norm, linear, x) in [(query, &self.query, q), (key, &self.key, k)] {
                    step.attend.gather(rows, x);
                    norm.forward(cpu, x, mixed);
                    x.clear();
                    let RankOutputs { all, mine } = &linear.outputs;
                    mixed.chunks_exact(*all).for_each(|row| x.extend_from_slice(&row[mine.clone()]));
                }
            }
        }
        if let Some(growth) = self.growth {
            let width = self.query.outputs.mine.len();
            for (row, position) in s.q.chunks_exact_mut(width).zip(step.attend.positions()) {
                let factor = growth.at(*position);
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
        let Angles { cos, sin, half } = &s.angles[self.rope];
        let turn = RotaryTables { cos, sin, half: *half, pairs: self.pairs };
        let mixed = sized(&mut s.mixed, s.q.len());
        step.attend.attend(
            cpu,
            layer,
            (self.look, self.sinks.as_slice()),
            Some(turn),
            (&mut s.q, &mut s.k, &s.v),
            mixed,
        );
        if self.gated {
            open_gates(cpu, &mut s.mixed, &s.gate);
        }
        step.attend.gather(rows, &mut s.mixed);
        self.output.forward(cpu, rows, &s.mixed, &mut s.out);
        step.attend.gather(rows, &mut s.out);
    }

    /// Takes queries and gates, which came head by head, apart.
    fn part_gates(&self, s: &mut Scratch) {
        let Scratch { q, mixed, gate, .. } = s;
        let half = q.len() / 2;
        let heads = sized(mixed, half).chunks_exact_mut(self.head_dim);
        let gates = sized(gate, half).chunks_exact_mut(self.head_dim);
        for ((both, head), gate) in q.chunks_exact(2 * self.head_dim).zip(heads).zip(gates) {
            head.copy_from_slice(&both[..self.head_dim]);
            gate.copy_from_slice(&both[self.head_dim..]);
        }
        swap(q, mixed);
    }

    pub(in crate::models) fn outline(&self) -> AttentionOutline<'_> {
        AttentionOutline {
            inputs: [&self.query, &self.key, self.value.as_ref().unwrap_or(&self.key)].map(Linear::outline),
            is_gated: self.gated,
            has_values: self.value.is_some(),
            value_norm: self.value_norm.as_ref().map(|norm| norm.eps),
            output: self.output.outline(),
            head_norms: match &self.norms {
                Some(Norms::Heads(norms)) => Some(norms.each_ref().map(RmsNorm::outline)),
                None | Some(Norms::Rows(_)) => None,
            },
            row_norms: match &self.norms {
                Some(Norms::Rows(norms)) => Some(norms.each_ref().map(RmsNorm::outline)),
                None | Some(Norms::Heads(_)) => None,
            },
            head_dim: self.head_dim,
            look: self.look,
            rope: self.rope,
            pairs: self.pairs,
            growth: self.growth,
            sinks: (!self.sinks.is_empty()).then_some(self.sinks.as_slice()),
        }
    }
}

/// Numbers that a thread multiplies by what their gates let through.
const OPENED: usize = 1 << 12;

/// `x[i] *= σ(gates[i])`.
fn open_gates(cpu: &Cpu, x: &mut [f32], gates: &[f32]) {
    let work = 16 * x.len();
    cpu.for_each_part(x, OPENED, work, |part, x| {
        x.iter_mut().zip(&gates[part * OPENED..]).for_each(|(x, gate)| *x /= 1.0 + exp(-gate));
    });
}
