//! `/api/limits`: what this machine may be used for, as its owner has said, and what they change while the peer runs.

use super::{ApiError, ApiState};
use crate::limits::{LimitChange, LimitError, LimitUpdate};
use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tsnode_coordinator::lending::Hours;

/// What is to be changed: what is left out stays, and `null` is no limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsWish {
    /// As `22:00-07:00`; an empty text, too, is all day.
    hours: LimitUpdate<String>,
    upload_mbit: LimitUpdate<f64>,
    threads: LimitUpdate<usize>,
    memory_bytes: LimitUpdate<u64>,
}

impl LimitsWish {
    fn read(self) -> Result<LimitChange, ApiError> {
        let Self { hours, upload_mbit, threads, memory_bytes } = self;
        let hours = match hours {
            LimitUpdate::Nothing => LimitUpdate::Nothing,
            LimitUpdate::To(text) if !text.trim().is_empty() => {
                let hours = text.trim().parse::<Hours>();
                LimitUpdate::To(hours.map_err(|error| ApiError::param("hours", error.to_string()))?)
            }
            LimitUpdate::Unlimited | LimitUpdate::To(_) => LimitUpdate::Unlimited,
        };
        let change = LimitChange { memory_bytes, threads, upload_mbit, hours };
        if change == LimitChange::default() {
            let message = "say what is to be changed: hours, upload_mbit, threads or memory_bytes".into();
            return Err(ApiError::Invalid { message, param: None });
        }
        Ok(change)
    }
}

pub(super) async fn show(State(state): State<ApiState>) -> Json<Value> {
    let limits = &state.controls.limits;
    let hours = state.controls.owner.hours().map(|hours| hours.to_string());
    let lending = state.view.borrow().lending;
    Json(json!({
        "limits": limits.limits(), "hours": hours, "lending": lending,
        "relending": limits.relending(), "kept": limits.kept(), "fixed": limits.fixed(),
    }))
}

pub(super) async fn set(
    State(state): State<ApiState>,
    Json(wish): Json<LimitsWish>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let change = wish.read()?;
    let (limits, owner) = (state.controls.limits.clone(), state.controls.owner.clone());
    let changed = tokio::task::spawn_blocking(move || limits.change(change, |hours| owner.set_hours(hours))).await;
    let said = changed.map_err(|error| ApiError::Failed(error.to_string()))?.map_err(refusal)?;
    tracing::info!(?change, "limits were changed");
    Ok((StatusCode::ACCEPTED, Json(json!({ "done": said.join("; "), "relending": state.controls.limits.relending() }))))
}

fn refusal(error: LimitError) -> ApiError {
    let message = error.to_string();
    let status = match error {
        LimitError::Value { setting, why } => return ApiError::param(setting, why),
        LimitError::Busy | LimitError::LendsNothing => StatusCode::CONFLICT,
        LimitError::NotKept { .. } => StatusCode::INSUFFICIENT_STORAGE,
    };
    ApiError::Refused { status, message }
}
