//! `/v1/completions`.

use super::{
    ApiError, ApiState,
    bodies::Asked,
    fields::{FixedPlan, Prompt},
    fingerprint, params,
    request::{self, Wanted},
    respond::{self, Form},
};
use crate::text::{TextError, TextModel};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use tsnode_protocol::Token;

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
    asked: Asked,
    unsaid: Unsaid,
) -> Result<Response, ApiError> {
    let Asked { place, naming, mut fields } = asked;
    let name = fields.text("model")?;
    let prompt = fields.prompt().ok_or_else(|| ApiError::param("prompt", "'prompt' is missing"))?;
    request::ready(state)?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let prompts = prompts(prompt, &model).await?;
    drop(place);
    let echo = fields.flag("echo")?;
    let logprobs = fields.integer("logprobs", 0, 5)?.map(|n| n as u8);
    if echo && logprobs.is_some() {
        return Err(ApiError::param("echo", "'echo' together with 'logprobs' is not supported by this server"));
    }
    let seeds = params::seeds(&mut fields, &naming)?;
    let wanted = Wanted {
        sampling: params::sampling(&mut fields, &model, logprobs, seeds)?,
        seeds,
        max_tokens: fields.integer("max_tokens", 1, u32::MAX.into())?.map(|n| n as u32),
        fill_context: unsaid == Unsaid::Context,
        ignore_eos: fields.flag("ignore_eos")?,
        stops: params::stops(&mut fields)?,
        answers: params::answers(&mut fields)?,
        delivery: params::delivery(&mut fields)?,
        trace: headers.contains_key(respond::TRACE),
        overrule: request::overrule(headers)?,
        codec: fingerprint::kv_codec(&mut fields, state)?,
        naming,
    };
    fields.refuse_unless("best_of", |v| v.as_u64() == Some(1))?;
    fields.refuse_unless("suffix", |v| v == "")?;
    fields.take("user");
    fields.finish()?;
    let taken = request::submit(state, model, prompts, &wanted).await?;
    Ok(respond::answer(state, taken, wanted, Form::Text { echo }).await)
}

async fn prompts(given: Prompt, model: &TextModel) -> Result<Vec<Vec<Token>>, ApiError> {
    let given = match given {
        Prompt::FixedPlan(given) => given,
        Prompt::TooMany => return Err(request::too_many()),
        Prompt::Wrong => return Err(wrong()),
    };
    let mut prompts = Vec::with_capacity(given.len());
    for one in given {
        prompts.push(match one {
            FixedPlan::Text(text) => encode(text, model).await?,
            FixedPlan::Tokens(tokens) => tokens,
            FixedPlan::Endless(prompt) => {
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
