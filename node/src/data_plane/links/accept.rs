//! Answers: connections of other peers, and the streams they open.

use super::priority::StreamKind;
use super::tuning::{self, ETHERNET, LARGEST, Transport, Tuning};
use super::{CODE_REFUSED, IncomingStream, LinkError, Links, PATIENCE, Stream, peer_of, probe, prove, tls, tunnel};
use crate::{
    data_plane::{carrier::Carried, listening::canonical},
    store::identity::Identity,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{
    PeerId,
    stream::{Opening, SeenAt},
};

/// Connections in streams of the control plane, members' all, that have not proven themselves yet; above it, they are turned away.
const UNPROVEN: usize = 64;
/// How long one may take to prove itself: its handshake, and the exchange after it.
const PROOF: Duration = PATIENCE.saturating_mul(2);

/// What is told to newcomers, by how large datagrams may be on the way to them.
pub(super) struct Servers {
    near: Arc<quinn::ServerConfig>,
    pub far: Arc<quinn::ServerConfig>,
    /// For those whose packets the control plane carries.
    pub carried: Arc<quinn::ServerConfig>,
}

impl Servers {
    pub fn new(identity: &Identity) -> Result<Self, LinkError> {
        let tls = Arc::new(tls::server(identity)?);
        let server = |transport| {
            let mut config = quinn::ServerConfig::with_crypto(tls.clone());
            config.transport_config(Arc::new(transport));
            Arc::new(config)
        };
        let [near, far] = [LARGEST, ETHERNET].map(|datagram| server(tuning::unproven(datagram)));
        Ok(Self { near, far, carried: server(tuning::carried(tuning::unproven(LARGEST))) })
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
    let doors = links.inner.doors.clone();
    loop {
        let incoming = tokio::select! {
            () = stop.cancelled() => return,
            incoming = links.inner.endpoint.accept() => match incoming { Some(incoming) => incoming, None => return },
        };
        if doors.data.is_pressed() && !incoming.remote_address_validated() {
            // Costs nothing to keep: who can be answered at its address comes again with what it is given here.
            let _ = incoming.retry();
            continue;
        }
        let from = canonical(incoming.remote_address());
        let origin = from.ip().into();
        let Some(place) = doors.data.enter(origin, doors.regard(origin), PROOF) else {
            incoming.refuse();
            continue;
        };
        // What is broken already needs no answer.
        let Ok(connecting) = incoming.accept_with(servers.to(&links, from)) else { continue };
        let gone = place.gone().clone();
        let newcomer = Newcomer { links: links.clone(), streams: streams.clone(), stop: stop.clone(), place };
        crate::tasks::spawn("admission", newcomer.admit(connecting, Transport::Open(from), gone));
    }
}

/// Accepts connections in streams of the control plane until `stop`.
pub(super) async fn run_carried(
    links: Links,
    server: Arc<quinn::ServerConfig>,
    mut came: mpsc::Receiver<Carried>,
    streams: mpsc::Sender<IncomingStream>,
    stop: CancellationToken,
) {
    let unproven = Arc::new(Semaphore::new(UNPROVEN));
    loop {
        let carried = tokio::select! {
            () = stop.cancelled() => return,
            carried = came.recv() => match carried { Some(carried) => carried, None => return },
        };
        let Ok(place) = unproven.clone().try_acquire_owned() else { continue };
        let newcomer = Newcomer { links: links.clone(), streams: streams.clone(), stop: stop.clone(), place };
        let server = quinn::ServerConfig::clone(&server);
        crate::tasks::spawn("carried admission", async move {
            let Carried { peer, path, stream } = carried;
            let Ok(endpoint) =
                tunnel::endpoint(stream, super::settings(), Some(server), newcomer.links.inner.uplink.clone())
            else {
                return;
            };
            let Ok(Some(incoming)) = timeout(PATIENCE, endpoint.accept()).await else { return };
            // One stream, one connection.
            endpoint.set_server_config(None);
            let Ok(connecting) = incoming.accept() else { return };
            tracing::debug!(%peer, ?path, "data connection over the control plane");
            newcomer.admit(connecting, Transport::Carried(path), CancellationToken::new()).await;
        });
    }
}

/// A connection that has to prove itself yet, the place it has until then, and what it is let in to.
struct Newcomer<P> {
    links: Links,
    streams: mpsc::Sender<IncomingStream>,
    stop: CancellationToken,
    place: P,
}

impl<P: Send> Newcomer<P> {
    /// Serves it once it has proven itself, unless its place is another's before that.
    async fn admit(self, connecting: quinn::Connecting, way: Transport, gone: CancellationToken) {
        let Self { links, streams, stop, place } = self;
        let end = gone.run_until_cancelled(proven(&links, connecting, way)).await;
        drop(place);
        let Some((peer, connection)) = end.flatten() else { return };
        if let Transport::Open(from) = way {
            links.inner.doors.meet(from.ip());
        }
        connection.proven(peer, &links.inner.offence_reporter, &links.inner.kv);
        connection.open_up();
        links.inner.known.join(peer, &connection);
        // A parallel stream stands and falls with the connection beside it.
        if let Transport::Open(from) = way
            && !connection.is_kv_stream()
        {
            links.inner.around.meet(peer, &connection);
            links.watch(peer, from, &connection.connection);
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = serve(peer, &links, &connection, &streams) => {}
        }
    }
}

/// Who is at the far end, once it has proven that it belongs here.
async fn proven(links: &Links, connecting: quinn::Connecting, way: Transport) -> Option<(PeerId, Arc<Tuning>)> {
    let Ok(Ok(connection)) = timeout(PATIENCE, connecting).await else {
        tracing::debug!(?way, "data connection refused: no handshake");
        return None;
    };
    let peer = peer_of(&connection)?;
    if links.inner.offence_reporter.keeps_out(peer) {
        connection.close(CODE_REFUSED.into(), b"cut off");
        return None;
    }
    let connection = Tuning::new(connection, way);
    let proven = prove::as_listener(&connection, &links.inner.membership, links.inner.me, peer).await;
    let refused = |error: &LinkError| tracing::info!(%peer, ?way, %error, "data connection refused");
    proven.inspect_err(refused).ok().map(|()| (peer, connection))
}

/// Takes the streams that `peer` opens, until it has gone.
pub(super) async fn serve(
    peer: PeerId,
    links: &Links,
    connection: &Arc<Tuning>,
    streams: &mpsc::Sender<IncomingStream>,
) {
    while let Ok(halves) = connection.connection.accept_bi().await {
        let (stream, streams) = (Stream::new(halves, StreamKind::Bulk, connection), streams.clone());
        if links.inner.offence_reporter.keeps_out(peer) {
            return connection.connection.close(CODE_REFUSED.into(), b"cut off");
        }
        crate::tasks::spawn("stream", welcome(peer, links.clone(), connection.clone(), stream, streams));
    }
}

/// Reads what a stream is for, and passes it on. One that says nothing sensible in time is reset.
async fn welcome(
    peer: PeerId,
    links: Links,
    connection: Arc<Tuning>,
    mut stream: Stream,
    streams: mpsc::Sender<IncomingStream>,
) {
    let opening = match timeout(PATIENCE, stream.receiver.recv::<Opening>()).await {
        Ok(Ok(Some(opening))) => opening,
        Ok(Ok(None)) => return,
        // Garbage is blamed where it is read; streams that break off are what death looks like.
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "stream refused"),
        Err(_) => return tracing::debug!(%peer, "stream refused: it did not say what it is for"),
    };
    if !links.inner.rates.allow(peer, &opening) {
        // Who does not find a way asks again and again in good faith.
        if !matches!(opening, Opening::Meet(_)) {
            links.inner.offence_reporter.blame(peer, Offence::Flood);
        }
        return tracing::debug!(%peer, "stream refused: too many");
    }
    if let Err(error) = opening.check() {
        connection.blame();
        return tracing::debug!(%peer, %error, "stream refused");
    }
    stream.sender.become_kind(StreamKind::of(&opening));
    if matches!(opening, Opening::Weights(_)) {
        stream.sender.count(connection.meter.leaving.weights());
    }
    match opening {
        Opening::Probe { bytes } => {
            if let Err(error) = probe::answer(stream, &links.inner.known.connections(peer), bytes).await {
                tracing::debug!(%peer, %error, "probe ended");
            }
        }
        Opening::Heartbeats(words) => {
            if let Some(inbox) = &links.inner.heartbeats {
                inbox.take(peer, words, &links.inner.offence_reporter);
            }
        }
        Opening::Where => {
            let address = match connection.way {
                Transport::Open(address) => Some(address),
                Transport::Carried(_) => None,
            };
            // Whoever asked may be gone.
            let _ = stream.sender.send(&SeenAt { address }).await.and_then(|()| stream.sender.finish());
        }
        Opening::Meet(theirs) => {
            if let Err(error) = links.meet_back(peer, stream, theirs).await {
                tracing::debug!(%peer, %error, "not met");
            }
        }
        opening => {
            // The peer is shutting down when nobody takes streams any more.
            let _ = streams.send(IncomingStream { peer, opening, stream }).await;
        }
    }
}
