//! Qwen2 and Qwen1.5 with experts (Yang et al. 2024): Qwen2 whose MLPs are mixtures of experts beside one that every row
//! passes, and of which a gate of its own says how much a row gets.

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
    model_type: "qwen2_moe",
    class: "Qwen2MoeForCausalLM",
    ignores: &[
        "layer_types",
        "max_window_layers",
        "output_router_logits",
        "qkv_bias",
        "router_aux_loss_coef",
        "sliding_window",
    ],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    const SHARED: &str = "shared_expert_intermediate_size";
    // Experts have no other gate.
    if keys.gate("hidden_act", Activation::Silu)? != Activation::Silu {
        return Err(keys.refusal("hidden_act"));
    }
    let mixture = Mixture::read(config.layers, keys, "moe_intermediate_size")?;
    let shared = Some(Mixture::width(keys, SHARED)?.ok_or(ModelConfigError::Missing(SHARED))?);
    config.mixture = Some(Mixture { shared, ..mixture.of_qwen(keys)? });
    // Which layers have windows, versions of transformers say differently; no published model has one.
    if keys.flag("use_sliding_window")? == Some(true) {
        return Err(keys.refusal("use_sliding_window"));
    }
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, Mlp::load(part)?)
}
