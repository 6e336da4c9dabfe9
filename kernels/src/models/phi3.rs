//! Phi-3 (Abdin et al. 2024): Llama whose matrices for queries, keys and values are one, as are those for gate and up.
//! Its longer variants stretch their frequencies by LongRoPE (Ding et al. 2024); of those the short factors are read.

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
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    ignores: &["use_sliding_window", "max_window_layers"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.windows = keys.windows(config.layers, None, |_| true)?;
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load_fused(part)?, GatedMlp::load_fused(part)?)
}
