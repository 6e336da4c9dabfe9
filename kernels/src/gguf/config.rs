//! config.json from metadata and shapes. Whether such a model can be run, `ModelConfig` decides, as for any folder.

mod gemma4;

use super::{
    GgufError, Metadata, MetadataValue,
    architecture::{Architecture, GEMMA_4, LONG_FACTORS, SHORT_FACTORS},
    shapes::Shapes,
    tokenizer::special::Special,
};
use serde::Serialize;
use tsnode_protocol::limits;

/// What is written, under Hugging Face's names.
#[derive(Serialize)]
struct ConfigJson {
    model_type: &'static str,
    num_hidden_layers: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    vocab_size: u32,
    max_position_embeddings: u32,
    rms_norm_eps: f32,
    rope_theta: f32,
    tie_word_embeddings: bool,
    hidden_act: &'static str,
    hidden_activation: &'static str,
    #[serde(flatten)]
    optional: Optional,
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token_id: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    eos_token_id: Vec<u32>,
    /// Ours: see `ModelConfig::rope_pairs`.
    tsnode_rope_pairs: &'static str,
}

/// What not every model has.
#[derive(Serialize, Default)]
struct Optional {
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_scaling: Option<Scaling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_rotary_factor: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sliding_window: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sliding_window_pattern: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer_types: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_local_base_freq: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attn_logit_softcapping: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    final_logit_softcapping: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query_pre_attn_scalar: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding_multiplier: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    residual_multiplier: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention_multiplier: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits_scaling: Option<f32>,
    #[serde(flatten)]
    mixture: Option<MixtureKeys>,
    #[serde(flatten)]
    gemma4: Option<gemma4::Gemma4Keys>,
}

/// What models with experts have, under the names that their families read.
#[derive(Serialize)]
struct MixtureKeys {
    num_experts: u32,
    num_experts_per_tok: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    norm_topk_prob: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moe_intermediate_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mlp_only_layers: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_expert_intermediate_size: Option<u32>,
    #[serde(flatten)]
    glm: Option<Glm>,
}

/// What GLM's mixtures have more.
#[derive(Serialize)]
struct Glm {
    n_shared_experts: u32,
    routed_scaling_factor: f32,
    first_k_dense_replace: u32,
    use_qk_norm: bool,
}

#[derive(Serialize)]
struct Scaling {
    rope_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention_factor: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    long_factor: Option<Vec<f32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    short_factor: Option<Vec<f32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beta_fast: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beta_slow: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncate: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mscale: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mscale_all_dim: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    llama_4_scaling_beta: Option<f32>,
}

/// What llama.cpp computes by in some architecture and nobody does here, with the values that change nothing: 0 where there
/// is one, else 1.
const UNREAD: [(&str, &[f64]); 12] = [
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.causal", &[1.0]),
    ("attention.q_lora_rank", &[0.0]),
    ("attention.kv_lora_rank", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("rope.dimension_sections", &[0.0]),
    ("use_parallel_residual", &[0.0]),
    ("swin_norm", &[0.0]),
];

/// The same but in some architectures.
const UNREAD_BUT_IN: [(&str, &[f64], &str); 11] = [
    (gemma4::SHARED, &[0.0], GEMMA_4),
    (gemma4::INPUTS, &[0.0], GEMMA_4),
    ("logit_scale", &[0.0, 1.0], GRANITE),
    ("residual_scale", &[0.0, 1.0], GRANITE),
    ("embedding_scale", &[0.0, 1.0], GRANITE),
    ("attention.temperature_scale", &[0.0], MINISTRAL),
    ("expert_shared_count", &[0.0], GLM),
    ("expert_weights_scale", &[0.0, 1.0], GLM),
    // Softmax.
    ("expert_gating_func", &[0.0, 1.0], GLM),
    ("leading_dense_block_count", &[0.0], GLM),
    ("nextn_predict_layers", &[0.0], GLM),
];
const GRANITE: &str = "granite";
const MINISTRAL: &str = "mistral3";
const OLMO: &str = "olmo2";
const GPT_OSS: &str = "gpt-oss";
const GLM: &str = "glm4moe";

/// Metadata of one architecture: keys begin with its name.
struct ArchitectureKeys<'m, 'a> {
    metadata: &'m Metadata<'a>,
    architecture: &'static Architecture,
}

impl ArchitectureKeys<'_, '_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    fn count(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.metadata.count(&self.key(key))
    }

    fn needed(&self, key: &str) -> Result<u32, GgufError> {
        self.count(key)?.ok_or_else(|| GgufError::Missing(self.key(key)))
    }

    fn real(&self, key: &str) -> Result<Option<f32>, GgufError> {
        Ok(self.metadata.real(&self.key(key))?.map(|number| number as f32))
    }

    fn needed_real(&self, key: &str) -> Result<f32, GgufError> {
        self.real(key)?.ok_or_else(|| GgufError::Missing(self.key(key)))
    }

    fn refuse(&self, key: &str, value: impl ToString, supported: &str) -> Result<(), GgufError> {
        Err(GgufError::Unsupported { key: self.key(key), value: value.to_string(), supported: supported.to_owned() })
    }
}

