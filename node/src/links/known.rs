//! What is known of the links from here: what probes found, and what the meters of all connections have shown since.

use super::{Links, tuning::Tuning};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::links::{Estimate, Evidence};
use tsnode_protocol::{BytesPerSecond, Link, PathKind, PeerId, Seconds, limits};

/// How often the meters are read: windows follow a link within that time.
const LOOK: Duration = Duration::from_millis(300);

/// A link from here, and how old the knowledge of its bandwidth is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The link.
    pub link: Link,
    /// Since its bandwidth was last shown.
    pub age: Duration,
}

/// Takes in what traffic shows until `stop`.
pub(super) async fn watch(links: Links, stop: CancellationToken) {
    let looks = async {
        loop {
            sleep(LOOK).await;
            links.inner.known.gather();
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = looks => {}
    }
}

/// Links by peer.
#[derive(Debug)]
pub(super) struct Known {
    started: Instant,
    /// Held for map operations and arithmetic only.
    peers: Mutex<BTreeMap<PeerId, Peer>>,
}

#[derive(Debug, Default)]
struct Peer {
    estimate: Estimate,
    /// Connections to it and from it, as long as they live.
    roads: Vec<Weak<Tuning>>,
}

impl Known {
    pub fn new() -> Self {
        Self { started: Instant::now(), peers: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PeerId, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection: it begins with what is known of the link.
    pub fn join(&self, peer: PeerId, road: &Arc<Tuning>) {
        let mut peers = self.lock();
        let known = peers.entry(peer).or_default();
        known.roads.retain(|road| road.strong_count() > 0);
        known.roads.push(Arc::downgrade(road));
        if let Some(bandwidth) = known.estimate.bandwidth() {
            road.hurry(bandwidth);
            road.fit(bandwidth);
        }
    }

    /// Takes in what traffic has shown, and fits the windows to it.
    pub fn gather(&self) {
        let now = self.started.elapsed();
        for known in self.lock().values_mut() {
            let roads: Vec<Arc<Tuning>> = known.roads.iter().filter_map(Weak::upgrade).collect();
            for evidence in roads.iter().flat_map(|road| road.meter.take()) {
                known.estimate.note(now, evidence);
            }
            if let Some(bandwidth) = known.estimate.bandwidth() {
                roads.iter().for_each(|road| road.fit(bandwidth));
            }
        }
    }

    /// A round trip of an idle connection.
    pub fn round_trip(&self, peer: PeerId, took: Seconds) {
        self.lock().entry(peer).or_default().estimate.round_trip(took);
    }

    /// What a probe found.
    pub fn probed(&self, peer: PeerId, rate: BytesPerSecond) {
        let now = self.started.elapsed();
        self.lock().entry(peer).or_default().estimate.note(now, Evidence::Probed(rate));
    }

    /// Whether a probe would tell more than traffic has told.
    pub fn wants_probe(&self, peer: PeerId) -> bool {
        let now = self.started.elapsed();
        self.lock().get(&peer).is_none_or(|known| known.estimate.wants_probe(now))
    }

    /// All links of which both latency and bandwidth are known, as many as an advert holds.
    pub fn links(&self) -> Vec<Measured> {
        let now = self.started.elapsed();
        let stated = |(peer, known): (&PeerId, &Peer)| {
            let link = known.estimate.link(*peer, PathKind::Direct)?;
            Some(Measured { link, age: known.estimate.age(now) })
        };
        self.lock().iter().filter_map(stated).take(limits::LINKS).collect()
    }

    /// A peer that is gone.
    pub fn forget(&self, peer: PeerId) {
        self.lock().remove(&peer);
    }
}
