//! Qwen3 with experts (Yang et al. 2025): Qwen3 whose MLPs, in most or all layers, are mixtures of experts.

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
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    ignores: &[
        "layer_types",
        "max_window_layers",
        "output_router_logits",
        "router_aux_loss_coef",
        "shared_expert_intermediate_size",
        "sliding_window",
        "use_qk_norm",
    ],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Tokens, where `config.json` has nothing about it.
const WINDOW: usize = 4096;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    // Experts have no other gate.
    if keys.gate("hidden_act", Activation::Silu)? != Activation::Silu {
        return Err(keys.refusal("hidden_act"));
    }
    let mixture = Mixture::read(config.layers, keys, "moe_intermediate_size")?;
    config.mixture = Some(mixture.of_qwen(keys)?);
    if keys.flag("use_sliding_window")? == Some(true) {
        config.windows = keys.windows(config.layers, Some(WINDOW), |_| true)?;
    }
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?.with_head_norms(part)?, Mlp::load(part)?)
}
