//! Llama 1–3 (Touvron et al. 2023) and SmolLM: RMS norms before attention and MLP, rotary positions, SiLU gates.

use super::{
    Family,
    decoder::{
        self, LayerStep, Scratch,
        experts::Mlp,
        parts::{Attention, GatedMlp, Part, RmsNorm},
    },
    outline::{LayerOutline, MixerOutline},
};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    ignores: &["is_llama_config", "max_window_layers", "use_sliding_window"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    if keys.count("sliding_window")?.is_some_and(|w| w < config.context) {
        return Err(keys.refusal("sliding_window"));
    }
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load(part)?)
}

/// A layer as Mistral, Qwen and Phi have it too, with other parts.
pub(super) struct LlamaLayer {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl LlamaLayer {
    /// A layer of these parts, with its norms.
    pub(super) fn of(part: &Part<'_>, attention: Attention, mlp: impl Into<Mlp>) -> Result<Self, WeightsError> {
        let attention_norm = part.norm("input_layernorm")?;
        let mlp_norm = part.norm("post_attention_layernorm")?;
        Ok(Self { attention_norm, attention, mlp_norm, mlp: mlp.into() })
    }
}

impl decoder::DecoderLayer for LlamaLayer {
    fn forward(&self, step: &mut LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch) {
        self.attention_norm.forward(step.cpu, hidden, &mut s.normed);
        self.attention.forward(step, s);
        self.mlp_norm.forward_added(step.cpu, hidden, &s.out, &mut s.normed);
        self.mlp.forward(step, s);
        step.cpu.add(hidden, &s.out);
    }

    fn outline(&self) -> LayerOutline<'_> {
        LayerOutline {
            attention_norm: Some(self.attention_norm.outline()),
            mixer: MixerOutline::Attention(self.attention.outline()),
            attention_post_norm: None,
            mlp_norm: Some(self.mlp_norm.outline()),
            mlp: self.mlp.outline(),
            mlp_post_norm: None,
            factor: 1.0,
        }
    }
}
