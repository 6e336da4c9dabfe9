//! GLM-4 of 2025 (0414, and those after it without experts): GLM-4 with norms also behind attention and MLP.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    gemma2::Gemma2Layer,
    glm,
};
use crate::weights::WeightsError;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    class: "Glm4ForCausalLM",
    ignores: &[],
    reads_quantised: None,
    configure: glm::configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Norms of a layer, in the order rows pass them.
const NORMS: [&str; 4] =
    ["input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"];

fn layer(part: &Part<'_>) -> Result<Gemma2Layer, WeightsError> {
    Gemma2Layer::of(part, Attention::load(part)?, GatedMlp::load_fused(part)?, NORMS)
}
