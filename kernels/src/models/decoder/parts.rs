//! Parts that layers are composed of: norms, attention and gated MLPs. They read `normed` and write `out`.

use super::{Angles, Scratch, Step};
use crate::{
    config::{Activation, Growth, KvHeads, Mixture, ModelConfig},
    cpu::{Cpu, Gate},
    engine::{AttentionParams, RotaryTables},
    linear::Weight,
    models::{
        ROWS_OF_MLP, add_bias,
        outline::{AttentionOutline, GatedOutline, LinearOutline, NormOutline},
        sized,
    },
    ranks::{Rank, RankOutputs},
    rope::RopePairs,
    weights::{Checkpoint, Tensor, WeightsError},
};
use std::cell::{Cell, RefCell};
use std::mem::swap;
use std::ops::Range;

/// A named part of a checkpoint, such as one layer, as far as a rank has it.
pub(in crate::models) struct Part<'a> {
    config: &'a ModelConfig,
    checkpoint: &'a Checkpoint,
    rank: Rank,
    name: String,
    layer: usize,
    bytes: Cell<u64>,
    expert_bytes: Cell<u64>,
    weights: RefCell<Vec<Weight>>,
}

impl<'a> Part<'a> {
    /// The tensors whose names start with `name` and a dot; of layer number `layer` of the model, if of one.
    pub(super) fn new(
        config: &'a ModelConfig,
        checkpoint: &'a Checkpoint,
        rank: Rank,
        name: String,
        layer: usize,
    ) -> Self {
        Self {
            config,
            checkpoint,
            rank,
            name,
            layer,
            bytes: Cell::new(0),
            expert_bytes: Cell::new(0),
            weights: RefCell::default(),
        }
    }

    /// What was loaded so far (bytes).
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Of those, what experts are that a row may pass (bytes).
    pub(super) fn expert_bytes(&self) -> u64 {
        self.expert_bytes.get()
    }

    /// Width of the residual stream.
    pub(super) fn hidden(&self) -> usize {
        self.config.hidden
    }

    /// The root of that width.
    pub(in crate::models) fn root(&self) -> f32 {
        (self.config.hidden as f32).sqrt()
    }

    /// How the gates of experts bend.
    pub(super) fn gate(&self) -> Gate {
        act(self.config.activation)
    }

