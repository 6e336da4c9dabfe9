//! The two ways to another peer, TCP with Noise and Yamux, and QUIC, with the door in front of both.

use super::{SwarmError, admission::Door};
use libp2p::{
    PeerId, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, timeout::TransportTimeout},
        upgrade::Version,
    },
    identity::Keypair,
    noise, quic, tcp, yamux,
};
use std::time::Duration;
use tsnode_protocol::proof::Side;

/// From the first packet to an admitted connection; the exchange at the door has its own, shorter limit.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// A QUIC peer that is silent for so long is gone: the kernel of a killed process tells nobody, unlike with TCP.
const QUIC_SILENCE: Duration = Duration::from_secs(4);
/// Keeps an idle QUIC connection well inside [`QUIC_SILENCE`], a few lost packets included.
const QUIC_KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Streams one peer may have open towards us; the protocols of the control plane need about ten.
const STREAMS: u32 = 128;

/// A connection that can open streams, and whom it leads to.
pub(super) type Connection = (PeerId, StreamMuxerBox);

/// Connections on which both sides have proven ids and membership.
pub(super) fn admitted(keypair: &Keypair, door: Door) -> Result<Boxed<Connection>, SwarmError> {
    let admitted = plain(keypair)?.and_then(move |(peer, muxer), point| {
        let side = if point.is_dialer() { Side::Dialer } else { Side::Listener };
        door.admit(peer, muxer, side)
    });
    Ok(TransportTimeout::new(admitted, SETUP_LIMIT).boxed())
}

/// Connections on which both sides have proven their ids, and nothing more.
pub(super) fn plain(keypair: &Keypair) -> Result<Boxed<Connection>, SwarmError> {
    let noise = noise::Config::new(keypair).map_err(|e| SwarmError::Setup(e.to_string()))?;
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(STREAMS as usize);
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1)
        .authenticate(noise)
        .multiplex(yamux)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let quic =
        quic::tokio::Transport::new(quic_config(keypair)).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    Ok(tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed())
}

fn quic_config(keypair: &Keypair) -> quic::Config {
    let mut config = quic::Config::new(keypair);
    config.max_idle_timeout = u32::try_from(QUIC_SILENCE.as_millis()).unwrap_or(u32::MAX);
    config.keep_alive_interval = QUIC_KEEP_ALIVE;
    config.max_concurrent_stream_limit = STREAMS;
    config
}
