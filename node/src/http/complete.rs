//! `/v1/completions`.

use super::{
    ApiError, ApiState,
    answer::answered,
    bodies::ReadBody,
    ends::AnswerEnds,
    fields::{Fields, GivenPrompt, Prompt},
    fingerprint, params,
    request::{self, CompletionRequest},
    respond::{self, CompletionKind},
    structured,
    tolerance::Ignored,
};
use crate::text::{TextError, TextModel};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use tsnode_protocol::{Sampling, Token, limits};

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let asked = state.bodies.read(&headers, body, request::most_tokens(&state)).await?;
    answer(&state, &headers, asked, Unsaid::Sixteen).await
}

/// How many tokens an answer may have that says no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsaid {
    Sixteen,
    Context,
}

/// Answers a request that has been read, here or in another API's words.
pub(super) async fn answer(
    state: &ApiState,
    headers: &HeaderMap,
    asked: ReadBody,
    unsaid: Unsaid,
) -> Result<Response, ApiError> {
    let ReadBody { place, naming, mut fields } = asked;
    let name = fields.text("model")?;
    let prompt = fields.prompt().ok_or_else(|| ApiError::param("prompt", "'prompt' is missing"))?;
    request::ready(state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let prompts = prompts(prompt, &model).await?;
    drop(place);
    let mut ignored = Ignored::of(&mut fields);
    let echo = fields.flag("echo")?;
    let logprobs = fields.integer("logprobs", 0, 5)?.map(|n| n as u8);
    let constraint = structured::constraint(&mut fields, &model).await?;
    let prompt_logprobs = prompt_logprobs(&mut fields)?;
    let truncation = params::truncation(&mut fields)?;
    let seeds = params::seeds(&mut fields, &naming)?;
    let mut wanted = CompletionRequest {
        sampling: Sampling { constraint, ..params::sampling(&mut fields, &model, logprobs, seeds)? },
        seeds,
        max_tokens: fields.integer("max_tokens", 0, u32::MAX.into())?.map(|n| n as u32),
        fill_context: unsaid == Unsaid::Context,
        ends: AnswerEnds::of(&mut fields, &model)?,
        prompt_logprobs,
        stops: params::stops(&mut fields)?,
        answers: params::answers(&mut fields)?,
        best_of: None,
        delivery: params::delivery(&mut fields, &mut ignored)?,
        tools: None,
        include_reasoning: false,
        trace: headers.contains_key(respond::TRACE),
        overrule: request::overrule(headers)?,
        codec: fingerprint::kv_codec(&mut fields, state)?,
        class: request::class(&mut fields)?,
        naming,
        ignored,
    };
    wanted.sampling.prompt_logprobs = prompt_logprobs;
    check_prompt_logprobs(&wanted)?;
    if echo {
        wanted.sampling.prompt_logprobs = prompt_logprobs.max(logprobs);
    }
    wanted.best_of = params::best_of(&mut fields, wanted.answers, &wanted.delivery)?;
    let hides_logprobs = wanted.best_of.is_some() && logprobs.is_none();
    if hides_logprobs {
        // Who chooses tokens says how likely they are.
        wanted.sampling.logprobs = Some(0);
    }
    params::refuse_unbuilt(&mut fields)?;
    fields.refuse_unless("add_special_tokens", |v| v == true)?;
    fields.refuse_unless("suffix", |v| v == "")?;
    fields.finish()?;
    let truncated = |prompt| request::truncated(prompt, truncation, &wanted, &model);
    let prompts: Vec<Vec<Token>> = prompts.into_iter().map(truncated).collect();
    bounded_prompt_logprobs(&prompts, &wanted)?;
    let taken = request::submit(state, model, prompts, &wanted).await?;
    Ok(answered(state, taken, wanted, CompletionKind::Text { echo, hides_logprobs }).await)
}

/// vLLM's field: log-probabilities of the prompt's tokens, in a field of their own.
pub(super) fn prompt_logprobs(fields: &mut Fields) -> Result<Option<u8>, ApiError> {
    Ok(fields.integer("prompt_logprobs", 0, limits::TOP_LOGPROBS as u64)?.map(|n| n as u8))
}

/// As in vLLM they are not streamed: they are there before the first token, and belong to none.
pub(super) fn check_prompt_logprobs(wanted: &CompletionRequest) -> Result<(), ApiError> {
    if wanted.prompt_logprobs.is_some() && wanted.delivery.stream {
        let why = "'prompt_logprobs' cannot be streamed; ask without 'stream', or for 'echo' with 'logprobs'";
        return Err(ApiError::param("prompt_logprobs", why));
    }
    Ok(())
}

/// Refuses more log-probabilities of prompts than one answer should hold: each takes some hundred bytes as JSON.
pub(super) fn bounded_prompt_logprobs(prompts: &[Vec<Token>], wanted: &CompletionRequest) -> Result<(), ApiError> {
    const MOST: usize = 1 << 19;
    let Some(n) = wanted.sampling.prompt_logprobs else { return Ok(()) };
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let all = tokens.saturating_mul(wanted.computed() as usize).saturating_mul(usize::from(n) + 1);
    if all <= MOST {
        return Ok(());
    }
    let why = format!(
        "log-probabilities of {all} tokens of prompts and alternatives are asked for, at most {MOST} in one request: \
         ask for fewer prompts, alternatives or answers at once"
    );
    Err(ApiError::param("logprobs", why))
}

async fn prompts(given: Prompt, model: &TextModel) -> Result<Vec<Vec<Token>>, ApiError> {
    let given = match given {
        Prompt::Given(given) => given,
        Prompt::TooMany => return Err(request::too_many()),
        Prompt::Wrong => return Err(wrong()),
    };
    let mut prompts = Vec::with_capacity(given.len());
    for one in given {
        prompts.push(match one {
            GivenPrompt::Text(text) => encode(text, model).await?,
            GivenPrompt::Tokens(tokens) => tokens,
            GivenPrompt::Endless(prompt) => {
                let context = model.card().shape.context;
                return Err(ApiError::TooLong { context, prompt, wanted: 1, param: "prompt" });
            }
        });
    }
    Ok(prompts)
}

async fn encode(text: String, model: &TextModel) -> Result<Vec<Token>, ApiError> {
    if text.is_empty() {
        return Err(ApiError::param("prompt", "the prompt has no tokens"));
    }
    model.encode_prompt(text).await.map_err(|error| match error {
        TextError::TooLong { .. } => ApiError::FarTooLong { message: error.to_string(), param: "prompt" },
        other => other.into(),
    })
}

fn wrong() -> ApiError {
    ApiError::param("prompt", "'prompt' must be a string, a list of strings, a list of token ids, or a list of those")
}