    /// The mixture that the layer has in place of an MLP, if it has one.
    pub(in crate::models) fn mixture(&self) -> Option<&'a Mixture> {
        self.config.mixture.as_ref().filter(|mixture| mixture.layers.get(self.layer) == Some(&true))
    }

    /// Whether queries and keys of each head are normed, by the configuration.
    pub(in crate::models) fn has_head_norms(&self) -> bool {
        self.config.head_norms
    }

    /// Whether there is a tensor of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.checkpoint.has(&self.full(name))
    }

    /// Whether the experts of a layer lie in one tensor, always.
    pub(super) fn stacks_experts(&self) -> bool {
        self.checkpoint.stacks_experts()
    }

    /// The matrix `name`, not loaded yet.
    pub(super) fn matrix(&self, name: &str, rows: usize, inputs: usize) -> Result<Tensor, WeightsError> {
        self.checkpoint.matrix(&self.full(name), rows, inputs)
    }

    /// Several matrices that lie in one tensor, not loaded yet.
    pub(super) fn stack(&self, name: &str, count: usize, rows: usize, inputs: usize) -> Result<Tensor, WeightsError> {
        self.checkpoint.matrices(&self.full(name), count, rows, inputs)
    }

    /// Rows of a matrix in MXFP4 of which the powers of two lie apart; every `every`th, from row `first` on.
    pub(super) fn apart(
        &self,
        name: &str,
        (count, rows, inputs): (usize, usize, usize),
        (first, every): (usize, usize),
    ) -> Result<Tensor, WeightsError> {
        Ok(self.checkpoint.apart(&self.full(name), count, rows, inputs)?.every(first, every))
    }

    /// A vector that decides something: whole on every rank.
    pub(super) fn whole_vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
        self.vector(name, len, 0..len)
    }

    /// Counts numbers of experts that are held as they are.
    pub(super) fn count_numbers(&self, numbers: usize) {
        let bytes = 4 * numbers as u64;
        self.bytes.set(self.bytes.get() + bytes);
        self.expert_bytes.set(self.expert_bytes.get() + bytes);
    }

    /// A matrix that decides something: whole on every rank, and exact.
    pub(super) fn exact(&self, name: &str, rows: usize, inputs: usize) -> Result<Weight, WeightsError> {
        Ok(self.kept(Weight::exact(self.matrix(name, rows, inputs)?)))
    }

    /// The same of one row.
    pub(super) fn exact_row(&self, name: &str, inputs: usize) -> Result<Weight, WeightsError> {
        Ok(self.kept(Weight::exact(self.checkpoint.row(&self.full(name), inputs)?)))
    }

    /// The rank's outputs of an expert's matrix, whose rows are those of `tensor` from `first` on.
    pub(super) fn expert(&self, tensor: &Tensor, first: usize, outputs: &RankOutputs) -> Weight {
        let weight = Weight::new(tensor.rows(first + outputs.mine.start..first + outputs.mine.end));
        self.expert_bytes.set(self.expert_bytes.get() + weight.bytes());
        self.kept(weight)
    }

    /// The matrices loaded so far.
    pub(super) fn weights(&self) -> Vec<Weight> {
        self.weights.take()
    }

    /// The norm `name` over the residual stream.
    pub(in crate::models) fn norm(&self, name: &str) -> Result<RmsNorm, WeightsError> {
        self.norm_over(name, self.config.hidden)
    }

    /// A norm without weights, over so many numbers.
    fn plain_norm(&self, width: usize) -> RmsNorm {
        RmsNorm { weight: vec![1.0; width], eps: self.config.norm_eps }
    }

    /// The norm whose weights are the vector `name`, each multiplied by `factor`.
    pub(in crate::models) fn norm_by(&self, name: &str, factor: f32) -> Result<RmsNorm, WeightsError> {
        let weight = self.vector(name, self.config.hidden, 0..self.config.hidden)?;
        Ok(RmsNorm { weight, eps: self.config.norm_eps }.scaled(factor))
    }

    /// A number that is stored as a vector of one, with `.weight` behind its name in GGUF files.
    pub(in crate::models) fn number(&self, name: &str) -> Result<f32, WeightsError> {
        let other = format!("{name}.weight");
        let name = if self.has(&other) { &other } else { name };
        Ok(self.vector(name, 1, 0..1)?[0])
    }

    fn norm_over(&self, name: &str, width: usize) -> Result<RmsNorm, WeightsError> {
        let mut weight = self.vector(&format!("{name}.weight"), width, 0..width)?;
        weight.iter_mut().for_each(|w| *w += self.config.norm_shift);
        Ok(RmsNorm { weight, eps: self.config.norm_eps })
    }

    /// Outputs of a matrix, cut for ranks.
    pub(super) fn outputs(&self, all: usize) -> RankOutputs {
        RankOutputs { all, mine: self.rank.outputs(all) }
    }

    /// The rank's outputs of the matrix `name` with `inputs` inputs, with their biases if there are any.
    fn linear(&self, name: &str, outputs: RankOutputs, inputs: usize) -> Result<Linear, WeightsError> {
        let RankOutputs { all, mine } = outputs.clone();
        let weight = self.checkpoint.matrix(&self.full(&format!("{name}.weight")), all, inputs)?;
        let bias = format!("{name}.bias");
        let bias =
            if self.checkpoint.has(&self.full(&bias)) { Some(self.vector(&bias, all, mine.clone())?) } else { None };
        Ok(self.counted(Linear { weight: Weight::new(weight.rows(mine)), bias, outputs }))
    }

    /// Matrices that lie in one tensor, one below the other.
    fn fused<const N: usize>(
        &self,
        name: &str,
        outputs: [RankOutputs; N],
        inputs: usize,
    ) -> Result<[Linear; N], WeightsError> {
        let rows = outputs.iter().map(|outputs| outputs.all).sum();
        let together = self.checkpoint.matrix(&self.full(&format!("{name}.weight")), rows, inputs)?;
        let mut from = 0;
        Ok(outputs.map(|outputs| {
            let RankOutputs { all, mine } = &outputs;
            let weight = Weight::new(together.rows(from + mine.start..from + mine.end));
            from += all;
            self.counted(Linear { weight, bias: None, outputs })
        }))
    }

    /// Some numbers of a vector of `len`.
    fn vector(&self, name: &str, len: usize, some: Range<usize>) -> Result<Vec<f32>, WeightsError> {
        let vector = self.checkpoint.vector(&self.full(name), len)?;
        self.bytes.set(self.bytes.get() + 4 * some.len() as u64);
        Ok(if some.len() == len { vector } else { vector[some].to_vec() })
    }

    fn counted(&self, linear: Linear) -> Linear {
        self.kept(linear.weight.clone());
        linear
    }

    fn kept(&self, weight: Weight) -> Weight {
        self.bytes.set(self.bytes.get() + weight.bytes());
        self.weights.borrow_mut().push(weight.clone());
        weight
    }

    fn full(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }
}

