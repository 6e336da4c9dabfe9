//! Sends requests to a server, and the run of all of them: when each is due, so many at once, for so long.

use super::{
    super::super::ask::{PeerClient, unanswered},
    arrivals::PlannedRequest,
    prompts::Prompts,
    timed_answer::{EventReader, Failure, TimedAnswer, reason},
};
use futures::StreamExt;
use reqwest::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Most of a refusal that is read (bytes).
const REFUSAL_BYTES: usize = 1 << 16;
/// Longest name of a request that is kept (bytes).
const ID_BYTES: usize = 128;

/// The paths that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Endpoint {
    Completions,
    Chat,
}

impl Endpoint {
    pub const ALL: [Self; 2] = [Self::Completions, Self::Chat];

    pub fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// Whom what is asked.
pub(in crate::cli) struct BenchTarget {
    pub peer: PeerClient,
    pub endpoint: Endpoint,
    pub model: String,
    pub temperature: Option<f64>,
    pub ignore_eos: bool,
}

impl BenchTarget {
    /// An answer to this prompt, of so many tokens at most.
    pub async fn ask(&self, prompt: Value, most: u32) -> Result<TimedAnswer, Failure> {
        let request = self.peer.post(self.endpoint.path(), &self.body(prompt, most));
        let sent = Instant::now();
        let broken = |e: reqwest::Error| Failure::Unanswered(unanswered(&e));
        let response = request.send().await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let request = request_id(&response);
        let (mut pieces, mut reader) = (response.bytes_stream(), EventReader::default());
        while let Some(piece) = pieces.next().await {
            reader.take(&piece.map_err(broken)?, sent.elapsed())?;
        }
        Ok(TimedAnswer { request, ..reader.end()? })
    }

    fn body(&self, prompt: Value, most: u32) -> Value {
        let mut body = json!({
            "model": self.model, "max_tokens": most, "stream": true, "stream_options": { "include_usage": true },
        });
        match self.endpoint {
            Endpoint::Completions => body["prompt"] = prompt,
            Endpoint::Chat => body["messages"] = json!([{ "role": "user", "content": prompt }]),
        }
        if let Some(temperature) = self.temperature {
            body["temperature"] = json!(temperature);
        }
        // OpenAI's own servers refuse fields that they do not know.
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        body
    }
}

/// What a server calls the request that it answers.
fn request_id(response: &Response) -> Option<String> {
    let id = response.headers().get("x-request-id")?.to_str().ok()?;
    (id.len() <= ID_BYTES).then(|| id.to_owned())
}

/// What a server says that refuses.
async fn refusal(response: Response) -> Failure {
    let status = response.status();
    let (mut pieces, mut body) = (response.bytes_stream(), Vec::new());
    while let Some(Ok(piece)) = pieces.next().await {
        body.extend_from_slice(&piece);
        if body.len() > REFUSAL_BYTES {
            break;
        }
    }
    let said = serde_json::from_slice(&body).ok().and_then(|body| reason(&body));
    let usual = status.canonical_reason().unwrap_or("no reason given");
    Failure::Refused { status: status.as_u16(), said: said.unwrap_or_else(|| usual.to_owned()) }
}

/// How much of it there may be.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct LoadBounds {
    /// Requests at once.
    pub concurrency: usize,
    /// The whole run.
    pub longest: Duration,
}

/// What came of a request.
#[derive(Debug)]
pub(in crate::cli) struct RequestOutcome {
    /// Which of the planned ones.
    pub index: usize,
    /// How long after it was due it was sent.
    pub late: Duration,
    pub answer: Result<TimedAnswer, Failure>,
}

/// What came of a run.
#[derive(Debug, Default)]
pub(in crate::cli) struct Run {
    /// In order of their ends.
    pub outcomes: Vec<RequestOutcome>,
    /// Requests that were running when the run was ended.
    pub cut: usize,
    /// Requests that were never sent.
    pub unsent: usize,
    pub took: Duration,
    /// Most at once.
    pub peak: usize,
}

impl Run {
    /// With another that ran apart from it.
    pub fn and(&mut self, other: Self) {
        let Self { outcomes, cut, unsent, took, peak } = other;
        self.outcomes.extend(outcomes);
        self.cut += cut;
        self.unsent += unsent;
        self.took += took;
        self.peak = self.peak.max(peak);
    }
}

/// Until whoever runs it has had enough.
pub(in crate::cli) async fn interrupted() {
    // Where no signal can be waited for, only the time ends it.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Sends all of them, unless the time is over before or `stop` comes; `watch` hears how many have ended and how many run.
pub(in crate::cli) async fn load(
    target: &Arc<BenchTarget>,
    prompts: Prompts,
    planned: &[PlannedRequest],
    bounds: LoadBounds,
    stop: impl Future<Output = ()>,
    watch: impl Fn(usize, usize),
) -> Run {
    let started = Instant::now();
    let slots = Arc::new(Semaphore::new(bounds.concurrency));
    let (mut run, mut running) = (Run::default(), JoinSet::new());
    let over = async {
        tokio::select! {
            () = stop => {}
            () = sleep_until(started + bounds.longest) => {}
        }
    };
    tokio::pin!(over);
    let (mut sent, mut is_over) = (0, false);
    // What panics is our own fault, and counts as one that never ended.
    let ended = |run: &mut Run, outcome: Option<RequestOutcome>, running: usize| {
        run.outcomes.extend(outcome);
        watch(run.outcomes.len(), running);
    };
    'sending: for (index, request) in planned.iter().enumerate() {
        let due = started + request.at;
        let turn = turn(due, slots.clone());
        tokio::pin!(turn);
        let slot = loop {
            tokio::select! {
                biased;
                () = &mut over => {
                    is_over = true;
                    break 'sending;
                }
                Some(outcome) = running.join_next() => ended(&mut run, outcome.ok(), running.len()),
                slot = &mut turn => break slot,
            }
        };
        let (target, prompt, most) = (target.clone(), prompts.nth(index as u64, request.prompt), request.answer);
        running.spawn(async move {
            let late = due.elapsed();
            let answer = target.ask(prompt, most).await;
            drop(slot);
            RequestOutcome { index, late, answer }
        });
        sent += 1;
        // One that has ended and was not collected yet has given its place back.
        run.peak = run.peak.max(bounds.concurrency - slots.available_permits());
        watch(run.outcomes.len(), running.len());
    }
    while !is_over {
        tokio::select! {
            biased;
            outcome = running.join_next() => match outcome {
                Some(outcome) => ended(&mut run, outcome.ok(), running.len()),
                None => break,
            },
            () = &mut over => is_over = true,
        }
    }
    running.shutdown().await;
    run.took = started.elapsed();
    run.unsent = planned.len() - sent;
    run.cut = sent - run.outcomes.len();
    run
}

/// When a request is due, and has a place among those that run.
async fn turn(due: Instant, slots: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    sleep_until(due).await;
    // Nobody closes it.
    slots.acquire_owned().await.ok()
}
