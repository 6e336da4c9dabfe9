//! Ollama's API, told in its words by completions: `/api/chat`, `/api/generate`, and the models there are.

mod answer;
mod models;
mod request;

pub(super) use models::{show, tags};

use super::{ApiError, ApiState, fields::Fields, translate};
use axum::{
    Json,
    body::Body,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use request::OllamaRequest;

pub(super) async fn chat(State(state): State<ApiState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    answer(&state, headers, body, request::chat).await
}

pub(super) async fn generate(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(&state, headers, body, request::generate).await
}

async fn answer(
    state: &ApiState,
    headers: HeaderMap,
    body: Body,
    read: fn(Fields) -> Result<OllamaRequest, ApiError>,
) -> Result<Response, ApiError> {
    let names: Vec<String> = state.view.borrow().models.iter().map(|card| card.name.clone()).collect();
    let translate = move |fields| request::translate(read(fields)?, &names);
    let (mut asked, told) = translate::read(state, &headers, body, translate).await?;
    if !told.teller.asks_nothing() {
        return translate::conduct(state, &headers, asked, told).await;
    }
    // Clients ask so to have a model loaded; here it is, or is not there.
    let name = asked.fields.text("model")?;
    let model = state.texts.find(&state.view(), name.as_deref()).await?;
    Ok(Json(told.teller.nothing(&model.card().name)).into_response())
}
