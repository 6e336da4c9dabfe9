//! `/api/requests`: what ran where in the latest requests of this peer's clients, and where their time went.

use super::{ApiError, ApiState};
use crate::gateway::Trace;
use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Requests remembered.
const KEPT: usize = 256;

/// Traces of the latest requests that came to their end. Held for list operations only.
#[derive(Debug, Default)]
pub(super) struct Traces(Mutex<VecDeque<Trace>>);

impl Traces {
    /// Remembers one, and forgets the oldest above the limit.
    pub fn note(&self, trace: &Trace) {
        let mut traces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if traces.len() == KEPT {
            traces.pop_back();
        }
        traces.push_front(trace.clone());
    }

    fn newest(&self) -> Vec<Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The latest, newest first, in short.
pub(super) async fn list(State(state): State<ApiState>) -> Json<Value> {
    let short = |t: &Trace| {
        json!({
            "request": t.request, "prefill": t.prefill, "decode": t.decode, "prompt_tokens": t.prompt_tokens,
            "new_tokens": t.new_tokens, "kv_bytes": t.kv_bytes, "ttft": t.ttft, "total": t.total, "moves": t.moves.len(),
        })
    };
    Json(json!({ "requests": state.traces.newest().iter().map(short).collect::<Vec<_>>() }))
}

/// One of them, whole; its id is the one that answers carry (`x-request-id`).
pub(super) async fn show(State(state): State<ApiState>, Path(id): Path<String>) -> Result<Json<Trace>, ApiError> {
    let found = state.traces.newest().into_iter().find(|t| t.request.to_string() == id);
    found.map(Json).ok_or_else(|| {
        ApiError::NotFound(format!(
            "/api/requests/{id}: this peer's last {KEPT} requests that ended have none of that name"
        ))
    })
}
