//! `config.json` of a Hugging Face checkpoint, in the form of transformers 4 and 5.

mod coding;
mod delta_net;
mod keys;
mod layer_inputs;
mod mixture;
mod rope;
mod text_model;
mod unread;
mod wide_heads;

pub use delta_net::DeltaNet;
pub(crate) use keys::Keys;
pub use layer_inputs::{LayerInputs, SharedKv};
pub use mixture::{Clamped, Mixture};
pub use wide_heads::{KvHeads, WideHeads};

use crate::{
    models::{self, Family},
    pages::PAGE_BYTES,
    rope::{RopePairs, RopeScaling},
    stored::Coding,
};
use tsnode_protocol::{Experts, ModelShape, codec::CodecError, limits};

/// What is between an MLP's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`, multiplied by the other half of a gated MLP.
    Silu,
    /// GELU by its tanh form, multiplied by the other half of a gated MLP.
    GeluTanh,
    /// `max(x, 0)`, of an MLP without a gate.
    Relu,
}

/// A model's configuration, checked. What differs between families in numbers is here; what differs in structure is in
/// the family's file.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which forward pass.
    pub family: &'static Family,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// What some or all layers have in place of an MLP.
    pub mixture: Option<Mixture>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, as many as pages have.
    pub kv_heads: usize,
    /// Heads by layer, where those of some are wider than those of others.
    pub wide_heads: Option<WideHeads>,
    /// Layers at the end that read the keys and values of others.
    pub shared_kv: Option<SharedKv>,
    /// Layers that keep a state of a sequence in place of keys and values; attention of the others is gated.
    pub delta_net: Option<DeltaNet>,
    /// What enters each layer beside what the one before it made.
    pub layer_inputs: Option<LayerInputs>,
    /// Width of one head.
    pub head_dim: usize,
    /// Entries in the vocabulary.
    pub vocab: usize,
    /// Longest sequence (tokens).
    pub context: usize,
    /// Between an MLP's matrices.
    pub activation: Activation,
    /// Added under the root of norms.
    pub norm_eps: f32,
    /// Added to the weights of norms: 1 where they are stored as differences from it (Gemma).
    pub norm_shift: f32,
    /// What embeddings are multiplied by.
    pub embed_scale: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Their stretch.
    pub rope_scaling: RopeScaling,
    /// The stretch and the context of sequences longer than the first training's, where a model has another for them.
    pub long: Option<(RopeScaling, usize)>,
    /// Which channels turn together; GGUF files of Llama have them next to each other.
    pub rope_pairs: RopePairs,
    /// Channels of a head that turn, from the first on.
    pub rope_dim: usize,
    /// How heads turn in some layers, where it is otherwise than in the rest.
    pub other_rope: Option<OtherRope>,
    /// How queries grow with their position, where they do (Ministral 3).
    pub growth: Option<Growth>,
    /// Whether each head's queries and keys are normed, where a family has models with and without.
    pub head_norms: bool,
    /// What products of queries and keys are multiplied by.
    pub attention_scale: f32,
    /// Largest size of an attention score, approached smoothly.
    pub attention_cap: Option<f32>,
    /// Tokens that a row of each layer sees, itself included; all where there is none.
    pub windows: Vec<Option<usize>>,
    /// Largest size of a logit, approached smoothly.
    pub logit_cap: Option<f32>,
    /// What logits are multiplied by, as the last norm's weights are.
    pub logit_scale: f32,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// How matrices are stored that are not of 16 or 32 bits.
    pub coding: Option<Coding>,
    /// What of it no kernels for GPUs are written for.
    pub gpu_lacks: Option<&'static str>,
    /// What of it several GPUs do not compute together.
    pub gpus_lack: Option<&'static str>,
    /// What was decided where the file says too little or too much, a line each.
    pub notes: Vec<String>,
}

/// How heads turn in some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherRope {
    /// Base of their frequencies, which are not stretched; none where they do not turn.
    pub theta: Option<f32>,
    /// Which layers.
    pub layers: Vec<bool>,
}

/// How queries grow with their position: by `1 + beta · ln(1 + ⌊position / every⌋)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// How fast.
    pub beta: f32,
    /// Tokens from one step to the next.
    pub every: usize,
}

impl Growth {
    /// What a query at `position` is multiplied by.
    #[must_use]
    pub fn at(self, position: u32) -> f32 {
        1.0 + self.beta * libm::logf(1.0 + (position as usize / self.every) as f32)
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelConfigError {
    /// Not JSON, or not of the expected form.
    #[error("config.json: {0}")]
    Json(String),
    /// A model type whose forward pass is not written.
    #[error("config.json: model type {0:?} is not supported; {known} are", known = models::types().join(", "))]
    Family(String),
    /// Nothing that says which forward pass.
    #[error(
        "config.json: model_type is missing, and architectures names none of {known}",
        known = models::classes().join(", ")
    )]
    NoFamily,
    /// A key that every model has.
    #[error("config.json: {0} is missing: get the file again")]
    Missing(&'static str),
    /// Weights that are to be multiplied by scales that nobody here reads.
    #[error(
        "config.json: {key} says that the weights are quantised by {by}, which is not read: get the model in 16 bits, or as \
         a GGUF file"
    )]
    Quantised {
        /// Where it says so.
        key: &'static str,
        /// The method.
        by: String,
    },
    /// A way of quantising of which this is not read.
    #[error(
        "config.json: {key} says that the weights are quantised by {by}, with {what}: get the model in 16 bits, or as a GGUF file"
    )]
    Coding {
        /// Where it says so.
        key: &'static str,
        /// The method.
        by: String,
        /// What of it, and what would be read.
        what: String,
    },
    /// A part of the architecture that is not written.
    #[error("config.json: {what} = {value} is not supported")]
    Unsupported {
        /// The key.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// Numbers that no model has.
    #[error("config.json: {0}")]
    Shape(CodecError),
}