/// RMS norm.
pub(in crate::models) struct RmsNorm {
    weight: Vec<f32>,
    eps: f32,
}

impl RmsNorm {
    /// Of every row of `x`, of as many numbers as the norm has weights.
    pub(in crate::models) fn forward(&self, cpu: &Cpu, x: &[f32], out: &mut Vec<f32>) {
        cpu.rms_norm(x, &self.weight, self.eps, sized(out, x.len()));
    }

    /// The same after `more` was added to `x`.
    pub(in crate::models) fn forward_added(&self, cpu: &Cpu, x: &mut [f32], more: &[f32], out: &mut Vec<f32>) {
        let out = sized(out, x.len());
        cpu.add_rms_norm(x, more, &self.weight, self.eps, out);
    }

    /// The same, what comes out multiplied by `factor`.
    pub(in crate::models) fn scaled(mut self, factor: f32) -> Self {
        self.weight.iter_mut().for_each(|w| *w *= factor);
        self
    }

    pub(in crate::models) fn outline(&self) -> NormOutline<'_> {
        NormOutline { weight: &self.weight, eps: self.eps }
    }
}

/// A rank's outputs of a matrix, and perhaps of a bias.
struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
    outputs: RankOutputs,
}

impl Linear {
    fn forward(&self, cpu: &Cpu, rows: usize, x: &[f32], out: &mut Vec<f32>) {
        Self::forward_all(cpu, rows, x, [(self, out)]);
    }

    fn apply(&self, cpu: &Cpu, x: &[f32], out: &mut [f32]) {
        self.weight.apply(cpu, x, out);
        if let Some(bias) = &self.bias {
            add_bias(out, bias);
        }
    }

    /// Several by the same rows.
    fn forward_all<const N: usize>(cpu: &Cpu, rows: usize, x: &[f32], each: [(&Self, &mut Vec<f32>); N]) {
        let mut each = each.map(|(linear, out)| (linear, sized(out, rows * linear.outputs.mine.len())));
        cpu.products(x, each.each_mut().map(|(linear, out)| (linear.weight.operand(cpu), &mut **out)));
        for (linear, out) in each {
            if let Some(bias) = &linear.bias {
                add_bias(out, bias);
            }
        }
    }
}

impl Linear {
    fn outline(&self) -> LinearOutline<'_> {
        LinearOutline { weight: &self.weight, bias: self.bias.as_deref(), outputs: &self.outputs }
    }
}

