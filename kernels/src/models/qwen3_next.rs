//! Qwen3-Next (Qwen 2025) and Qwen3.5: gated delta rules in most layers, attention whose outputs are gated in the others, norms whose
//! weights are differences from 1; a part of each head turns. Qwen3-Next has mixtures of experts, Qwen3.5 has them or MLPs.

use super::{
    Family,
    decoder::{
        self, LayerStep, Scratch,
        experts::Mlp,
        parts::{Attention, GatedDelta, Part, RmsNorm},
    },
    outline::{LayerOutline, MixerOutline, STATES_TOGETHER},
};
use crate::{
    config::{Activation, DeltaNet, Keys, Mixture, ModelConfig, ModelConfigError},
    rope::RopeScaling,
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_next",
    class: "Qwen3NextForCausalLM",
    ignores: &["mtp_num_hidden_layers", "output_router_logits", "router_aux_loss_coef"],
    reads_quantised: None,
    configure: next,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Qwen3.5's text models, dense.
pub(super) static DENSE: Family = DENSE_OF;

/// The same with experts.
pub(super) static EXPERTS: Family =
    Family { model_type: "qwen3_5_moe_text", class: "Qwen3_5MoeForCausalLM", configure: with_experts, ..DENSE_OF };

const DENSE_OF: Family = Family {
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    // Attention is gated whatever is said, and layers that propose tokens are not read.
    ignores: &[
        "attn_output_gate",
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "output_router_logits",
        "router_aux_loss_coef",
    ],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

fn next(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    let mixture = mixture(config.layers, keys)?.of_qwen(keys)?;
    let normed = keys.flag("norm_topk_prob")?.unwrap_or(true);
    config.mixture = Some(Mixture { normed, ..mixture });
    configure(config, keys)
}

fn with_experts(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.mixture = Some(Mixture { normed: true, ..mixture(config.layers, keys)? });
    configure(config, keys)
}

/// With an expert that all rows pass.
fn mixture(layers: usize, keys: &Keys) -> Result<Mixture, ModelConfigError> {
    const SHARED: &str = "shared_expert_intermediate_size";
    let shared = Some(Mixture::width(keys, SHARED)?.ok_or(ModelConfigError::Missing(SHARED))?);
    Ok(Mixture { shared, ..Mixture::read(layers, keys, "moe_intermediate_size")? })
}

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    const PART: &str = "partial_rotary_factor";
    // Convolutions and gates have no other.
    if keys.gate("hidden_act", Activation::Silu)? != Activation::Silu {
        return Err(keys.refusal("hidden_act"));
    }
    config.norm_shift = 1.0;
    let rope = keys.rope()?.unwrap_or_default();
    if keys.is_null(PART) && rope.is_null(PART) {
        // A quarter turns; a stretch was read for all of a head.
        if config.rope_scaling != RopeScaling::None {
            return Err(ModelConfigError::Missing(PART));
        }
        if !config.head_dim.is_multiple_of(8) {
            return Err(keys.refusal("head_dim"));
        }
        config.rope_dim = config.head_dim / 4;
    }
    config.delta_net = Some(DeltaNet::read(config.layers, keys)?);
    config.gpus_lack = Some(STATES_TOGETHER);
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<HybridLayer, WeightsError> {
    Ok(HybridLayer {
        mixer_norm: part.norm("input_layernorm")?,
        mixer: match part.delta_net() {
            Some((net, place)) => Mixer::Delta(Box::new(GatedDelta::load(part, net, place)?)),
            None => Mixer::Attention(Box::new(Attention::load_gated(part)?.with_head_norms(part)?), part.kv_place()),
        },
        mlp_norm: part.norm("post_attention_layernorm")?,
        mlp: Mlp::load(part)?,
    })
}

struct HybridLayer {
    mixer_norm: RmsNorm,
    mixer: Mixer,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// What mixes tokens.
enum Mixer {
    Delta(Box<GatedDelta>),
    /// And the layer's place among those with keys and values.
    Attention(Box<Attention>, usize),
}

impl Mixer {
    fn forward(&self, step: &mut LayerStep<'_, '_>, s: &mut Scratch) {
        match self {
            Self::Delta(delta) => delta.forward(step, s),
            Self::Attention(attention, place) => {
                let LayerStep { cpu, rows, .. } = *step;
                attention.forward(&mut LayerStep { cpu, rows, layer: *place, attend: &mut *step.attend }, s);
            }
        }
    }

    fn outline(&self) -> MixerOutline<'_> {
        match self {
            Self::Delta(delta) => MixerOutline::Delta(delta.outline()),
            Self::Attention(attention, _) => MixerOutline::Attention(attention.outline()),
        }
    }
}

impl decoder::DecoderLayer for HybridLayer {
    fn forward(&self, step: &mut LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch) {
        self.mixer_norm.forward(step.cpu, hidden, &mut s.normed);
        self.mixer.forward(step, s);
        self.mlp_norm.forward_added(step.cpu, hidden, &s.out, &mut s.normed);
        self.mlp.forward(step, s);
        step.cpu.add(hidden, &s.out);
    }

    fn outline(&self) -> LayerOutline<'_> {
        LayerOutline {
            attention_norm: Some(self.mixer_norm.outline()),
            mixer: self.mixer.outline(),
            attention_post_norm: None,
            mlp_norm: Some(self.mlp_norm.outline()),
            mlp: self.mlp.outline(),
            mlp_post_norm: None,
            factor: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Mixture, ModelConfig};

    /// As transformers fills it in, and where that would be another stretch than the one that was read.
    #[test]
    fn a_quarter_of_a_head_turns_where_nothing_is_said() {
        let with = |more: &str| {
            let config = format!(
                r#"{{"model_type":"qwen3_5_text","num_hidden_layers":4,"hidden_size":64,"intermediate_size":64,"vocab_size":64,
                "num_attention_heads":4,"max_position_embeddings":64,"head_dim":32{more}}}"#
            );
            ModelConfig::parse(config.as_bytes()).map(|config| config.rope_dim).map_err(|error| error.to_string())
        };
        assert_eq!((with(""), with(r#","partial_rotary_factor":0.5"#)), (Ok(8), Ok(16)));
        let inside = r#","rope_scaling":{"rope_type":"default","partial_rotary_factor":0.5}"#;
        assert_eq!(with(inside), Ok(16));
        let yarn = r#","rope_scaling":{"rope_type":"yarn","factor":4.0}"#;
        assert!(with(yarn).unwrap_err().contains("partial_rotary_factor"));
        assert!(with(r#","head_dim":36"#).unwrap_err().contains("head_dim"));
    }

    /// What the published 35B-A3B says of its text: which layers have attention, by their types; nothing of how chances are used.
    #[test]
    fn a_published_text_part_is_read() {
        let types =
            ["linear_attention", "linear_attention", "linear_attention", "full_attention"].repeat(2).join("\",\"");
        let config = format!(
            r#"{{"model_type":"qwen3_5_moe","architectures":["Qwen3_5MoeForConditionalGeneration"],"vision_config":{{}},
            "text_config":{{"model_type":"qwen3_5_moe_text","num_hidden_layers":8,"hidden_size":2048,"vocab_size":248320,
            "num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"max_position_embeddings":262144,"layer_types":["{types}"],
            "attn_output_gate":true,"num_experts":256,"num_experts_per_tok":8,"moe_intermediate_size":512,
            "shared_expert_intermediate_size":512,"hidden_act":"silu","rope_parameters":{{"mrope_interleaved":true,
            "mrope_section":[11,11,10],"partial_rotary_factor":0.25,"rope_theta":10000000,"rope_type":"default"}}}}}}"#
        );
        let config = ModelConfig::parse(config.as_bytes()).unwrap();
        assert_eq!((config.blocks(), config.rope_dim, config.rope_theta), (2, 64, 1e7));
        let Some(Mixture { shared, normed, used, .. }) = config.mixture else { panic!("no mixture") };
        assert_eq!((shared, normed, used), (Some(512), true, 8));
        assert!(ModelConfig::parse(br#"{"model_type":"qwen3_5"}"#).unwrap_err().to_string().contains("text_config"));
    }
}
