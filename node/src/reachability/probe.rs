//! Observes: calls peers' ports, as a peer does and by single packets, all at once and for some seconds.

use super::observation::{Called, OwnAddresses, Packets, Port, PortKind};
use crate::{
    control_plane::swarm::{self, LookOutcome, names},
    data_plane::links::beside,
};
use futures::future::{join, join_all};
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    net::{TcpStream, UdpSocket},
    time::timeout,
};
use tsnode_protocol::{PeerId, SwarmId, limits, proof::Membership};

/// Peers that are called; of more, these tell enough.
const PEERS: usize = 8;
/// How long a connection of TCP may take: two packets may be lost.
const TCP: Duration = Duration::from_secs(4);
/// Packets sent to a port of UDP, and how long each is waited for.
const TRIES: usize = 3;
const UDP: Duration = Duration::from_secs(1);
/// The smallest packet that begins a connection of QUIC: who speaks it answers to no less (bytes).
const FIRST_PACKET: usize = 1200;

/// A peer that is to be called.
#[derive(Clone, Debug)]
pub struct ProbeTarget {
    /// Who is said to be there.
    pub id: Option<PeerId>,
    /// What people call it.
    pub name: String,
    /// Whether the swarm hears of it now.
    pub is_alive: bool,
    /// Where its control plane is.
    pub addresses: Vec<Multiaddr>,
    /// Where its data plane is.
    pub data: Vec<SocketAddr>,
}

/// What was called, and what could not be, as it is written.
#[derive(Debug, Default)]
pub struct ProbeCalls {
    /// Peers.
    pub peers: Vec<Called>,
    /// Addresses.
    pub unusable: Vec<String>,
}

