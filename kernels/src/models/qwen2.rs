//! Qwen2 (Yang et al. 2024): Llama with biases on queries, keys and values, and sometimes a window in the upper layers.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    llama::LlamaLayer,
};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    ignores: &["sliding_window", "max_window_layers", "layer_types", "dual_chunk_attention_config", "use_mrope"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Tokens, where `config.json` has nothing about it.
const WINDOW: usize = 4096;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.windows = windows(config.layers, keys)?;
    Ok(())
}

/// Layers from `max_window_layers` on have a window, if any have.
pub(super) fn windows(layers: usize, keys: &Keys) -> Result<Vec<Option<usize>>, ModelConfigError> {
    if keys.flag("use_sliding_window")? != Some(true) {
        return Ok(vec![None; layers]);
    }
    // 0 is written where all have one.
    let below = keys.number("max_window_layers")?.unwrap_or(28.0);
    keys.windows(layers, Some(WINDOW), |i| i as f32 >= below)
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load(part)?)
}
