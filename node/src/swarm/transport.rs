//! TCP + Noise + Yamux and QUIC, each behind the doorkeeper.

use super::{SwarmError, admission::Doorkeeper};
use crate::identity::Identity;
use futures::future::Either;
use libp2p::{
    Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, OrTransport},
        upgrade::Version,
    },
    noise, quic, tcp, yamux,
};
use std::time::Duration;

/// A connection nobody answers on is noticed by then, and is kept awake before.
const QUIC_IDLE: Duration = Duration::from_secs(5);
const QUIC_KEEP_ALIVE: Duration = Duration::from_secs(2);
const UPGRADE: Duration = Duration::from_secs(10);

/// The transport of the control plane.
pub(super) fn build(
    identity: &Identity,
    doorkeeper: Doorkeeper,
) -> Result<Boxed<(libp2p::PeerId, StreamMuxerBox)>, SwarmError> {
    let keypair = identity.keypair();
    let noise = noise::Config::new(&keypair).map_err(|e| SwarmError::Setup(e.to_string()))?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux::Config::default())
        .timeout(UPGRADE)
        .boxed();
    let mut config = quic::Config::new(&keypair);
    config.max_idle_timeout = QUIC_IDLE.as_millis() as u32;
    config.keep_alive_interval = QUIC_KEEP_ALIVE;
    let quic = quic::tokio::Transport::new(config);
    Ok(OrTransport::new(quic, tcp)
        .map(|output, _| match output {
            Either::Left((peer, muxer)) => (peer, StreamMuxerBox::new(muxer)),
            Either::Right(output) => output,
        })
        .and_then(move |(peer, muxer), point| doorkeeper.admit(peer, muxer, point))
        .boxed())
}
