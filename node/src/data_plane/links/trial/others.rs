//! What our own links are held against: the same bytes over bare QUIC, TCP, and TLS over TCP.

use super::super::{LinkError, STREAMS, tls as certified, tuning};
use super::{CpuWatch, MovedBytes, payload, settled};
use crate::store::identity::Identity;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use tsnode_protocol::PeerId;

/// Bytes given to TCP, and taken from it, at a time.
const PIECE: usize = 256 * 1024;
/// The far end's word that it has all.
const ALL: [u8; 1] = [1];

fn failed(error: impl std::fmt::Display) -> LinkError {
    LinkError::Lost(error.to_string())
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn someone() -> (Identity, PeerId) {
    let identity = Identity::from_seed(&crate::random_bytes());
    let id = identity.peer_id();
    (identity, id)
}

fn endpoint(server: Option<quinn::ServerConfig>) -> Result<quinn::Endpoint, LinkError> {
    let mut settings = quinn::EndpointConfig::default();
    settings.max_udp_payload_size(tuning::LARGEST).map_err(failed)?;
    let socket = super::super::socket(loopback()).map_err(failed)?;
    quinn::Endpoint::new(settings, server, socket, Arc::new(quinn::TokioRuntime)).map_err(failed)
}

/// One stream, with the settings of our own connections.
pub(super) async fn bare(bytes: u64, datagram: u16) -> Result<MovedBytes, LinkError> {
    let ((from, _), (to, id)) = (someone(), someone());
    let transport = Arc::new(tuning::transport(STREAMS, datagram));
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(certified::server(&to)?));
    server.transport_config(transport.clone());
    let mut client = quinn::ClientConfig::new(Arc::new(certified::client(&from, id)?));
    client.transport_config(transport);
    let (from, to) = (endpoint(None)?, endpoint(Some(server))?);
    let dial = from.connect_with(client, to.local_addr().map_err(failed)?, "tsnode").map_err(failed)?;
    let accept = async { to.accept().await.ok_or_else(|| failed("closed"))?.await.map_err(failed) };
    let (dialled, accepted) = tokio::join!(dial, accept);
    let (dialled, accepted) = (dialled.map_err(failed)?, accepted?);
    settled(&dialled, datagram).await;
    let watch = CpuWatch::start();
    let received = crate::tasks::spawn("trial", async move {
        let (mut sender, mut receiver) = accepted.accept_bi().await.map_err(failed)?;
        let mut piece = vec![0; super::TILE];
        while receiver.read(&mut piece).await.map_err(failed)?.is_some() {}
        sender.write_all(&ALL).await.map_err(failed)?;
        sender.finish().map_err(failed)?;
        // The connection must live until the word has arrived.
        accepted.closed().await;
        Ok::<_, LinkError>(())
    });
    let (mut sender, mut receiver) = dialled.open_bi().await.map_err(failed)?;
    let (payload, mut sent) = (payload(), 0);
    while sent < bytes {
        let mut left = payload.clone();
        sent += left.len() as u64;
        while !left.is_empty() {
            sender.write_chunk(left.split_to(left.len().min(PIECE / 4))).await.map_err(failed)?;
        }
    }
    sender.finish().map_err(failed)?;
    receiver.read_exact(&mut [0; ALL.len()]).await.map_err(failed)?;
    let moved = watch.stop();
    dialled.close(0u8.into(), b"done");
    received.await.map_err(failed)??;
    Ok(moved)
}

/// A TCP connection, a thread at each end.
pub(super) async fn tcp(bytes: u64) -> Result<MovedBytes, LinkError> {
    on_threads(move |from, to| Ok((from, to)), bytes).await
}

/// TLS over the same, with the ciphers and certificates of our own connections.
pub(super) async fn tls(bytes: u64) -> Result<MovedBytes, LinkError> {
    let ((from, _), (to, id)) = (someone(), someone());
    let (client, server) = (Arc::new(certified::client_config(&from, id)?), Arc::new(certified::server_config(&to)?));
    let name = rustls::pki_types::ServerName::try_from("tsnode").map_err(failed)?;
    let wrap = move |from: TcpStream, to: TcpStream| {
        let client = rustls::ClientConnection::new(client, name).map_err(failed)?;
        let server = rustls::ServerConnection::new(server).map_err(failed)?;
        Ok((rustls::StreamOwned::new(client, from), rustls::StreamOwned::new(server, to)))
    };
    on_threads(wrap, bytes).await
}

async fn on_threads<F, T>(
    wrap: impl FnOnce(TcpStream, TcpStream) -> Result<(F, T), LinkError> + Send + 'static,
    bytes: u64,
) -> Result<MovedBytes, LinkError>
where
    F: Read + Write,
    T: Read + Write + Send + 'static,
{
    let moving = move || {
        let listener = TcpListener::bind(loopback()).map_err(failed)?;
        let from = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
        let (to, _) = listener.accept().map_err(failed)?;
        let (mut from, to) = wrap(from, to)?;
        let received = std::thread::spawn(move || receive(to, bytes));
        // Keys are agreed on before the clock starts.
        from.write_all(&ALL).and_then(|()| from.read_exact(&mut [0; ALL.len()])).map_err(failed)?;
        let watch = CpuWatch::start();
        let piece = vec![0; PIECE];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(PIECE as u64);
            from.write_all(&piece[..now as usize]).map_err(failed)?;
            left -= now;
        }
        from.flush().and_then(|()| from.read_exact(&mut [0; ALL.len()])).map_err(failed)?;
        let moved = watch.stop();
        received.join().map_err(|_| failed("the receiving thread has ended"))?.map_err(failed)?;
        Ok(moved)
    };
    tokio::task::spawn_blocking(moving).await.map_err(failed)?
}

fn receive(mut to: impl Read + Write, bytes: u64) -> std::io::Result<()> {
    to.read_exact(&mut [0; ALL.len()])?;
    to.write_all(&ALL).and_then(|()| to.flush())?;
    let (mut piece, mut left) = (vec![0; PIECE], bytes);
    while left > 0 {
        match to.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => left = left.saturating_sub(read as u64),
        }
    }
    to.write_all(&ALL).and_then(|()| to.flush())
}
