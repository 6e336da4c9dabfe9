//! OLMo 2 (OLMo team 2024): Llama whose norms stand behind attention and MLP, not before them, with RMS norms over the
//! queries of all heads together, and over their keys, before they turn.

use super::{
    Family,
    decoder::{
        self, LayerStep, Scratch,
        parts::{Attention, GatedMlp, Part, RmsNorm},
    },
    outline::{LayerOutline, MixerOutline, MlpOutline, ROW_NORMS_TOGETHER},
};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    ignores: &[],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// What OLMo 2 and 3 have in common.
pub(super) fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.gpus_lack = Some(ROW_NORMS_TOGETHER);
    Ok(())
}

/// A layer as OLMo 3 has it too.
pub(super) fn layer(part: &Part<'_>) -> Result<Olmo2Layer, WeightsError> {
    Ok(Olmo2Layer {
        attention: Attention::load(part)?.with_row_norms(part)?,
        attention_post_norm: part.norm("post_attention_layernorm")?,
        mlp: GatedMlp::load(part)?,
        mlp_post_norm: part.norm("post_feedforward_layernorm")?,
    })
}

pub(super) struct Olmo2Layer {
    attention: Attention,
    attention_post_norm: RmsNorm,
    mlp: GatedMlp,
    mlp_post_norm: RmsNorm,
}

impl decoder::DecoderLayer for Olmo2Layer {
    fn forward(&self, step: &mut LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch) {
        as_they_are(hidden, s);
        self.attention.forward(step, s);
        self.attention_post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(hidden, &s.normed);

        as_they_are(hidden, s);
        self.mlp.forward(step, s);
        self.mlp_post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(hidden, &s.normed);
    }

    fn outline(&self) -> LayerOutline<'_> {
        LayerOutline {
            attention_norm: None,
            mixer: MixerOutline::Attention(self.attention.outline()),
            attention_post_norm: Some(self.attention_post_norm.outline()),
            mlp_norm: None,
            mlp: MlpOutline::Gated(self.mlp.outline()),
            mlp_post_norm: Some(self.mlp_post_norm.outline()),
            factor: 1.0,
        }
    }
}

/// Rows for a part to read that no norm stands before.
fn as_they_are(hidden: &[f32], s: &mut Scratch) {
    s.normed.clear();
    s.normed.extend_from_slice(hidden);
}
