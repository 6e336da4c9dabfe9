//! All ways to another peer, circuits over a relay among them, with the door in front of all.

use super::{
    SwarmError,
    admission::AdmissionDoor,
    authenticated::{noise, proven, yamux},
    connection::{Connection, SETUP_LIMIT},
    seated::{Seated, address},
};
use crate::data_plane::doors::Doors;
use libp2p::{
    Transport as _,
    core::{
        ConnectedPoint, Endpoint,
        muxing::StreamMuxerBox,
        transport::{Boxed, timeout::TransportTimeout},
        upgrade::Version,
    },
    identity::Keypair,
    multiaddr::Protocol,
    relay,
};
use std::net::SocketAddr;
use tsnode_protocol::proof::ConnectionSide;

/// Connections on which both sides have proven ids and membership: over one of the two ways, or over the circuits of a
/// relay, which sees neither the proof nor anything else.
pub(super) fn admitted(
    keypair: &Keypair,
    door: AdmissionDoor,
    doors: Doors,
    circuits: relay::client::Transport,
) -> Result<Boxed<Connection>, SwarmError> {
    let circuits = circuits.upgrade(Version::V1).authenticate(noise(keypair)?).multiplex(yamux());
    let circuits = circuits.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let all = circuits.or_transport(proven(keypair, doors.clone())?).map(|either, _| either.into_inner());
    let admitted = all.and_then(move |(peer, muxer), point| door.admit(peer, muxer, side(&point), caller(&point)));
    Ok(Seated::new(TransportTimeout::new(admitted, SETUP_LIMIT).boxed(), doors).boxed())
}

/// Both ends of a hole that is punched dial; one of them has agreed to be the listener.
fn side(point: &ConnectedPoint) -> ConnectionSide {
    match point {
        ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. } => ConnectionSide::Dialer,
        ConnectedPoint::Dialer { role_override: Endpoint::Listener, .. } | ConnectedPoint::Listener { .. } => {
            ConnectionSide::Listener
        }
    }
}

/// Where a call comes from, if it came straight.
fn caller(point: &ConnectedPoint) -> Option<SocketAddr> {
    let ConnectedPoint::Listener { send_back_addr, .. } = point else { return None };
    let ip = address(send_back_addr)?;
    let port = send_back_addr.iter().find_map(|part| match part {
        Protocol::Tcp(port) | Protocol::Udp(port) => Some(port),
        _ => None,
    });
    Some(SocketAddr::new(ip.to_canonical(), port?))
}
