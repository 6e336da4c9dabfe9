//! Tells a peer that has died from one that is slow, at once: beside each data connection both ends hold an idle TCP
//! connection to the port number after the other's.
//!
//! When a process ends, however it ends, its system closes its TCP connections and refuses new ones; UDP just falls
//! silent. A broken lifeline is therefore tried again, and only a refusal by the far end's system counts: where nothing
//! answers (a cable, a power cut, a firewall) silence and QUIC's own idle timeout decide, as they do for peers whose TCP
//! port cannot be reached. Nothing is ever read from a lifeline but who is there, and nothing else is said on it.

use super::Links;
use crate::faults::{Faults, Wall};
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::PeerId;

/// Lifelines held for others; above it they are let go at once, and their dialers do without.
const HELD: usize = 1024;
/// Dials that the system keeps until they are accepted.
const WAITING: i32 = 128;
/// How long a lifeline may take to be had.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after one that broke and could be had again.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause after one that broke again while it was had: a system that ends a process closes one socket after the other.
const BREATH: Duration = Duration::from_millis(20);
/// After such a silence a connection is over whose far end has refused the first lifeline.
const SILENCE: Duration = Duration::from_secs(2);
const _: () =
    assert!(SILENCE.as_millis() > super::KEEP_ALIVE.as_millis() && SILENCE.as_millis() < super::IDLE.as_millis());
/// How long a dial goes on where lifelines are refused: a handshake over a slow link takes two round trips.
pub(super) const HOPELESS: Duration = Duration::from_millis(1500);
/// After so many of those the far end does not want it.
const TRIES: u32 = 3;

/// Holds others' lifelines until `stop`.
pub(super) async fn hold(
    listener: TcpListener,
    me: PeerId,
    faults: Option<watch::Receiver<Faults>>,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(HELD));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((mut line, _)) = accepted else {
            // Out of files, most likely: the next may fare better.
            sleep(PAUSE).await;
            continue;
        };
        if faults.as_ref().is_some_and(|faults| faults.borrow().wall != Wall::None) {
            continue;
        }
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let stop = stop.clone();
        tokio::spawn(async move {
            let keep = async {
                if line.write_all(&me.0).await.is_ok() {
                    // Resolves when the far end has gone, or says what nobody asked for.
                    let _ = line.read(&mut [0]).await;
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = keep => {}
            }
            drop(permit);
        });
    }
}

impl Links {
    /// Watches the far end of a data connection for as long as that lives; closes it, and says so, should the far end's
    /// system refuse to know the process any more. Data planes dial from where they listen, so that either end knows where
    /// the other's lifelines are, unless there is an address translation between them.
    pub(super) fn watch(&self, peer: PeerId, address: SocketAddr, connection: &quinn::Connection) {
        let (links, connection) = (self.clone(), connection.clone());
        tokio::spawn(async move {
            let closed = connection.clone();
            let refused = tokio::select! {
                _ = closed.closed() => false,
                refused = until_refused(peer, beside(address), falls_silent(&connection)) => refused,
            };
            if refused {
                tracing::debug!(%peer, %address, "its process is gone");
                connection.close(super::CODE_BYE.into(), b"gone");
                // The process is shutting down when nobody listens.
                let _ = links.inner.gone.send(peer).await;
            }
        });
    }
}

/// Holds a lifeline until the far end refuses another (true), or there is none to be had (false). Where the first is refused
/// the process has none, or has ended since the handshake: then it `falls_silent`.
async fn until_refused(peer: PeerId, address: SocketAddr, falls_silent: impl Future<Output = bool>) -> bool {
    let mut line = match dial_again(peer, address).await {
        Ok(line) => line,
        Err(error) => return error.kind() == ErrorKind::ConnectionRefused && falls_silent.await,
    };
    for _ in 0..TRIES {
        let _ = line.read(&mut [0]).await;
        match dial_again(peer, address).await {
            Ok(again) => line = again,
            Err(error) => return error.kind() == ErrorKind::ConnectionRefused,
        }
        sleep(PAUSE).await;
    }
    false
}

