//! `/tokenize` and `/detokenize`, as vLLM has them.

use super::{
    ApiError, ApiState,
    bodies::ReadBody,
    chat,
    fields::{Fields, GivenPrompt, Prompt},
    request,
};
use crate::text::{TextError, TextModel};
use axum::{Json, body::Body, extract::State, http::HeaderMap};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tsnode_protocol::Token;

pub(super) async fn tokenize(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let mut asked = state.bodies.read(&headers, body, request::most_tokens(&state)).await?;
    let with_strings = asked.fields.flag("return_token_strs")?;
    let (model, tokens) = match asked.fields.prompt() {
        Some(prompt) => plain(&state, asked, prompt).await?,
        None => conversation(&state, asked).await?,
    };
    let strings = with_strings.then(|| tokens.iter().map(|token| model.spelled(*token)).collect::<Vec<_>>());
    Ok(Json(json!({
        "count": tokens.len(), "max_model_len": model.card().shape.context, "tokens": tokens, "token_strs": strings,
    })))
}

/// A text's tokens, with what the tokenizer puts around one unless that is not wanted.
async fn plain(state: &ApiState, asked: ReadBody, prompt: Prompt) -> Result<(Arc<TextModel>, Vec<Token>), ApiError> {
    let ReadBody { place: _place, naming: _, mut fields } = asked;
    let Prompt::Given(mut given) = prompt else { return Err(wrong()) };
    let (Some(GivenPrompt::Text(text)), true) = (given.pop(), given.is_empty()) else { return Err(wrong()) };
    let name = fields.text("model")?;
    let is_bare = fields.peek("add_special_tokens").is_some() && !fields.flag("add_special_tokens")?;
    fields.finish()?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    let tokens = if is_bare { model.encode_bare(text).await } else { model.encode_prompt(text).await };
    let tokens = tokens.map_err(|error| match error {
        TextError::TooLong { .. } => ApiError::FarTooLong { message: error.to_string(), param: "prompt" },
        other => other.into(),
    })?;
    Ok((model, tokens))
}

/// A conversation's tokens, ready for its answer.
async fn conversation(state: &ApiState, mut asked: ReadBody) -> Result<(Arc<TextModel>, Vec<Token>), ApiError> {
    asked.fields.refuse_unless("add_special_tokens", |value| *value == false)?;
    chat::prompt(state, asked).await
}

fn wrong() -> ApiError {
    ApiError::param("prompt", "'prompt' must be a string")
}

/// Tokens whose text is asked for: read into what they are, since JSON values take ten times that.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DetokeniseWish {
    model: Option<String>,
    tokens: Vec<Token>,
}

pub(super) async fn detokenize(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let parse = |bytes: &[u8]| {
        let wish: Result<DetokeniseWish, _> = serde_json::from_slice(bytes);
        let wish = wish.map_err(|error| ApiError::Invalid {
            message: format!("The body must be {{\"model\": …, \"tokens\": [ids]}}: {error}"),
            param: None,
        })?;
        Ok((Fields::default(), wish))
    };
    let (_, DetokeniseWish { model, tokens }) = state.bodies.read_by(&headers, body, parse).await?;
    let model = state.texts.find(&state.view(), model.as_deref()).await?;
    let shape = &model.card().shape;
    if tokens.len() > shape.context as usize {
        let why = format!("'tokens' has {} ids, and the model's context is {}", tokens.len(), shape.context);
        return Err(ApiError::param("tokens", why));
    }
    if let Some(stray) = tokens.iter().find(|token| token.0 >= shape.vocab) {
        let why = format!("token id {} is outside the vocabulary of {}", stray.0, shape.vocab);
        return Err(ApiError::param("tokens", why));
    }
    Ok(Json(json!({ "prompt": model.detokenise(tokens).await? })))
}