/// The addresses by which this host calls those that were called, without a byte sent; documentation's addresses stand for all others.
#[must_use]
pub fn own(called: &[Called]) -> OwnAddresses {
    let far = [IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let called = called.iter().flat_map(|called| &called.ports).map(|port| port.at.ip());
    let mut own = OwnAddresses::default();
    for ip in called.chain(far).filter_map(source_towards) {
        match ip {
            IpAddr::V4(ip) => _ = own.v4.get_or_insert(ip),
            IpAddr::V6(ip) => _ = own.v6.get_or_insert(ip),
        }
    }
    own
}

fn source_towards(far: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if far.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// Calls all of these.
pub async fn call(targets: Vec<ProbeTarget>, swarm: SwarmId, membership: Option<&Membership>) -> ProbeCalls {
    let mut calls = ProbeCalls::default();
    let mut doors: Vec<(usize, Option<Multiaddr>, PortKind, SocketAddr)> = Vec::new();
    let looking = targets.into_iter().take(PEERS).map(|target| async {
        let addresses = target.addresses.iter().take(limits::ADDRESSES).filter(|a| !is_circuit(a));
        let addresses: Vec<Multiaddr> = addresses.cloned().collect();
        (target, names::resolved(&addresses).await)
    });
    for (target, (addresses, lost)) in join_all(looking).await {
        let mut own = Vec::new();
        calls.unusable.extend(lost.iter().map(ToString::to_string));
        for address in addresses {
            match door(&address) {
                Some((kind, at)) => own.push((calls.peers.len(), Some(address), kind, at)),
                None => calls.unusable.push(address.to_string()),
            }
        }
        let data = target.data.iter().take(limits::ADDRESSES).map(|at| (calls.peers.len(), None, PortKind::Data, *at));
        own.extend(data);
        if !own.is_empty() {
            let ProbeTarget { id, name, is_alive, .. } = target;
            calls.peers.push(Called { id, name, is_alive, ports: Vec::new() });
            doors.extend(own);
        }
    }
    let addresses: Vec<Multiaddr> = doors.iter().filter_map(|(_, address, ..)| address.clone()).collect();
    let trying = doors.iter().map(|(_, _, kind, at)| try_port(*kind, *at));
    let (packets, seen) = join(join_all(trying), swarm::look(&addresses, swarm, membership)).await;
    let mut seen = seen.into_iter();
    for ((peer, address, kind, at), packets) in doors.into_iter().zip(packets) {
        let seen = address.and_then(|_| seen.next());
        let packets = if matches!(seen, Some(LookOutcome::Peer(_))) { Packets::Answered } else { packets };
        if let Some(called) = calls.peers.get_mut(peer) {
            called.ports.push(Port { at, kind, packets, seen });
        }
    }
    calls
}

/// Those that addresses name.
#[must_use]
pub fn targets(addresses: &[String]) -> Vec<ProbeTarget> {
    let mut by_peer: BTreeMap<Option<PeerId>, Vec<Multiaddr>> = BTreeMap::new();
    for address in addresses.iter().filter_map(|a| a.parse::<Multiaddr>().ok()) {
        by_peer.entry(named(&address)).or_default().push(address);
    }
    let target = |(id, addresses): (Option<PeerId>, Vec<Multiaddr>)| ProbeTarget {
        id,
        name: id.map_or_else(|| "who is there".into(), |id| format!("…{}", id.short())),
        is_alive: false,
        data: usual_data(&addresses),
        addresses,
    };
    by_peer.into_iter().map(target).collect()
}

fn named(address: &Multiaddr) -> Option<PeerId> {
    let id = address.iter().find_map(|part| if let Protocol::P2p(id) = part { Some(id) } else { None })?;
    PeerId::from_libp2p_bytes(&id.to_bytes())
}

/// Where data planes are that are not told of: beside the control plane's, unless somebody has said otherwise.
#[must_use]
pub fn usual_data(addresses: &[Multiaddr]) -> Vec<SocketAddr> {
    let doors = addresses.iter().filter(|a| !is_circuit(a)).filter_map(door);
    doors.filter(|(kind, _)| *kind == PortKind::Udp).map(|(_, at)| beside(at)).collect()
}

fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// Where an address leads; none where no peer can call it.
fn door(address: &Multiaddr) -> Option<(PortKind, SocketAddr)> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match (parts.next()?, parts.next()) {
        (Protocol::Tcp(port), _) => Some((PortKind::Tcp, SocketAddr::new(ip, port))),
        (Protocol::Udp(port), Some(Protocol::QuicV1)) => Some((PortKind::Udp, SocketAddr::new(ip, port))),
        _ => None,
    }
}

async fn try_port(kind: PortKind, at: SocketAddr) -> Packets {
    if kind.is_udp() {
        return try_udp(at).await.unwrap_or_else(|error| stopped(&error));
    }
    match timeout(TCP, TcpStream::connect(at)).await {
        Err(_) => Packets::Silent,
        Ok(Ok(_)) => Packets::Answered,
        Ok(Err(error)) => stopped(&error),
    }
}

/// Sends what every peer answers that speaks QUIC: a first packet of a version that there is not.
async fn try_udp(at: SocketAddr) -> io::Result<Packets> {
    let any: IpAddr = if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(at).await?;
    let mut answer = [0; FIRST_PACKET];
    for _ in 0..TRIES {
        socket.send(&first_packet()).await?;
        if let Ok(came) = timeout(UDP, socket.recv(&mut answer)).await {
            let bytes = came?;
            return Ok(if bytes > 0 { Packets::Answered } else { Packets::Silent });
        }
    }
    Ok(Packets::Silent)
}

fn first_packet() -> [u8; FIRST_PACKET] {
    let mut packet = [0; FIRST_PACKET];
    packet[0] = 0xc0;
    // Reserved, so that it is never spoken (RFC 9000, 15).
    packet[1..5].copy_from_slice(&0x1a2a_3a4a_u32.to_be_bytes());
    for at in [5, 14] {
        packet[at] = 8;
        packet[at + 1..at + 9].copy_from_slice(&crate::random_bytes::<8>());
    }
    packet
}

fn stopped(error: &io::Error) -> Packets {
    match error.kind() {
        // The second is how Windows says the same of UDP.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Packets::Refused,
        io::ErrorKind::TimedOut => Packets::Silent,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable | io::ErrorKind::AddrNotAvailable => {
            Packets::NoRoute
        }
        _ => Packets::Failed(crate::plain::io_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_peer_can_call_is_a_door() {
        let at = |text: &str| door(&text.parse().unwrap());
        assert_eq!(at("/ip4/192.0.2.1/tcp/7").unwrap().0, PortKind::Tcp);
        assert_eq!(at("/ip6/2001:db8::1/udp/7/quic-v1").unwrap().0, PortKind::Udp);
        for text in ["/dns4/attic.example/tcp/7", "/ip4/192.0.2.1", "/ip4/192.0.2.1/udp/7"] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    #[test]
    fn data_planes_are_beside() {
        let addresses = ["/ip4/192.0.2.1/tcp/7", "/ip4/192.0.2.1/udp/8/quic-v1"].map(|a| a.parse().unwrap());
        assert_eq!(usual_data(&addresses), ["192.0.2.1:9".parse().unwrap()]);
    }

    #[tokio::test]
    async fn refused_is_told_from_silent() {
        let quiet = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let [quiet_at, open] = [quiet.local_addr().unwrap(), closed];
        let (silent, refused) = join(try_port(PortKind::Udp, quiet_at), try_port(PortKind::Data, open)).await;
        assert_eq!((silent, refused), (Packets::Silent, Packets::Refused));
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(try_port(PortKind::Tcp, closed).await, Packets::Refused);
    }
}
