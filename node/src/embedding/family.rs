//! Which kinds of models are computed, and what of a `config.json` each is made by.

use super::{EncoderError, encoder_settings::EncoderSettings};
use serde_json::{Value, json};

/// Most of each size: more is damage, not a model.
const LAYERS: usize = 128;
const WIDTH: usize = 1 << 16;
const VOCABULARY: usize = 1 << 22;
const POSITIONS: usize = 1 << 17;

/// A kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncoderFamily {
    Bert,
    /// RoBERTa, XLM-RoBERTa and CamemBERT: positions are counted from behind the padding token.
    Roberta,
    DistilBert,
    ModernBert,
    NomicBert,
    Qwen2,
    Qwen3,
}

impl EncoderFamily {
    pub fn of(config: &EncoderSettings) -> Result<Self, EncoderError> {
        let kind = config.text("model_type").unwrap_or_default();
        Ok(match kind.as_str() {
            "bert" => Self::Bert,
            "roberta" | "xlm-roberta" | "camembert" => Self::Roberta,
            "distilbert" => Self::DistilBert,
            "modernbert" => Self::ModernBert,
            "nomic_bert" => Self::NomicBert,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            _ => {
                let known = "bert, roberta, xlm-roberta, camembert, distilbert, modernbert, nomic_bert, qwen2, qwen3";
                return Err(
                    config.unsupported(format!("its model_type is {kind:?}, and encoders are of these: {known}"))
                );
            }
        })
    }

    /// Whether tokens see those before them alone: such a model's text is summed up in its last token.
    pub fn is_causal(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen3)
    }

    /// The name of a tensor that every such model has, behind whatever it is put behind.
    pub fn anchor(self) -> &'static str {
        match self {
            Self::Bert | Self::Roberta | Self::DistilBert | Self::NomicBert => "embeddings.word_embeddings.weight",
            Self::ModernBert => "embeddings.tok_embeddings.weight",
            Self::Qwen2 | Self::Qwen3 => "embed_tokens.weight",
        }
    }

    /// What candle looks for tensors behind.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::ModernBert | Self::Qwen2 | Self::Qwen3 => "model.",
            _ => "",
        }
    }
}

/// Sizes that are asked for outside a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncoderSizes {
    pub width: usize,
    pub heads: usize,
    pub vocabulary: usize,
    /// Longest input by the model's own positions.
    pub positions: usize,
    pub pad: u32,
}

/// A model's sizes, and its configuration as candle reads it.
pub(super) fn configure(
    family: EncoderFamily,
    config: &EncoderSettings,
) -> Result<(EncoderSizes, Value), EncoderError> {
    let (sizes, json) = match family {
        EncoderFamily::Bert | EncoderFamily::Roberta => bert(family, config)?,
        EncoderFamily::DistilBert => distilbert(config)?,
        EncoderFamily::ModernBert => modernbert(config)?,
        EncoderFamily::NomicBert => nomic(config)?,
        EncoderFamily::Qwen2 | EncoderFamily::Qwen3 => qwen(family, config)?,
    };
    if !sizes.width.is_multiple_of(sizes.heads) {
        return Err(config.broken(format!("{} heads do not divide a width of {}", sizes.heads, sizes.width)));
    }
    Ok((sizes, json))
}

fn sizes(config: &EncoderSettings, names: [&str; 3], usual_pad: usize) -> Result<EncoderSizes, EncoderError> {
    let [width, heads, positions] = names;
    Ok(EncoderSizes {
        width: config.number(width, WIDTH)?,
        heads: config.number(heads, 1024)?,
        vocabulary: config.number("vocab_size", VOCABULARY)?,
        positions: config.number(positions, POSITIONS)?,
        pad: pad(config, usual_pad)?,
    })
}

fn pad(config: &EncoderSettings, usual: usize) -> Result<u32, EncoderError> {
    match &config.json["pad_token_id"] {
        Value::Null => Ok(usual as u32),
        value => {
            let id = value.as_u64().filter(|id| *id < VOCABULARY as u64);
            id.map(|id| id as u32).ok_or_else(|| config.broken("pad_token_id is no token".into()))
        }
    }
}

