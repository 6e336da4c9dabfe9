//! `/api/earnings`: tokens that this peer computed for others, and that others computed for its clients, by day and model.

use super::{ApiError, ApiState};
use crate::history::{DAYS, total};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Days told unless asked for more.
const USUAL_DAYS: usize = 30;

/// How many days are asked for.
#[derive(Deserialize)]
pub(super) struct EarningsQuery {
    days: Option<usize>,
}

pub(super) async fn show(
    State(state): State<ApiState>,
    asked: Result<Query<EarningsQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let days = asked.ok().map(|Query(asked)| asked.days.unwrap_or(USUAL_DAYS)).filter(|days| (1..=DAYS).contains(days));
    let days = days.ok_or_else(|| {
        ApiError::param("days", format!("'days' must be a number from 1 to {DAYS}; without it there are {USUAL_DAYS}"))
    })?;
    let lines = state.history.lines(days);
    Ok(Json(json!({ "total": total(&lines), "earnings": lines, "days_kept": DAYS })))
}
