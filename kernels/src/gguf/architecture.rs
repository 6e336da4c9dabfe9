//! Architectures by llama.cpp's names, and what it and Hugging Face call the same tensors.

use super::{GgufError, Metadata};

/// What is different from architecture to architecture.
#[derive(Debug, PartialEq)]
pub(crate) struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// `model_type` of config.json.
    pub model_type: &'static str,
    /// How the MLP's gate bends.
    pub activation: &'static str,
    /// Whether rows of queries and keys were put in an order where channel `2i` turns with `2i + 1`.
    pub neighbours: bool,
    /// What was added to norm weights when the file was made.
    pub norm_shift: f32,
    /// Whether MLPs are, in some layers, mixtures of experts.
    pub mixture: bool,
    /// Whether the chances of experts that a row passes are divided by their sum, where the file does not say.
    pub normed: bool,
    /// Parts of a layer that are called otherwise than in [`COMMON`].
    parts: &'static [PartNames],
    /// Parts that may have biases.
    biased: &'static [&'static str],
}

/// A part's name in GGUF and in Hugging Face's files.
type PartNames = (&'static str, &'static str);

/// Parts of a layer that all have in common, where they have them.
const COMMON: [PartNames; 12] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_norm", "post_attention_layernorm"),
];
/// Parts of a mixture of experts, whose matrices lie in one tensor each.
const MIXTURE: [PartNames; 8] = [
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
/// Parts whose biases most models here know.
const BIASED: &[&str] = &["attn_q", "attn_k", "attn_v"];
/// Every matrix.
const ALL_BIASED: &[&str] = &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
/// Tensors outside layers.
const OUTSIDE: [PartNames; 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output.weight", "lm_head.weight"),
    ("output_norm.weight", "model.norm.weight"),
];
/// Gemma 4's: what inputs of each layer are made of.
const GEMMA4_OUTSIDE: [PartNames; 3] = [
    (LAYER_INPUTS, "model.embed_tokens_per_layer.weight"),
    ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
    ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
];
/// The table of them.
pub(super) const LAYER_INPUTS: &str = "per_layer_token_embd.weight";
/// What each frequency is divided by (Llama 3), under llama.cpp's name.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The same for long and short texts (Phi 3).
pub(super) const LONG_FACTORS: &str = "rope_factors_long.weight";
pub(super) const SHORT_FACTORS: &str = "rope_factors_short.weight";

/// Norms before and after both halves of a layer.
const FOUR_NORMS: &[PartNames] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Gemma 4's, its layers' factors and their inputs, and the mixture that stands beside an MLP.
const GEMMA4: &[PartNames] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("layer_output_scale", "layer_scalar"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_up_exps", "experts.gate_up_proj"),
    ("ffn_gate_exps", "experts.gate_proj"),
    ("ffn_up_exps", "experts.up_proj"),
    ("ffn_down_exps", "experts.down_proj"),
];
/// What its router and its experts are multiplied by.
const GEMMA4_SCALES: [PartNames; 2] =
    [("ffn_gate_inp.scale", "router.scale"), ("ffn_down_exps.scale", "router.per_expert_scale")];

/// Norms after both halves of a layer.
const POST_NORMS: &[PartNames] =
    &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")];

/// gpt-oss's second norm, and its sinks.
const GPT_OSS: &[PartNames] = &[("post_attention_norm", "post_attention_layernorm"), ("attn_sinks", "self_attn.sinks")];
const GPT_OSS_BIASED: &[&str] =
    &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// Of GLM-4 with experts: its second norm, the bias that chooses, the expert that all rows pass, and layers behind the last, which
/// are not computed.
const GLM4_MOE: &[PartNames] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("exp_probs_b", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("nextn.eh_proj", "nextn.eh_proj"),
    ("nextn.embed_tokens", "nextn.embed_tokens"),
    ("nextn.enorm", "nextn.enorm"),
    ("nextn.hnorm", "nextn.hnorm"),
    ("nextn.shared_head_head", "nextn.shared_head_head"),
    ("nextn.shared_head_norm", "nextn.shared_head_norm"),
];
const GLM4_MOE_BIASED: &[&str] = &["attn_q", "attn_k", "attn_v", "exp_probs_b"];

/// GLM-4's own names for its norms, and one matrix for gate and up.
const GLM4: &[PartNames] = &[
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
];

const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    activation: "silu",
    neighbours: true,
    norm_shift: 0.0,
    mixture: false,
    normed: false,
    parts: &[],
    biased: BIASED,
};
/// Architectures with experts.
const MIXED: Architecture = Architecture { mixture: true, neighbours: false, ..LLAMA };
const GEMMA: Architecture = Architecture {
    name: "gemma",
    model_type: "gemma",
    activation: "gelu_pytorch_tanh",
    neighbours: false,
    norm_shift: 1.0,
    ..LLAMA
};

