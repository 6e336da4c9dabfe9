//! What was observed, and by what.

use crate::control_plane::swarm::{FarEndSight, LookOutcome, PeerSeen};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};
use tsnode_protocol::{PathKind, PeerId};

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// By which addresses this host calls others.
    pub own: OwnAddresses,
    /// Where another process answers with this peer's identity: what it is called.
    pub twin: Option<String>,
    /// For how long the invite has been over, by this host's clock.
    pub expired: Option<String>,
    /// Addresses that no peer can call, as they are written.
    pub unusable: Vec<String>,
    /// Peers that were called.
    pub peers: Vec<Called>,
    /// What the peer that runs here knows; none where none runs.
    pub running: Option<RunningPeer>,
}

/// This host's addresses towards others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses {
    /// Of IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Of IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl OwnAddresses {
    /// Whether this is one of them.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4 == Some(ip),
            IpAddr::V6(ip) => self.v6 == Some(ip),
        }
    }
}

/// A peer, and what came of calling it.
#[derive(Clone, Debug)]
pub struct Called {
    /// Who should be there; none where an address does not say.
    pub id: Option<PeerId>,
    /// What people call it.
    pub name: String,
    /// Whether the swarm hears of it now.
    pub is_alive: bool,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a peer.
#[derive(Clone, Debug)]
pub struct Port {
    /// Which.
    pub at: SocketAddr,
    /// What is spoken there.
    pub kind: PortKind,
    /// What the network says of it.
    pub packets: Packets,
    /// What a peer's call came to; none where only the port was tried.
    pub seen: Option<LookOutcome>,
}

/// What is spoken at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Gossip over TCP.
    Tcp,
    /// Gossip over QUIC.
    Udp,
    /// The data plane.
    Data,
}

impl PortKind {
    /// Whether it is UDP.
    #[must_use]
    pub fn is_udp(self) -> bool {
        self != Self::Tcp
    }
}

/// What the network says of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packets {
    /// Somebody answers.
    Answered,
    /// It was refused at once.
    Refused,
    /// Nothing came.
    Silent,
    /// This host knows no way there.
    NoRoute,
    /// Something else.
    Failed(String),
}

impl fmt::Display for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "answers",
            Self::Refused => "refused at once",
            Self::Silent => "no answer",
            Self::NoRoute => "no route from here",
            Self::Failed(why) => why,
        })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind.is_udp() { "UDP" } else { "TCP" };
        write!(f, "{kind} {}: {}", self.at, self.packets)
    }
}

impl Port {
    /// The peer that answered here.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerSeen> {
        if let Some(LookOutcome::Peer(peer)) = &self.seen { Some(peer) } else { None }
    }

    /// What it said of the call.
    #[must_use]
    pub fn sight(&self) -> Option<&FarEndSight> {
        self.peer()?.sight.as_ref()
    }

    /// Whether anything came from there.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.packets == Packets::Answered || self.peer().is_some()
    }
}

impl Called {
    /// The first peer that answered, at whichever port.
    #[must_use]
    pub fn met(&self) -> Option<&PeerSeen> {
        self.ports.iter().find_map(Port::peer)
    }

    /// Whether anything came from it.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.ports.iter().any(Port::answers)
    }
}

/// What the peer that runs here knows.
#[derive(Clone, Debug, Default)]
pub struct RunningPeer {
    /// Whether others can open connections to it, as far as they have said.
    pub is_reachable: bool,
    /// Other peers in the swarm.
    pub others: usize,
    /// The port of `--listen`.
    pub port: u16,
    /// Whether it has turned away somebody, or been turned away, for a proof of membership.
    pub met_strangers: bool,
    /// How its links go.
    pub paths: Vec<PeerPath>,
}

/// How a link goes.
#[derive(Clone, Debug)]
pub struct PeerPath {
    /// To whom.
    pub name: String,
    /// Whether others can open connections to it.
    pub is_reachable: bool,
    /// How.
    pub way: PathVia,
}

/// How a link goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathVia {
    /// One has called the other.
    Direct,
    /// Both have called, where neither can be called by itself.
    HolePunched,
    /// Over another peer.
    Relayed {
        /// Which.
        via: String,
    },
}

impl fmt::Display for PathVia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::HolePunched => f.write_str("hole-punched"),
            Self::Relayed { via } => write!(f, "relayed over {via}"),
        }
    }
}

impl PathVia {
    /// Of a link between two: straight between hosts that nobody can call, by addresses that neither lets be known, is by a hole.
    #[must_use]
    pub fn of(path: PathKind, via: impl Fn(PeerId) -> String, is_hole: bool) -> Self {
        match path {
            PathKind::Relayed { via: relay } => Self::Relayed { via: via(relay) },
            PathKind::Direct if is_hole => Self::HolePunched,
            PathKind::Direct => Self::Direct,
        }
    }
}
