//! `/api/arrivals` and `/api/plans`: who was seen in the swarm since this peer started, and which plans it has followed.

use super::ApiState;
use axum::{Json, extract::State};
use serde_json::{Value, json};

pub(super) async fn show(State(state): State<ApiState>) -> Json<Value> {
    let (watched_since, arrivals) = state.history.arrivals();
    Json(json!({ "watched_since": watched_since, "arrivals": arrivals }))
}

pub(super) async fn plans(State(state): State<ApiState>) -> Json<Value> {
    Json(json!({ "plans": state.history.plans() }))
}
