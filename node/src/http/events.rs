//! `/api/events`: what the page shows, as it changes, in one stream of server-sent events: `swarm`, as `/api/swarm` has it, and
//! `requests`, as `/api/requests` has them, of which those that ended are told once. Who asks for changes (`?changes`) is told the
//! swarm once, and then `changes` of it, of adverts what is another than before: these have all links, and are nearly all of it.
//! Where nobody does anything, what only grows older or was measured anew waits for some seconds.

use super::{ApiError, ApiState, sse, traces};
use crate::{
    view::{PeerView, Readiness, SwarmView, Trouble},
    weights::Fetching,
};
use axum::{
    Extension,
    extract::{Query, State},
    response::{Response, sse::Event},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::lending::Lending;
use tsnode_kernels::load::LoadProgress;
use tsnode_protocol::{Advert, GroupId, GroupLoad, Link, Load, PeerId, PlanId};

/// Most who listen at once: for each of them the peer writes down the swarm once a second.
pub(super) const LISTENERS: usize = 16;
/// Between two looks at what has changed: people read no faster, and peers say more often that they live.
const PERIOD: Duration = Duration::from_secs(1);
/// How long changes wait while nobody does anything: when peers were heard, how fast links are.
const QUIET: Duration = Duration::from_secs(5);
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
pub(super) struct EventsQuery {
    /// Changes alone, whatever is said for it.
    changes: Option<String>,
}

/// What has changed of the swarm.
#[derive(Serialize)]
struct Changes<'v> {
    /// All but its peers.
    swarm: &'v SwarmView,
    /// All of them, in their order.
    peers: Vec<PeerChanges<'v>>,
}

/// A peer as a [`PeerView`] is, of its advert what was not told before.
#[derive(Serialize)]
struct PeerChanges<'v> {
    id: PeerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    advert: Option<&'v Advert>,
    /// Of an advert that is as it was otherwise, those that were measured anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<Link>,
    load: Load,
    groups: &'v [GroupLoad],
    silent_for: f64,
    silent: bool,
    plan: Option<PlanId>,
    leaving: bool,
}

/// What is new of an advert.
enum AdvertNews {
    Nothing,
    Links(Vec<Link>),
    All,
}

impl AdvertNews {
    fn of(told: Option<&Advert>, now: &Advert) -> Self {
        let Some(told) = told else { return Self::All };
        if told == now {
            return Self::Nothing;
        }
        let ends = |advert: &Advert| advert.links.iter().map(|link| link.to).collect::<Vec<_>>();
        if ends(told) != ends(now) || *told != (Advert { links: told.links.clone(), ..now.clone() }) {
            return Self::All;
        }
        let measured = now.links.iter().zip(&told.links).filter(|(now, told)| now != told);
        Self::Links(measured.map(|(link, _)| *link).collect())
    }
}

/// What a listener knows of adverts; nothing of those who are told all.
#[derive(Default)]
struct ToldAdverts(BTreeMap<PeerId, Advert>);

impl ToldAdverts {
    /// The event for a view: `swarm` the first time, then `changes`.
    fn event(&mut self, mut view: SwarmView) -> (&'static str, serde_json::Result<String>) {
        let peers = std::mem::take(&mut view.peers);
        let news: Vec<AdvertNews> =
            peers.iter().map(|peer| AdvertNews::of(self.0.get(&peer.id), &peer.advert)).collect();
        let there: BTreeSet<PeerId> = peers.iter().map(|peer| peer.id).collect();
        self.0.retain(|peer, _| there.contains(peer));
        let is_first = self.0.is_empty();
        let new = peers.iter().zip(&news).filter(|(_, news)| !matches!(news, AdvertNews::Nothing));
        self.0.extend(new.map(|(peer, _)| (peer.id, peer.advert.clone())));
        if is_first {
            view.peers = peers;
            return ("swarm", serde_json::to_string(&view));
        }
        let told = peers.iter().zip(news).map(|(peer, news)| changed(peer, news)).collect();
        ("changes", serde_json::to_string(&Changes { swarm: &view, peers: told }))
    }
}

/// A peer, and what is new of its advert.
fn changed(peer: &PeerView, news: AdvertNews) -> PeerChanges<'_> {
    let PeerView { id, advert, load, groups, silent_for, silent, plan, leaving } = peer;
    let (advert, links) = match news {
        AdvertNews::Nothing => (None, Vec::new()),
        AdvertNews::Links(links) => (None, links),
        AdvertNews::All => (Some(advert), Vec::new()),
    };
    PeerChanges {
        id: *id,
        advert,
        links,
        load: *load,
        groups,
        silent_for: *silent_for,
        silent: *silent,
        plan: *plan,
        leaving: *leaving,
    }
}

/// What somebody waits to see, and is told at the next look.
#[derive(PartialEq)]
struct Glance {
    readiness: Readiness,
    lending: Lending,
    loading: Option<LoadProgress>,
    fetching: Option<Fetching>,
    troubles: Vec<Trouble>,
    plan: Option<PlanId>,
    ready_groups: Vec<GroupId>,
    peers: Vec<Doing>,
}

