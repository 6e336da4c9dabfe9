//! Fields of requests, as the document shows them.

use crate::http::tolerance::ADVISORY;
use serde_json::{Value, json};

/// Where a field may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Both,
    Completions,
    Chat,
}

impl At {
    pub fn is_for(self, at: Self) -> bool {
        self == Self::Both || self == at
    }
}

/// What a field must be; null is as if it were not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FieldType {
    Text,
    Flag,
    /// A whole number within bounds.
    Whole(i64, i64),
    /// A number within bounds.
    Number(f64, f64),
    /// One of these packings, or of a prompt's first tokens: `int4`, `int4@128`.
    Packing(&'static [&'static str]),
    /// Just this value, as JSON: what else the field may ask for is not built.
    Only(&'static str),
    /// A schema of its own, as JSON.
    Other(&'static str),
    /// Anything: it is not looked at.
    Any,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Field {
    pub name: &'static str,
    pub at: At,
    pub kind: FieldType,
    pub says: &'static str,
}

const fn field(name: &'static str, at: At, kind: FieldType, says: &'static str) -> Field {
    Field { name, at, kind, says }
}

const SEED: (i64, i64) = (i64::MIN, i64::MAX);
const MOST: i64 = u32::MAX as i64;
const NOTHING: &str = r#"{"enum":[false,[],{},null]}"#;
const STOP: &str = r#"{"anyOf":[{"type":["string","null"],"maxLength":1024},{"type":"array","maxItems":16,"items":{"type":"string","maxLength":1024}}]}"#;
const IDS: &str =
    r#"{"type":["array","null"],"maxItems":128,"items":{"type":"integer","minimum":0,"maximum":4294967295}}"#;
const BIAS: &str = r#"{"type":["object","null"],"maxProperties":300,"propertyNames":{"pattern":"^[0-9]+$"},"additionalProperties":{"type":"number","minimum":-100,"maximum":100}}"#;
const PROMPT: &str = r#"{"anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"maxItems":128,"items":{"type":"string","minLength":1}},{"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":4294967295}},{"type":"array","minItems":1,"maxItems":128,"items":{"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":4294967295}}}]}"#;
const MESSAGES: &str = r#"{"type":"array","minItems":1,"maxItems":4096,"items":{"type":"object","required":["role"],"properties":{"role":{"enum":["system","developer","user","assistant","tool","function"]},"content":{"anyOf":[{"type":["string","null"]},{"type":"array","items":{"type":"object","required":["type"],"properties":{"type":{"type":"string"},"text":{"type":"string"}}}}]}}}}"#;
const OPTIONS: &str = r#"{"type":["object","null"],"additionalProperties":false,"properties":{"include_usage":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]},"include_obfuscation":{}}}"#;

/// All but those that only advise.
pub(super) const OWN: &[Field] = &[
    field("model", At::Both, FieldType::Text, "By name or id; the swarm's default without"),
    field("prompt", At::Completions, FieldType::Other(PROMPT), "A text, tokens' ids, or a list of either"),
    field("messages", At::Chat, FieldType::Other(MESSAGES), "A conversation, which the model's own template renders"),
    field("max_tokens", At::Completions, FieldType::Whole(0, MOST), "16 unless said"),
    field("max_tokens", At::Chat, FieldType::Whole(1, MOST), "What the context leaves unless said"),
    field("max_completion_tokens", At::Chat, FieldType::Whole(1, MOST), "The same"),
    field("n", At::Both, FieldType::Whole(1, 128), "Answers to each prompt; at most 128 in all"),
    field("best_of", At::Completions, FieldType::Whole(1, 128), "So many are computed, and the n likeliest given"),
    field("stream", At::Both, FieldType::Flag, "Server-sent events"),
    field("stream_options", At::Both, FieldType::Other(OPTIONS), "With stream only"),
    field("stop", At::Both, FieldType::Other(STOP), "The answer ends before any of these"),
    field("temperature", At::Both, FieldType::Number(0.0, 2.0), "0 is greedy"),
    field("top_p", At::Both, FieldType::Number(0.0, 1.0), ""),
    field("min_p", At::Both, FieldType::Number(0.0, 1.0), "As in vLLM"),
    field("top_k", At::Both, FieldType::Whole(-1, 1 << 20), "As in vLLM; -1 and 0 are all"),
    field("repetition_penalty", At::Both, FieldType::Number(0.01, 10.0), "As in vLLM"),
    field("frequency_penalty", At::Both, FieldType::Number(-2.0, 2.0), ""),
    field("presence_penalty", At::Both, FieldType::Number(-2.0, 2.0), ""),
    field("logit_bias", At::Both, FieldType::Other(BIAS), "By tokens' ids"),
    field("seed", At::Both, FieldType::Whole(SEED.0, SEED.1), "It follows from the request's id unless said"),
    field("logprobs", At::Completions, FieldType::Whole(0, 5), "Alternatives beside each token"),
    field("logprobs", At::Chat, FieldType::Flag, "Log-probabilities of tokens"),
    field("top_logprobs", At::Chat, FieldType::Whole(0, 20), "Alternatives beside each token; with logprobs only"),
    field("prompt_logprobs", At::Both, FieldType::Whole(0, 20), "Of the prompt's tokens, as in vLLM; not with stream"),
    field("echo", At::Completions, FieldType::Flag, "The prompt comes first; with logprobs, its tokens' as well"),
    field("echo", At::Chat, FieldType::Only("false"), "Not built"),
    field("ignore_eos", At::Both, FieldType::Flag, "The model's own end ends nothing, as in vLLM"),
    field("min_tokens", At::Both, FieldType::Whole(0, 1 << 20), "As in vLLM; no more than max_tokens"),
    field("stop_token_ids", At::Both, FieldType::Other(IDS), "As in vLLM"),
    field("skip_special_tokens", At::Both, FieldType::Flag, "As in vLLM; true unless said"),
    field("include_stop_str_in_output", At::Both, FieldType::Flag, "As in vLLM"),
    field("truncate_prompt_tokens", At::Both, FieldType::Whole(-1, 1 << 20), "As in vLLM; 0 is refused"),
    field("return_token_ids", At::Both, FieldType::Flag, "As in vLLM"),
    field(
        "kv_codec",
        At::Both,
        FieldType::Packing(&["raw", "int3", "int4", "int8"]),
        "What the prompt's KV goes through",
    ),
    field("service_tier", At::Both, FieldType::Text, "flex gives way to others for a while, as batch requests do"),
    field(
        "priority",
        At::Both,
        FieldType::Whole(SEED.0, SEED.1),
        "Above 0: a batch request, which gives way for a while",
    ),
    field("suffix", At::Completions, FieldType::Only("\"\""), "Not built"),
    field("add_special_tokens", At::Completions, FieldType::Only("true"), "Prompts are read as the tokenizer has it"),
    field("add_special_tokens", At::Chat, FieldType::Only("false"), "Templates write all special tokens"),
    field(
        "add_generation_prompt",
        At::Chat,
        FieldType::Flag,
        "Whether an answer begins behind the conversation; true unless said",
    ),
    field("continue_final_message", At::Chat, FieldType::Flag, "The answer goes on with the last message, as in vLLM"),
    field("detokenize", At::Both, FieldType::Only("true"), "Not built otherwise"),
    field("length_penalty", At::Both, FieldType::Only("1"), "Not built"),
    field("bad_words", At::Both, FieldType::Other(NOTHING), "Not built"),
    field("allowed_token_ids", At::Both, FieldType::Other(NOTHING), "Not built"),
    field("use_beam_search", At::Both, FieldType::Other(NOTHING), "Not built"),
    field("early_stopping", At::Both, FieldType::Other(NOTHING), "Not built"),
    field("return_tokens_as_token_ids", At::Both, FieldType::Flag, "Log-probabilities name tokens by id, as in vLLM"),
    field("logits_processors", At::Both, FieldType::Other(NOTHING), "Not built"),
    field("kv_transfer_params", At::Both, FieldType::Other(NOTHING), "Not built"),
    field("prompt_embeds", At::Both, FieldType::Other(NOTHING), "Not built"),
];

/// Fields that are read by others than this document describes in full: anything may stand there, and what is wrong is refused.
const LOOSE: &[(&str, At)] = &[
    ("tools", At::Chat),
    ("functions", At::Chat),
    ("tool_choice", At::Chat),
    ("function_call", At::Chat),
    ("parallel_tool_calls", At::Chat),
    ("response_format", At::Both),
    ("guided_json", At::Both),
    ("guided_regex", At::Both),
    ("guided_choice", At::Both),
    ("guided_grammar", At::Both),
    ("guided_decoding_backend", At::Both),
    ("guided_whitespace_pattern", At::Both),
    ("structured_outputs", At::Both),
    ("documents", At::Chat),
    ("chat_template_kwargs", At::Chat),
    ("reasoning_effort", At::Chat),
    ("include_reasoning", At::Chat),
    ("modalities", At::Chat),
];

/// All fields.
pub(super) fn all() -> impl Iterator<Item = Field> {
    let loose = LOOSE.iter().map(|(name, at)| field(name, *at, FieldType::Any, "As docs/reference/http.md has it"));
    let advice =
        ADVISORY.iter().map(|name| field(name, At::Both, FieldType::Any, "Ignored, and named in x-tsnode-ignored"));
    OWN.iter().copied().chain(loose).chain(advice)
}

impl Field {
    /// Its schema.
    pub fn schema(&self) -> Value {
        let parsed = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let mut schema = match self.kind {
            FieldType::Text => json!({ "type": ["string", "null"] }),
            FieldType::Flag => json!({ "type": ["boolean", "null"] }),
            FieldType::Whole(low, high) => json!({ "type": ["integer", "null"], "minimum": low, "maximum": high }),
            FieldType::Number(low, high) => json!({ "type": ["number", "null"], "minimum": low, "maximum": high }),
            FieldType::Packing(names) => {
                let pattern = format!("^({})(@[1-9][0-9]*)?$", names.join("|"));
                json!({ "type": ["string", "null"], "pattern": pattern })
            }
            FieldType::Only(value) => json!({ "enum": [parsed(value), null] }),
            FieldType::Other(schema) => parsed(schema),
            FieldType::Any => json!({}),
        };
        if !self.says.is_empty() {
            schema["description"] = json!(self.says);
        }
        schema
    }
}
