//! Keeps those out who are cut off, and passes on what peers do that they should not.

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::PeerId;

/// Offences not yet looked at; above it they are not counted: their senders are many already.
const OFFENCES: usize = 1024;

/// For whoever meets peers. Clones are equal; nothing here blocks.
#[derive(Clone, Debug)]
pub struct Guard {
    offences: mpsc::Sender<(PeerId, Offence)>,
    cut_off: watch::Receiver<Arc<BTreeSet<PeerId>>>,
}

/// For the one who judges.
#[derive(Debug)]
pub struct Bench {
    /// What was done, by whom.
    pub offences: mpsc::Receiver<(PeerId, Offence)>,
    /// Who is cut off now.
    pub cut_off: watch::Sender<Arc<BTreeSet<PeerId>>>,
}

impl Guard {
    /// A guard, and the end that judges.
    #[must_use]
    pub fn channel() -> (Self, Bench) {
        let (offences, receiver) = mpsc::channel(OFFENCES);
        let (sender, cut_off) = watch::channel(Arc::default());
        (Self { offences, cut_off }, Bench { offences: receiver, cut_off: sender })
    }

    /// A peer has done something it should not.
    pub fn blame(&self, peer: PeerId, offence: Offence) {
        if self.offences.try_send((peer, offence)).is_err() {
            tracing::debug!(%peer, %offence, "not counted: too many wait");
        }
    }

    /// Whether nothing is to be had from, or given to, a peer.
    #[must_use]
    pub fn keeps_out(&self, peer: PeerId) -> bool {
        self.cut_off.borrow().contains(&peer)
    }
}
