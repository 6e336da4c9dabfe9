//! Measures a link when the owner of this peer asks: a real transfer, one at a time, and only so much in a time, since
//! both ends pay for it.

use crate::data_plane::{
    links::{LinkError, Links, Transfer},
    roster::Roster,
};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::rate_limit::{RateLimit, TokenBucket};
use tsnode_protocol::PeerId;

/// The most bytes of one measurement.
pub const MOST: u64 = 256 << 20;
/// Measurements of that size, about: one, and another every two minutes. Far ends allow a little more.
const SIZES: RateLimit = RateLimit { per_second: 1.0 / 120.0, burst: 2.0 };
/// How long one may take; over a slower link fewer bytes tell as much.
const PATIENCE: Duration = Duration::from_secs(120);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// No such peer.
    #[error("no peer {0} is known")]
    Unknown(PeerId),
    /// One at a time.
    #[error("another link is being measured")]
    Busy,
    /// A measurement fills the links of others: there was one just now, and the next has to wait.
    #[error("links were measured just now")]
    TooOften {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A wish to know.
#[derive(Debug)]
pub struct MeasureWish {
    peer: PeerId,
    bytes: u64,
    answer: oneshot::Sender<Result<Transfer, MeasureError>>,
}

/// For whoever wishes. Clones are equal.
#[derive(Clone, Debug)]
pub struct Measurer {
    wishes: mpsc::Sender<MeasureWish>,
}

impl Measurer {
    /// A measurer, and the wishes to be fulfilled; none waits behind another.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<MeasureWish>) {
        let (wishes, receiver) = mpsc::channel(1);
        (Self { wishes }, receiver)
    }

    /// Measures the link to `peer` with so many bytes, at most [`MOST`].
    ///
    /// # Errors
    /// When another is being measured, too much was, or the peer is not reached.
    pub async fn measure(&self, peer: PeerId, bytes: u64) -> Result<Transfer, MeasureError> {
        let (answer, answered) = oneshot::channel();
        self.wishes.try_send(MeasureWish { peer, bytes, answer }).map_err(|_| MeasureError::Busy)?;
        answered.await.unwrap_or(Err(MeasureError::Busy))
    }
}

/// Fulfils wishes until `stop`.
pub(crate) async fn run(
    mut wishes: mpsc::Receiver<MeasureWish>,
    links: Links,
    roster: Roster,
    stop: CancellationToken,
) {
    let started = Instant::now();
    let mut bucket = TokenBucket::new(SIZES, Duration::ZERO);
    let fulfilling = async {
        while let Some(MeasureWish { peer, bytes, answer }) = wishes.recv().await {
            let addresses = roster.data_addresses(peer);
            let measured = if addresses.is_empty() {
                Err(MeasureError::Unknown(peer))
            } else if let Err(retry_after) = bucket.take(started.elapsed()) {
                Err(MeasureError::TooOften { retry_after })
            } else {
                let measured = timeout(PATIENCE, links.transfer(peer, &addresses, bytes.min(MOST))).await;
                measured.unwrap_or(Err(LinkError::TimedOut)).map_err(MeasureError::Link)
            };
            // Whoever asked may have lost patience.
            let _ = answer.send(measured);
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = fulfilling => {}
    }
}
