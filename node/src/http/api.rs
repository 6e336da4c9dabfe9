//! Everything but completions: models, health, metrics, the swarm.

use super::{
    ApiError, ApiState,
    metrics::{ExpositionFormat, MetricNames},
    texts::find_card,
};
use crate::view::{PeerView, SwarmView};
use axum::{
    Json,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::IntoResponse,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tsnode_protocol::{EncoderCard, ModelCard};

fn model_json(view: &SwarmView, card: &ModelCard) -> Value {
    let holds = |peer: &&PeerView| peer.advert.models.iter().any(|other| other.id == card.id);
    json!({
        "id": card.name,
        "object": "model",
        "created": 0,
        "owned_by": "swarm",
        "max_model_len": card.shape.context,
        "tsnode_id": card.id,
        "tsnode_peers": view.peers.iter().filter(holds).count(),
        "tsnode_loaded": view.loaded.contains(&card.id),
        "tsnode_default": view.default_model == Some(card.id),
    })
}

fn encoder_json(card: &EncoderCard) -> Value {
    json!({
        "id": card.name,
        "object": "model",
        "created": 0,
        "owned_by": "swarm",
        "max_model_len": card.context,
        "tsnode_id": card.id,
        "tsnode_task": card.task,
        "tsnode_dimensions": card.dimensions,
    })
}

pub(super) async fn models(State(state): State<ApiState>) -> Json<Value> {
    let view = state.view.borrow();
    let models = view.models.iter().map(|card| model_json(&view, card));
    let data: Vec<Value> = models.chain(view.encoders.iter().map(encoder_json)).collect();
    Json(json!({ "object": "list", "data": data }))
}

pub(super) async fn model(State(state): State<ApiState>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let view = state.view.borrow();
    let encoder = view.encoders.iter().find(|card| card.name == id || card.id.to_string() == id);
    match encoder.filter(|_| !view.models.iter().any(|card| card.name == id)) {
        Some(card) => Ok(Json(encoder_json(card))),
        None => find_card(&view, Some(&id)).map(|card| Json(model_json(&view, card))),
    }
}

pub(super) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

pub(super) async fn ready(State(state): State<ApiState>) -> impl IntoResponse {
    let (readiness, waits, takes_requests) = {
        let view = state.view.borrow();
        (view.readiness.clone(), view.why_not(), view.takes_requests())
    };
    let status = if takes_requests { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut answer = json!(readiness);
    if let Some(why) = waits {
        answer["reason"] = json!(why.to_string());
        answer["waiting"] = json!(why);
    }
    (status, Json(answer))
}

/// By whose names metrics are asked for.
#[derive(Deserialize)]
pub(super) struct MetricsQuery {
    names: Option<String>,
}

pub(super) async fn metrics(
    State(state): State<ApiState>,
    Query(query): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let names = match query.names.as_deref() {
        None => MetricNames::Both,
        Some("tsnode") => MetricNames::Ours,
        Some("vllm") => MetricNames::Vllm,
        Some(_) => return Err(ApiError::param("names", "'names' must be tsnode or vllm; without it there are both")),
    };
    let format = ExpositionFormat::accepted(&headers);
    let text = state.metrics.render(&state.view.borrow(), format, names);
    Ok(([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")], text))
}

pub(super) async fn swarm(State(state): State<ApiState>) -> Json<SwarmView> {
    Json(SwarmView { services: state.metrics.services(), ..state.shown() })
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "name": "tsnode", "version": env!("CARGO_PKG_VERSION") }))
}

pub(super) async fn not_found(uri: Uri) -> ApiError {
    ApiError::NotFound(uri.path().chars().take(120).collect())
}

pub(super) async fn wrong_method() -> ApiError {
    ApiError::Method
}
