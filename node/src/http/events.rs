//! `/api/events`: what the page shows, as it changes, in one stream of server-sent events: `swarm`, as `/api/swarm` has it, and
//! `requests`, as `/api/requests` has them, of which those that ended are told once. Who asks for changes (`?changes`) is told the
//! swarm once, and then `changes` of it, without adverts that are as they were: these have all links, and are nearly all of it.

use super::{ApiError, ApiState, sse, traces};
use crate::view::{PeerView, SwarmView};
use axum::{
    Extension,
    extract::{Query, State},
    response::{Response, sse::Event},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Advert, GroupLoad, Load, PeerId, PlanId};

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

/// How a listener wants to be told.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wanted {
    /// Changes alone, whatever is said for it.
    changes: Option<String>,
}

/// What has changed of the swarm.
#[derive(Serialize)]
struct Changes<'v> {
    /// All but its peers.
    swarm: &'v SwarmView,
    /// All of them, in their order.
    peers: Vec<Peer<'v>>,
}

/// A peer as a [`PeerView`] is, its advert left out where it was told before.
#[derive(Serialize)]
struct Peer<'v> {
    id: PeerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    advert: Option<&'v Advert>,
    load: Load,
    groups: &'v [GroupLoad],
    silent_for: f64,
    silent: bool,
    plan: Option<PlanId>,
    leaving: bool,
}

/// What a listener knows of adverts; nothing of those who are told all.
#[derive(Default)]
struct Told(BTreeMap<PeerId, Advert>);

impl Told {
    /// The event for a view: `swarm` the first time, then `changes`.
    fn event(&mut self, mut view: SwarmView) -> (&'static str, serde_json::Result<String>) {
        let event = if self.0.is_empty() {
            ("swarm", serde_json::to_string(&view))
        } else {
            let peers = std::mem::take(&mut view.peers);
            let told = peers.iter().map(|peer| self.peer(peer)).collect();
            let event = ("changes", serde_json::to_string(&Changes { swarm: &view, peers: told }));
            view.peers = peers;
            event
        };
        self.0.retain(|peer, _| view.peers.iter().any(|there| there.id == *peer));
        let new = |peer: &PeerView| self.0.get(&peer.id) != Some(&peer.advert);
        let new: Vec<PeerView> = view.peers.into_iter().filter(new).collect();
        self.0.extend(new.into_iter().map(|peer| (peer.id, peer.advert)));
        event
    }

    fn peer<'v>(&self, peer: &'v PeerView) -> Peer<'v> {
        let PeerView { id, advert, load, groups, silent_for, silent, plan, leaving } = peer;
        Peer {
            id: *id,
            advert: Some(advert).filter(|advert| self.0.get(id) != Some(*advert)),
            load: *load,
            groups,
            silent_for: *silent_for,
            silent: *silent,
            plan: *plan,
            leaving: *leaving,
        }
    }
}

type Events = mpsc::Sender<Result<Event, Infallible>>;

pub(super) async fn stream(
    State(state): State<ApiState>,
    Extension(Stop(stop)): Extension<Stop>,
    Query(wanted): Query<Wanted>,
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
            () = tell(&state, &events, wanted.changes.map(|_| Told::default())) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(sse::kept_awake(receiver, sse::KEEP_AWAKE))
}

/// Until nobody listens, or there is nothing to tell any more.
async fn tell(state: &ApiState, events: &Events, mut told: Option<Told>) {
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
            let (name, text) = match &mut told {
                Some(told) => told.event(shown),
                None => ("swarm", serde_json::to_string(&shown)),
            };
            if !send(events, name, text).await {
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
