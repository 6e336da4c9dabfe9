//! Models that see as well as read: of those, the part that reads is a model of a family of its own.

use super::{Keys, ModelConfigError, coding::QUANTISED};
use serde_json::json;

/// `model_type` of the whole, and keys that its files leave out of the text's part.
const WHOLE: [(&str, &[(&str, u32)]); 6] = [
    (
        "gemma3",
        &[
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("max_position_embeddings", 131_072),
        ],
    ),
    ("gemma4", &GEMMA4),
    ("gemma4_unified", &GEMMA4),
    ("mistral3", &[]),
    ("qwen3_5", &[]),
    ("qwen3_5_moe", &[]),
];

const GEMMA4: [(&str, u32); 5] = [
    ("vocab_size", 262_144),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("max_position_embeddings", 131_072),
];

/// What of the whole's keys counts for the text too, beside how weights are stored.
const SHARED: [&str; 1] = ["tie_word_embeddings"];

/// Keys of the part that reads, or `keys` as they are.
pub(super) fn keys(keys: Keys) -> Result<Keys, ModelConfigError> {
    let Some(model_type) = keys.text("model_type")? else { return Ok(keys) };
    let Some((_, usual)) = WHOLE.into_iter().find(|(whole, _)| *whole == model_type) else { return Ok(keys) };
    let mut text = keys.within("text_config")?.ok_or(ModelConfigError::Missing("text_config"))?;
    for key in QUANTISED.into_iter().chain(SHARED) {
        if let Some(value) = keys.value(key) {
            text.fill(key, value.clone());
        }
    }
    usual.iter().for_each(|(key, value)| text.fill(key, json!(value)));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use crate::config::ModelConfig;

    const GEMMA: &str = r#"{"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],
        "vision_config":{"hidden_size":1152},"mm_tokens_per_image":256,
        "text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text","num_hidden_layers":34,
            "rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024}"#;

    /// As it was published: what is missing is as transformers has it.
    #[test]
    fn the_part_that_reads_is_a_model() {
        let config = ModelConfig::parse(format!("{GEMMA}}}").as_bytes()).unwrap();
        assert_eq!((config.hidden, config.heads, config.kv_heads, config.head_dim), (2560, 8, 4, 256));
        assert_eq!((config.vocab, config.context, config.tied), (262_208, 131_072, true));
        assert_eq!(config.notes, [""; 0]);
        assert_eq!(config.windows[4..6], [Some(1024), None]);
    }

    #[test]
    fn what_is_said_of_the_whole_counts_for_the_text() {
        let quantised = format!("{GEMMA},\"quantization_config\":{{\"quant_method\":\"fp8\"}}}}");
        assert!(ModelConfig::parse(quantised.as_bytes()).unwrap().coding.is_some());
        let other = quantised.replace("fp8", "quanto");
        assert!(ModelConfig::parse(other.as_bytes()).unwrap_err().to_string().contains("quanto"));
        let without = r#"{"model_type":"mistral3","vision_config":{}}"#;
        assert!(ModelConfig::parse(without.as_bytes()).unwrap_err().to_string().contains("text_config"));
    }
}
