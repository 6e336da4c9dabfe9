//! `/v1/messages`: Anthropic's API, told in its words by a chat completion.

mod answer;
mod request;

use super::{ApiError, ApiState, chat, translate};
use answer::MessagesTeller;
use axum::{Json, body::Body, extract::State, http::HeaderMap, response::Response};
use serde_json::{Value, json};

pub(super) async fn create(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let translate = |fields| request::translate(fields, request::Purpose::Answer, MessagesTeller::default());
    translate::answer(&state, headers, body, translate).await
}

pub(super) async fn count_tokens(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let translate = |fields| request::translate(fields, request::Purpose::Count, ());
    let (asked, _) = translate::read(&state, &headers, body, translate).await?;
    let (_, prompt) = chat::prompt(&state, asked).await?;
    Ok(Json(json!({ "input_tokens": prompt.len() })))
}