/// Attention of heads that turn with their positions, several to a head of keys and values.
pub(in crate::models) struct Attention {
    query: Linear,
    key: Linear,
    /// None where values are keys, before norms and turning.
    value: Option<Linear>,
    output: Linear,
    /// Of queries and keys, before they turn.
    norms: Option<Norms>,
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

    /// From one matrix with the rows of queries, keys and values.
    pub(in crate::models) fn load_fused(part: &Part<'_>) -> Result<Self, WeightsError> {
        let [query, key, value] = part.fused("self_attn.qkv_proj", Self::inputs(part), part.config.hidden)?;
        Self::with_inputs(part, [query, key], Some(value))
    }

    fn with_inputs(part: &Part<'_>, [query, key]: [Linear; 2], value: Option<Linear>) -> Result<Self, WeightsError> {
        let c = part.config;
        let parts = c.heads_of(part.layer).parts;
        let head_dim = parts * c.head_dim;
        let output = part.linear("self_attn.o_proj", part.outputs(c.hidden), c.heads * head_dim)?;
        let window = c.windows[part.layer];
        let look = AttentionParams { scale: c.attention_scale, cap: c.attention_cap, window, parts };
        let other = c.other_rope.as_ref().is_some_and(|other| other.layers.get(part.layer) == Some(&true));
        let (rope, pairs, growth) = (usize::from(other), c.rope_pairs, c.growth);
        Ok(Self {
            query,
            key,
            value,
            output,
            norms: None,
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

    /// Queries, keys and values: those of the rank's KV heads and of the query heads that share them.
    fn inputs(part: &Part<'_>) -> [RankOutputs; 3] {
        let c = part.config;
        let KvHeads { count, parts } = c.heads_of(part.layer);
        let heads = part.rank.heads(count);
        [c.heads / count, 1, 1].map(|each| {
            let width = each * parts * c.head_dim;
            RankOutputs { all: count * width, mine: heads.start * width..heads.end * width }
        })
    }

    pub(in crate::models) fn forward(&self, step: &mut Step<'_, '_>, s: &mut Scratch) {
        let Step { cpu, rows, layer, .. } = *step;
        let (query, key) = ((&self.query, &mut s.q), (&self.key, &mut s.k));
        match &self.value {
            Some(value) => Linear::forward_all(cpu, rows, &s.normed, [query, key, (value, &mut s.v)]),
            None => {
                Linear::forward_all(cpu, rows, &s.normed, [query, key]);
                s.v.clear();
                s.v.extend_from_slice(&s.k);
            }
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
        step.attend.gather(rows, &mut s.mixed);
        self.output.forward(cpu, rows, &s.mixed, &mut s.out);
        step.attend.gather(rows, &mut s.out);
    }

    pub(in crate::models) fn outline(&self) -> AttentionOutline<'_> {
        AttentionOutline {
            // Families whose values are keys are computed by no device that takes outlines.
            inputs: [&self.query, &self.key, self.value.as_ref().unwrap_or(&self.key)].map(Linear::outline),
            output: self.output.outline(),
            head_norms: match &self.norms {
                Some(Norms::Heads(norms)) => Some(norms.each_ref().map(RmsNorm::outline)),
                // In families that no device computes that takes outlines: these are in none.
                None | Some(Norms::Rows(_)) => None,
            },
            head_dim: self.head_dim,
            look: self.look,
            rope: self.rope,
            pairs: self.pairs,
        }
    }
}

/// An MLP whose one half gates the other.
pub(in crate::models) struct Gated {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Gated {
    /// From a matrix each for gate and up.
    pub(in crate::models) fn load(part: &Part<'_>) -> Result<Self, WeightsError> {
        Self::load_at(part, "mlp", part.config.intermediate)
    }

    /// The one called `name`, so wide.
    pub(in crate::models) fn load_at(part: &Part<'_>, name: &str, width: usize) -> Result<Self, WeightsError> {
        let linear = |of: &str| part.linear(&format!("{name}.{of}"), part.outputs(width), part.config.hidden);
        let inputs = [linear("gate_proj")?, linear("up_proj")?];
        Self::with_inputs(part, inputs, (&format!("{name}.down_proj"), width))
    }

    /// From one matrix with the rows of gate and up.
    pub(in crate::models) fn load_fused(part: &Part<'_>) -> Result<Self, WeightsError> {
        Self::load_fused_as(part, ["mlp.gate_up_proj", "mlp.down_proj"])
    }

    /// The same under other names.
    pub(in crate::models) fn load_fused_as(part: &Part<'_>, [both, down]: [&str; 2]) -> Result<Self, WeightsError> {
        let c = part.config;
        let inputs = part.fused(both, [(); 2].map(|()| part.outputs(c.intermediate)), c.hidden)?;
        Self::with_inputs(part, inputs, (down, c.intermediate))
    }

    fn with_inputs(
        part: &Part<'_>,
        [gate, up]: [Linear; 2],
        (down, width): (&str, usize),
    ) -> Result<Self, WeightsError> {
        let c = part.config;
        Ok(Self { gate, up, down: part.linear(down, part.outputs(c.hidden), width)?, activation: c.activation })
    }

    pub(in crate::models) fn outline(&self) -> GatedOutline<'_> {
        GatedOutline {
            inputs: [&self.gate, &self.up].map(Linear::outline),
            down: self.down.outline(),
            activation: self.activation,
        }
    }

    /// Some rows at a time: what lies between the matrices is the widest of all, and is not kept for more.
    pub(in crate::models) fn forward(&self, step: &Step<'_, '_>, s: &mut Scratch) {
        let (rows, width) = (step.rows, self.down.outputs.mine.len());
        let inputs = s.normed.len() / rows.max(1);
        let Scratch { normed, out, gate, up, .. } = s;
        let together = rows.clamp(1, ROWS_OF_MLP);
        let each = normed.chunks(together * inputs).zip(sized(out, rows * width).chunks_mut(together * width));
        for (x, out) in each {
            self.some_rows(step, (x.len() / inputs, x), out, (&mut *gate, &mut *up));
        }
        step.attend.gather(rows, out);
    }

    /// The rank's outputs of rows `x`.
    pub(super) fn some_rows(
        &self,
        step: &Step<'_, '_>,
        (rows, x): (usize, &[f32]),
        out: &mut [f32],
        (gate, up): (&mut Vec<f32>, &mut Vec<f32>),
    ) {
        self.gate(step.cpu, rows, x, gate, up);
        step.attend.gather(rows, gate);
        self.down.apply(step.cpu, gate, out);
    }

    /// What comes out.
    pub(super) fn outputs(&self) -> &RankOutputs {
        &self.down.outputs
    }

    /// `gate` is what goes into the last matrix.
    fn gate(&self, cpu: &Cpu, rows: usize, x: &[f32], gate: &mut Vec<f32>, up: &mut Vec<f32>) {
        if self.gate.bias.is_none() && self.up.bias.is_none() {
            let [gate, up] = [(&self.gate, gate), (&self.up, up)]
                .map(|(linear, out)| (linear.weight.operand(cpu), sized(out, rows * linear.outputs.mine.len())));
            cpu.gated(x, gate, up, act(self.activation));
        } else {
            Linear::forward_all(cpu, rows, x, [(&self.gate, &mut *gate), (&self.up, &mut *up)]);
            cpu.gate_mul(act(self.activation), gate, up);
        }
    }
}

/// How the one half of a gated MLP bends.
fn act(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        // `Keys::gate` lets no gated MLP have the latter.
        Activation::GeluTanh | Activation::Relu => Gate::Gelu,
    }
}
