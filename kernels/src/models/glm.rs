//! GLM-4 of 2024 (Zeng et al. 2024), as transformers has it: Llama of which half of each head turns, channels beside each
//! other, with biases of queries, keys and values and with one matrix for gate and up.

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
    rope::RopePairs,
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "glm",
    class: "GlmForCausalLM",
    ignores: &[],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// What both kinds have in common.
pub(super) fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.norm_eps = keys.number("rms_norm_eps")?.unwrap_or(1.562_5e-7);
    config.rope_pairs = RopePairs::Neighbours;
    let rope = keys.within("rope_parameters")?.unwrap_or_default();
    if keys.is_null("partial_rotary_factor") && rope.is_null("partial_rotary_factor") {
        config.rope_dim = config.head_dim / 4 * 2;
    }
    if config.rope_dim == 0 {
        return Err(keys.refusal("head_dim"));
    }
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load_fused(part)?)
}
