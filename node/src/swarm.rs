//! Plan flow 2: the control plane on libp2p: finds peers, and carries signed gossip between them.
//!
//! One task ([`run`]) owns the libp2p swarm; others talk to it through [`SwarmHandle`] and hear [`SwarmEvent`]s. Both
//! ends of every connection prove the swarm's secret before any protocol answers ([`admission`]).

mod admission;
mod behaviour;
mod run;
mod transport;

use crate::identity::Identity;
use libp2p::Multiaddr;
use std::net::SocketAddr;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Gossip, PeerId, Signed, SwarmId, Verified, proof::Membership};

/// Events nobody has looked at; above it gossip waits in libp2p, which then slows its senders.
const EVENTS: usize = 1024;
/// Orders to the swarm not yet carried out; above it a message is lost, as gossip may be.
const ORDERS: usize = 256;

/// How the control plane is set up.
pub struct SwarmConfig {
    /// This peer's key.
    pub identity: Identity,
    /// The swarm.
    pub swarm: SwarmId,
    /// What both ends prove.
    pub membership: Membership,
    /// TCP and UDP address; port 0 takes any, one for each.
    pub listen: SocketAddr,
    /// Members to begin with: the invite's, and those known from before.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether to look for members on the local network.
    pub mdns: bool,
    /// Software and version, told to others.
    pub agent: String,
}

/// Why the control plane does not start.
#[derive(Debug, thiserror::Error)]
pub enum SwarmError {
    /// The address cannot be had.
    #[error("{address}: {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: String,
        /// Whether another program has it.
        in_use: bool,
    },
    /// libp2p refused its settings.
    #[error("control plane: {0}")]
    Setup(String),
}

/// What the control plane tells.
#[derive(Debug)]
pub enum SwarmEvent {
    /// A message whose signature and bounds hold.
    Gossip(Box<Verified<Gossip>>),
    /// The first connection to a peer.
    Connected(PeerId),
    /// The last connection to a peer is gone.
    Disconnected(PeerId),
    /// Addresses others can dial, ending in `/p2p/…`.
    Listening(Vec<String>),
    /// A message or connection was refused.
    Rejected {
        /// Whose, if known.
        peer: Option<PeerId>,
        /// Why.
        reason: String,
    },
}

enum Order {
    Publish(Vec<u8>),
    Dial(Multiaddr),
}

/// The way to the control plane.
#[derive(Clone)]
pub struct SwarmHandle {
    identity: Identity,
    swarm: SwarmId,
    sequence: Arc<AtomicU64>,
    orders: mpsc::Sender<Order>,
}

impl SwarmHandle {
    /// Signs a message and sends it to all; gives it back as others will see it.
    #[must_use = "one's own messages count like others'"]
    pub fn publish(&self, gossip: &Gossip) -> Option<Verified<Gossip>> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let signed = Signed::seal(self.identity.signing_key(), self.swarm, sequence, gossip);
        if self.orders.try_send(Order::Publish(signed.to_bytes())).is_err() {
            tracing::warn!(kind = gossip.kind(), "gossip lost: the control plane is busy");
        }
        match signed.verify(self.swarm) {
            Ok(verified) => Some(verified),
            Err(error) => {
                tracing::error!(kind = gossip.kind(), %error, "own message breaks the rules and is not sent");
                None
            }
        }
    }

    /// Dials a member.
    pub fn dial(&self, address: Multiaddr) {
        // Lost orders to dial are made again by whoever wants the connection.
        let _ = self.orders.try_send(Order::Dial(address));
    }
}

/// Starts the control plane; it ends on `stop`.
///
/// # Errors
/// When the address is taken.
pub async fn start(
    config: SwarmConfig,
    stop: CancellationToken,
) -> Result<(SwarmHandle, mpsc::Receiver<SwarmEvent>), SwarmError> {
    let (orders, receiver) = mpsc::channel(ORDERS);
    let (sender, events) = mpsc::channel(EVENTS);
    // Microseconds since 1970: a restarted peer goes on above where it was.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let handle = SwarmHandle {
        identity: config.identity.clone(),
        swarm: config.swarm,
        sequence: Arc::new(AtomicU64::new(now.as_micros() as u64)),
        orders,
    };
    let task = run::Task::start(config, receiver, sender).await?;
    tokio::spawn(task.run(stop));
    Ok((handle, events))
}

/// Our name of a libp2p peer; `None` for keys other than ed25519.
fn name(peer: &libp2p::PeerId) -> Option<PeerId> {
    PeerId::from_libp2p_bytes(&peer.to_bytes())
}

#[cfg(test)]
mod tests;
