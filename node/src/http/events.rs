//! `/api/events`: what the page shows, as it changes, in one stream of server-sent events: `swarm`, as `/api/swarm` has it, and
//! `requests`, as `/api/requests` has them, of which those that ended are told once.

use super::{ApiError, ApiState, sse, traces};
use axum::{
    Extension,
    extract::State,
    response::{Response, sse::Event},
};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Most who listen at once: for each of them the peer writes down the swarm once a second.
pub(super) const LISTENERS: usize = 16;
/// Between two looks at what has changed: people read no faster, and peers say more often that they live.
const PERIOD: Duration = Duration::from_secs(1);
/// Events that a listener has not read; above it the next look waits, and tells what is then.
const UNREAD: usize = 2;

/// Places for those who listen.
#[derive(Clone, Debug)]
pub(super) struct Listeners(Arc<Semaphore>);

impl Default for Listeners {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LISTENERS)))
    }
}

/// When HTTP ends: whoever listens would keep it from that.
#[derive(Clone, Debug)]
pub(super) struct Stop(pub CancellationToken);

type Events = mpsc::Sender<Result<Event, Infallible>>;

pub(super) async fn stream(
    State(state): State<ApiState>,
    Extension(Stop(stop)): Extension<Stop>,
) -> Result<Response, ApiError> {
    let place = state.listeners.0.clone().try_acquire_owned().map_err(|_| ApiError::Unserved {
        reason: format!(
            "{LISTENERS} pages listen to this peer's events already: ask /api/swarm and /api/requests instead"
        ),
        retry_after: Duration::from_secs(5),
    })?;
    let (events, receiver) = mpsc::channel(UNREAD);
    crate::tasks::spawn("page's events", async move {
        let _place = place;
        // Whatever it waits for, it ends with its listener or with HTTP.
        tokio::select! {
            () = tell(&state, &events) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(sse::kept_awake(receiver, sse::KEEP_AWAKE))
}

/// Until nobody listens, or there is nothing to tell any more.
async fn tell(state: &ApiState, events: &Events) {
    let mut view = state.view.clone();
    view.mark_changed();
    let mut beat = interval(PERIOD);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut noted, mut ran) = (None, Value::Null);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = events.closed() => return,
        }
        let Ok(has_changed) = view.has_changed() else { return };
        if has_changed {
            view.mark_unchanged();
            let shown = state.shown();
            if !send(events, "swarm", serde_json::to_string(&shown)).await {
                return;
            }
        }
        let (ended, now) = state.history.since(noted);
        let runs = state.running.list();
        if noted == Some(now) && runs == ran {
            continue;
        }
        let ended: Vec<Value> = ended.iter().map(traces::short).collect();
        if !send(events, "requests", Ok(json!({ "requests": ended, "running": runs }).to_string())).await {
            return;
        }
        (noted, ran) = (Some(now), runs);
    }
}

/// Whether it is still listened to.
async fn send(events: &Events, name: &str, text: serde_json::Result<String>) -> bool {
    let Ok(text) = text else { return false };
    events.send(Ok(Event::default().event(name).data(text))).await.is_ok()
}
