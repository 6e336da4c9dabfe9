//! Keeps those out who are cut off, and passes on what peers do that they should not.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::{mpsc, watch};
use tsnode_coordinator::{spot_check::SpotCheckVerdict, trust::Offence};
use tsnode_protocol::PeerId;

/// Offences not yet looked at; above it they are not counted: their senders are many already.
const OFFENCES: usize = 1024;

/// For whoever meets peers. Clones are equal; nothing here blocks.
#[derive(Clone, Debug)]
pub struct OffenceReporter {
    offences: mpsc::Sender<(PeerId, Offence)>,
    cut_off: watch::Receiver<Arc<BTreeSet<PeerId>>>,
    checks: Arc<CheckCounts>,
}

/// What came of this peer's spot checks since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpotChecked {
    /// Another group got the same token.
    pub passed: u64,
    /// Somebody answered wrongly.
    pub failed: u64,
    /// Nobody could say: no group answered that had no part in it, or a GPU may have rounded so.
    pub unclear: u64,
}

/// The same while it is counted: passed, failed, unclear.
#[derive(Debug, Default)]
struct CheckCounts([AtomicU64; 3]);

impl CheckCounts {
    fn add(&self, verdict: &SpotCheckVerdict) {
        let [passed, failed, unclear] = &self.0;
        let count = match verdict {
            SpotCheckVerdict::Passed => passed,
            SpotCheckVerdict::Unclear => unclear,
            SpotCheckVerdict::WrongToken(_)
            | SpotCheckVerdict::WrongKv { .. }
            | SpotCheckVerdict::Evaded { .. }
            | SpotCheckVerdict::WrongCheck(_) => failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// For the one who judges.
#[derive(Debug)]
pub struct OffenceReceiver {
    /// What was done, by whom.
    pub offences: mpsc::Receiver<(PeerId, Offence)>,
    /// Who is cut off now.
    pub cut_off: watch::Sender<Arc<BTreeSet<PeerId>>>,
    checks: Arc<CheckCounts>,
}

impl OffenceReceiver {
    /// What came of spot checks.
    #[must_use]
    pub fn spot_checked(&self) -> SpotChecked {
        let [passed, failed, unclear] = self.checks.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        SpotChecked { passed, failed, unclear }
    }
}

impl OffenceReporter {
    /// A reporter, and the end that judges.
    #[must_use]
    pub fn channel() -> (Self, OffenceReceiver) {
        let (offences, receiver) = mpsc::channel(OFFENCES);
        let (sender, cut_off) = watch::channel(Arc::default());
        let checks = Arc::<CheckCounts>::default();
        let offence_receiver = OffenceReceiver { offences: receiver, cut_off: sender, checks: checks.clone() };
        (Self { offences, cut_off, checks }, offence_receiver)
    }

    /// A spot check is over: counts it, and what was done wrong.
    pub fn examined(&self, verdict: &SpotCheckVerdict) {
        self.checks.add(verdict);
        for (peer, offence) in verdict.offences() {
            self.blame(peer, offence);
        }
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
