//! Prompt flow 8: asks those of whom something is expected for a sign of life, and says who gives none.
//!
//! What is asked for is an acknowledgement by the far end's QUIC: a datagram of one byte makes it send one, whatever its process
//! computes meanwhile. What follows from silence is decided in [`tsnode_coordinator::liveness_probe`].

use super::{Links, tuning::Tuning};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::liveness_probe::{LOOK, LivenessProbe, ProbeActions, REST, TransportSign};
use tsnode_protocol::PeerId;

/// Who gives no sign of life now.
pub type Unresponsive = Arc<BTreeSet<PeerId>>;

/// Of whom something is expected, and who is unresponsive.
#[derive(Debug, Default)]
pub(super) struct Attendance {
    /// By how many. Held for map operations only.
    owing: Arc<Mutex<BTreeMap<PeerId, usize>>>,
    /// Something is expected of somebody.
    begun: Notify,
    unresponsive: watch::Sender<Unresponsive>,
}

/// While it lives, something is expected of a peer.
#[derive(Debug)]
pub struct Attended {
    peer: PeerId,
    owing: Arc<Mutex<BTreeMap<PeerId, usize>>>,
}

impl Drop for Attended {
    fn drop(&mut self) {
        let mut owing = lock(&self.owing);
        if let Some(count) = owing.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                owing.remove(&self.peer);
            }
        }
    }
}

fn lock(owing: &Mutex<BTreeMap<PeerId, usize>>) -> MutexGuard<'_, BTreeMap<PeerId, usize>> {
    owing.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Links {
    /// Something is expected of `peer` until the guard is dropped: that it has fallen silent is noticed within a second.
    #[must_use]
    pub fn attend(&self, peer: PeerId) -> Attended {
        let owing = self.inner.attendance.owing.clone();
        *lock(&owing).entry(peer).or_default() += 1;
        self.inner.attendance.begun.notify_one();
        Attended { peer, owing }
    }

    /// Who gives no sign of life, or is not reached in good time, of those of whom something is expected or was.
    #[must_use]
    pub fn unresponsive(&self) -> watch::Receiver<Unresponsive> {
        self.inner.attendance.unresponsive.subscribe()
    }

    /// Resolves when `peer` gives no sign of life, or is not reached in good time, while something is expected of it.
    pub async fn until_unresponsive(&self, peer: PeerId) {
        let mut unresponsive = self.unresponsive();
        let silent = unresponsive.wait_for(|peers| peers.contains(&peer)).await.is_ok();
        if !silent {
            // Nobody looks any more: this process is ending.
            std::future::pending().await
        }
    }

    /// What the transport says of one peer.
    fn seen(&self, peer: PeerId, owes: bool) -> TransportSign {
        let connections = self.inner.known.connections(peer);
        let packets = connections.iter().map(|connection| connection.heard()).fold(0, u64::wrapping_add);
        let answers: Vec<_> = connections.iter().filter_map(|connection| connection.answers_within()).collect();
        // To whom there is no connection yet, it takes as long as one did: over a relay, some time.
        let known = || Duration::try_from_secs_f64(2.0 * self.inner.known.link(peer)?.latency.0).ok();
        let round_trip = answers.iter().max().copied().or_else(known).unwrap_or_default();
        // Who cannot be asked over the connections that there are is not judged.
        let owes = owes && (connections.is_empty() || !answers.is_empty());
        let unanswered = self.inner.caller.unanswered(peer);
        TransportSign { packets, round_trip, connected: !answers.is_empty(), owes, unanswered }
    }

    /// Carries out what follows from a look.
    fn asks(&self, probe: &LivenessProbe, look: &ProbeActions) {
        for peer in &look.ask {
            self.inner
                .known
                .connections(*peer)
                .iter()
                .filter(|connection| !connection.is_kv_stream())
                .for_each(|connection: &Arc<Tuning>| connection.nudge());
        }
        for peer in &look.unresponsive {
            tracing::info!(%peer, "gives no sign of life: what it does is done elsewhere");
        }
        for peer in &look.responsive {
            tracing::info!(%peer, "is there again");
        }
        let unresponsive: BTreeSet<PeerId> = probe.unresponsive().collect();
        self.inner.attendance.unresponsive.send_if_modified(|known| {
            let changed = **known != unresponsive;
            if changed {
                *known = Arc::new(unresponsive);
            }
            changed
        });
    }
}

/// Looks at those of whom something is expected, until `stop`.
pub(super) async fn watch(links: Links, stop: CancellationToken) {
    let (started, mut probe) = (Instant::now(), LivenessProbe::default());
    let looks = async {
        loop {
            if probe.rests() {
                // Whether in time or woken: it is time to look.
                let _ = timeout(REST, links.inner.attendance.begun.notified()).await;
            } else {
                sleep(LOOK).await;
            }
            let owing: BTreeSet<PeerId> = lock(&links.inner.attendance.owing).keys().copied().collect();
            let peers: BTreeSet<PeerId> = owing.iter().copied().chain(probe.known()).collect();
            let seen = peers.into_iter().map(|peer| (peer, links.seen(peer, owing.contains(&peer)))).collect();
            let look = probe.look(started.elapsed(), &seen);
            links.asks(&probe, &look);
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = looks => {}
    }
}
