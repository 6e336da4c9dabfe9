//! Mistral 7B (Jiang et al. 2023): Llama whose rows see a window of the tokens before them. What they saw has seen as
//! far in turn, so that information still travels a window per layer.

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
    model_type: "mistral",
    class: "MistralForCausalLM",
    ignores: &["max_window_layers", "use_sliding_window"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Tokens, where `config.json` has nothing about it.
const WINDOW: usize = 4096;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.windows = keys.windows(config.layers, Some(WINDOW), |_| true)?;
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load(part)?)
}