/// The file's bytes.
pub(super) fn json(
    metadata: &Metadata<'_>,
    architecture: &'static Architecture,
    shapes: &Shapes<'_, '_>,
    special: &Special,
) -> Result<Vec<u8>, GgufError> {
    let keys = ArchitectureKeys { metadata, architecture };
    let heads = keys.needed("attention.head_count")?;
    let hidden = keys.needed("embedding_length")?;
    let width = if architecture.name == GEMMA_4 { gemma4::NARROW } else { "attention.key_length" };
    let head_dim = match keys.count(width)? {
        Some(width) => width,
        None => hidden / heads.max(1),
    };
    refuse_variants(&keys, head_dim)?;
    let pairs = if architecture.neighbours { "neighbours" } else { "halves" };
    let config = ConfigJson {
        model_type: match architecture.name {
            OLMO if keys.count("attention.sliding_window")?.is_some_and(|window| window > 0) => "olmo3",
            _ => architecture.model_type,
        },
        num_hidden_layers: layers(&keys)?,
        hidden_size: hidden,
        intermediate_size: if architecture.name == GEMMA_4 {
            gemma4::intermediate(&keys)?
        } else {
            intermediate(&keys)?
        },
        num_attention_heads: heads,
        num_key_value_heads: match architecture.name {
            GEMMA_4 => gemma4::narrow_heads(&keys, heads)?,
            _ => keys.count("attention.head_count_kv")?.unwrap_or(heads),
        },
        head_dim,
        vocab_size: shapes.rows("token_embd.weight")?,
        max_position_embeddings: keys.needed("context_length")?,
        rms_norm_eps: keys.needed_real("attention.layer_norm_rms_epsilon")?,
        rope_theta: keys.real("rope.freq_base")?.unwrap_or(10_000.0),
        tie_word_embeddings: !shapes.has("output.weight"),
        hidden_act: architecture.activation,
        hidden_activation: architecture.activation,
        optional: optional(&keys, shapes, head_dim)?,
        bos_token_id: special.bos,
        eos_token_id: special.ends.clone(),
        tsnode_rope_pairs: pairs,
    };
    serde_json::to_vec_pretty(&config).map_err(|e| GgufError::Tokenizer(e.to_string()))
}

/// Layers, but for those behind the last that propose tokens. There are few: what is said by layer is looked for layer by layer.
fn layers(keys: &ArchitectureKeys<'_, '_>) -> Result<u32, GgufError> {
    let more = if keys.architecture.name == GLM { keys.count("nextn_predict_layers")?.unwrap_or(0) } else { 0 };
    let all = keys.needed("block_count")?;
    super::at_most("block_count", all.into(), limits::LAYERS.into())?;
    match all.checked_sub(more) {
        Some(layers) => Ok(layers),
        None => keys.refuse("nextn_predict_layers", more, "fewer than block_count are").map(|()| all),
    }
}