/// Whether nothing more comes by a connection.
async fn falls_silent(connection: &quinn::Connection) -> bool {
    let heard = || connection.stats().udp_rx.datagrams;
    let before = heard();
    sleep(SILENCE).await;
    heard() == before
}

/// A lifeline, or another where one has broken. One that breaks before it is had says nothing: the listener of a process that is
/// being ended may be closed after the connections.
async fn dial_again(peer: PeerId, address: SocketAddr) -> Result<TcpStream, Error> {
    for _ in 1..TRIES {
        match dial(peer, address).await {
            Err(error) if is_broken(error.kind()) => sleep(BREATH).await,
            said => return said,
        }
    }
    dial(peer, address).await
}

fn is_broken(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Resolves when a dial that has not succeeded by then will not: the far end's system refuses lifelines, as it does when a
/// peer has started again elsewhere, or has ended the one it gave during the dial. A peer that has no lifelines is refused too,
/// and must answer within [`HOPELESS`].
pub(super) async fn hopeless(peer: PeerId, data_plane: SocketAddr) {
    let without_one = async {
        sleep(HOPELESS).await;
        true
    };
    if !until_refused(peer, beside(data_plane), without_one).await {
        std::future::pending().await
    }
}

/// A connection to a port that says it is `peer`'s.
async fn dial(peer: PeerId, address: SocketAddr) -> Result<TcpStream, Error> {
    let greeted = async {
        let mut line = TcpStream::connect(address).await?;
        let mut id = [0; 32];
        line.read_exact(&mut id).await?;
        if id == peer.0 { Ok(line) } else { Err(Error::from(ErrorKind::InvalidData)) }
    };
    timeout(PATIENCE, greeted).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
}

/// Where the lifelines of a data plane end: at the next number, since HTTP has the data plane's on TCP.
pub(crate) fn beside(data_plane: SocketAddr) -> SocketAddr {
    SocketAddr::new(data_plane.ip(), data_plane.port().checked_add(1).unwrap_or(data_plane.port() - 1))
}

/// The listener for lifelines of a data plane; without one others do without.
pub(super) fn listen(data_plane: SocketAddr) -> Option<TcpListener> {
    let address = beside(data_plane);
    let bound = socket(address).and_then(TcpListener::from_std);
    bound
        .inspect_err(
            |error| tracing::warn!(%address, %error, "no lifelines: others will notice later if this peer dies"),
        )
        .ok()
}

fn socket(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}

/// Peers whose process is gone.
pub type Gone = mpsc::Receiver<PeerId>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A socket that cannot be had fails the test.
    use super::*;

    #[tokio::test]
    async fn a_process_whose_listener_closes_after_its_connections_is_gone_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (peer, address) = (PeerId([1; 32]), listener.local_addr().unwrap());
        let dying = async move {
            let (mut line, _) = listener.accept().await.unwrap();
            line.write_all(&peer.0).await.unwrap();
            drop(line);
            // Let in once more, and dropped without a word.
            listener.accept().await.unwrap();
        };
        let (refused, ()) = tokio::join!(until_refused(peer, address, async { false }), dying);
        assert!(refused);
    }

    #[tokio::test]
    async fn a_dial_is_hopeless_once_the_process_has_ended_and_not_before() {
        let (peer, listener) = (PeerId([1; 32]), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let mut data_plane = listener.local_addr().unwrap();
        data_plane.set_port(data_plane.port() - 1);
        let mut over = std::pin::pin!(hopeless(peer, data_plane));
        let greeting = async {
            let (mut line, _) = listener.accept().await.unwrap();
            line.write_all(&peer.0).await.unwrap();
            line
        };
        let line = tokio::select! {
            line = greeting => line,
            () = &mut over => panic!("it lives"),
        };
        assert!(timeout(2 * HOPELESS, &mut over).await.is_err(), "it lives");
        drop((line, listener));
        timeout(HOPELESS, over).await.unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ended_before_its_first_lifeline_is_gone_once_it_says_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (peer, address) = (PeerId([1; 32]), listener.local_addr().unwrap());
        drop(listener);
        for is_silent in [true, false] {
            assert_eq!(until_refused(peer, address, async { is_silent }).await, is_silent);
        }
    }
}
