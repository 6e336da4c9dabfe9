//! Fields that both kinds of completion have, and what they must be.

use super::{ApiError, fields::Fields, logprobs::TokenNames, naming::Naming, seeds::Seeds, tolerance::Ignored};
use crate::text::TextModel;
use serde_json::Value;
use std::collections::BTreeMap;
use tsnode_protocol::{Sampling, Token, limits};

/// Answers to one prompt; they share its pages.
const ANSWERS: u64 = 128;
/// Stop strings of one request.
const STOPS: usize = 16;
/// The longest of them (bytes): so much of an answer may be held back, and is looked through again with every token.
const STOP_BYTES: usize = 1024;

/// How the answer is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamOptions {
    pub stream: bool,
    pub include_usage: bool,
    /// With every event, as vLLM gives it.
    pub continuous_usage: bool,
    /// Token ids beside the text, as vLLM gives them.
    pub token_ids: bool,
    /// What log-probabilities call tokens.
    pub names: TokenNames,
}

pub(super) fn delivery(fields: &mut Fields, ignored: &mut Ignored) -> Result<StreamOptions, ApiError> {
    let (stream, token_ids) = (fields.flag("stream")?, fields.flag("return_token_ids")?);
    let names = if fields.flag("return_tokens_as_token_ids")? { TokenNames::Ids } else { TokenNames::Texts };
    let plain = StreamOptions { stream, token_ids, names, ..StreamOptions::default() };
    match fields.take("stream_options") {
        None => Ok(plain),
        Some(_) if !stream => Err(ApiError::param("stream_options", "'stream_options' needs 'stream' to be true")),
        Some(Value::Object(mut options)) => {
            let mut flag = |name: &str| match options.remove(name) {
                None | Some(Value::Null) => Ok(false),
                Some(Value::Bool(flag)) => Ok(flag),
                Some(_) => Err(ApiError::param("stream_options", format!("'{name}' must be true or false"))),
            };
            let (include_usage, continuous_usage) = (flag("include_usage")?, flag("continuous_usage_stats")?);
            if options.remove("include_obfuscation").is_some() {
                ignored.add("stream_options.include_obfuscation");
            }
            match options.into_iter().find(|(_, value)| !value.is_null()) {
                None => {
                    Ok(StreamOptions { include_usage, continuous_usage: include_usage && continuous_usage, ..plain })
                }
                Some((name, _)) => {
                    let name: String = name.chars().take(64).collect();
                    Err(ApiError::param("stream_options", format!("'stream_options' has no option '{name}'")))
                }
            }
        }
        Some(_) => Err(ApiError::param("stream_options", "'stream_options' must be an object")),
    }
}

/// As many of a prompt's last tokens as the client wants kept, as vLLM has it: -1 keeps as many as leave room for the answer.
pub(super) fn truncation(fields: &mut Fields) -> Result<Option<i64>, ApiError> {
    let Some(value) = fields.take("truncate_prompt_tokens") else { return Ok(None) };
    let most = i64::from(limits::SEQUENCE_TOKENS);
    let kept = value.as_i64().filter(|n| *n == -1 || (1..=most).contains(n)).ok_or_else(|| {
        let why = format!("'truncate_prompt_tokens' must be -1, or an integer from 1 to {most}");
        ApiError::param("truncate_prompt_tokens", why)
    })?;
    Ok(Some(kept))
}

/// Fields of vLLM that would change an answer and are not built; what asks for nothing is taken.
pub(super) fn refuse_unbuilt(fields: &mut Fields) -> Result<(), ApiError> {
    let nothing = |v: &Value| {
        v == &Value::Bool(false)
            || v.as_array().is_some_and(Vec::is_empty)
            || v.as_object().is_some_and(serde_json::Map::is_empty)
    };
    for name in ["bad_words", "allowed_token_ids", "use_beam_search", "early_stopping"] {
        fields.refuse_unless(name, nothing)?;
    }
    fields.refuse_unless("length_penalty", |v| v.as_f64() == Some(1.0))?;
    for name in ["logits_processors", "kv_transfer_params", "prompt_embeds"] {
        fields.refuse_unless(name, nothing)?;
    }
    fields.refuse_unless("detokenize", |v| v == &Value::Bool(true))
}

/// Answers to each prompt, and how many of them the client gets.
pub(super) fn answers(fields: &mut Fields) -> Result<u64, ApiError> {
    Ok(fields.integer("n", 1, ANSWERS)?.unwrap_or(1))
}