/// What config.json has no words for.
fn refuse_variants(keys: &ArchitectureKeys<'_, '_>, head_dim: u32) -> Result<(), GgufError> {
    let experts = keys.count("expert_count")?.unwrap_or(0);
    if keys.architecture.mixture != (experts > 0) {
        let supported = if experts > 0 { "models of this architecture without experts are" } else { "a number is" };
        keys.refuse("expert_count", experts, supported)?;
    }
    let other = |n: &u32| *n != head_dim && keys.architecture.name != GEMMA_4;
    if let Some(width) = keys.count("attention.value_length")?.filter(other) {
        keys.refuse("attention.value_length", width, "values as wide as keys are")?;
    }
    let others = UNREAD_BUT_IN.into_iter().filter(|(.., but)| *but != keys.architecture.name);
    for (key, neutral) in UNREAD.into_iter().chain(others.map(|(key, neutral, _)| (key, neutral))) {
        if let Some(value) = keys.metadata.get(&keys.key(key)).filter(|value| !is_one_of(value, neutral)) {
            keys.refuse(key, shown(&value), "models without it are")?;
        }
    }
    refuse_other_yarn(keys)?;
    let granite = keys.architecture.name == GRANITE;
    if granite && keys.metadata.flag(&keys.key("rope.scaling.finetuned"))? == Some(false) {
        keys.refuse("rope.scaling.finetuned", false, "models whose queries and keys turn are")?;
    }
    // The configurations of these have a word for it.
    let said = granite || keys.architecture.name.starts_with("gemma");
    let unusual = |scale: &f32| !said && (scale * scale * head_dim as f32 - 1.0).abs() > 1e-3;
    if let Some(scale) = keys.real("attention.scale")?.filter(unusual) {
        keys.refuse("attention.scale", scale, "one by the root of the head's width is")?;
    }
    Ok(())
}

/// YaRN as other than in its paper.
fn refuse_other_yarn(keys: &ArchitectureKeys<'_, '_>) -> Result<(), GgufError> {
    let yarn = keys.metadata.text(&keys.key("rope.scaling.type"))? == Some("yarn");
    let factor = keys.real("rope.scaling.factor")?.unwrap_or(1.0).max(1.0);
    // Some converters write the factor that the paper has anyway.
    let papers = 1.0 + 0.1 * libm::logf(factor);
    for (key, usual) in [
        ("rope.scaling.yarn_ext_factor", if yarn { [-1.0, 1.0] } else { [-1.0, 0.0] }),
        ("rope.scaling.yarn_attn_factor", if yarn { [1.0, papers] } else { [1.0; 2] }),
        ("rope.scaling.attn_factor", [1.0; 2]),
    ] {
        // LongRoPE's amplitude has the last one's name.
        let unread = yarn || key != "rope.scaling.attn_factor";
        let unusual = |x: &f32| unread && usual.iter().all(|usual| (x - usual).abs() > 1e-4);
        if let Some(value) = keys.real(key)?.filter(unusual) {
            keys.refuse(key, value, "models without it are")?;
        }
    }
    Ok(())
}

/// Whether a value, or each of a list, is one of these numbers.
fn is_one_of(value: &MetadataValue<'_>, numbers: &[f64]) -> bool {
    match value {
        MetadataValue::Integer(number) => numbers.contains(&(*number as f64)),
        MetadataValue::Real(number) => numbers.contains(number),
        MetadataValue::Flag(flag) => numbers.contains(&f64::from(u8::from(*flag))),
        MetadataValue::Text(_) => false,
        MetadataValue::Array(list) => list.iter().all(|value| is_one_of(&value, numbers)),
    }
}

fn shown(value: &MetadataValue<'_>) -> String {
    match value {
        MetadataValue::Integer(number) => number.to_string(),
        MetadataValue::Real(number) => (*number as f32).to_string(),
        MetadataValue::Flag(flag) => flag.to_string(),
        MetadataValue::Text(text) => String::from_utf8_lossy(text).chars().take(64).collect(),
        MetadataValue::Array(list) => format!("a list of {}", list.len()),
    }
}

fn optional(keys: &ArchitectureKeys<'_, '_>, shapes: &Shapes<'_, '_>, head_dim: u32) -> Result<Optional, GgufError> {
    // GLM's configuration would have another width where nothing is said.
    let whole = |n: &u32| *n == head_dim && keys.architecture.name != GLM || keys.architecture.name == GEMMA_4;
    let said = |n: &u32| !whole(n) && head_dim > 0;
    let turned = keys.count("rope.dimension_count")?.filter(said);
    let common = Optional {
        rope_scaling: scaling(keys, shapes)?,
        original_max_position_embeddings: keys.count("rope.scaling.original_context_length")?,
        partial_rotary_factor: turned.map(|n| n as f32 / head_dim as f32),
        sliding_window: keys.count("attention.sliding_window")?.filter(|n| *n > 0),
        attn_logit_softcapping: keys.real("attn_logit_softcapping")?,
        final_logit_softcapping: keys.real("final_logit_softcapping")?,
        mixture: mixture(keys, shapes)?,
        ..Optional::default()
    };
    match keys.architecture.name {
        GRANITE => granite(keys, common, head_dim),
        OLMO => Ok(Optional { layer_types: listed(keys)?, ..common }),
        GEMMA_4 => {
            let layer_types = listed(keys)?.ok_or_else(|| GgufError::Missing(keys.key(PATTERN)))?;
            let gemma4 = Some(gemma4::keys(keys, shapes, &layer_types)?);
            Ok(Optional { layer_types: Some(layer_types), gemma4, ..common })
        }
        _ => gemma(keys, common, head_dim),
    }
}

