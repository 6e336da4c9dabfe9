//! Ministral 3 (Mistral AI 2025): Mistral without windows, stretched by YaRN, whose queries grow with their position beyond
//! the first training's context.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    llama::LlamaLayer,
};
use crate::{
    config::{Activation, Growth, Keys, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "ministral3",
    class: "Ministral3ForCausalLM",
    ignores: &[],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    const BETA: &str = "llama_4_scaling_beta";
    const EVERY: &str = "original_max_position_embeddings";
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.windows = keys.windows(config.layers, None, |_| true)?;
    let rope = keys.rope()?.ok_or(ModelConfigError::Missing("rope_parameters"))?;
    let beta = rope.number(BETA)?.ok_or(ModelConfigError::Missing(BETA))?;
    let every = rope.count(EVERY)?.ok_or(ModelConfigError::Missing(EVERY))?;
    if beta < 0.0 {
        return Err(rope.refusal(BETA));
    }
    if beta > 0.0 {
        config.growth = Some(Growth { beta, every });
    }
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load(part)?)
}