impl ModelConfig {
    /// Numbers in the matrices that a row passes in a layer, on average over those that plans count.
    #[must_use]
    pub fn layer_numbers(&self) -> u64 {
        let router = self.mixture.as_ref().map_or(0.0, |m| m.part() * self.layers_of_a_block() * m.experts as f64);
        let mlps = self.matrices() * self.passed_width() + router as usize;
        let attention = (0..self.layers).map(|layer| self.attention_width(layer)).sum::<usize>();
        // A layer's are made by rows of a matrix, gated by a second one, and brought back by a third.
        let inputs = 3 * self.input_numbers();
        (self.hidden * ((attention + inputs).div_ceil(self.blocks()) + mlps)) as u64
    }

    /// Numbers in the matrices of all experts of a layer, on average over those that plans count.
    fn expert_numbers(&self) -> u64 {
        let of_layer = |m: &Mixture| m.part() * (m.experts * self.matrices() * m.width * self.hidden) as f64;
        self.mixture.as_ref().map_or(0, |m| (self.layers_of_a_block() * of_layer(m)) as u64)
    }

    /// Matrices of an MLP; those without a gate are those of ReLU.
    fn matrices(&self) -> usize {
        if self.activation == Activation::Relu { 2 } else { 3 }
    }

    /// Width of all MLPs that a row passes in a layer, on average over those that plans count.
    fn passed_width(&self) -> usize {
        let Some(mixture) = &self.mixture else {
            if self.delta_net.is_some() {
                return (self.layers * self.intermediate).div_ceil(self.blocks());
            }
            // Numbers that nobody has looked at yet are of models with none.
            let Some(shared) = &self.shared_kv else { return self.intermediate };
            let all = self.blocks() * self.intermediate + shared.of.len() * shared.intermediate;
            return all.div_ceil(self.blocks());
        };
        let passed = |has: &bool| if *has { mixture.passed() } else { self.intermediate };
        mixture.layers.iter().map(passed).sum::<usize>().div_ceil(self.blocks())
    }

    /// Width of all MLPs that a row passes in one layer, where that is most.
    pub(crate) fn widest(&self) -> usize {
        let Some(mixture) = &self.mixture else {
            return self.shared_kv.as_ref().map_or(self.intermediate, |shared| shared.intermediate);
        };
        let dense = if mixture.layers.contains(&false) { self.intermediate } else { 0 };
        dense.max(mixture.passed())
    }

    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// When it is not JSON, out of bounds, or asks for what is not written.
    pub fn parse(json: &[u8]) -> Result<Self, ModelConfigError> {
        let keys = text_model::keys(Keys::parse(json)?)?;
        let mut notes = Vec::new();
        let family = family(&keys, &mut notes)?;
        let mut config = Self::usual(family, &keys, notes)?;
        config.shape(0, 0, 0).check().map_err(ModelConfigError::Shape)?;
        // Only now: numbers of layers and heads are known to be small.
        config.windows = vec![None; config.layers];
        config.coding = coding::read(&keys, family.reads_quantised)?;
        rope::read(&mut config, &keys)?;
        (family.configure)(&mut config, &keys)?;
        config.shape(0, 0, 0).check().map_err(ModelConfigError::Shape)?;
        config.check()?;
        let unknown = unread::check(&config, &keys)?;
        config.notes.extend(unknown);
        Ok(config)
    }

    /// What a family's file changes where it differs.
    fn usual(family: &'static Family, keys: &Keys, mut notes: Vec<String>) -> Result<Self, ModelConfigError> {
        let (hidden, heads) = (keys.needed("hidden_size")?, keys.needed("num_attention_heads")?);
        let head_dim = keys.optional("head_dim")?.unwrap_or(hidden / heads.max(1)) as usize;
        let inner = keys.optional("intermediate_size")?.or(keys.optional("ffn_dim")?);
        // Of models with experts in all layers.
        let inner = if inner.is_some() { inner } else { keys.optional("moe_intermediate_size")? };
        Ok(Self {
            family,
            layers: keys.needed("num_hidden_layers")? as usize,
            hidden: hidden as usize,
            intermediate: inner.unwrap_or(0) as usize,
            mixture: None,
            heads: heads as usize,
            kv_heads: keys.optional("num_key_value_heads")?.unwrap_or(heads) as usize,
            wide_heads: None,
            shared_kv: None,
            delta_net: None,
            layer_inputs: None,
            head_dim,
            vocab: keys.needed("vocab_size")? as usize,
            context: context(keys, &mut notes)?,
            activation: Activation::Silu,
            norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            norm_shift: 0.0,
            embed_scale: 1.0,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            long: None,
            rope_pairs: keys.rope_pairs()?,
            rope_dim: head_dim,
            other_rope: None,
            growth: None,
            head_norms: false,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            attention_cap: None,
            windows: Vec::new(),
            logit_cap: None,
            logit_scale: 1.0,
            coding: None,
            gpu_lacks: None,
            gpus_lack: None,
            tied: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            notes,
        })
    }

