//! `config.json` of a Hugging Face checkpoint, in the form of transformers 4 and 5.

use crate::rope::{RopePairs, RopeScaling};
use serde::Deserialize;
use tsnode_protocol::{ModelShape, codec::CodecError, limits};

/// Families whose forward pass is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1–3, SmolLM, Mistral, Qwen2: RMS norm, rotary positions, gated MLP.
    Llama,
    /// OPT: layer norm, learned positions, ReLU.
    Opt,
}

/// A model's configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which forward pass.
    pub family: Family,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Entries in the vocabulary.
    pub vocab: usize,
    /// Longest sequence.
    pub context: usize,
    /// Added under the root of norms.
    pub norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Their stretch.
    pub rope_scaling: RopeScaling,
    /// Which channels turn together; GGUF files of Llama have them next to each other.
    pub rope_pairs: RopePairs,
    /// Whether the output head is the embedding.
    pub tied: bool,
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not of the expected form.
    #[error("config.json: {0}")]
    Json(String),
    /// A model type whose forward pass is not written.
    #[error("config.json: model type {0:?} is not supported; llama, mistral, qwen2 and opt are")]
    Family(String),
    /// A part of the architecture that is not written.
    #[error("config.json: {what} = {value} is not supported")]
    Unsupported {
        /// The key.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// Numbers that no model has.
    #[error("config.json: {0}")]
    Shape(CodecError),
}

#[derive(Deserialize)]
struct Raw {
    model_type: String,
    num_hidden_layers: u32,
    hidden_size: u32,
    intermediate_size: Option<u32>,
    ffn_dim: Option<u32>,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    vocab_size: u32,
    max_position_embeddings: u32,
    rms_norm_eps: Option<f32>,
    rope_theta: Option<f32>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    activation_function: Option<String>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    /// Ours, in what is made of a GGUF file's metadata.
    tsnode_rope_pairs: Option<RopePairs>,
    do_layer_norm_before: Option<bool>,
    word_embed_proj_dim: Option<u32>,
}

#[derive(Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    r#type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

impl ModelConfig {
    /// Numbers in the matrices of a layer.
    #[must_use]
    pub fn layer_numbers(&self) -> u64 {
        let heads = 2 * self.heads + 2 * self.kv_heads;
        let mlp = if self.family == Family::Opt { 2 } else { 3 };
        (self.hidden * (heads * self.head_dim + mlp * self.intermediate)) as u64
    }

    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// When it is not JSON, out of bounds, or asks for what is not written.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let raw: Raw = serde_json::from_slice(json).map_err(|e| ConfigError::Json(e.to_string()))?;
        let family = match raw.model_type.as_str() {
            "llama" | "mistral" | "qwen2" => Family::Llama,
            "opt" => Family::Opt,
            other => return Err(ConfigError::Family(other.chars().take(64).collect())),
        };
        refuse_variants(&raw, family)?;
        let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
        let theta = raw.rope_theta.or(rope.and_then(|r| r.rope_theta)).unwrap_or(10_000.0);
        let head_dim = raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads.max(1));
        let config = Self {
            family,
            layers: raw.num_hidden_layers as usize,
            hidden: raw.hidden_size as usize,
            intermediate: raw.intermediate_size.or(raw.ffn_dim).unwrap_or(0) as usize,
            heads: raw.num_attention_heads as usize,
            kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads) as usize,
            head_dim: head_dim as usize,
            vocab: raw.vocab_size as usize,
            context: raw.max_position_embeddings.min(limits::SEQUENCE_TOKENS) as usize,
            norm_eps: raw.rms_norm_eps.unwrap_or(if family == Family::Opt { 1e-5 } else { 1e-6 }),
            rope_theta: theta,
            rope_scaling: rope.map_or(Ok(RopeScaling::None), scaling)?,
            rope_pairs: raw.tsnode_rope_pairs.unwrap_or_default(),
            tied: raw.tie_word_embeddings.unwrap_or(family == Family::Opt),
        };
        config.shape(0, 0, 0).check().map_err(ConfigError::Shape)?;
        if !(theta.is_finite() && theta > 0.0 && config.norm_eps.is_finite() && config.head_dim.is_multiple_of(2)) {
            return Err(ConfigError::Shape(CodecError::Invalid("rope_theta, norm epsilon or head_dim out of range")));
        }
        Ok(config)
    }

    /// The shape others plan by, with the bytes the weights take.
    #[must_use]
    pub fn shape(&self, layer_bytes: u64, embed_bytes: u64, head_bytes: u64) -> ModelShape {
        ModelShape {
            layers: self.layers as u32,
            hidden: self.hidden as u32,
            intermediate: self.intermediate as u32,
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            vocab: self.vocab as u32,
            context: self.context as u32,
            layer_bytes,
            embed_bytes,
            head_bytes,
        }
    }
}

