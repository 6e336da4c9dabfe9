//! `config.json` of a Hugging Face checkpoint, in the form of transformers 4 and 5.

mod keys;
mod rope;

pub(crate) use keys::Keys;

use crate::{
    json,
    models::{self, Family},
    rope::{RopePairs, RopeScaling},
};
use serde::Deserialize;
use tsnode_protocol::{ModelShape, codec::CodecError, limits};

/// What is between an MLP's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`, multiplied by the other half of a gated MLP.
    Silu,
    /// GELU by its tanh form, multiplied by the other half of a gated MLP.
    GeluTanh,
    /// `max(x, 0)`, of an MLP without a gate.
    Relu,
}

/// A model's configuration, checked. What differs between families in numbers is here; what differs in structure is in
/// the family's file.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which forward pass.
    pub family: &'static Family,
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
    /// Longest sequence (tokens).
    pub context: usize,
    /// Between an MLP's matrices.
    pub activation: Activation,
    /// Added under the root of norms.
    pub norm_eps: f32,
    /// Added to the weights of norms: 1 where they are stored as differences from it (Gemma).
    pub norm_shift: f32,
    /// What embeddings are multiplied by.
    pub embed_scale: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Their stretch.
    pub rope_scaling: RopeScaling,
    /// Which channels turn together; GGUF files of Llama have them next to each other.
    pub rope_pairs: RopePairs,
    /// Channels of a head that turn, from the first on.
    pub rope_dim: usize,
    /// Base of the frequencies, not stretched, of layers with a window, where it is another (Gemma 3).
    pub local_rope_theta: Option<f32>,
    /// What products of queries and keys are multiplied by.
    pub attention_scale: f32,
    /// Largest size of an attention score, approached smoothly.
    pub attention_cap: Option<f32>,
    /// Tokens that a row of each layer sees, itself included; all where there is none.
    pub windows: Vec<Option<usize>>,
    /// Largest size of a logit, approached smoothly.
    pub logit_cap: Option<f32>,
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
    #[error("config.json: model type {0:?} is not supported; {known} are", known = models::types().join(", "))]
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

/// What every family's file has.
#[derive(Deserialize)]
struct Common {
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
    tie_word_embeddings: Option<bool>,
    /// Ours, in what is made of a GGUF file's metadata.
    tsnode_rope_pairs: Option<RopePairs>,
}