/// All that are known; whether their forward pass is written, `ModelConfig` says.
const ALL: [Architecture; 20] = [
    LLAMA,
    // Mixtral: Llama with experts, by llama.cpp's names.
    Architecture { model_type: "mixtral", neighbours: true, normed: true, ..MIXED },
    Architecture { name: "qwen2", model_type: "qwen2", neighbours: false, ..LLAMA },
    Architecture { name: "qwen3", model_type: "qwen3", neighbours: false, ..LLAMA },
    Architecture { name: "qwen2moe", model_type: "qwen2_moe", ..MIXED },
    Architecture { name: "qwen3moe", model_type: "qwen3_moe", normed: true, ..MIXED },
    Architecture { name: "olmoe", model_type: "olmoe", ..MIXED },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        neighbours: false,
        parts: &[("ffn_up", "mlp.gate_up_proj")],
        ..LLAMA
    },
    Architecture { name: "smollm3", model_type: "smollm3", ..LLAMA },
    // Granite 3, and of Granite 4 what has neither experts nor state spaces.
    Architecture { name: "granite", model_type: "granite", biased: ALL_BIASED, ..LLAMA },
    // OLMo 3 too, by its windows.
    Architecture { name: "olmo2", model_type: "olmo2", neighbours: false, parts: POST_NORMS, ..LLAMA },
    Architecture { name: "mistral3", model_type: "ministral3", ..LLAMA },
    Architecture { name: "glm4", model_type: "glm4", parts: GLM4, ..LLAMA },
    Architecture { name: "glm4moe", model_type: "glm4_moe", parts: GLM4_MOE, biased: GLM4_MOE_BIASED, ..MIXED },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        normed: true,
        parts: GPT_OSS,
        biased: GPT_OSS_BIASED,
        ..MIXED
    },
    GEMMA,
    Architecture { name: "gemma2", model_type: "gemma2", parts: FOUR_NORMS, ..GEMMA },
    Architecture { name: "gemma3", model_type: "gemma3_text", parts: FOUR_NORMS, ..GEMMA },
    Architecture { name: GEMMA_4, model_type: "gemma4_text", parts: GEMMA4, norm_shift: 0.0, ..GEMMA },
    Architecture {
        name: GEMMA_4,
        model_type: "gemma4_text",
        parts: GEMMA4,
        norm_shift: 0.0,
        mixture: true,
        normed: true,
        ..GEMMA
    },
];
/// Its name there.
pub(super) const GEMMA_4: &str = "gemma4";

