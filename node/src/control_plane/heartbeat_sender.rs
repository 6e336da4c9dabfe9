//! Plan flow 1: sends heartbeats to a few peers, over the data plane.

use crate::data_plane::links::Links;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tsnode_protocol::{Gossip, PeerId, Signed, stream::Opening};

/// How long one may take to be sent: a new connection over a slow link, and a word.
const PATIENCE: Duration = Duration::from_secs(6);

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
