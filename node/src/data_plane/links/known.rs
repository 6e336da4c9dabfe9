//! What is known of the links from here: what probes found, and what the meters of all connections have shown since.

use super::{Links, tuning::Tuning};
use crate::data_plane::listening::canonical;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::links::{Estimate, Evidence};
use tsnode_coordinator::paths::Paths;
use tsnode_protocol::{BytesPerSecond, Link, PathKind, PeerId, Seconds, limits};

/// How often the meters are read: windows follow a link within that time.
const LOOK: Duration = Duration::from_millis(300);

/// Connections with one peer at once: one that each end opened, those beside them for KV, one over the control plane, and as many that have
/// broken off unheard. Of more the oldest are closed: each may make this peer hold memory, and a member could open any number.
pub(super) const CONNECTIONS: usize = 32;

/// How long one link within this host stands for all of them, at least, for each of them, and at most: they are one loopback, and where
/// many peers share it each of them measures it.
const WITHIN_FOR: Duration = Duration::from_secs(60);
const WITHIN_EACH: Duration = Duration::from_secs(6);
const WITHIN_MOST: Duration = Duration::from_secs(600);

/// A link from here, and how old the knowledge of its bandwidth is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredLink {
    /// The link.
    pub link: Link,
    /// Since its bandwidth was last shown.
    pub age: Duration,
    /// Where the far end of a connection of its own is, if there is one.
    pub at: Option<SocketAddr>,
}

