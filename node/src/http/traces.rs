//! `/api/requests`: what ran where in the latest requests of this peer's clients, and where their time went.

use super::{ApiError, ApiState};
use crate::gateway::Trace;
use crate::history::TRACES;
use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

/// The latest, newest first, in short, and those under way.
pub(super) async fn list(State(state): State<ApiState>) -> Json<Value> {
    let ended: Vec<Value> = state.history.newest().iter().map(short).collect();
    Json(json!({ "requests": ended, "running": state.running.list() }))
}

pub(super) fn short(t: &Trace) -> Value {
    json!({
        "request": t.request, "model": t.model, "prefill": t.prefill, "decode": t.decode, "prompt_tokens": t.prompt_tokens,
        "new_tokens": t.new_tokens, "kv_bytes": t.kv_bytes, "ttft": t.ttft, "total": t.total, "moves": t.moves.len(),
        "slowest": t.slowest, "peers": t.peers,
    })
}

/// One of them, whole; its id is the one that answers carry (`x-request-id`).
pub(super) async fn show(State(state): State<ApiState>, Path(id): Path<String>) -> Result<Json<Trace>, ApiError> {
    let found = state.history.newest().into_iter().find(|t| t.request.to_string() == id);
    found.map(Json).ok_or_else(|| {
        ApiError::NotFound(format!(
            "/api/requests/{id}: this peer's last {TRACES} requests that ended have none of that name"
        ))
    })
}
