//! Granite 3 (IBM 2024): Llama with factors of embeddings, scores, logits, and of what each part adds to the rows.
//!
//! Rows are kept divided by that last factor: what parts add is then added as it is, and norms do not see the difference
//! but in what they add under the root.

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
    model_type: "granite",
    class: "GraniteForCausalLM",
    ignores: &[],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// What Granite 3 and 4 have in common.
pub(super) fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    let factor = |key| match keys.number(key)?.unwrap_or(1.0) {
        factor if factor > 0.0 => Ok(factor),
        _ => Err(keys.refusal(key)),
    };
    let added = factor("residual_multiplier")?;
    config.embed_scale = factor("embedding_multiplier")? / added;
    config.norm_eps /= added * added;
    config.attention_scale = factor("attention_multiplier")?;
    config.logit_scale = 1.0 / factor("logits_scaling")?;
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load(part)?)
}
