//! Qwen3 (Yang et al. 2025): Llama with RMS norms over each head's queries and keys before they turn, without biases.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    llama::LlamaLayer,
    qwen2,
};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    ignores: &["sliding_window", "max_window_layers", "layer_types", "use_qk_norm"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.windows = qwen2::windows(config.layers, keys)?;
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?.with_head_norms(part)?, GatedMlp::load(part)?)
}