/// Granite's factors; where one is missing, llama.cpp does not multiply.
fn granite(keys: &ArchitectureKeys<'_, '_>, common: Optional, head_dim: u32) -> Result<Optional, GgufError> {
    let factor = |key| Ok(keys.real(key)?.filter(|factor| *factor != 0.0));
    Ok(Optional {
        embedding_multiplier: factor("embedding_scale")?,
        residual_multiplier: factor("residual_scale")?,
        attention_multiplier: match factor("attention.scale")? {
            None => Some(1.0 / (head_dim as f32).sqrt()),
            said => said,
        },
        logits_scaling: factor("logit_scale")?,
        ..common
    })
}

/// Width of an MLP; of experts, where a file of the family has no other.
fn intermediate(keys: &ArchitectureKeys<'_, '_>) -> Result<u32, GgufError> {
    match keys.count("expert_feed_forward_length")?.filter(|_| keys.architecture.mixture && !has_both(keys)) {
        Some(width) => Ok(width),
        None => keys.needed("feed_forward_length"),
    }
}

/// Whether configurations of the family have the width of MLPs beside that of experts.
fn has_both(keys: &ArchitectureKeys<'_, '_>) -> bool {
    keys.architecture.name.starts_with("qwen") || [GLM, GEMMA_4].contains(&keys.architecture.name)
}

fn mixture(keys: &ArchitectureKeys<'_, '_>, shapes: &Shapes<'_, '_>) -> Result<Option<MixtureKeys>, GgufError> {
    const NORMED: &str = "expert_weights_norm";
    if !keys.architecture.mixture {
        return Ok(None);
    }
    let layers = keys.needed("block_count")?;
    super::at_most("block_count", layers.into(), limits::LAYERS.into())?;
    let (experts, used) = (keys.needed("expert_count")?, keys.needed("expert_used_count")?);
    let normed = keys.metadata.flag(&keys.key(NORMED))?.unwrap_or(keys.architecture.normed);
    let qwen = keys.architecture.name.starts_with("qwen");
    let always = ["mixtral", "gpt_oss", "gemma4_text"].contains(&keys.architecture.model_type);
    if always && !normed {
        keys.refuse(NORMED, normed, "models that divide by the sum are")?;
    }
    // As llama.cpp has it for files that do not say.
    let usual = || Ok(keys.needed("feed_forward_length")? / used.max(1));
    let width = || keys.count("expert_feed_forward_length")?.map_or_else(usual, Ok);
    let dense = || (0..layers).filter(|i| !shapes.has(&format!("blk.{i}.ffn_gate_inp.weight"))).collect();
    Ok(Some(MixtureKeys {
        num_experts: experts,
        num_experts_per_tok: used,
        norm_topk_prob: (!always).then_some(normed),
        moe_intermediate_size: if has_both(keys) { Some(width()?) } else { None },
        mlp_only_layers: qwen.then(dense),
        shared_expert_intermediate_size: keys.count("expert_shared_feed_forward_length")?,
        glm: if keys.architecture.name == GLM { Some(glm(keys, shapes)?) } else { None },
    }))
}

