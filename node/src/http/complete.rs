//! `/v1/completions`.

use super::{
    ApiError, ApiState,
    naming::Naming,
    params::{self, Fields},
    request::{self, Wanted},
    respond::{self, Form},
};
use crate::text::TextModel;
use axum::{body::Bytes, extract::State, http::HeaderMap, response::Response};
use serde_json::Value;
use tsnode_protocol::Token;

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, ApiError> {
    let body = respond::body(body)?;
    let naming = Naming::of(&headers, &body)?;
    let mut fields = Fields::parse(&body)?;
    let name = fields.text("model")?;
    let prompt = fields.take("prompt").ok_or_else(|| ApiError::param("prompt", "'prompt' is missing"))?;
    request::ready(&state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let prompts = prompts(prompt, &model)?;
    let echo = fields.flag("echo")?;
    let logprobs = fields.integer("logprobs", 0, 5)?.map(|n| n as u8);
    if echo && logprobs.is_some() {
        return Err(ApiError::param("echo", "'echo' together with 'logprobs' is not supported by this server"));
    }
    let wanted = Wanted {
        sampling: params::sampling(&mut fields, &model, logprobs, naming.seed())?,
        max_tokens: fields.integer("max_tokens", 1, u32::MAX.into())?.map(|n| n as u32),
        fill_context: false,
        ignore_eos: fields.flag("ignore_eos")?,
        stops: params::stops(&mut fields)?,
        answers: params::answers(&mut fields)?,
        delivery: params::delivery(&mut fields)?,
        trace: headers.contains_key(respond::TRACE),
        overrule: request::overrule(&headers)?,
        naming,
    };
    fields.refuse_unless("best_of", |v| v.as_u64() == Some(1))?;
    fields.refuse_unless("suffix", |v| v == "")?;
    fields.take("user");
    fields.finish()?;
    let taken = request::submit(&state, model, prompts, &wanted).await?;
    Ok(respond::answer(&state, taken, wanted, Form::Text { echo }).await)
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
fn prompts(value: Value, model: &TextModel) -> Result<Vec<Vec<Token>>, ApiError> {
    match value {
        Value::String(text) => Ok(vec![encode(&text, model)?]),
        Value::Array(list) if list.iter().all(Value::is_number) && !list.is_empty() => Ok(vec![tokens(&list)?]),
        Value::Array(list) if !list.is_empty() => list.iter().map(|v| one_prompt(v, model)).collect(),
        _ => Err(wrong()),
    }
}

fn one_prompt(value: &Value, model: &TextModel) -> Result<Vec<Token>, ApiError> {
    match value {
        Value::String(text) => encode(text, model),
        Value::Array(list) => tokens(list),
        _ => Err(wrong()),
    }
}

fn encode(text: &str, model: &TextModel) -> Result<Vec<Token>, ApiError> {
    if text.is_empty() {
        return Err(ApiError::param("prompt", "the prompt has no tokens"));
    }
    Ok(model.encode(text)?)
}

fn tokens(list: &[Value]) -> Result<Vec<Token>, ApiError> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).map(Token).ok_or_else(wrong);
    list.iter().map(id).collect()
}

fn wrong() -> ApiError {
    ApiError::param("prompt", "'prompt' must be a string, a list of strings, a list of token ids, or a list of those")
}
