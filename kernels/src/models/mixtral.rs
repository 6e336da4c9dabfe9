//! Mixtral (Jiang et al. 2024): Mistral whose MLPs are mixtures of experts, mostly two of eight to a row.

use super::{
    Family,
    decoder::{
        self,
        experts::Mlp,
        parts::{Attention, Part},
    },
    llama::LlamaLayer,
};
use crate::{
    config::{Activation, Keys, Mixture, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    ignores: &["max_window_layers", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    // Experts have no other gate.
    if keys.gate("hidden_act", Activation::Silu)? != Activation::Silu {
        return Err(keys.refusal("hidden_act"));
    }
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.windows = keys.windows(config.layers, None, |_| true)?;
    let mixture = Mixture::read(config.layers, keys, "intermediate_size")?;
    config.mixture = Some(Mixture { normed: true, ..mixture });
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, Mlp::load(part)?)
}
