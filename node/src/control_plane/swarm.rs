//! Plan flow 2: the control plane: finding peers, proving membership to each other, and gossip among all of them.
//!
//! One task owns the libp2p swarm ([`start`] spawns it). The rest of the node gives orders through a [`SwarmHandle`]
//! and receives [`SwarmEvent`]s from a bounded queue; `outbox.rs` says what happens when nobody takes them.

mod address_changes;
mod admission;
mod authenticated;
mod behaviour;
mod carry;
mod connection;
mod dialer;
mod exchange;
mod gossip;
mod handle;
mod heard;
mod look;
pub mod names;
mod network;
mod not_hearing;
mod outbox;
mod port_reuse;
mod quic;
mod redeem;
mod relays;
mod seated;
mod sight;
mod task;
#[cfg(test)]
mod tests;
mod transport;
mod twin;
mod unproven;
mod wall;

pub use handle::{Ban, CommandError, PublishError, SwarmHandle};
pub use look::{LookOutcome, PeerSeen, Proof, look};
pub use redeem::{RedeemError, redeem};
pub use sight::FarEndSight;
pub use twin::{ProcessId, find as find_twin};

use crate::{
    data_plane::{carrier::Porter, doors::Doors},
    faults::Faults,
    store::{identity::Identity, invites::Invites},
};
use address_changes::Moves;
use dialer::Dialer;
use gossip::Sealer;
use heard::HeardSigners;
use libp2p::Multiaddr;
use network::Maker;
use not_hearing::NotHearing;
use outbox::Outbox;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};
use task::{Inputs, Reach, SwarmTask};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{Gossip, Life, PeerId, SwarmId, Verified, proof::Membership};
use unproven::Unproven;

/// Connections each peer seeks: as many as gossipsub's mesh can use, and all of them in a small swarm.
pub const DEGREE: usize = 12;
/// Events that wait for the control machine.
const EVENTS: usize = 1024;
/// Rejections at the door that wait to be counted.
const REJECTIONS: usize = 64;

/// What the control plane needs to know.
pub struct SwarmConfig {
    /// Who we are.
    pub identity: Identity,
    /// Which life of it this is.
    pub life: Life,
    /// The swarm.
    pub swarm: SwarmId,
    /// What its members know.
    pub membership: Membership,
    /// Which of all processes that may have this identity this is.
    pub process: ProcessId,
    /// What newcomers may come with.
    pub invites: Invites,
    /// TCP and UDP address to listen on, both at the same port; port 0 takes any free one for each. `[::]` is IPv4 as well.
    pub listen: SocketAddr,
    /// Addresses of members, from the invite and from earlier runs.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether to look for members on the local network.
    pub mdns: bool,
    /// Connections to seek; [`DEGREE`] unless there is a reason.
    pub degree: usize,
    /// Software name and version, as other peers see it.
    pub agent: String,
    /// Whether to carry between peers that do not reach each other.
    pub relay: bool,
    /// What is broken on purpose, where a testnet may.
    pub faults: Option<watch::Receiver<Faults>>,
    /// Places for those who have to prove themselves.
    pub doors: Doors,
}

/// What happens in the swarm.
#[derive(Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all events are gossip: boxing it would save no memory, and cost an allocation each"
)]
pub enum SwarmEvent {
    /// Another peer said something, and its signature and bounds hold.
    Gossip(Verified<Gossip>),
    /// A peer is connected, has proven membership and hears what we publish from now on.
    Connected(PeerId),
    /// The last connection to a peer has closed.
    Disconnected(PeerId),
    /// A connection to a peer did not end in order: it broke off, or the far end closed it. Others may be left.
    BrokeOff {
        /// Whose.
        peer: PeerId,
        /// Where it went to, or came from.
        host: std::net::IpAddr,
    },
    /// What [`SwarmHandle::echo`] was told, once all that came before it was taken.
    Echo(tokio::time::Instant),
    /// Where others can reach us has changed: multiaddrs ending in `/p2p/<peer id>`, best first.
    Listening(Vec<String>),
    /// Whether others can open connections to us; they are taken to be able to until several could not.
    Reachable(bool),
    /// A peer has done what none should.
    Offence {
        /// Who.
        peer: PeerId,
        /// What.
        offence: Offence,
    },
    /// Somebody was there who speaks another version of the protocol.
    OtherVersion {
        /// Which.
        theirs: u16,
    },
    /// Another process has come with this peer's own identity.
    Twin,
    /// A peer was turned away, or what it said was.
    Rejected {
        /// Whom to blame; for gossip, the neighbour that passed it on.
        peer: Option<PeerId>,
        /// Why.
        reason: String,
    },
}

/// Why the control plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum SwarmError {
    /// Another process listens there.
    #[error("{protocol} address {listen} is in use: stop the process that uses it, or choose another with --listen")]
    InUse {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address.
        listen: SocketAddr,
    },
    /// The system does not let us listen there.
    #[error("cannot listen on {protocol} address {listen}: {reason}")]
    Listen {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address.
        listen: SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// A protocol refused its settings.
    #[error("cannot set up the network: {0}")]
    Setup(String),
}

/// Starts listening and spawns the task that owns the network, which gives `porter`'s streams to the data plane; it ends with `stop`.
///
/// # Errors
/// When an address is in use or not ours. Nothing keeps running then.
pub async fn start(
    config: SwarmConfig,
    porter: Porter,
    stop: CancellationToken,
) -> Result<(SwarmHandle, mpsc::Receiver<SwarmEvent>), SwarmError> {
    let own = config.identity.peer_id();
    let (rejected, rejections) = mpsc::channel(REJECTIONS);
    let sealer = Sealer::new(config.identity.signing.clone(), config.swarm, config.life);
    let maker = Maker { config, rejected };
    let net = maker.make()?;
    let config = &maker.config;
    // Where members are said to be.
    config.bootstrap.iter().filter_map(seated::address).for_each(|address| config.doors.meet(address));

    let (ordered, commands) = mpsc::channel(handle::COMMANDS);
    let (happened, events) = mpsc::channel(EVENTS);
    let (addresses, addresses_seen) = watch::channel(Vec::new());
    let (peers, peers_seen) = watch::channel(Vec::new());
    let task = SwarmTask {
        net,
        own,
        swarm: config.swarm,
        degree: config.degree,
        dialer: Dialer::new(own, config.degree, &config.bootstrap),
        outbox: Outbox::new(happened),
        addresses,
        peers,
        connected: BTreeSet::new(),
        hearing: BTreeSet::new(),
        not_hearing: NotHearing::default(),
        reach: Reach::default(),
        came: porter.came,
        wanted: BTreeMap::new(),
        bans: BTreeSet::new(),
        heard: HeardSigners::new(),
        unproven: Unproven::default(),
        moves: Moves::default(),
        doors: config.doors.clone(),
        echo: None,
    };
    let inputs = Inputs { commands, rejections, asks: porter.asks };
    crate::tasks::spawn("swarm", task.run(inputs, maker, stop));
    let handle =
        SwarmHandle { sealer: Arc::new(sealer), commands: ordered, addresses: addresses_seen, peers: peers_seen };
    Ok((handle, events))
}

/// libp2p's id as ours; none unless it is an ed25519 key.
fn to_own_id(id: &libp2p::PeerId) -> Option<PeerId> {
    PeerId::from_libp2p_bytes(&id.to_bytes())
}

/// Our id as libp2p's.
fn to_libp2p_id(id: PeerId) -> Option<libp2p::PeerId> {
    libp2p::PeerId::from_bytes(&id.to_libp2p_bytes()).ok()
}
