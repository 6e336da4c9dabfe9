//! Makes the network: the first time, and again where the library that it is of has panicked.

use super::{
    SwarmConfig, SwarmError,
    admission::{AdmissionDoor, Rejection},
    behaviour::Behaviour,
    transport, wall,
};
use crate::data_plane::listening::of_each_kind;
use libp2p::{Multiaddr, Swarm, multiaddr::Protocol};
use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    time::Duration,
};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

/// Connections are kept although no protocol uses them: their closing is how peers notice each other's death.
const IDLE_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Before it is made again, and the longest between two tries: the sockets of the one before may be closing yet.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// What it is made of.
pub(super) struct Maker {
    pub(super) config: SwarmConfig,
    pub(super) rejected: mpsc::Sender<Rejection>,
}

impl Maker {
    /// Makes it, and has it listen.
    ///
    /// # Errors
    /// When an address is in use or not ours, or a protocol refuses its settings.
    pub(super) fn make(&self) -> Result<Swarm<Behaviour>, SwarmError> {
        let config = &self.config;
        let keypair = config.identity.libp2p_keypair();
        let door = AdmissionDoor {
            own: config.identity.peer_id(),
            swarm: config.swarm,
            membership: config.membership.clone(),
            process: config.process,
            invites: config.invites.clone(),
            rejections: self.rejected.clone(),
        };
        let (circuits, circuits_behaviour) = libp2p::relay::client::new(keypair.public().to_peer_id());
        let mut net = Swarm::new(
            wall::behind(transport::admitted(&keypair, door, config.doors.clone(), circuits)?, config.faults.clone()),
            Behaviour::new(config, circuits_behaviour)?,
            keypair.public().to_peer_id(),
            libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE_LIMIT),
        );
        listen(&mut net, config.listen)?;
        Ok(net)
    }

    /// Makes it as soon as its addresses are free; none once `stop` is cancelled.
    pub(super) async fn make_again(&self, stop: &CancellationToken) -> Option<Swarm<Behaviour>> {
        let (mut wait, longest) = AGAIN;
        loop {
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(wait) => {}
            }
            match self.make() {
                Ok(net) => return Some(net),
                Err(error) => tracing::warn!(%error, "this peer is without a network, and tries again"),
            }
            wait = (wait * 2).min(longest);
        }
    }
}

fn listen(net: &mut Swarm<Behaviour>, listen: SocketAddr) -> Result<(), SwarmError> {
    // libp2p's sockets are of one kind each.
    for listen in of_each_kind(listen) {
        let host = Multiaddr::from(listen.ip());
        let tcp = host.clone().with(Protocol::Tcp(listen.port()));
        let quic = host.with(Protocol::Udp(listen.port())).with(Protocol::QuicV1);
        // libp2p shares its TCP port with any process of this user, which would then get half of our connections.
        TcpListener::bind(listen).map_err(|error| refused("TCP", listen, &error))?;
        UdpSocket::bind(listen).map_err(|error| refused("UDP", listen, &error))?;
        for (protocol, address) in [("TCP", tcp), ("UDP", quic)] {
            net.listen_on(address).map_err(|error| SwarmError::Listen {
                protocol,
                listen,
                reason: error.to_string(),
            })?;
        }
    }
    Ok(())
}

fn refused(protocol: &'static str, listen: SocketAddr, error: &io::Error) -> SwarmError {
    match error.kind() {
        io::ErrorKind::AddrInUse => SwarmError::InUse { protocol, listen },
        _ => SwarmError::Listen { protocol, listen, reason: error.to_string() },
    }
}
