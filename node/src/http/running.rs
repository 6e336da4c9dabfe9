//! Requests under way, which the owner of this peer may cancel.

use super::{ApiError, ApiState};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::RequestId;

/// Requests whose answers have not ended: no more than there are connections. Held for map operations only.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    begun: u64,
    running: BTreeMap<RequestId, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Tells it from an earlier one of the same name.
    number: u64,
    model: String,
    since: Instant,
    cancel: CancellationToken,
}

/// A request under way, until this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    running: Arc<Running>,
    request: RequestId,
    number: u64,
    pub cancelled: CancellationToken,
}

impl Running {
    pub fn begin(self: &Arc<Self>, request: RequestId, model: &str) -> Ticket {
        let cancelled = CancellationToken::new();
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.begun += 1;
        let number = requests.begun;
        let entry = Entry { number, model: model.to_owned(), since: Instant::now(), cancel: cancelled.clone() };
        requests.running.insert(request, entry);
        Ticket { running: self.clone(), request, number, cancelled }
    }

    /// Those that are, with their models' names and for how long (seconds), by id.
    pub fn list(&self) -> Value {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |(request, entry): (&RequestId, &Entry)| json!({ "request": request, "model": entry.model, "seconds": entry.since.elapsed().as_secs() });
        requests.running.iter().map(shown).collect()
    }

    /// Whether there is one of that name: the request's id, or what an answer is called by it.
    fn cancel(&self, name: &str) -> bool {
        let digits = name.rsplit(['-', '_']).next().unwrap_or(name);
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |(request, _): &(&RequestId, &Entry)| data_encoding::HEXLOWER.encode(&request.0) == digits;
        let found = requests.running.iter().find(named);
        found.inspect(|(_, entry)| entry.cancel.cancel()).is_some()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut requests = self.running.0.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.running.get(&self.request).is_some_and(|entry| entry.number == self.number) {
            requests.running.remove(&self.request);
        }
    }
}

pub(super) async fn cancel(
    State(state): State<ApiState>,
    Path(id): Path<String>,
    Json(_): Json<Value>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    if state.running.cancel(&id) {
        return Ok((
            StatusCode::ACCEPTED,
            Json(json!({ "done": "cancelled: its client is told, and its pages are freed" })),
        ));
    }
    let id: String = id.chars().take(80).collect();
    Err(ApiError::NotFound(format!("/api/requests/{id}/cancel: no request of that name is under way at this peer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_can_be_cancelled_while_it_runs_by_any_of_its_names() {
        let running = Arc::new(Running::default());
        let request = RequestId([0xab; 16]);
        let digits = "ab".repeat(16);
        for name in [format!("chatcmpl-{digits}"), format!("resp_{digits}"), request.to_string()] {
            let ticket = running.begin(request, "m");
            assert!(running.cancel(&name) && ticket.cancelled.is_cancelled(), "{name}");
            drop(ticket);
            assert!(!running.cancel(&name), "it has ended");
        }
    }

    #[test]
    fn the_end_of_an_earlier_request_of_the_name_is_not_that_of_the_later() {
        let running = Arc::new(Running::default());
        let request = RequestId([1; 16]);
        let (earlier, later) = (running.begin(request, "m"), running.begin(request, "m"));
        drop(earlier);
        assert_eq!(running.list()[0]["model"], "m");
        assert!(running.cancel(&request.to_string()) && later.cancelled.is_cancelled());
    }
}