/// What a peer does: its load, the plan it follows, for how many seconds it is missed, whether it leaves.
type Doing = (PeerId, Load, Option<PlanId>, Option<u64>, bool);

impl Glance {
    fn of(view: &SwarmView) -> Self {
        let doing = |peer: &PeerView| {
            let missed = peer.silent.then_some(peer.silent_for as u64);
            (peer.id, peer.load, peer.plan, missed, peer.leaving)
        };
        Self {
            readiness: view.readiness.clone(),
            lending: view.lending,
            loading: view.loading,
            fetching: view.fetching.clone(),
            troubles: view.troubles.clone(),
            plan: view.plan_id,
            ready_groups: view.ready_groups.clone(),
            peers: view.peers.iter().map(doing).collect(),
        }
    }
}

type Events = mpsc::Sender<Result<Event, Infallible>>;

pub(super) async fn stream(
    State(state): State<ApiState>,
    Extension(Stop(stop)): Extension<Stop>,
    Query(wanted): Query<EventsQuery>,
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
            () = tell(&state, &events, wanted.changes.map(|_| ToldAdverts::default())) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(sse::kept_awake(receiver, sse::KEEP_AWAKE))
}

/// Until nobody listens, or there is nothing to tell any more.
async fn tell(state: &ApiState, events: &Events, mut told: Option<ToldAdverts>) {
    let mut view = state.view.clone();
    view.mark_changed();
    let mut beat = interval(PERIOD);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut noted, mut ran) = (None, Value::Null);
    // When the swarm was told last, and what went on in it.
    let mut last: Option<(Instant, Glance)> = None;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = events.closed() => return,
        }
        let Ok(has_changed) = view.has_changed() else { return };
        if has_changed {
            let glance = Glance::of(&view.borrow());
            let waits = |(at, before): &(Instant, Glance)| at.elapsed() < QUIET && *before == glance;
            let is_due = told.is_none() || !last.as_ref().is_some_and(waits);
            if is_due {
                view.mark_unchanged();
                last = Some((Instant::now(), glance));
                let shown = state.shown();
                let (name, text) = match &mut told {
                    Some(told) => told.event(shown),
                    None => ("swarm", serde_json::to_string(&shown)),
                };
                if !send(events, name, text).await {
                    return;
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use tsnode_protocol::{BytesPerSecond, PathKind, Seconds};

    fn peer(n: u8) -> PeerView {
        PeerView {
            id: PeerId([n; 32]),
            advert: tsnode_coordinator::sample::advert(0),
            load: Load::default(),
            groups: vec![],
            silent_for: 0.0,
            silent: false,
            plan: None,
            leaving: false,
        }
    }

    #[test]
    fn what_grows_older_waits_and_what_somebody_does_is_told_at_once() {
        let at_rest = || SwarmView { peers: vec![peer(1), peer(2)], ..view() };
        let is_told = |change: &dyn Fn(&mut SwarmView)| {
            let mut changed = at_rest();
            change(&mut changed);
            Glance::of(&changed) != Glance::of(&at_rest())
        };
        assert!(!is_told(&|view| view.peers[0].silent_for = 2.5));
        assert!(!is_told(&|view| _ = view.link_ages.insert(PeerId([2; 32]), 3.0)));
        assert!(is_told(&|view| view.peers[0].silent = true));
        assert!(is_told(&|view| view.peers[1].load.running = 1));
        assert!(is_told(&|view| view.plan_id = Some(PlanId([1; 16]))));
        assert!(is_told(&|view| _ = view.peers.pop()));
    }

    #[test]
    fn of_an_advert_that_was_told_the_links_are_told_that_were_measured_anew() {
        let link = |to: u8, latency: f64| Link {
            to: PeerId([to; 32]),
            latency: Seconds(latency),
            bandwidth: BytesPerSecond(1e9),
            path: PathKind::Direct,
        };
        let with = |links: &[Link]| {
            let mut one = peer(1);
            one.advert.links = links.to_vec();
            SwarmView { peers: vec![one, peer(2)], ..view() }
        };
        let mut told = ToldAdverts::default();
        let mut tell = |view: SwarmView| {
            let (name, text) = told.event(view);
            (name, serde_json::from_str::<Value>(&text.unwrap()).unwrap()["peers"].take())
        };
        assert_eq!(tell(with(&[link(2, 0.1), link(3, 0.1)])).0, "swarm");
        let (name, peers) = tell(with(&[link(2, 0.1), link(3, 0.2)]));
        assert_eq!((name, &peers[0]["advert"], &peers[1]["links"]), ("changes", &Value::Null, &Value::Null));
        assert_eq!(peers[0]["links"], json!([link(3, 0.2)]));
        let (_, peers) = tell(with(&[link(2, 0.1)]));
        assert_eq!(peers[0]["advert"]["links"], json!([link(2, 0.1)]), "one is gone");
        let (_, peers) = tell(with(&[link(2, 0.1)]));
        assert_eq!((&peers[0]["advert"], &peers[0]["links"]), (&Value::Null, &Value::Null));
    }
}
