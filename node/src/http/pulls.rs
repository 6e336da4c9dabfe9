//! `/api/models/pulls`: models that the owner wants here whole, from peers.

use super::{ApiError, ApiState, texts::find_card};
use crate::weights::{Pull, TooMany};
use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tsnode_protocol::ModelId;

/// What is wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PullWish {
    /// A model that a peer of the swarm has, by its name or id.
    model: String,
}

pub(super) async fn show(State(state): State<ApiState>) -> Json<Value> {
    let shown = |(id, pull): (ModelId, Pull)| {
        let mut shown = json!(pull);
        shown["id"] = json!(id);
        shown
    };
    Json(json!({ "pulls": state.controls.pulls.seen().into_iter().map(shown).collect::<Vec<_>>() }))
}

pub(super) async fn set(
    State(state): State<ApiState>,
    Json(PullWish { model }): Json<PullWish>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let card = find_card(&state.view.borrow(), Some(&model))?.clone();
    let busy = |error: TooMany| ApiError::Refused { status: StatusCode::CONFLICT, message: error.to_string() };
    state.controls.pulls.want(&card).map_err(busy)?;
    let done = format!("{} is fetched from peers", card.name);
    // Of one name there may be several: how far it is goes by the id.
    Ok((StatusCode::ACCEPTED, Json(json!({ "done": done, "id": card.id }))))
}
