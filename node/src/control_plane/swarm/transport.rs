//! The ways to another peer, TCP with Noise and Yamux, QUIC, and circuits over a relay, with the door in front of all.

use super::{SwarmError, admission::Door, port_reuse::PortReuse, quic::Quic, seated::Seated};
use crate::data_plane::doors::Doors;
use libp2p::{
    PeerId, Transport as _,
    core::{
        ConnectedPoint, Endpoint,
        muxing::StreamMuxerBox,
        transport::{Boxed, timeout::TransportTimeout},
        upgrade::Version,
    },
    identity::Keypair,
    noise, relay, tcp, yamux,
};
use std::time::Duration;
use tsnode_protocol::proof::Side;

/// From the first packet to an admitted connection; the exchange at the door has its own, shorter limit.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// Streams one peer may have open towards us; the protocols of the control plane need about ten.
pub(super) const STREAMS: u32 = 128;

/// A connection that can open streams, and whom it leads to.
pub(super) type Connection = (PeerId, StreamMuxerBox);

/// Connections on which both sides have proven ids and membership: over one of the two ways, or over the circuits of a
/// relay, which sees neither the proof nor anything else.
pub(super) fn admitted(
    keypair: &Keypair,
    door: Door,
    doors: Doors,
    circuits: relay::client::Transport,
) -> Result<Boxed<Connection>, SwarmError> {
    let circuits = circuits.upgrade(Version::V1).authenticate(noise(keypair)?).multiplex(yamux());
    let circuits = circuits.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let all = circuits.or_transport(proven(keypair, doors.clone())?).map(|either, _| either.into_inner());
    let admitted = all.and_then(move |(peer, muxer), point| door.admit(peer, muxer, side(&point)));
    Ok(Seated::new(TransportTimeout::new(admitted, SETUP_LIMIT).boxed(), doors).boxed())
}

/// Both ends of a hole that is punched dial; one of them has agreed to be the listener.
fn side(point: &ConnectedPoint) -> Side {
    match point {
        ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. } => Side::Dialer,
        ConnectedPoint::Dialer { role_override: Endpoint::Listener, .. } | ConnectedPoint::Listener { .. } => {
            Side::Listener
        }
    }
}

fn noise(keypair: &Keypair) -> Result<noise::Config, SwarmError> {
    noise::Config::new(keypair).map_err(|e| SwarmError::Setup(e.to_string()))
}

fn yamux() -> yamux::Config {
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(STREAMS as usize);
    yamux
}

/// Connections to others on which both sides have proven their ids, and nothing more.
pub(super) fn plain(keypair: &Keypair) -> Result<Boxed<Connection>, SwarmError> {
    proven(keypair, Doors::default())
}

/// The same, and others' at these doors.
fn proven(keypair: &Keypair, doors: Doors) -> Result<Boxed<Connection>, SwarmError> {
    let tcp = PortReuse(tcp::tokio::Transport::new(tcp::Config::default().nodelay(true)))
        .upgrade(Version::V1)
        .authenticate(noise(keypair)?)
        .multiplex(yamux())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let quic = Quic::new(keypair, doors).map_err(SwarmError::Setup)?;
    let quic = quic.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    Ok(tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed())
}
