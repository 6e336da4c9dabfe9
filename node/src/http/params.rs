//! Fields that both kinds of completion have, and what they must be.

use super::{ApiError, fields::Fields, naming::Naming, request::Wanted, seeds::Seeds};
use crate::text::TextModel;
use serde_json::Value;
use std::collections::BTreeMap;
use tsnode_protocol::{Sampling, Token, limits, stream::Generation};

/// Answers to one prompt.
const ANSWERS: u64 = 8;
/// Stop strings of one request.
const STOPS: usize = 16;

/// How the answer is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivery {
    pub stream: bool,
    pub include_usage: bool,
    /// Token ids beside the text, as vLLM gives them.
    pub token_ids: bool,
}

pub(super) fn delivery(fields: &mut Fields) -> Result<Delivery, ApiError> {
    let stream = fields.flag("stream")?;
    let include_usage = match fields.take("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(ApiError::param("stream_options", "'stream_options' needs 'stream' to be true"));
        }
        Some(Value::Object(options)) => match options.get("include_usage") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => return Err(ApiError::param("stream_options", "'include_usage' must be true or false")),
        },
        Some(_) => return Err(ApiError::param("stream_options", "'stream_options' must be an object")),
    };
    Ok(Delivery { stream, include_usage, token_ids: fields.flag("return_token_ids")? })
}

pub(super) fn answers(fields: &mut Fields) -> Result<u64, ApiError> {
    Ok(fields.integer("n", 1, ANSWERS)?.unwrap_or(1))
}

pub(super) fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::param("stop", format!("'stop' must be a string or a list of up to {STOPS} strings"));
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one]),
        Some(Value::Array(many)) if many.len() <= STOPS => {
            many.into_iter().map(|v| if let Value::String(s) = v { Ok(s) } else { Err(wrong()) }).collect()
        }
        Some(_) => Err(wrong()),
    }
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
        top_k: fields.integer("top_k", 0, 1 << 20)?.map_or(own.top_k.unwrap_or(0), |k| k as u32),
        top_p: fields.number("top_p", 0.0, 1.0)?.or(own.top_p).unwrap_or(1.0),
        min_p: fields.number("min_p", 0.0, 1.0)?.or(own.min_p).unwrap_or(0.0),
        repetition_penalty: fields.number("repetition_penalty", 0.01, 10.0)?.or(own.repetition_penalty).unwrap_or(1.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        logit_bias: bias(fields, model)?,
        seed: seeds.first(),
        logprobs,
    })
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

/// What to generate after a prompt of `prompt` tokens.
pub(super) fn generation(wanted: &Wanted, model: &TextModel, prompt: &[Token]) -> Result<Generation, ApiError> {
    let (context, vocab) = (model.card().shape.context, model.card().shape.vocab);
    if prompt.is_empty() {
        return Err(ApiError::param("prompt", "the prompt has no tokens"));
    }
    if let Some(stray) = prompt.iter().find(|t| t.0 >= vocab) {
        return Err(ApiError::param("prompt", format!("token id {} is outside the vocabulary of {vocab}", stray.0)));
    }
    let room = (context as usize).saturating_sub(prompt.len()) as u32;
    let asked = wanted.max_tokens.unwrap_or(if wanted.fill_context { room.max(1) } else { 16 });
    // What was not asked for by number may be less than the usual.
    let most = if wanted.max_tokens.is_none() { asked.min(room.max(1)) } else { asked };
    if most > room || prompt.len() > limits::SEQUENCE_TOKENS as usize {
        return Err(ApiError::TooLong { context, prompt: prompt.len(), wanted: most, param: wanted.prompt_field() });
    }
    let stop_tokens = if wanted.ignore_eos { Vec::new() } else { model.stop_tokens().to_vec() };
    Ok(Generation { sampling: wanted.sampling.clone(), max_new_tokens: most, stop_tokens })
}