/// Takes in what traffic shows, and closes connections that nothing goes over, until `stop`.
pub(super) async fn watch(links: Links, stop: CancellationToken) {
    let looks = async {
        loop {
            sleep(LOOK).await;
            links.inner.known.gather();
            links.inner.beside.sweep();
            links.forget_ended();
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = looks => {}
    }
}

/// Links by peer.
#[derive(Debug)]
pub(super) struct KnownLinks {
    started: Instant,
    /// Held for map operations and arithmetic only.
    peers: Mutex<BTreeMap<PeerId, KnownPeer>>,
    /// Counts the links that have taken another way, or lost theirs.
    turns: watch::Sender<u64>,
    /// What trains within this host were carried at last, and when. Held for a copy.
    within: Mutex<Option<(Instant, BytesPerSecond)>>,
}

#[derive(Debug, Default)]
struct KnownPeer {
    ways: Paths,
    /// Connections to it and from it, as long as they live.
    connections: Vec<Weak<Tuning>>,
    /// Whether there was one when they were last looked at.
    connected: bool,
}

impl KnownPeer {
    fn live(&self) -> Vec<Arc<Tuning>> {
        let open = |connection: &Arc<Tuning>| connection.connection.close_reason().is_none();
        self.connections.iter().filter_map(Weak::upgrade).filter(open).collect()
    }

    /// Where it is called, or calls from.
    fn at(&self) -> Option<SocketAddr> {
        self.live().iter().find_map(|connection| connection.way.far_end()).map(canonical)
    }

    /// The best of the ways there are; says whether that is another than before, or there is none any more. What was last in
    /// use is, while there is none.
    fn turn(&mut self, live: &[Arc<Tuning>]) -> bool {
        let best = live.iter().map(|connection| connection.way.path()).min();
        let lost = std::mem::replace(&mut self.connected, best.is_some()) && best.is_none();
        lost || best.is_some_and(|path| self.ways.take(path))
    }
}

impl KnownLinks {
    pub fn new() -> Self {
        Self { started: Instant::now(), peers: Mutex::default(), turns: watch::channel(0).0, within: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PeerId, KnownPeer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All connections with a peer that live.
    pub fn connections(&self, peer: PeerId) -> Vec<Arc<Tuning>> {
        self.lock().get(&peer).map(KnownPeer::live).unwrap_or_default()
    }

    /// How a link goes.
    #[cfg(test)]
    pub fn path(&self, peer: PeerId) -> Option<PathKind> {
        self.lock().get(&peer).map(|known| known.ways.path())
    }

    /// Changes whenever a link takes another way, or has none any more.
    pub fn turns(&self) -> watch::Receiver<u64> {
        self.turns.subscribe()
    }

    /// A new connection: it begins with what is known of the link. Where more peers are known than a swarm has, those go that are not
    /// connected: who comes with ever other names is not remembered by all of them.
    pub fn join(&self, peer: PeerId, connection: &Arc<Tuning>) {
        let mut peers = self.lock();
        if peers.len() >= limits::PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, known| !known.live().is_empty());
        }
        let known = peers.entry(peer).or_default();
        known.connections.retain(|connection| connection.strong_count() > 0);
        known.connections.push(Arc::downgrade(connection));
        let live = known.live();
        let (spare, live) = live.split_at(live.len().saturating_sub(CONNECTIONS));
        for oldest in spare {
            oldest.connection.close(super::CODE_REFUSED.into(), b"too many connections");
        }
        let turned = known.turn(live);
        if let Some(bandwidth) = known.ways.known(connection.way.path()).and_then(Estimate::bandwidth) {
            connection.hurry(bandwidth);
            connection.fit(bandwidth);
        }
        drop(peers);
        if turned {
            self.turns.send_modify(|turns| *turns += 1);
        }
    }

    /// Takes in what traffic has shown, and fits the windows to it.
    pub fn gather(&self) {
        let now = self.started.elapsed();
        let mut turned = 0;
        for known in self.lock().values_mut() {
            let connections = known.live();
            // What one of several carries is not how slow the link is.
            let shared = connections.iter().any(|connection| connection.is_kv_stream());
            for connection in &connections {
                let estimate = known.ways.learn(connection.way.path());
                let seen = connection.meter.take().into_iter();
                seen.map(|e| if shared { e.at_least() } else { e }).for_each(|e| estimate.note(now, e));
            }
            turned += u64::from(known.turn(&connections));
            for connection in &connections {
                if let Some(bandwidth) = known.ways.known(connection.way.path()).and_then(Estimate::bandwidth) {
                    connection.fit(bandwidth);
                }
            }
        }
        if turned > 0 {
            self.turns.send_modify(|turns| *turns += turned);
        }
    }

    /// A round trip of an idle connection.
    pub fn round_trip(&self, peer: PeerId, path: PathKind, took: Seconds) {
        self.lock().entry(peer).or_default().ways.learn(path).round_trip(took);
    }

    /// What a probe found.
    pub fn probed(&self, peer: PeerId, path: PathKind, rate: BytesPerSecond) {
        let now = self.started.elapsed();
        self.lock().entry(peer).or_default().ways.learn(path).note(now, Evidence::Probed(rate));
    }

    /// Whether a probe would tell more than traffic has told.
    pub fn wants_probe(&self, peer: PeerId, path: PathKind) -> bool {
        let now = self.started.elapsed();
        let known = self.lock().get(&peer).and_then(|known| known.ways.known(path).copied());
        known.is_none_or(|known| known.wants_probe(now))
    }

    /// What a probe of a link within this host found.
    pub fn probed_within(&self, rate: BytesPerSecond) {
        *self.within.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), rate));
    }

    /// What links within this host carry, where one of them was probed not long ago.
    pub fn within(&self) -> Option<BytesPerSecond> {
        let links = u32::try_from(self.lock().len()).unwrap_or(u32::MAX);
        let lasts = WITHIN_EACH.saturating_mul(links).clamp(WITHIN_FOR, WITHIN_MOST);
        let within = *self.within.lock().unwrap_or_else(PoisonError::into_inner);
        within.filter(|(at, _)| at.elapsed() < lasts).map(|(_, rate)| rate)
    }

    /// The link to a peer, once both latency and bandwidth are known.
    pub fn link(&self, peer: PeerId) -> Option<Link> {
        self.lock().get(&peer)?.ways.link(peer)
    }

    /// All links of which both latency and bandwidth are known, as many as an advert holds.
    pub fn links(&self) -> Vec<MeasuredLink> {
        let now = self.started.elapsed();
        let stated = |(peer, known): (&PeerId, &KnownPeer)| {
            Some(MeasuredLink { link: known.ways.link(*peer)?, age: known.ways.age(now)?, at: known.at() })
        };
        self.lock().iter().filter_map(stated).take(limits::LINKS).collect()
    }

    /// A peer that is gone.
    pub fn forget(&self, peer: PeerId) {
        self.lock().remove(&peer);
    }
}
