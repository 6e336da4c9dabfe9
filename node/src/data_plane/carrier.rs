//! Streams of bytes that the control plane carries for the data plane, where the data plane's own packets do not get through.

use libp2p::core::muxing::SubstreamBox;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tsnode_protocol::{PathKind, PeerId};

/// Streams asked for and not looked at yet; whoever asks above it waits.
const ASKED: usize = 64;
/// Streams of others that nobody has looked at; above it they are dropped, and their openers ask again.
const CAME: usize = 64;
/// How long one may take to be had: a relay is dialled, then the peer behind it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A stream over one connection of the control plane: its far end has proven its id and that it is of this swarm.
#[derive(Debug)]
pub struct Carried {
    /// Who is there.
    pub peer: PeerId,
    /// How the connection travels.
    pub path: PathKind,
    /// The bytes.
    pub stream: SubstreamBox,
}

/// A wish for a stream. Where none is to be had, the answer is dropped.
#[derive(Debug)]
pub struct Ask {
    /// To whom.
    pub peer: PeerId,
    /// Takes it.
    pub answer: oneshot::Sender<Carried>,
}

/// For the data plane: asks for streams.
#[derive(Clone, Debug)]
pub struct Carrier {
    asks: mpsc::Sender<Ask>,
}

/// For the control plane: gives them.
#[derive(Debug)]
pub struct Porter {
    /// What is asked for.
    pub asks: mpsc::Receiver<Ask>,
    /// What others have opened.
    pub came: mpsc::Sender<Carried>,
}

/// What the data plane has of it: streams when it asks for them, and those that others open.
pub type Carriage = (Carrier, mpsc::Receiver<Carried>);

/// Both ends.
#[must_use]
pub fn channel() -> (Carriage, Porter) {
    let (asker, asks) = mpsc::channel(ASKED);
    let (came, others) = mpsc::channel(CAME);
    ((Carrier { asks: asker }, others), Porter { asks, came })
}

impl Carrier {
    /// A stream to `peer`, over the best connection of the control plane there is or can be had; none if none can, in time.
    pub async fn open(&self, peer: PeerId) -> Option<Carried> {
        let asked = async {
            let (answer, answered) = oneshot::channel();
            self.asks.send(Ask { peer, answer }).await.ok()?;
            answered.await.ok()
        };
        timeout(PATIENCE, asked).await.ok().flatten()
    }
}
