//! Answers: connections of other peers, and the streams they open.

use super::priority::Kind;
use super::tuning::{self, ETHERNET, LARGEST, Tuning};
use super::{CODE_REFUSED, IncomingStream, LinkError, Links, PATIENCE, Stream, peer_of, probe, prove, tls};
use crate::identity::Identity;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{PeerId, stream::Opening};

/// Connections that have not proven themselves yet; above it, newcomers are turned away.
const UNPROVEN: usize = 64;

/// What is told to newcomers, by how large datagrams may be on the way to them.
pub(super) struct Servers {
    near: Arc<quinn::ServerConfig>,
    pub far: Arc<quinn::ServerConfig>,
}

impl Servers {
    pub fn new(identity: &Identity) -> Result<Self, LinkError> {
        let tls = Arc::new(tls::server(identity)?);
        let server = |datagram| {
            let mut config = quinn::ServerConfig::with_crypto(tls.clone());
            config.transport_config(Arc::new(tuning::unproven(datagram)));
            Arc::new(config)
        };
        Ok(Self { near: server(LARGEST), far: server(ETHERNET) })
    }

    fn to(&self, links: &Links, address: SocketAddr) -> Arc<quinn::ServerConfig> {
        if links.inner.datagrams.to(address) > ETHERNET { self.near.clone() } else { self.far.clone() }
    }
}

/// Accepts until `stop`.
pub(super) async fn run(
    links: Links,
    servers: Servers,
    streams: mpsc::Sender<IncomingStream>,
    stop: CancellationToken,
) {
    let unproven = std::sync::Arc::new(tokio::sync::Semaphore::new(UNPROVEN));
    loop {
        let incoming = tokio::select! {
            () = stop.cancelled() => return,
            incoming = links.inner.endpoint.accept() => match incoming { Some(incoming) => incoming, None => return },
        };
        let Ok(permit) = unproven.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let (links, streams, stop) = (links.clone(), streams.clone(), stop.clone());
        let from = incoming.remote_address();
        // What is broken already needs no answer.
        let Ok(connecting) = incoming.accept_with(servers.to(&links, from)) else { continue };
        tokio::spawn(async move {
            let connected = timeout(PATIENCE, connecting).await;
            let Ok(Ok(connection)) = connected else {
                tracing::debug!(%from, "data connection refused: no handshake");
                return;
            };
            let Some(peer) = peer_of(&connection) else { return };
            if links.inner.guard.keeps_out(peer) {
                return connection.close(CODE_REFUSED.into(), b"cut off");
            }
            let road = Tuning::new(connection);
            let proven = prove::as_listener(&road, &links.inner.membership, links.inner.me, peer).await;
            drop(permit);
            if let Err(error) = proven {
                tracing::warn!(%peer, %from, %error, "data connection refused");
                return;
            }
            road.proven();
            links.inner.known.join(peer, &road);
            links.watch(peer, from, &road.connection);
            tokio::select! {
                () = stop.cancelled() => {}
                () = serve(peer, &links, &road, &streams) => {}
            }
        });
    }
}

async fn serve(peer: PeerId, links: &Links, road: &Arc<Tuning>, streams: &mpsc::Sender<IncomingStream>) {
    while let Ok(halves) = road.connection.accept_bi().await {
        let (stream, streams) = (Stream::new(halves, Kind::Bulk, road), streams.clone());
        if links.inner.guard.keeps_out(peer) {
            return road.connection.close(CODE_REFUSED.into(), b"cut off");
        }
        tokio::spawn(welcome(peer, links.clone(), road.clone(), stream, streams));
    }
}

/// Reads what a stream is for, and passes it on. One that says nothing sensible in time is reset.
async fn welcome(
    peer: PeerId,
    links: Links,
    road: Arc<Tuning>,
    mut stream: Stream,
    streams: mpsc::Sender<IncomingStream>,
) {
    let opening = match timeout(PATIENCE, stream.receiver.recv::<Opening>()).await {
        Ok(Ok(Some(opening))) => opening,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => {
            if matches!(error, LinkError::Codec(_)) {
                links.inner.guard.blame(peer, Offence::Garbage);
            }
            return tracing::warn!(%peer, %error, "stream refused");
        }
        Err(_) => return tracing::warn!(%peer, "stream refused: it did not say what it is for"),
    };
    if !links.inner.rates.allow(peer, &opening) {
        links.inner.guard.blame(peer, Offence::Flood);
        return tracing::debug!(%peer, "stream refused: too many");
    }
    if let Err(error) = opening.check() {
        links.inner.guard.blame(peer, Offence::Garbage);
        return tracing::warn!(%peer, %error, "stream refused");
    }
    stream.sender.become_kind(Kind::of(&opening));
    match opening {
        Opening::Probe { bytes } => {
            if let Err(error) = probe::answer(stream, &road, bytes).await {
                tracing::debug!(%peer, %error, "probe ended");
            }
        }
        Opening::Pulse(words) => {
            if let Some(inbox) = &links.inner.pulses {
                inbox.take(peer, words, &links.inner.guard);
            }
        }
        opening => {
            // The peer is shutting down when nobody takes streams any more.
            let _ = streams.send(IncomingStream { peer, opening, stream }).await;
        }
    }
}
