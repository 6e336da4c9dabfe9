//! Parts that layers are composed of: norms, attention and gated MLPs. They read `normed` and write `out`.

mod attention;
mod gated_delta;
mod gated_mlp;
mod layer_inputs;
mod shared_attention;

use crate::{
    config::{Activation, DeltaNet, LayerInputs, Mixture, ModelConfig},
    cpu::{Cpu, Gate},
    linear::Weight,
    models::{
        add_bias,
        outline::{LinearOutline, NormOutline},
        sized,
    },
    ranks::{Rank, RankOutputs},
    weights::{Checkpoint, Tensor, WeightsError},
};
pub(in crate::models) use attention::Attention;
pub(in crate::models) use gated_delta::{DeltaScratch, GatedDelta};
pub(in crate::models) use gated_mlp::GatedMlp;
pub(in crate::models) use layer_inputs::{GatedInput, InputTable};
pub(in crate::models) use shared_attention::SharedAttention;
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// A named part of a checkpoint, such as one layer, as far as a rank has it.
pub(in crate::models) struct Part<'a> {
    config: &'a ModelConfig,
    checkpoint: &'a Checkpoint,
    rank: Rank,
    name: String,
    layer: usize,
    /// The stage's first layer.
    first: usize,
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
            first: 0,
            bytes: Cell::new(0),
            expert_bytes: Cell::new(0),
            weights: RefCell::default(),
        }
    }

    /// The same of a stage that begins with that layer of the model.
    pub(super) fn of_stage_from(self, first: usize) -> Self {
        Self { first, ..self }
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

    /// What the layer has in place of attention, and its place among those that have, if it is one.
    pub(in crate::models) fn delta_net(&self) -> Option<(&'a DeltaNet, usize)> {
        Some((self.config.delta_net.as_ref()?, self.config.state_place(self.layer)?))
    }

    /// The layer's place among the stage's with keys and values.
    pub(in crate::models) fn kv_place(&self) -> usize {
        (self.first..self.layer).filter(|layer| self.config.state_place(*layer).is_none()).count()
    }

    /// The layer whose keys and values it reads, if it has none of its own.
    pub(in crate::models) fn kv_of_another(&self) -> Option<usize> {
        self.config.kv_of_another(self.layer)
    }

    /// Width of its MLP.
    pub(in crate::models) fn intermediate(&self) -> usize {
        self.config.intermediate_of(self.layer)
    }

    /// What enters it beside what the layer before it made, if something does.
    pub(in crate::models) fn layer_inputs(&self) -> Option<&'a LayerInputs> {
        self.config.layer_inputs.as_ref()
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

/// How the one half of a gated MLP bends.
fn act(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        // `Keys::gate` lets no gated MLP have the latter.
        Activation::GeluTanh | Activation::Relu => Gate::Gelu,
    }
}
