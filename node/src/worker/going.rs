//! Who of a group is on its way out.

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;
use tsnode_protocol::{Group, PeerId};

/// Peers on their way out, as their host hears of them, this one among them.
#[derive(Clone)]
pub(super) struct Going {
    pub me: PeerId,
    /// Whether this peer is.
    pub moving: watch::Receiver<bool>,
    /// Which others are.
    pub others: watch::Receiver<Arc<BTreeSet<PeerId>>>,
}

impl Going {
    /// Whether a group has such a peer.
    pub fn has_of(&self, group: &Group) -> bool {
        let goes = |peer| if peer == self.me { *self.moving.borrow() } else { self.others.borrow().contains(&peer) };
        group.stages.iter().any(|stage| goes(stage.peer))
    }
}