fn refuse_variants(raw: &Raw, family: Family) -> Result<(), ConfigError> {
    let refuse = |what, value: String| Err(ConfigError::Unsupported { what, value });
    let act = raw.hidden_act.as_deref().or(raw.activation_function.as_deref());
    let wanted = if family == Family::Opt { "relu" } else { "silu" };
    if let Some(act) = act.filter(|a| *a != wanted) {
        return refuse("hidden_act", act.chars().take(64).collect());
    }
    if raw.use_sliding_window != Some(false)
        && let Some(window) = raw.sliding_window.filter(|w| *w < raw.max_position_embeddings)
    {
        return refuse("sliding_window", window.to_string());
    }
    if raw.do_layer_norm_before == Some(false) {
        return refuse("do_layer_norm_before", "false".into());
    }
    if let Some(width) = raw.word_embed_proj_dim.filter(|w| *w != raw.hidden_size) {
        return refuse("word_embed_proj_dim", width.to_string());
    }
    Ok(())
}

fn scaling(raw: &RawRope) -> Result<RopeScaling, ConfigError> {
    let need = |x: Option<f32>, what| match x {
        Some(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err(ConfigError::Unsupported { what, value: "missing or out of range".into() }),
    };
    match raw.rope_type.as_deref().or(raw.r#type.as_deref()) {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: need(raw.factor, "rope factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: need(raw.factor, "rope factor")?,
            low: need(raw.low_freq_factor, "low_freq_factor")?,
            high: need(raw.high_freq_factor, "high_freq_factor")?,
            original: need(raw.original_max_position_embeddings, "original_max_position_embeddings")?,
        }),
        Some(other) => Err(ConfigError::Unsupported { what: "rope_type", value: other.chars().take(64).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":2,"hidden_size":8,"intermediate_size":16,
        "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":64}"#;

    fn with(more: &str) -> Result<ModelConfig, ConfigError> {
        let base = LLAMA.trim_end().trim_end_matches('}');
        ModelConfig::parse(format!("{base},{more}}}").as_bytes())
    }

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        let config = ModelConfig::parse(LLAMA.as_bytes()).unwrap();
        assert_eq!((config.kv_heads, config.head_dim, config.rope_theta), (2, 4, 10_000.0));
    }

    #[test]
    fn both_forms_of_rope_are_read() {
        let new = with(r#""rope_parameters":{"rope_theta":5e5,"rope_type":"default"}"#).unwrap();
        assert_eq!((new.rope_theta, new.rope_scaling), (5e5, RopeScaling::None));
        let old = with(r#""rope_scaling":{"type":"linear","factor":2.0}"#).unwrap();
        assert_eq!(old.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    }

    #[test]
    fn what_is_not_written_is_named() {
        let other = ModelConfig::parse(LLAMA.replace("llama", "mamba").as_bytes());
        assert!(other.unwrap_err().to_string().contains("mamba"));
        assert!(with(r#""hidden_act":"gelu""#).unwrap_err().to_string().contains("gelu"));
        assert!(with(r#""sliding_window":32"#).unwrap_err().to_string().contains("sliding_window"));
        assert!(matches!(with(r#""num_key_value_heads":0"#), Err(ConfigError::Shape(_))));
        assert!(matches!(ModelConfig::parse(b"{"), Err(ConfigError::Json(_))));
        assert!(matches!(ModelConfig::parse("[".repeat(9999).as_bytes()), Err(ConfigError::Json(_))));
    }
}
