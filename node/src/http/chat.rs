//! `/v1/chat/completions`.

use super::{
    ApiError, ApiState,
    naming::Naming,
    params::{self, Fields},
    request::{self, Wanted},
    respond::{self, Form},
};
use crate::text::ChatMessage;
use axum::{body::Bytes, extract::State, http::HeaderMap, response::Response};
use serde_json::Value;

/// Messages of one conversation.
const MESSAGES: usize = 4096;

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, ApiError> {
    let body = respond::body(body)?;
    let naming = Naming::of(&headers, &body)?;
    let mut fields = Fields::parse(&body)?;
    let name = fields.text("model")?;
    let messages = messages(&mut fields)?;
    request::ready(&state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let logprobs = logprobs(&mut fields)?;
    let max = fields.integer("max_completion_tokens", 1, u32::MAX.into())?;
    let max = max.or(fields.integer("max_tokens", 1, u32::MAX.into())?);
    let wanted = Wanted {
        sampling: params::sampling(&mut fields, &model, logprobs, naming.seed())?,
        max_tokens: max.map(|n| n as u32),
        fill_context: true,
        ignore_eos: fields.flag("ignore_eos")?,
        stops: params::stops(&mut fields)?,
        answers: params::answers(&mut fields)?,
        delivery: params::delivery(&mut fields)?,
        trace: headers.contains_key(respond::TRACE),
        overrule: request::overrule(&headers)?,
        naming,
    };
    refuse_the_rest(fields)?;
    let prompt = model.encode_chat(&messages).await?;
    let taken = request::submit(&state, model, vec![prompt], &wanted).await?;
    Ok(respond::answer(&state, taken, wanted, Form::Chat).await)
}

fn logprobs(fields: &mut Fields) -> Result<Option<u8>, ApiError> {
    let asked = fields.flag("logprobs")?;
    match fields.integer("top_logprobs", 0, 20)? {
        Some(_) if !asked => Err(ApiError::param("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")),
        top => Ok(asked.then_some(top.unwrap_or(0) as u8)),
    }
}

fn refuse_the_rest(mut fields: Fields) -> Result<(), ApiError> {
    let empty = |v: &Value| v.as_array().is_some_and(Vec::is_empty);
    for name in ["tools", "functions"] {
        fields.refuse_unless(name, empty)?;
    }
    for name in ["tool_choice", "function_call"] {
        fields.refuse_unless(name, |v| v == "none" || v == "auto")?;
    }
    fields.refuse_unless("response_format", |v| v["type"] == "text")?;
    fields.refuse_unless("modalities", |v| *v == serde_json::json!(["text"]))?;
    for name in ["user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"] {
        fields.take(name);
    }
    fields.finish()
}

fn messages(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let wrong = |why: &str| ApiError::param("messages", why);
    let Some(Value::Array(list)) = fields.take("messages") else {
        return Err(wrong("'messages' must be a list of messages"));
    };
    if list.is_empty() || list.len() > MESSAGES {
        return Err(wrong("'messages' must have at least one message, and not thousands"));
    }
    list.iter().map(message).collect()
}

fn message(value: &Value) -> Result<ChatMessage, ApiError> {
    let wrong = |why: &str| ApiError::param("messages", why);
    let role = value["role"].as_str().ok_or_else(|| wrong("a message has no 'role'"))?;
    if !["system", "developer", "user", "assistant"].contains(&role) {
        return Err(wrong("a message's 'role' must be system, developer, user or assistant"));
    }
    // What OpenAI calls developer, models know as system.
    let role = if role == "developer" { "system" } else { role };
    let content = match &value["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |p: &Value| (p["type"] == "text").then(|| p["text"].as_str().map(str::to_owned)).flatten();
            let parts: Option<Vec<String>> = parts.iter().map(text).collect();
            parts.ok_or_else(|| wrong("only content parts of type 'text' are supported"))?.concat()
        }
        _ => return Err(wrong("a message's 'content' must be a string or a list of text parts")),
    };
    Ok(ChatMessage { role: role.to_owned(), content })
}
