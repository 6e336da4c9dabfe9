//! Granite 4 (IBM 2025), its models without experts and without state spaces: Granite 3 whose MLP's matrices for gate and
//! up are one, and whose queries and keys may not turn at all.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    granite,
    llama::LlamaLayer,
};
use crate::{
    config::{Keys, ModelConfig, ModelConfigError, OtherRope},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    class: "GraniteMoeHybridForCausalLM",
    ignores: &[
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_d_conv",
        "mamba_d_head",
        "mamba_d_state",
        "mamba_expand",
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_proj_bias",
        "normalization_function",
        "num_experts_per_tok",
        "output_router_logits",
        "router_aux_loss_coef",
        "time_step_limit",
        "time_step_max",
        "time_step_min",
        "time_step_floor",
    ],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// What a layer is called that has attention, by both versions of transformers.
const ATTENTION: [&str; 2] = ["attention", "full_attention"];

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    const WIDTH: &str = "shared_intermediate_size";
    // As many as eight where it is not said.
    if keys.is_null("num_local_experts") || keys.number("num_local_experts")? != Some(0.0) {
        return Err(keys.refusal("num_local_experts"));
    }
    // Without the list all layers are state spaces.
    let listed = ["layer_types", "layers_block_type"].into_iter().find(|key| !keys.is_null(key));
    let key = listed.unwrap_or("layer_types");
    let types = keys.words(key);
    if types.len() != config.layers || !types.iter().all(|layer| ATTENTION.contains(layer)) {
        return Err(keys.refusal(key));
    }
    config.intermediate =
        keys.count(WIDTH)?.filter(|width| *width <= WIDEST).ok_or(ModelConfigError::Missing(WIDTH))?;
    match keys.text("position_embedding_type")? {
        Some("rope") => {}
        None | Some("nope") => config.other_rope = Some(OtherRope { theta: None, layers: vec![true; config.layers] }),
        Some(_) => return Err(keys.refusal("position_embedding_type")),
    }
    granite::configure(config, keys)
}

/// Widest MLP.
const WIDEST: usize = 1 << 22;

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    let mlp = GatedMlp::load_fused_as(part, ["shared_mlp.input_linear", "shared_mlp.output_linear"])?;
    LlamaLayer::of(part, Attention::load(part)?, mlp)
}
