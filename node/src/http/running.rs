//! Requests under way, which the owner of this peer may cancel.

use super::{ApiError, ApiState};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU32, Ordering},
};
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{PeerId, RequestId};

/// Requests whose answers have not ended: no more than there are connections. Held for map operations only.
#[derive(Debug, Default)]
pub(super) struct RunningRequests(Mutex<RunningByNumber>);

#[derive(Debug, Default)]
struct RunningByNumber {
    begun: u64,
    running: BTreeMap<RequestId, RunningEntry>,
}

#[derive(Debug)]
struct RunningEntry {
    /// Tells it from an earlier one of the same name.
    number: u64,
    model: String,
    since: Instant,
    progress: Arc<Progress>,
    cancel: CancellationToken,
}

/// How far a request's answers are, counted where they are taken apart.
#[derive(Debug, Default)]
pub(super) struct Progress {
    prompt_tokens: u32,
    new_tokens: AtomicU32,
    /// Who leads its prefill, and its decoding, and since when that is known.
    routed: OnceLock<(PeerId, PeerId, Instant)>,
    /// When its first token came.
    first: OnceLock<Instant>,
}

impl Progress {
    /// A token has come.
    pub fn token(&self) {
        self.first.get_or_init(Instant::now);
        self.new_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// It has a route. What a request has several of are computed where the first one is, or not far from there.
    pub fn routed(&self, prefill: PeerId, decode: PeerId) {
        let _ = self.routed.set((prefill, decode, Instant::now()));
    }

    /// How long each of its stages has taken by `now` (seconds, in thousandths), of one that came at `since`.
    fn parts(&self, since: Instant, now: Instant) -> Value {
        let first = self.first.get().copied().unwrap_or(now);
        let routed = self.routed.get().map_or(first, |(.., at)| *at);
        let took = |from: Instant, to: Instant| to.saturating_duration_since(from).as_millis() as f64 / 1e3;
        json!({ "queue": took(since, routed), "prefill": took(routed, first), "decode": took(first, now) })
    }

    /// What it waits for: a route, its prompt, or the end of its answer.
    fn stage(&self) -> &'static str {
        match (self.routed.get(), self.new_tokens.load(Ordering::Relaxed)) {
            (_, 1..) => "decode",
            (Some(_), 0) => "prefill",
            (None, 0) => "queue",
        }
    }
}

/// A request under way, until this is dropped.
#[derive(Debug)]
pub(super) struct RunningTicket {
    running: Arc<RunningRequests>,
    request: RequestId,
    number: u64,
    pub cancelled: CancellationToken,
    pub progress: Arc<Progress>,
}

impl RunningRequests {
    /// One with so many tokens in its prompts has come.
    pub fn begin(self: &Arc<Self>, request: RequestId, model: &str, prompt_tokens: usize) -> RunningTicket {
        let cancelled = CancellationToken::new();
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        let progress = Arc::new(Progress { prompt_tokens, ..Progress::default() });
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.begun += 1;
        let number = requests.begun;
        let (model, since) = (model.to_owned(), Instant::now());
        let entry = RunningEntry { number, model, since, progress: progress.clone(), cancel: cancelled.clone() };
        requests.running.insert(request, entry);
        RunningTicket { running: self.clone(), request, number, cancelled, progress }
    }

    /// Those that are, with their models' names, for how long (seconds) and how far, by id.
    pub fn list(&self) -> Value {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let shown = |(request, entry): (&RequestId, &RunningEntry)| {
            let far = &entry.progress;
            let (prefill, decode) = far.routed.get().map(|(prefill, decode, _)| (prefill, decode)).unzip();
            json!({
                "request": request, "model": entry.model, "seconds": entry.since.elapsed().as_secs(), "stage": far.stage(),
                "parts": far.parts(entry.since, now),
                "prompt_tokens": far.prompt_tokens, "new_tokens": far.new_tokens.load(Ordering::Relaxed),
                "prefill": prefill, "decode": decode,
            })
        };
        requests.running.iter().map(shown).collect()
    }

    /// Whether there is one of that name: the request's id, or what an answer is called by it.
    fn cancel(&self, name: &str) -> bool {
        let digits = name.rsplit(['-', '_']).next().unwrap_or(name);
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |(request, _): &(&RequestId, &RunningEntry)| data_encoding::HEXLOWER.encode(&request.0) == digits;
        let found = requests.running.iter().find(named);
        found.inspect(|(_, entry)| entry.cancel.cancel()).is_some()
    }
}

impl Drop for RunningTicket {
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
        let running = Arc::new(RunningRequests::default());
        let request = RequestId([0xab; 16]);
        let digits = "ab".repeat(16);
        for name in [format!("chatcmpl-{digits}"), format!("resp_{digits}"), request.to_string()] {
            let ticket = running.begin(request, "m", 7);
            assert!(running.cancel(&name) && ticket.cancelled.is_cancelled(), "{name}");
            drop(ticket);
            assert!(!running.cancel(&name), "it has ended");
        }
    }

    #[test]
    fn the_end_of_an_earlier_request_of_the_name_is_not_that_of_the_later() {
        let running = Arc::new(RunningRequests::default());
        let request = RequestId([1; 16]);
        let (earlier, later) = (running.begin(request, "m", 7), running.begin(request, "m", 7));
        drop(earlier);
        assert_eq!(running.list()[0]["model"], "m");
        let far = || {
            let list = running.list();
            let names = ["stage", "prompt_tokens", "new_tokens"];
            json!(names.map(|name| list[0][name].clone()))
        };
        assert_eq!(far(), json!(["queue", 7, 0]));
        later.progress.routed(PeerId([1; 32]), PeerId([2; 32]));
        assert_eq!((far(), &running.list()[0]["decode"]), (json!(["prefill", 7, 0]), &json!(PeerId([2; 32]))));
        assert_eq!(running.list()[0]["parts"]["decode"], json!(0.0), "no token has come");
        later.progress.token();
        assert_eq!(far(), json!(["decode", 7, 1]));
        let (since, far) = (Instant::now(), Progress::default());
        let at = |seconds| since + std::time::Duration::from_secs(seconds);
        assert_eq!(far.parts(since, at(2)), json!({ "queue": 2.0, "prefill": 0.0, "decode": 0.0 }));
        far.routed.set((PeerId([1; 32]), PeerId([2; 32]), at(1))).unwrap();
        assert_eq!(far.parts(since, at(3)), json!({ "queue": 1.0, "prefill": 2.0, "decode": 0.0 }));
        far.first.set(at(4)).unwrap();
        assert_eq!(far.parts(since, at(9)), json!({ "queue": 1.0, "prefill": 3.0, "decode": 5.0 }));
        assert!(running.cancel(&request.to_string()) && later.cancelled.is_cancelled());
    }
}
