//! Measures a link of this peer on its owner's wish.

use super::{ApiError, ApiState};
use crate::data_plane::{
    links::Transfer,
    measure::{MOST, MeasureError},
};
use axum::{Json, extract::State};
use serde::Deserialize;
use tsnode_protocol::PeerId;

/// What is to be measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkWish {
    to: PeerId,
    bytes: u64,
}

pub(super) async fn measure(
    State(state): State<ApiState>,
    Json(wish): Json<LinkWish>,
) -> Result<Json<Transfer>, ApiError> {
    if !(1..=MOST).contains(&wish.bytes) {
        return Err(ApiError::param("bytes", format!("bytes must be from 1 to {MOST}")));
    }
    if wish.to == state.view.borrow().me {
        return Err(ApiError::param("to", "that is this peer itself"));
    }
    Ok(Json(state.controls.measurer.measure(wish.to, wish.bytes).await?))
}

impl From<MeasureError> for ApiError {
    fn from(error: MeasureError) -> Self {
        let message = error.to_string();
        match error {
            MeasureError::Unknown(_) => Self::param("to", message),
            MeasureError::Busy => Self::TooOften { retry_after: std::time::Duration::from_secs(10) },
            MeasureError::TooOften { retry_after } => Self::TooOften { retry_after },
            MeasureError::Link(_) => Self::Failed(message),
        }
    }
}
