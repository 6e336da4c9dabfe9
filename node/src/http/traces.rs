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
            "request": t.request, "model": t.model, "prefill": t.prefill, "decode": t.decode, "prompt_tokens": t.prompt_tokens,
            "new_tokens": t.new_tokens, "kv_bytes": t.kv_bytes, "ttft": t.ttft, "total": t.total, "moves": t.moves.len(),
            "slowest": t.slowest, "peers": t.peers,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tsnode_protocol::{KvCodec, ModelId, PeerId, RequestId};

    #[test]
    fn the_oldest_give_way_to_the_newest() {
        let traces = Traces::default();
        let trace = |n: u16| Trace {
            request: RequestId(std::array::from_fn(|i| n.to_le_bytes()[i % 2])),
            model: ModelId([1; 16]),
            prefill: PeerId([1; 32]),
            decode: PeerId([1; 32]),
            prefill_stages: vec![],
            decode_stages: vec![],
            reason: String::new(),
            predicted: None,
            prompt_tokens: 1,
            cached_tokens: 0,
            new_tokens: 1,
            codec: KvCodec::Raw,
            kv_codec: None,
            kv_bytes: 0,
            ttft: 0.1,
            total: 0.2,
            parts: Default::default(),
            deliveries: vec![],
            moves: vec![],
            slowest: None,
            peers: BTreeMap::new(),
        };
        (0..300).for_each(|n| traces.note(&trace(n)));
        let kept: Vec<RequestId> = traces.newest().iter().map(|t| t.request).collect();
        let expected: Vec<RequestId> = (300 - KEPT as u16..300).rev().map(|n| trace(n).request).collect();
        assert_eq!(kept, expected);
    }
}