fn glm(keys: &ArchitectureKeys<'_, '_>, shapes: &Shapes<'_, '_>) -> Result<Glm, GgufError> {
    const SIGMOID: u32 = 2;
    let gating = keys.count("expert_gating_func")?.unwrap_or(SIGMOID);
    if ![0, SIGMOID].contains(&gating) {
        keys.refuse("expert_gating_func", gating, "models that choose by a sigmoid (2) are")?;
    }
    let dense = keys.count("leading_dense_block_count")?.unwrap_or(0);
    Ok(Glm {
        n_shared_experts: keys.needed("expert_shared_count")?,
        routed_scaling_factor: keys.real("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0),
        first_k_dense_replace: dense,
        use_qk_norm: shapes.has("blk.0.attn_q_norm.weight"),
    })
}

/// What Gemma's files leave out, as llama.cpp fills it in.
fn gemma(keys: &ArchitectureKeys<'_, '_>, mut o: Optional, head_dim: u32) -> Result<Optional, GgufError> {
    // Only the two 27B models divide scores by another root than that of the head's width.
    let large = match keys.architecture.name {
        "gemma2" => 46,
        "gemma3" => 62,
        _ => return Ok(o),
    };
    let (hidden, heads) = (keys.needed("embedding_length")?, keys.needed("attention.head_count")?.max(1));
    let wide = keys.needed("block_count")? == large;
    let usual = if wide { (hidden / heads) as f32 } else { head_dim as f32 };
    o.query_pre_attn_scalar = Some(keys.real("attention.scale")?.map_or(usual, |scale| 1.0 / (scale * scale)));
    if keys.architecture.name == "gemma2" {
        o.sliding_window = o.sliding_window.or(Some(4096));
        o.attn_logit_softcapping = o.attn_logit_softcapping.or(Some(50.0));
        o.final_logit_softcapping = o.final_logit_softcapping.or(Some(30.0));
    } else {
        (o.sliding_window_pattern, o.layer_types) = pattern(keys)?;
        o.rope_local_base_freq = Some(keys.real("rope.freq_base_swa")?.unwrap_or(10_000.0));
    }
    Ok(o)
}

/// Which layers have a window: all but every so many-th, or one by one.
fn pattern(keys: &ArchitectureKeys<'_, '_>) -> Result<(Option<u32>, Option<Vec<&'static str>>), GgufError> {
    match listed(keys)? {
        None => Ok((Some(keys.count(PATTERN)?.unwrap_or(6)), None)),
        listed => Ok((None, listed)),
    }
}

const PATTERN: &str = "attention.sliding_window_pattern";

/// Which layers have a window, if that is said one by one.
fn listed(keys: &ArchitectureKeys<'_, '_>) -> Result<Option<Vec<&'static str>>, GgufError> {
    let Some(MetadataValue::Array(list)) = keys.metadata.get(&keys.key(PATTERN)) else { return Ok(None) };
    super::at_most(PATTERN, list.len() as u64, keys.needed("block_count")?.into())?;
    let layer = |value| if value == MetadataValue::Flag(false) { "full_attention" } else { "sliding_attention" };
    Ok(Some(list.iter().map(layer).collect()))
}

fn scaling(keys: &ArchitectureKeys<'_, '_>, shapes: &Shapes<'_, '_>) -> Result<Option<Scaling>, GgufError> {
    let stated = keys.metadata.text(&keys.key("rope.scaling.type"))?.filter(|kind| *kind != "none");
    let (long_factor, short_factor) = (shapes.numbers(LONG_FACTORS)?, shapes.numbers(SHORT_FACTORS)?);
    // Phi 3's converter writes the factors and not always the type.
    let kind = stated.or(long_factor.as_ref().map(|_| "longrope"));
    let old = keys.real("rope.scale_linear")?.filter(|factor| *factor != 1.0);
    let factor = keys.real("rope.scaling.factor")?.or(old);
    let Some(kind) = kind.or(old.map(|_| "linear")) else { return Ok(None) };
    let yarn = kind == "yarn";
    let of_yarn = |key| if yarn { keys.real(key) } else { Ok(None) };
    let both = of_yarn("rope.scaling.yarn_log_multiplier")?;
    Ok(Some(Scaling {
        rope_type: kind.chars().take(64).collect(),
        factor,
        original_max_position_embeddings: keys.count("rope.scaling.original_context_length")?,
        attention_factor: keys.real("rope.scaling.attn_factor")?.filter(|_| !yarn),
        long_factor,
        short_factor,
        beta_fast: of_yarn("rope.scaling.yarn_beta_fast")?,
        beta_slow: of_yarn("rope.scaling.yarn_beta_slow")?,
        // llama.cpp does; who trained the model does not.
        truncate: (keys.architecture.name == GPT_OSS).then_some(false),
        mscale: both,
        mscale_all_dim: both,
        llama_4_scaling_beta: if keys.architecture.name == MINISTRAL {
            Some(keys.real("attention.temperature_scale")?.unwrap_or(0.0))
        } else {
            None
        },
    }))
}
