//! Plan flow 1: heartbeats that came over the data plane, verified.

use crate::data_plane::offences::OffenceReporter;
use tokio::sync::mpsc;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{Gossip, PeerId, Signed, SwarmId, Verified};

/// Bundles that wait for the driver; above it they are dropped, as their senders have new ones a second later.
const WAITING: usize = 1024;
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
    pub(crate) fn take(&self, from: PeerId, words: Vec<Signed<Gossip>>, offence_reporter: &OffenceReporter) {
        let verified: Result<Vec<_>, _> = words.into_iter().map(|word| word.verify(self.swarm)).collect();
        match verified {
            Ok(words) => {
                if self.heard.try_send((from, words)).is_err() {
                    tracing::debug!(%from, "heartbeats dropped: too many wait");
                }
            }
            Err(error) => {
                offence_reporter.blame(from, Offence::Garbage);
                tracing::debug!(%from, %error, "heartbeats refused");
            }
        }
    }
}
