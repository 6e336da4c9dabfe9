//! `/v1/chat/completions`.

use super::{
    ApiError, ApiState,
    answer::answered,
    bodies::ReadBody,
    complete,
    ends::AnswerEnds,
    fields::{Fields, Messages},
    fingerprint, params,
    request::{self, CompletionRequest},
    respond::{self, CompletionKind},
    structured, template,
    tolerance::Ignored,
    tools::Tools,
};
use crate::text::{Conversation, TextModel};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use serde_json::Value;
use std::sync::Arc;
use tsnode_protocol::{Grammar, Sampling, Token};

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let asked = state.bodies.read(&headers, body, request::most_tokens(&state)).await?;
    answer(&state, &headers, asked).await
}

/// Answers a request that has been read, here or in another API's words.
pub(super) async fn answer(state: &ApiState, headers: &HeaderMap, asked: ReadBody) -> Result<Response, ApiError> {
    let ReadBody { place, naming, mut fields } = asked;
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
    let mut wanted = CompletionRequest {
        sampling: Sampling { constraint, ..params::sampling(&mut fields, &model, logprobs, seeds)? },
        seeds,
        max_tokens: max.map(|n| n as u32),
        fill_context: true,
        ends: AnswerEnds::of(&mut fields, &model)?,
        prompt_logprobs,
        stops: params::stops(&mut fields)?,
        answers: params::answers(&mut fields)?,
        best_of: None,
        delivery: params::delivery(&mut fields, &mut ignored)?,
        tools: Tools::read(fields.take("tools"), fields.take("tool_choice"), fields.take("parallel_tool_calls"))?,
        include_reasoning: fields.flag_or("include_reasoning", true)?,
        trace: headers.contains_key(respond::TRACE),
        overrule: request::overrule(headers)?,
        codec: fingerprint::kv_codec(&mut fields, state)?,
        class: request::class(&mut fields)?,
        naming,
        ignored,
    };
    wanted.sampling.prompt_logprobs = prompt_logprobs;
    complete::check_prompt_logprobs(&wanted)?;
    let documents = template::documents(&mut fields)?;
    let (kwargs, ending) = (template::kwargs(&mut fields)?, template::ending(&mut fields)?);
    refuse_the_rest(fields)?;
    let tools = wanted.tools.as_ref().map_or(Vec::new(), |tools| tools.list.clone());
    let conversation = Conversation { messages, tools, documents, kwargs, ending };
    let prompt = model.encode_chat(conversation).await?;
    drop(place);
    must_call(&mut wanted, &model, &prompt).await?;
    let prompts = vec![request::truncated(prompt, truncation, &wanted, &model)];
    complete::bounded_prompt_logprobs(&prompts, &wanted)?;
    let taken = request::submit(state, model, prompts, &wanted).await?;
    Ok(answered(state, taken, wanted, CompletionKind::Chat).await)
}

/// The tokens of a conversation that is not answered, and whose they are.
pub(super) async fn prompt(state: &ApiState, asked: ReadBody) -> Result<(Arc<TextModel>, Vec<Token>), ApiError> {
    let ReadBody { place: _place, naming: _, mut fields } = asked;
    let name = fields.text("model")?;
    let messages = Messages::read(fields.messages())?;
    request::ready(state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let tools = Tools::read(fields.take("tools"), fields.take("tool_choice"), fields.take("parallel_tool_calls"))?;
    let (documents, kwargs) = (template::documents(&mut fields)?, template::kwargs(&mut fields)?);
    let ending = template::ending(&mut fields)?;
    refuse_the_rest(fields)?;
    let tools = tools.map_or(Vec::new(), |tools| tools.list);
    let prompt = model.encode_chat(Conversation { messages, tools, documents, kwargs, ending }).await?;
    Ok((model, prompt))
}

/// Where a tool must be called, an answer can be nothing else: not with another constraint.
async fn must_call(wanted: &mut CompletionRequest, model: &TextModel, prompt: &[Token]) -> Result<(), ApiError> {
    let Some(tools) = wanted.tools.as_ref().filter(|tools| tools.must_call()) else { return Ok(()) };
    if wanted.sampling.constraint.is_some() {
        let why = "'tool_choice' says that a tool is called, and another field what the answer is: leave one out";
        return Err(ApiError::param("tool_choice", why));
    }
    let grammar = Grammar::Lark(model.call_grammar(prompt, &tools.to_call(), tools.may_call_several()));
    wanted.sampling.constraint = Some(structured::compiled(model, grammar, "tools").await?.into());
    Ok(())
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
    // OpenAI's older names, which its clients have given up for `tools` and `tool_choice`.
    fields.refuse_unless("functions", empty)?;
    fields.refuse_unless("function_call", |v| v == "none" || v == "auto")?;
    params::refuse_unbuilt(&mut fields)?;
    fields.refuse_unless("add_special_tokens", |v| v == false)?;
    fields.refuse_unless("echo", |v| v == false)?;
    fields.refuse_unless("modalities", |v| *v == serde_json::json!(["text"]))?;
    fields.finish()
}
