//! Plan flow 1: heartbeats that go to a few peers, over the data plane: sent to them, and heard from them.

use crate::{links::Links, offences::OffenceReporter};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::{sync::mpsc, time::timeout};
use tokio_util::task::TaskTracker;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{Gossip, PeerId, Signed, SwarmId, Verified, stream::Opening};

/// Bundles that wait for the driver; above it they are dropped, as their senders have new ones a second later.
const WAITING: usize = 1024;
/// How long one may take to be sent: a new connection over a slow link, and a word.
const PATIENCE: Duration = Duration::from_secs(6);

/// Who sent heartbeats, and which, verified.
pub type Heartbeats = (PeerId, Vec<Verified<Gossip>>);

/// Where heartbeats of others come in. Clones are equal; nothing here blocks.
#[derive(Clone, Debug)]
pub struct Inbox {
    swarm: SwarmId,
    heard: mpsc::Sender<Heartbeats>,
}

impl Inbox {
    /// For a swarm, and the end that the driver hears.
    #[must_use]
    pub fn channel(swarm: SwarmId) -> (Self, mpsc::Receiver<Heartbeats>) {
        let (heard, receiver) = mpsc::channel(WAITING);
        (Self { swarm, heard }, receiver)
    }

    /// Takes what a peer sent, if all of it is signed as it should be; whoever passes on what is not is to blame itself.
    pub(crate) fn take(&self, from: PeerId, words: Vec<Signed<Gossip>>, guard: &OffenceReporter) {
        let verified: Result<Vec<_>, _> = words.into_iter().map(|word| word.verify(self.swarm)).collect();
        match verified {
            Ok(words) => {
                if self.heard.try_send((from, words)).is_err() {
                    tracing::debug!(%from, "heartbeats dropped: too many wait");
                }
            }
            Err(error) => {
                guard.blame(from, Offence::Garbage);
                tracing::debug!(%from, %error, "heartbeats refused");
            }
        }
    }
}

/// Sends heartbeats, one bundle at a time to each peer.
pub struct HeartbeatSender {
    links: Links,
    tasks: TaskTracker,
    /// Whom something is on its way to. Held for set operations only.
    busy: Arc<Mutex<BTreeSet<PeerId>>>,
}

impl HeartbeatSender {
    /// Over these links; the tasks end by themselves, soon after the links do.
    #[must_use]
    pub fn new(links: Links, tasks: TaskTracker) -> Self {
        Self { links, tasks, busy: Arc::default() }
    }

    /// Sends a bundle, unless the last one is still on its way: then that peer is told in a second.
    pub fn tell(&self, peer: PeerId, addresses: Vec<SocketAddr>, words: Vec<Signed<Gossip>>) {
        if !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(peer) {
            return;
        }
        let (links, busy) = (self.links.clone(), self.busy.clone());
        self.tasks.spawn(async move {
            let sent = timeout(PATIENCE, async {
                let mut stream = links.open(peer, &addresses, &Opening::Heartbeats(words)).await?;
                stream.sender.finish()
            });
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%peer, %error, "heartbeat not sent"),
                Err(_) => tracing::debug!(%peer, "heartbeat not sent in time"),
            }
            busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        });
    }
}
