//! `/api/limits`: what this machine may be used for, as its owner has said, and the hours, which may be changed while the peer runs.

use super::{ApiError, ApiState};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tsnode_coordinator::lending::Hours;

/// What the owner has allowed, by settings that hold as long as the peer runs. Nothing where all is allowed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// Memory for weights and KV (bytes).
    pub memory_bytes: Option<u64>,
    /// Of it for KV pages.
    pub kv_bytes: Option<u64>,
    /// Threads that compute.
    pub threads: usize,
    /// What leaves to all peers together (Mbit/s).
    pub upload_mbit: Option<f64>,
    /// Whether it carries between others that do not reach each other.
    pub relay: bool,
    /// Models that may be fetched where none is named (bytes on the disk); none at 0.
    pub model_budget_bytes: u64,
    /// Requests a minute of each client.
    pub requests_per_minute: Option<u32>,
}

/// What is to be changed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    /// As `22:00-07:00`; null or an empty text for all day. It must be said.
    #[serde(deserialize_with = "Option::deserialize")]
    hours: Option<String>,
}

pub(super) async fn show(State(state): State<ApiState>) -> Json<Value> {
    let hours = state.controls.owner.hours().map(|hours| hours.to_string());
    let lending = state.view.borrow().lending;
    Json(json!({ "limits": state.controls.limits, "hours": hours, "lending": lending }))
}

pub(super) async fn set(
    State(state): State<ApiState>,
    Json(Wish { hours }): Json<Wish>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let hours = hours.filter(|text| !text.trim().is_empty());
    let hours = hours.map(|text| text.trim().parse::<Hours>()).transpose();
    let hours = hours.map_err(|error| ApiError::param("hours", error.to_string()))?;
    tracing::info!(hours = ?hours.map(|hours| hours.to_string()), "the hours of lending were changed");
    state.controls.owner.set_hours(hours);
    let said = hours.map_or_else(
        || "lends at all hours".to_owned(),
        |hours| format!("lends from {hours}, by this machine's clock"),
    );
    let done = format!("{said}, until this peer starts again; for good it is the setting hours");
    Ok((StatusCode::ACCEPTED, Json(json!({ "done": done }))))
}
