//! Answers: connections of other peers, and the streams they open.

use super::{CODE_REFUSED, IncomingStream, LinkError, Links, PATIENCE, STREAMS, Stream, peer_of, probe, prove};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{PeerId, stream::Opening};

/// Connections that have not proven themselves yet; above it, newcomers are turned away.
const UNPROVEN: usize = 64;

/// Accepts until `stop`.
pub(super) async fn run(links: Links, streams: mpsc::Sender<IncomingStream>, stop: CancellationToken) {
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
        tokio::spawn(async move {
            let from = incoming.remote_address();
            let connected = timeout(PATIENCE, async { incoming.await }).await;
            let Ok(Ok(connection)) = connected else {
                tracing::debug!(%from, "data connection refused: no handshake");
                return;
            };
            let Some(peer) = peer_of(&connection) else { return };
            if links.inner.guard.keeps_out(peer) {
                return connection.close(CODE_REFUSED.into(), b"cut off");
            }
            let proven = prove::as_listener(&connection, &links.inner.membership, links.inner.me, peer).await;
            drop(permit);
            if let Err(error) = proven {
                tracing::warn!(%peer, %from, %error, "data connection refused");
                return;
            }
            connection.set_max_concurrent_bi_streams(STREAMS.into());
            links.watch(peer, from, &connection);
            tokio::select! {
                () = stop.cancelled() => {}
                () = serve(peer, &links, &connection, &streams) => {}
            }
        });
    }
}

async fn serve(peer: PeerId, links: &Links, connection: &quinn::Connection, streams: &mpsc::Sender<IncomingStream>) {
    while let Ok((sender, receiver)) = connection.accept_bi().await {
        let (stream, streams) = (Stream::new(sender, receiver), streams.clone());
        if links.inner.guard.keeps_out(peer) {
            return connection.close(CODE_REFUSED.into(), b"cut off");
        }
        tokio::spawn(welcome(peer, links.clone(), stream, streams));
    }
}

/// Reads what a stream is for, and passes it on. One that says nothing sensible in time is reset.
async fn welcome(peer: PeerId, links: Links, mut stream: Stream, streams: mpsc::Sender<IncomingStream>) {
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
    match opening {
        Opening::Probe { bytes } => {
            if let Err(error) = probe::answer(stream, bytes).await {
                tracing::debug!(%peer, %error, "probe ended");
            }
        }
        opening => {
            // The peer is shutting down when nobody takes streams any more.
            let _ = streams.send(IncomingStream { peer, opening, stream }).await;
        }
    }
}
