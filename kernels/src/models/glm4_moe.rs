//! GLM-4.5 to 4.7 (Zeng et al. 2025): mixtures of experts behind some layers with MLPs. Experts are chosen by a sigmoid each
//! and a bias, and stand beside one that every row passes; a part of each head turns.

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
    model_type: "glm4_moe",
    class: "Glm4MoeForCausalLM",
    // Layers behind the last, which propose tokens, are not computed.
    ignores: &["num_nextn_predict_layers", "num_mtp_layers", "output_router_logits", "router_aux_loss_coef"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Layers with MLPs, where `config.json` has nothing about it.
const DENSE: f32 = 1.0;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    // Experts have no other gate.
    if keys.gate("hidden_act", Activation::Silu)? != Activation::Silu {
        return Err(keys.refusal("hidden_act"));
    }
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.head_norms = keys.flag("use_qk_norm")?.unwrap_or(false);
    let rope = keys.within("rope_parameters")?.unwrap_or_default();
    if keys.is_null("partial_rotary_factor") && rope.is_null("partial_rotary_factor") {
        config.rope_dim = config.head_dim / 4 * 2;
    }
    if config.rope_dim == 0 {
        return Err(keys.refusal("head_dim"));
    }
    config.mixture = Some(mixture(config.layers, keys)?);
    Ok(())
}

fn mixture(layers: usize, keys: &Keys) -> Result<Mixture, ModelConfigError> {
    const SHARED: &str = "n_shared_experts";
    // Of several groups a row would pass some, and experts of those alone.
    for key in ["n_group", "topk_group"] {
        if keys.count(key)?.is_some_and(|groups| groups != 1) {
            return Err(keys.refusal(key));
        }
    }
    let mixture = Mixture::read(layers, keys, "moe_intermediate_size")?;
    let dense = keys.number("first_k_dense_replace")?.unwrap_or(DENSE);
    if !(0.0..layers as f32).contains(&dense) {
        return Err(keys.refusal("first_k_dense_replace"));
    }
    let shared = keys.count(SHARED)?.unwrap_or(1).checked_mul(mixture.width);
    let scale = keys.number("routed_scaling_factor")?.unwrap_or(1.0);
    if scale <= 0.0 {
        return Err(keys.refusal("routed_scaling_factor"));
    }
    Ok(Mixture {
        shared: Some(shared.filter(|width| *width <= Mixture::WIDEST).ok_or_else(|| keys.refusal(SHARED))?),
        normed: keys.flag("norm_topk_prob")?.unwrap_or(true),
        sigmoid: Some(scale),
        layers: (0..layers).map(|layer| layer as f32 >= dense).collect(),
        ..mixture
    })
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    let attention = Attention::load(part)?;
    let attention = if part.has_head_norms() { attention.with_head_norms(part)? } else { attention };
    LlamaLayer::of(part, attention, Mlp::load(part)?)
}
