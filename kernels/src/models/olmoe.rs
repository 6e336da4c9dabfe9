//! OLMoE (Muennighoff et al. 2024): Llama whose MLPs are mixtures of experts, with RMS norms over the queries of all heads
//! together, and over their keys, before they turn.

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
    model_type: "olmoe",
    class: "OlmoeForCausalLM",
    ignores: &["output_router_logits", "router_aux_loss_coef"],
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
    let mixture = Mixture::read(config.layers, keys, "intermediate_size")?;
    config.mixture = Some(Mixture { normed: keys.flag("norm_topk_prob")?.unwrap_or(false), ..mixture });
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?.with_row_norms(part)?, Mlp::load(part)?)
}
