//! `/v1/chat/completions`.

use super::{
    ApiError, ApiState,
    bodies::Asked,
    complete,
    ends::Ends,
    fields::{Fields, Messages},
    fingerprint, params,
    request::{self, Wanted},
    respond::{self, Form},
    structured,
    tolerance::Ignored,
};
use crate::text::TextModel;
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use serde_json::Value;
use std::sync::Arc;
use tsnode_protocol::Sampling;
use tsnode_protocol::Token;

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let asked = state.bodies.read(&headers, body, request::most_tokens(&state)).await?;
    answer(&state, &headers, asked).await
}

/// Answers a request that has been read, here or in another API's words.
pub(super) async fn answer(state: &ApiState, headers: &HeaderMap, asked: Asked) -> Result<Response, ApiError> {
    let Asked { place, naming, mut fields } = asked;
    let name = fields.text("model")?;
    let messages = Messages::read(fields.messages())?;
    request::ready(state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let logprobs = logprobs(&mut fields)?;
    let max = fields.integer("max_completion_tokens", 1, u32::MAX.into())?;
    let max = max.or(fields.integer("max_tokens", 1, u32::MAX.into())?);
    let constraint = structured::constraint(&mut fields, &model).await?;
    let mut ignored = Ignored::of(&mut fields);
    let prompt_logprobs = complete::prompt_logprobs(&mut fields)?;
    let truncation = params::truncation(&mut fields)?;
    let seeds = params::seeds(&mut fields, &naming)?;
    let mut wanted = Wanted {
        sampling: Sampling { constraint, ..params::sampling(&mut fields, &model, logprobs, seeds)? },
        seeds,
        max_tokens: max.map(|n| n as u32),
        fill_context: true,
        ends: Ends::of(&mut fields, &model)?,
        prompt_logprobs,
        stops: params::stops(&mut fields)?,
        answers: params::answers(&mut fields)?,
        best_of: None,
        delivery: params::delivery(&mut fields, &mut ignored)?,
        trace: headers.contains_key(respond::TRACE),
        overrule: request::overrule(headers)?,
        codec: fingerprint::kv_codec(&mut fields, state)?,
        naming,
        ignored,
    };
    wanted.sampling.prompt_logprobs = prompt_logprobs;
    complete::check_prompt_logprobs(&wanted)?;
    refuse_the_rest(fields)?;
    let prompt = model.encode_chat(&messages).await?;
    let prompts = vec![params::truncated(prompt, truncation, &wanted, &model)];
    complete::bounded_prompt_logprobs(&prompts, &wanted)?;
    drop((messages, place));
    let taken = request::submit(state, model, prompts, &wanted).await?;
    Ok(respond::answer(state, taken, wanted, Form::Chat).await)
}

/// The tokens of a conversation that is not answered, and whose they are.
pub(super) async fn prompt(state: &ApiState, asked: Asked) -> Result<(Arc<TextModel>, Vec<Token>), ApiError> {
    let Asked { place: _place, naming: _, mut fields } = asked;
    let name = fields.text("model")?;
    let messages = Messages::read(fields.messages())?;
    request::ready(state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    refuse_the_rest(fields)?;
    let prompt = model.encode_chat(&messages).await?;
    Ok((model, prompt))
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
    params::refuse_unbuilt(&mut fields)?;
    fields.refuse_unless("add_special_tokens", |v| v == false)?;
    fields.refuse_unless("add_generation_prompt", |v| v == true)?;
    fields.refuse_unless("continue_final_message", |v| v == false)?;
    fields.refuse_unless("echo", |v| v == false)?;
    fields.refuse_unless("modalities", |v| *v == serde_json::json!(["text"]))?;
    fields.take("parallel_tool_calls");
    fields.finish()
}
