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
pub(super) struct Traces(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    /// All that ever ended.
    noted: u64,
    traces: VecDeque<Trace>,
}

impl Traces {
    /// Remembers one, and forgets the oldest above the limit.
    pub fn note(&self, trace: &Trace) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.traces.len() == KEPT {
            latest.traces.pop_back();
        }
        latest.traces.push_front(trace.clone());
        latest.noted += 1;
    }

    fn newest(&self) -> Vec<Trace> {
        self.since(0).0
    }

    /// Those that ended behind the first `seen`, newest first, and how many have ended now.
    pub fn since(&self, seen: u64) -> (Vec<Trace>, u64) {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = usize::try_from(latest.noted.saturating_sub(seen)).unwrap_or(KEPT);
        (latest.traces.iter().take(fresh).cloned().collect(), latest.noted)
    }
}

/// The latest, newest first, in short, and those under way.
pub(super) async fn list(State(state): State<ApiState>) -> Json<Value> {
    let ended: Vec<Value> = state.traces.newest().iter().map(short).collect();
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
            first_part: None,
            kv_codec: None,
            kv_bytes: 0,
            ttft: 0.1,
            total: 0.2,
            alone: None,
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
        let (fresh, noted) = traces.since(298);
        assert_eq!((fresh.len(), fresh[0].request, noted), (2, trace(299).request, 300));
        assert_eq!(traces.since(noted).0, []);
    }
}