impl Architecture {
    /// The one a file names.
    pub(crate) fn of(metadata: &Metadata<'_>) -> Result<&'static Self, GgufError> {
        const KEY: &str = "general.architecture";
        static KNOWN: [Architecture; ALL.len()] = ALL;
        let name = metadata.text(KEY)?.ok_or_else(|| GgufError::Missing(KEY.to_owned()))?;
        let names = || {
            let mut names: Vec<_> = KNOWN.iter().map(|a| a.name).collect();
            names.dedup();
            names.join(", ")
        };
        let experts = metadata.count(&format!("{name}.expert_count"))?.is_some_and(|experts| experts > 0);
        let named = || KNOWN.iter().filter(|a| a.name == name);
        // Of one name there may be one with experts and one without.
        named().find(|a| a.mixture == experts).or_else(|| named().next()).ok_or_else(|| GgufError::Unsupported {
            key: KEY.to_owned(),
            value: name.chars().take(64).collect(),
            supported: format!("{} are", names()),
        })
    }

    /// What Hugging Face's files call a tensor; `None` for one that would change what is computed, and nobody reads.
    pub(crate) fn hugging_face(&self, name: &str) -> Option<String> {
        if let Some((_, theirs)) = self.outside().find(|(ours, _)| *ours == name) {
            return Some((*theirs).to_owned());
        }
        let factors = match name {
            ROPE_FACTORS => ["llama", GEMMA_4].contains(&self.name),
            LONG_FACTORS | SHORT_FACTORS => self.name == "phi3",
            _ => false,
        };
        if factors {
            return Some(name.to_owned());
        }
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer: u32 = layer.parse().ok()?;
        if let Some((_, theirs)) = GEMMA4_SCALES.iter().find(|(ours, _)| self.name == GEMMA_4 && *ours == part) {
            return Some(format!("model.layers.{layer}.{theirs}"));
        }
        let (part, kind) = part.rsplit_once('.')?;
        if kind != "weight" && (kind != "bias" || !self.biased.contains(&part)) {
            return None;
        }
        let (_, theirs) = self.parts().find(|(ours, _)| *ours == part)?;
        Some(format!("model.layers.{layer}.{theirs}.{kind}"))
    }

    /// What the file calls a tensor, for people who look for it there.
    pub(crate) fn in_file(&self, name: &str) -> Option<String> {
        if let Some((ours, _)) = self.outside().find(|(_, theirs)| *theirs == name) {
            return Some((*ours).to_owned());
        }
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, kind) = part.rsplit_once('.')?;
        let (ours, _) = self.parts().find(|(_, theirs)| *theirs == part)?;
        Some(format!("blk.{layer}.{ours}.{kind}"))
    }

    /// Tensors outside layers.
    fn outside(&self) -> impl Iterator<Item = &'static PartNames> + use<> {
        let more: &[PartNames] = if self.name == GEMMA_4 { &GEMMA4_OUTSIDE } else { &[] };
        OUTSIDE.iter().chain(more)
    }

    /// Parts of a layer.
    fn parts(&self) -> impl Iterator<Item = &'static PartNames> + use<'_> {
        let mixture: &[PartNames] = if self.mixture { &MIXTURE } else { &[] };
        // What it calls otherwise has no other name.
        let others = |(ours, theirs): &&PartNames| !self.parts.iter().any(|(own, part)| own == ours || part == theirs);
        self.parts.iter().chain(COMMON.iter().filter(others)).chain(mixture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_one_name_here_and_one_there() {
        for architecture in &ALL {
            for (part, _) in architecture.parts() {
                let name = format!("blk.7.{part}.weight");
                let theirs = architecture.hugging_face(&name).unwrap();
                assert_eq!(architecture.in_file(&theirs).unwrap(), name, "{} {theirs}", architecture.name);
            }
        }
        let [llama, gemma] = ["llama", "gemma2"].map(|name| ALL.iter().find(|a| a.name == name).unwrap());
        let theirs = llama.hugging_face("blk.0.ffn_norm.weight");
        assert_eq!(theirs.as_deref(), Some("model.layers.0.post_attention_layernorm.weight"));
        let theirs = gemma.hugging_face("blk.0.ffn_norm.weight");
        assert_eq!(theirs.as_deref(), Some("model.layers.0.pre_feedforward_layernorm.weight"));
    }

    #[test]
    fn what_nobody_reads_has_no_name() {
        for name in ["blk.0.attn_output.bias", "blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "mm.0.weight", ""] {
            assert_eq!(ALL[0].hugging_face(name), None, "{name}");
        }
        assert_eq!(ALL[2].hugging_face(ROPE_FACTORS), None, "only Llama's forward pass divides by them");
    }
}