/// So many are computed of which the client gets `answers`, the likeliest; nothing where it gets all.
pub(super) fn best_of(fields: &mut Fields, answers: u64, delivery: &StreamOptions) -> Result<Option<u64>, ApiError> {
    let Some(best_of) = fields.integer("best_of", 1, ANSWERS)? else { return Ok(None) };
    if best_of < answers {
        return Err(ApiError::param(
            "best_of",
            format!("'best_of' is {best_of}, and 'n' {answers}: it must be no less"),
        ));
    }
    if best_of > answers && delivery.stream {
        let why =
            "answers cannot be streamed before the best is known: ask without 'stream', or for a 'best_of' of 'n'";
        return Err(ApiError::param("best_of", why));
    }
    Ok((best_of > answers).then_some(best_of))
}

pub(super) fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let wrong = || {
        let why =
            format!("'stop' must be a string or a list of up to {STOPS} strings, of {STOP_BYTES} bytes at most each");
        ApiError::param("stop", why)
    };
    let stops = match fields.take("stop") {
        None => Vec::new(),
        Some(one @ Value::String(_)) => vec![one],
        Some(Value::Array(many)) if many.len() <= STOPS => many,
        Some(_) => return Err(wrong()),
    };
    let stop = |value: Value| match value {
        Value::String(text) if text.len() <= STOP_BYTES => Ok(text),
        _ => Err(wrong()),
    };
    stops.into_iter().map(stop).collect()
}

/// What the answers draw with.
pub(super) fn seeds(fields: &mut Fields, naming: &Naming) -> Result<Seeds, ApiError> {
    let Some(seed) = fields.take("seed") else { return Ok(Seeds::drawn(naming.seed())) };
    let seed = seed.as_i64().map(|n| n as u64).or(seed.as_u64());
    seed.map(Seeds::said).ok_or_else(|| ApiError::param("seed", "'seed' must be an integer"))
}

/// Sampling as asked, then as the model asks, then as OpenAI has it.
pub(super) fn sampling(
    fields: &mut Fields,
    model: &TextModel,
    logprobs: Option<u8>,
    seeds: Seeds,
) -> Result<Sampling, ApiError> {
    let own = model.defaults();
    let greedy = own.do_sample == Some(false);
    let temperature = fields.number("temperature", 0.0, 2.0)?;
    Ok(Sampling {
        temperature: temperature.or(own.temperature).unwrap_or(if greedy { 0.0 } else { 1.0 }),
        top_k: top_k(fields)?.unwrap_or(own.top_k.unwrap_or(0)),
        top_p: fields.number("top_p", 0.0, 1.0)?.or(own.top_p).unwrap_or(1.0),
        min_p: fields.number("min_p", 0.0, 1.0)?.or(own.min_p).unwrap_or(0.0),
        repetition_penalty: fields.number("repetition_penalty", 0.01, 10.0)?.or(own.repetition_penalty).unwrap_or(1.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        logit_bias: bias(fields, model)?,
        seed: seeds.first(),
        logprobs,
        ..Sampling::greedy()
    })
}

/// As in vLLM -1 keeps all, as 0 does.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    const MOST: i64 = 1 << 20;
    let Some(value) = fields.take("top_k") else { return Ok(None) };
    match value.as_i64().filter(|k| (-1..=MOST).contains(k)) {
        Some(k) => Ok(Some(u32::try_from(k).unwrap_or(0))),
        None => Err(ApiError::param("top_k", format!("'top_k' must be an integer from -1 to {MOST}"))),
    }
}

fn bias(fields: &mut Fields, model: &TextModel) -> Result<Vec<(Token, f32)>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let wrong =
        || ApiError::param("logit_bias", "'logit_bias' must map up to 300 token ids to numbers from -100 to 100");
    let map: BTreeMap<String, f32> = serde_json::from_value(value).map_err(|_| wrong())?;
    let vocab = model.card().shape.vocab;
    if map.len() > 300 || map.values().any(|b| !(-100.0..=100.0).contains(b)) {
        return Err(wrong());
    }
    let id = |text: &String| text.parse().ok().filter(|id| *id < vocab).ok_or_else(wrong);
    map.iter().map(|(text, bias)| Ok((Token(id(text)?), *bias))).collect()
}