fn bert(family: EncoderFamily, config: &EncoderSettings) -> Result<(EncoderSizes, Value), EncoderError> {
    config.only("position_embedding_type", &[json!("absolute")])?;
    let is_roberta = family == EncoderFamily::Roberta;
    let read =
        sizes(config, ["hidden_size", "num_attention_heads", "max_position_embeddings"], usize::from(is_roberta))?;
    let given = config.text("hidden_act").unwrap_or_else(|| "gelu".into());
    let act = match given.as_str() {
        "gelu" | "relu" => given.clone(),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => {
            // Candle's two models call it differently.
            if is_roberta { "gelu_pytorch_tanh" } else { "geluapproximate" }.into()
        }
        _ => {
            return Err(
                config.unsupported(format!("hidden_act is {given:?}, and gelu, gelu_new and relu are computed"))
            );
        }
    };
    let json = json!({
        "vocab_size": read.vocabulary,
        "hidden_size": read.width,
        "num_hidden_layers": config.number("num_hidden_layers", LAYERS)?,
        "num_attention_heads": read.heads,
        "intermediate_size": config.number("intermediate_size", WIDTH)?,
        "hidden_act": act,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": read.positions,
        "type_vocab_size": config.number_or("type_vocab_size", 1024, Some(2))?,
        "initializer_range": 0.02,
        "layer_norm_eps": config.real("layer_norm_eps", 1e-12)?,
        "pad_token_id": read.pad,
        "position_embedding_type": "absolute",
    });
    let before = if is_roberta { read.pad as usize + 1 } else { 0 };
    let Some(positions) = read.positions.checked_sub(before).filter(|left| *left > 0) else {
        return Err(config.broken("max_position_embeddings leaves room for no token".into()));
    };
    Ok((EncoderSizes { positions, ..read }, json))
}

fn distilbert(config: &EncoderSettings) -> Result<(EncoderSizes, Value), EncoderError> {
    config.only("activation", &[json!("gelu"), json!("relu")])?;
    let read = sizes(config, ["dim", "n_heads", "max_position_embeddings"], 0)?;
    let json = json!({
        "vocab_size": read.vocabulary,
        "dim": read.width,
        "n_layers": config.number("n_layers", LAYERS)?,
        "n_heads": read.heads,
        "hidden_dim": config.number("hidden_dim", WIDTH)?,
        "activation": config.text("activation").unwrap_or_else(|| "gelu".into()),
        "max_position_embeddings": read.positions,
        "initializer_range": 0.02,
        "pad_token_id": read.pad,
    });
    Ok((read, json))
}

fn modernbert(config: &EncoderSettings) -> Result<(EncoderSizes, Value), EncoderError> {
    config.only("hidden_activation", &[json!("gelu")])?;
    for bias in ["attention_bias", "mlp_bias", "norm_bias", "classifier_bias"] {
        config.only(bias, &[json!(false)])?;
    }
    let read = sizes(config, ["hidden_size", "num_attention_heads", "max_position_embeddings"], 50283)?;
    let every = config.number_or("global_attn_every_n_layers", LAYERS, Some(3))?;
    let is_full = |(at, kind): (usize, &Value)| (kind == "full_attention") == at.is_multiple_of(every);
    if !config.json["layer_types"].as_array().is_none_or(|kinds| kinds.iter().enumerate().all(is_full)) {
        let what = format!("its layer_types are not one of full attention in {every}, and no other order is computed");
        return Err(config.unsupported(what));
    }
    let json = json!({
        "vocab_size": read.vocabulary,
        "hidden_size": read.width,
        "num_hidden_layers": config.number("num_hidden_layers", LAYERS)?,
        "num_attention_heads": read.heads,
        "intermediate_size": config.number("intermediate_size", WIDTH)?,
        "max_position_embeddings": read.positions,
        "layer_norm_eps": config.real("norm_eps", 1e-5)?,
        "pad_token_id": read.pad,
        "global_attn_every_n_layers": every,
        "global_rope_theta": config.rope_theta("/full_attention/rope_theta", "global_rope_theta", 160_000.0)?,
        "local_attention": config.number_or("local_attention", POSITIONS, Some(128))?,
        "local_rope_theta": config.rope_theta("/sliding_attention/rope_theta", "local_rope_theta", 10_000.0)?,
    });
    Ok((read, json))
}