impl ModelConfig {
    /// Numbers in the matrices of a layer.
    #[must_use]
    pub fn layer_numbers(&self) -> u64 {
        let heads = 2 * self.heads + 2 * self.kv_heads;
        // MLPs without a gate are those of ReLU.
        let mlp = if self.activation == Activation::Relu { 2 } else { 3 };
        (self.hidden * (heads * self.head_dim + mlp * self.intermediate)) as u64
    }

    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// When it is not JSON, out of bounds, or asks for what is not written.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let malformed = |e: serde_json::Error| ConfigError::Json(e.to_string());
        let json = json::plain(json);
        let common: Common = serde_json::from_slice(&json).map_err(malformed)?;
        let keys: Keys = serde_json::from_slice(&json).map_err(malformed)?;
        let family = models::family(&common.model_type)
            .ok_or_else(|| ConfigError::Family(common.model_type.chars().take(64).collect()))?;
        let mut config = Self::usual(family, &common);
        config.shape(0, 0, 0).check().map_err(ConfigError::Shape)?;
        // Only now: numbers of layers and heads are known to be small.
        config.windows = vec![None; config.layers];
        rope::read(&mut config, &keys)?;
        (family.configure)(&mut config, &keys)?;
        config.check()?;
        Ok(config)
    }

    /// What a family's file changes where it differs.
    fn usual(family: &'static Family, common: &Common) -> Self {
        let head_dim = common.head_dim.unwrap_or(common.hidden_size / common.num_attention_heads.max(1)) as usize;
        Self {
            family,
            layers: common.num_hidden_layers as usize,
            hidden: common.hidden_size as usize,
            intermediate: common.intermediate_size.or(common.ffn_dim).unwrap_or(0) as usize,
            heads: common.num_attention_heads as usize,
            kv_heads: common.num_key_value_heads.unwrap_or(common.num_attention_heads) as usize,
            head_dim,
            vocab: common.vocab_size as usize,
            context: common.max_position_embeddings.min(limits::SEQUENCE_TOKENS) as usize,
            activation: Activation::Silu,
            norm_eps: common.rms_norm_eps.unwrap_or(1e-6),
            norm_shift: 0.0,
            embed_scale: 1.0,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rope_pairs: common.tsnode_rope_pairs.unwrap_or_default(),
            rope_dim: head_dim,
            local_rope_theta: None,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            attention_cap: None,
            windows: Vec::new(),
            logit_cap: None,
            tied: common.tie_word_embeddings.unwrap_or(false),
        }
    }

    /// Reads rotary positions from the parameters `rope`, where a family has them in another place.
    pub(crate) fn read_rope(&mut self, keys: &Keys, rope: &Keys) -> Result<(), ConfigError> {
        rope::read_from(self, keys, rope)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let thetas = positive(self.rope_theta) && self.local_rope_theta.is_none_or(positive);
        let norms = self.norm_eps.is_finite() && self.head_dim.is_multiple_of(2);
        if !(thetas && norms) {
            return Err(ConfigError::Shape(CodecError::Invalid("rope_theta, norm epsilon or head_dim out of range")));
        }
        let caps = [self.attention_cap, self.logit_cap].into_iter().flatten().all(positive);
        if !(caps && positive(self.attention_scale)) {
            return Err(ConfigError::Shape(CodecError::Invalid("scale or cap of attention or logits out of range")));
        }
        Ok(())
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
        assert!(ConfigError::Family("mamba".into()).to_string().contains("gemma2, gemma3_text"));
        assert!(with(r#""sliding_window":32"#).unwrap_err().to_string().contains("sliding_window"));
        assert!(matches!(with(r#""num_key_value_heads":0"#), Err(ConfigError::Shape(_))));
        assert!(matches!(ModelConfig::parse(b"{"), Err(ConfigError::Json(_))));
        assert!(matches!(ModelConfig::parse("[".repeat(9999).as_bytes()), Err(ConfigError::Json(_))));
    }

    fn typed(model_type: &str, more: &str) -> Result<ModelConfig, ConfigError> {
        let base = LLAMA.replace("llama", model_type);
        ModelConfig::parse(format!("{},{more}}}", base.trim_end_matches('}')).as_bytes())
    }

    #[test]
    fn windows_are_of_the_layers_that_have_them() {
        let windows = |model_type, more| typed(model_type, more).unwrap().windows;
        assert_eq!(windows("mistral", r#""sliding_window":32"#), [Some(32); 2]);
        assert_eq!(windows("mistral", r#""sliding_window":null"#), [None; 2]);
        assert_eq!(windows("qwen2", r#""sliding_window":32"#), [None; 2]);
        let qwen = r#""sliding_window":32,"use_sliding_window":true,"max_window_layers":1"#;
        assert_eq!(windows("qwen2", qwen), [None, Some(32)]);
        assert_eq!(windows("gemma2", r#""sliding_window":32"#), [Some(32), None]);
        let named = r#""sliding_window":32,"layer_types":["full_attention","sliding_attention"]"#;
        assert_eq!(windows("gemma2", named), [None, Some(32)]);
        for wrong in [r#"["full_attention"]"#, r#"["full_attention","chunked_attention"]"#, "7", "[1,2]"] {
            let wrong = typed("gemma2", &format!(r#""sliding_window":32,"layer_types":{wrong}"#)).unwrap_err();
            assert!(wrong.to_string().contains("layer_types"), "{wrong}");
        }
        assert_eq!(windows("mistral", r#""rope_theta":1e4"#), [Some(4096); 2]);
        let none = typed("gemma2", &named.replace("32", "null")).unwrap_err();
        assert!(none.to_string().contains("sliding_window"), "{none}");
        assert!(typed("mistral", r#""sliding_window":0"#).unwrap_err().to_string().contains("sliding_window"));
    }

    #[test]
    fn layers_with_a_window_may_turn_otherwise() {
        let old = r#""rope_theta":1e6,"rope_local_base_freq":500.0,"rope_scaling":{"rope_type":"linear","factor":8.0}"#;
        let new = r#""rope_parameters":{"sliding_attention":{"rope_type":"default","rope_theta":500.0},
            "full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1e6}}"#;
        for form in [old, new] {
            let config = typed("gemma3_text", form).unwrap();
            assert_eq!((config.rope_theta, config.local_rope_theta), (1e6, Some(500.0)));
            assert_eq!(config.rope_scaling, RopeScaling::Linear { factor: 8.0 });
        }
        assert!(typed("gemma3_text", r#""attn_logit_softcapping":50.0"#).is_err());
    }

    #[test]
    fn contexts_end_where_the_short_factors_do() {
        let rope = r#""rope_scaling":{"type":"su","short_factor":[1.0,2.0],"long_factor":[3.0,4.0]},
            "original_max_position_embeddings":16"#;
        let config = typed("phi3", rope).unwrap();
        assert_eq!(config.context, 16);
        let RopeScaling::Long { factors, amplitude } = config.rope_scaling else { panic!("not long") };
        // 64 tokens of 16: the root of 1 + ln 4 / ln 16.
        assert_eq!((factors, amplitude), (vec![1.0, 2.0], 1.5f32.sqrt()));
        for (from, to) in [("[1.0,2.0]", "[1.0]"), ("[1.0,2.0]", "[1.0,-2.0]"), ("16", "1"), ("16", "\"x\"")] {
            assert!(typed("phi3", &rope.replace(from, to)).is_err(), "{from} as {to}");
        }
        assert!(typed("phi3", r#""partial_rotary_factor":0.5"#).unwrap().rope_dim == 2);
        assert!(typed("phi3", r#""partial_rotary_factor":0.1"#).is_err());
    }
}