    /// Reads rotary positions from the parameters `rope`, where a family has them in another place.
    pub(crate) fn read_rope(&mut self, keys: &Keys, rope: &Keys) -> Result<(), ModelConfigError> {
        rope::read_from(self, keys, rope)
    }

    fn check(&self) -> Result<(), ModelConfigError> {
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let other = self.other_rope.as_ref().and_then(|other| other.theta);
        let thetas = positive(self.rope_theta) && other.is_none_or(positive);
        let norms = self.norm_eps.is_finite() && self.head_dim.is_multiple_of(2);
        if !(thetas && norms) {
            return Err(ModelConfigError::Shape(CodecError::Invalid(
                "rope_theta, norm epsilon or head_dim out of range",
            )));
        }
        let caps = [self.attention_cap, self.logit_cap].into_iter().flatten().all(positive);
        if !(caps && positive(self.attention_scale) && positive(self.embed_scale) && positive(self.logit_scale)) {
            return Err(ModelConfigError::Shape(CodecError::Invalid(
                "scale or cap of embeddings, attention or logits out of range",
            )));
        }
        Ok(())
    }

    /// The shape that planning has for a model whose weights are not at hand: of 16 bits each.
    #[must_use]
    pub fn shape_in_16_bit(&self) -> ModelShape {
        let table = 2 * (self.vocab * self.hidden) as u64;
        let used = self.mixture.as_ref().map_or(0.0, |m| m.used as f64 / m.experts as f64);
        let all = self.expert_numbers();
        let unused = all - (used * all as f64) as u64;
        let inputs = self.layer_inputs.map_or(0, |inputs| 2 * (inputs.tokens * self.input_numbers()) as u64);
        let mut shape = self.shape(2 * (self.layer_numbers() + unused), table + inputs, table);
        shape.experts.iter_mut().for_each(|experts| experts.bytes = 2 * all);
        shape
    }

    /// The shape others plan by, with the bytes the weights take, but those of experts.
    #[must_use]
    pub fn shape(&self, layer_bytes: u64, embed_bytes: u64, head_bytes: u64) -> ModelShape {
        ModelShape {
            layers: self.blocks() as u32,
            hidden: self.hidden as u32,
            intermediate: u32::try_from(self.passed_width()).unwrap_or(u32::MAX),
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            vocab: self.vocab as u32,
            context: self.context as u32,
            layer_bytes,
            embed_bytes,
            head_bytes,
            experts: self.mixture.as_ref().map(|m| Experts { count: m.experts as u32, used: m.used as u32, bytes: 0 }),
            whole: self.is_whole(),
            state_bytes: (self.states().pages() * PAGE_BYTES) as u64,
        }
    }
}

/// Which forward pass: by `model_type` as transformers has it; where that is missing by `architectures`, as vLLM has it.
fn family(keys: &Keys, notes: &mut Vec<String>) -> Result<&'static Family, ModelConfigError> {
    let short = |text: &str| text.chars().take(64).collect::<String>();
    let classes = keys.words("architectures");
    let Some(model_type) = keys.text("model_type")?.filter(|name| !name.is_empty()) else {
        let family =
            classes.iter().find_map(|class| models::family_of_class(class)).ok_or(ModelConfigError::NoFamily)?;
        notes.push(format!("config.json: model_type is missing, architectures say that it is {family:?}"));
        return Ok(family);
    };
    let family = models::family(model_type).ok_or_else(|| ModelConfigError::Family(short(model_type)))?;
    if let Some(class) = classes.first().filter(|class| !class.eq_ignore_ascii_case(family.class())) {
        let class: String = short(class).escape_default().collect();
        notes
            .push(format!("config.json: architectures name {class}, it is computed as its model_type {family:?} says"));
    }
    Ok(family)
}

/// The longest sequence, within what one may have.
fn context(keys: &Keys, notes: &mut Vec<String>) -> Result<usize, ModelConfigError> {
    const KEY: &str = "max_position_embeddings";
    let (said, most) = (keys.length(KEY)?.ok_or(ModelConfigError::Missing(KEY))?, limits::SEQUENCE_TOKENS);
    if said > f64::from(most) {
        notes.push(format!("config.json: {KEY} is {said}, sequences end at {most} tokens"));
    }
    Ok(said.min(f64::from(most)) as usize)
}

#[cfg(test)]
mod tests;
