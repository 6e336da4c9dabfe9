//! Gemma 2 (Gemma team 2024): norms before and after attention and MLP, GELU gates, windows in every other layer, scores
//! and logits pressed between caps. Norms' weights are stored as differences from 1, and embeddings are scaled.

use super::{
    Family,
    decoder::{
        self, LayerStep, Scratch,
        parts::{Attention, GatedMlp, Part, RmsNorm},
    },
    outline::{LayerOutline, MixerOutline, MlpOutline},
};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    ignores: &["sliding_window_pattern", "sliding_window_size"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Tokens, where `config.json` has nothing about it.
pub(super) const WINDOW: usize = 4096;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    common(config, keys)?;
    config.windows = keys.windows(config.layers, Some(WINDOW), |i| i.is_multiple_of(2))?;
    config.attention_cap = keys.number_or("attn_logit_softcapping", 50.0)?;
    config.logit_cap = keys.number_or("final_logit_softcapping", 30.0)?;
    Ok(())
}

/// What Gemma 2 and 3 have in common.
pub(super) fn common(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_activation", Activation::GeluTanh)?;
    config.norm_shift = 1.0;
    config.embed_scale = (config.hidden as f32).sqrt();
    config.attention_scale = 1.0 / keys.number("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt();
    config.tied = keys.flag("tie_word_embeddings")?.unwrap_or(true);
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<Gemma2Layer, WeightsError> {
    Gemma2Layer::of(part, Attention::load(part)?, GatedMlp::load(part)?, NORMS)
}

/// Norms of a layer, in the order rows pass them.
pub(super) const NORMS: [&str; 4] =
    ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"];

/// A layer as Gemma 3 and GLM-4 have it too, with other parts.
pub(super) struct Gemma2Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    attention_post_norm: RmsNorm,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
    mlp_post_norm: RmsNorm,
}

impl Gemma2Layer {
    /// A layer of these parts, with norms of these names.
    pub(super) fn of(
        part: &Part<'_>,
        attention: Attention,
        mlp: GatedMlp,
        norms: [&str; 4],
    ) -> Result<Self, WeightsError> {
        let [attention_norm, attention_post_norm, mlp_norm, mlp_post_norm] = norms.map(|name| part.norm(name));
        Ok(Self {
            attention_norm: attention_norm?,
            attention,
            attention_post_norm: attention_post_norm?,
            mlp_norm: mlp_norm?,
            mlp,
            mlp_post_norm: mlp_post_norm?,
        })
    }
}

impl decoder::DecoderLayer for Gemma2Layer {
    fn forward(&self, step: &mut LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch) {
        self.attention_norm.forward(step.cpu, hidden, &mut s.normed);
        self.attention.forward(step, s);
        self.attention_post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(hidden, &s.normed);

        self.mlp_norm.forward(step.cpu, hidden, &mut s.normed);
        self.mlp.forward(step, s);
        self.mlp_post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(hidden, &s.normed);
    }

    fn outline(&self) -> LayerOutline<'_> {
        LayerOutline {
            attention_norm: Some(self.attention_norm.outline()),
            mixer: MixerOutline::Attention(self.attention.outline()),
            attention_post_norm: Some(self.attention_post_norm.outline()),
            mlp_norm: Some(self.mlp_norm.outline()),
            mlp: MlpOutline::Gated(self.mlp.outline()),
            mlp_post_norm: Some(self.mlp_post_norm.outline()),
            factor: 1.0,
        }
    }
}
