//! gpt-oss (OpenAI 2025): mixtures of experts whose gates end somewhere, biases everywhere, a window in every other layer, and
//! in softmax a score of each head for no token at all. Experts are published in MXFP4.

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
    config::{Clamped, Keys, Mixture, ModelConfig, ModelConfigError},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    ignores: &[
        "experts_per_token",
        "initial_context_length",
        "num_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        "hidden_act",
    ],
    reads_quantised: Some("mxfp4"),
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Tokens, where `config.json` has nothing about it.
const WINDOW: usize = 128;
/// Of a gate, where `config.json` has nothing about it.
const USUAL: Clamped = Clamped { sharpness: 1.702, limit: 7.0 };

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.windows = keys.windows(config.layers, Some(WINDOW), |i| i.is_multiple_of(2))?;
    let rope = keys.rope()?.ok_or(ModelConfigError::Missing("rope_scaling"))?;
    if keys.is_null("rope_theta") && rope.is_null("rope_theta") {
        config.rope_theta = 150_000.0;
        config.read_rope(keys, &rope)?;
    }
    let limit = keys.number("swiglu_limit")?.unwrap_or(USUAL.limit);
    if limit <= 0.0 {
        return Err(keys.refusal("swiglu_limit"));
    }
    let sharpness = keys.number("swiglu_alpha")?.unwrap_or(USUAL.sharpness);
    let mixture = Mixture::read(config.layers, keys, "intermediate_size")?;
    config.mixture = Some(Mixture { normed: true, clamped: Some(Clamped { sharpness, limit }), ..mixture });
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?.with_sinks(part)?, Mlp::load(part)?)
}