fn nomic(config: &EncoderSettings) -> Result<(EncoderSizes, Value), EncoderError> {
    config.only("activation_function", &[json!("swiglu")])?;
    config.only("hidden_act", &[json!("silu")])?;
    config.only("prenorm", &[json!(false)])?;
    config.only("rotary_emb_scale_base", &[])?;
    config.only("rotary_scaling_factor", &[])?;
    // The model's own files name its sizes as GPT-2's do, transformers as BERT's.
    let names = if config.json["n_embd"].is_null() {
        ["hidden_size", "num_attention_heads", "max_position_embeddings", "num_hidden_layers", "intermediate_size"]
    } else {
        ["n_embd", "n_head", "n_positions", "n_layer", "n_inner"]
    };
    let [width, heads, positions, layers, inner] = names;
    let read = sizes(config, [width, heads, positions], 0)?;
    let epsilon = config.real("layer_norm_eps", 1e-12)?;
    let json = json!({
        "vocab_size": read.vocabulary,
        "n_embd": read.width,
        "n_head": read.heads,
        "n_layer": config.number(layers, LAYERS)?,
        "n_inner": config.number(inner, WIDTH)?,
        "n_positions": read.positions,
        "type_vocab_size": config.number_or("type_vocab_size", 1024, Some(2))?,
        "layer_norm_epsilon": config.real("layer_norm_epsilon", epsilon)?,
        "rotary_emb_fraction": config.real("rotary_emb_fraction", 1.0)?,
        "rotary_emb_base": config.rope_theta("/rope_theta", "rotary_emb_base", 1000.0)?,
        "rotary_emb_interleaved": config.flag("rotary_emb_interleaved"),
        "qkv_proj_bias": config.flag("qkv_proj_bias"),
        "mlp_fc1_bias": config.flag("mlp_fc1_bias"),
        "mlp_fc2_bias": config.flag("mlp_fc2_bias"),
    });
    Ok((read, json))
}

fn qwen(family: EncoderFamily, config: &EncoderSettings) -> Result<(EncoderSizes, Value), EncoderError> {
    config.only("hidden_act", &[json!("silu")])?;
    config.only("use_sliding_window", &[json!(false)])?;
    config.only("rope_scaling", &[])?;
    let read = sizes(config, ["hidden_size", "num_attention_heads", "max_position_embeddings"], 0)?;
    let kv_heads = config.number_or("num_key_value_heads", 1024, Some(read.heads))?;
    if !read.heads.is_multiple_of(kv_heads) {
        return Err(config.broken(format!("{} heads are no multiple of {kv_heads} key and value heads", read.heads)));
    }
    let mut json = json!({
        "vocab_size": read.vocabulary,
        "hidden_size": read.width,
        "intermediate_size": config.number("intermediate_size", WIDTH)?,
        "num_hidden_layers": config.number("num_hidden_layers", LAYERS)?,
        "num_attention_heads": read.heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": read.positions,
        "sliding_window": if family == EncoderFamily::Qwen2 { json!(POSITIONS) } else { Value::Null },
        "max_window_layers": 0,
        "tie_word_embeddings": true,
        "rope_theta": config.rope_theta("/rope_theta", "rope_theta", 10_000.0)?,
        "rms_norm_eps": config.real("rms_norm_eps", 1e-6)?,
        "use_sliding_window": false,
        "hidden_act": "silu",
    });
    if family == EncoderFamily::Qwen3 {
        json["head_dim"] = config.number_or("head_dim", 1024, Some(read.width / read.heads))?.into();
        json["attention_bias"] = config.flag("attention_bias").into();
    }
    Ok((read, json))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: Value) -> EncoderSettings {
        EncoderSettings { path: "config.json".into(), json }
    }

    fn bert_config() -> Value {
        json!({
            "model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "max_position_embeddings": 64, "hidden_act": "gelu"
        })
    }

    #[test]
    fn positions_of_roberta_begin_behind_its_padding() {
        let mut config = bert_config();
        config["pad_token_id"] = 1.into();
        assert_eq!(configure(EncoderFamily::Bert, &settings(config.clone())).unwrap().0.positions, 64);
        assert_eq!(configure(EncoderFamily::Roberta, &settings(config.clone())).unwrap().0.positions, 62);
        config["max_position_embeddings"] = 2.into();
        assert!(configure(EncoderFamily::Roberta, &settings(config)).is_err());
    }

    #[test]
    fn what_is_not_computed_or_no_model_is_refused_by_name() {
        let refused = |key: &str, value: Value| {
            let mut config = bert_config();
            config[key] = value;
            let config = settings(config);
            let error =
                EncoderFamily::of(&config).and_then(|family| configure(family, &config)).unwrap_err().to_string();
            assert!(error.contains(key) || key == "num_attention_heads", "{error}");
        };
        refused("model_type", json!("t5"));
        refused("model_type", Value::Null);
        refused("hidden_act", json!("silu"));
        refused("position_embedding_type", json!("relative_key"));
        refused("hidden_size", json!(1_u64 << 40));
        refused("vocab_size", json!(-1));
        refused("num_attention_heads", json!(5));
    }
}
