//! The ways to another peer, TCP with Noise and Yamux, and QUIC, on which both ends prove their ids, and nothing more.

use super::{
    SwarmError,
    connection::{Connection, STREAMS},
    port_reuse::PortReuse,
    quic::Quic,
};
use crate::data_plane::doors::Doors;
use libp2p::{
    Transport as _,
    core::{muxing::StreamMuxerBox, transport::Boxed, upgrade::Version},
    identity::Keypair,
    noise, tcp, yamux,
};

/// Connections to others on which both sides have proven their ids, and nothing more.
pub(super) fn plain(keypair: &Keypair) -> Result<Boxed<Connection>, SwarmError> {
    proven(keypair, Doors::default())
}

/// The same, and others' at these doors.
pub(super) fn proven(keypair: &Keypair, doors: Doors) -> Result<Boxed<Connection>, SwarmError> {
    let tcp = PortReuse(tcp::tokio::Transport::new(tcp::Config::default().nodelay(true)))
        .upgrade(Version::V1)
        .authenticate(noise(keypair)?)
        .multiplex(yamux())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let quic = Quic::new(keypair, doors).map_err(SwarmError::Setup)?;
    let quic = quic.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    Ok(tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed())
}

pub(super) fn noise(keypair: &Keypair) -> Result<noise::Config, SwarmError> {
    noise::Config::new(keypair).map_err(|e| SwarmError::Setup(e.to_string()))
}

pub(super) fn yamux() -> yamux::Config {
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(STREAMS as usize);
    yamux
}
