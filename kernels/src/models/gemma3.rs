//! Gemma 3 (Gemma team 2025), its text models: Gemma 2 without caps on scores, with norms over each head's queries and
//! keys, one layer in six without a window, and frequencies of their own for those with one.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    gemma2::{self, Gemma2Layer},
};
use crate::{
    config::{Keys, ModelConfig, ModelConfigError, OtherRope},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    ignores: &["rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    gemma2::common(config, keys)?;
    for unwritten in ["attn_logit_softcapping", "use_bidirectional_attention"] {
        if !(keys.is_null(unwritten) || keys.flag(unwritten).is_ok_and(|on| on == Some(false))) {
            return Err(keys.refusal(unwritten));
        }
    }
    let every = keys.count("sliding_window_pattern")?.or(keys.count("_sliding_window_pattern")?).unwrap_or(6);
    config.windows = keys.windows(config.layers, Some(gemma2::WINDOW), |i| !(i + 1).is_multiple_of(every))?;
    config.logit_cap = keys.number("final_logit_softcapping")?;
    rope(config, keys)
}

/// transformers 5 has parameters by type of layer; 4 has one key for the layers with a window.
fn rope(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    let by_type = keys.within("rope_parameters")?.unwrap_or_default();
    let theta = match by_type.within("sliding_attention")? {
        Some(local) => local.number("rope_theta")?,
        None => keys.number("rope_local_base_freq")?,
    };
    let layers = config.windows.iter().map(Option::is_some).collect();
    config.other_rope = Some(OtherRope { theta: Some(theta.unwrap_or(10_000.0)), layers });
    if keys.is_null("rope_theta") && by_type.is_null("rope_theta") {
        config.rope_theta = 1_000_000.0;
    }
    match by_type.within("full_attention")? {
        Some(full) => config.read_rope(keys, &full),
        None => Ok(()),
    }
}

fn layer(part: &Part<'_>) -> Result<Gemma2Layer, WeightsError> {
    Gemma2Layer::of(part, Attention::load(part)?.with_head_norms(part)?, GatedMlp::load(part)?, gemma2::NORMS)
}
