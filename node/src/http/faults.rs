//! Breaks a testnet's peer on purpose. Other peers know nothing of these paths.

use super::{ApiError, ApiState};
use crate::faults::Faults;
use axum::{Json, extract::State};

const PATH: &str = "/api/faults";

pub(super) async fn show(State(state): State<ApiState>) -> Result<Json<Faults>, ApiError> {
    let faults = state.controls.faults.as_ref().ok_or_else(absent)?;
    Ok(Json(faults.borrow().clone()))
}

pub(super) async fn set(State(state): State<ApiState>, Json(wish): Json<Faults>) -> Result<Json<Faults>, ApiError> {
    let faults = state.controls.faults.as_ref().ok_or_else(absent)?;
    wish.check().map_err(|why| ApiError::Invalid { message: why.into(), param: None })?;
    tracing::info!(?wish, "broken on purpose");
    faults.send_replace(wish.clone());
    Ok(Json(wish))
}

fn absent() -> ApiError {
    ApiError::NotFound(PATH.into())
}
