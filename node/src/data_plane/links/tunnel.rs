//! QUIC's packets in a stream of the control plane, where they do not get through by themselves.
//!
//! What runs over a relay is a connection like any other: the same TLS between both ends, of which the relay sees nothing, the
//! same proof of the swarm, frames, priorities, windows and resets. Only its packets travel differently: each behind two
//! bytes of length. The stream below loses none, so nothing is dropped here either: when it takes no more, QUIC waits, and
//! what is urgent goes first once it may. Little waits below QUIC for that reason. What is written here leaves this host as what its own socket
//! sends does, and counts against its owner's limit.

use super::{tuning::LARGEST, uplink::Uplink};
use futures::{AsyncReadExt as _, AsyncWriteExt as _, io::BufReader};
use libp2p::core::muxing::SubstreamBox;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

/// What QUIC calls both ends; there is only one way in or out.
pub(super) const FAR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
/// Packets between QUIC and the stream, each way.
const WAITING: usize = 16;
/// Bytes in front of a packet.
const HEADER: usize = 2;
/// Packets written together.
const TOGETHER: usize = 64 * 1024;
/// Written at a time where the owner limits uploads: datagrams of other connections leave between.
const TURN: usize = 8 * 1024;
/// Read from the stream at a time.
const READ: usize = 64 * 1024;

/// An endpoint at one end of `stream`; with `server` it answers. It ends when the stream or all of its connections do.
pub(super) fn endpoint(
    stream: SubstreamBox,
    settings: quinn::EndpointConfig,
    server: Option<quinn::ServerConfig>,
    uplink: Arc<Uplink>,
) -> io::Result<quinn::Endpoint> {
    let (outgoing, sent) = mpsc::channel(WAITING);
    let (received, incoming) = mpsc::channel(WAITING);
    let (reader, writer) = stream.split();
    crate::tasks::spawn("tunnel", async move {
        // However it ends: the endpoint sees that packets come and go no more.
        tokio::select! {
            ended = write(writer, sent, &uplink) => tracing::debug!(?ended, "tunnel: nothing more to send"),
            ended = read(reader, received) => tracing::debug!(?ended, "tunnel: nothing more comes"),
        }
    });
    let socket = Arc::new(Socket { outgoing, incoming: Mutex::new(incoming) });
    quinn::Endpoint::new_with_abstract_socket(settings, server, socket, Arc::new(quinn::TokioRuntime))
}

/// Writes packets until there are no more, several together where they wait.
async fn write(
    mut stream: futures::io::WriteHalf<SubstreamBox>,
    mut packets: mpsc::Receiver<Vec<u8>>,
    uplink: &Uplink,
) -> io::Result<()> {
    while let Some(mut together) = packets.recv().await {
        while together.len() < TOGETHER
            && let Ok(next) = packets.try_recv()
        {
            together.extend_from_slice(&next);
        }
        for turn in together.chunks(TURN) {
            uplink.send(turn.len()).await;
            stream.write_all(turn).await?;
        }
        if packets.is_empty() {
            stream.flush().await?;
        }
    }
    stream.close().await
}

/// Reads packets until there are no more. Those that cannot be of a connection of ours end it.
async fn read(stream: futures::io::ReadHalf<SubstreamBox>, packets: mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let mut stream = BufReader::with_capacity(READ, stream);
    loop {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header).await?;
        let length = usize::from(u16::from_le_bytes(header));
        if length > usize::from(LARGEST) {
            return Err(io::Error::new(ErrorKind::InvalidData, "a packet larger than any that is sent"));
        }
        let mut packet = vec![0; length];
        stream.read_exact(&mut packet).await?;
        if packets.send(packet).await.is_err() {
            return Ok(());
        }
    }
}

/// A socket whose packets go into the stream and come out of it.
struct Socket {
    outgoing: mpsc::Sender<Vec<u8>>,
    /// Held for polls only.
    incoming: Mutex<mpsc::Receiver<Vec<u8>>>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

fn ended() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, "the stream that carries this connection has ended")
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(TunnelPoller { sender: Mutex::new(PollSender::new(self.outgoing.clone())) })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let permit = self.outgoing.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => ErrorKind::WouldBlock.into(),
            mpsc::error::TrySendError::Closed(()) => ended(),
        })?;
        let length = u16::try_from(transmit.contents.len()).map_err(|_| ErrorKind::InvalidInput)?;
        permit.send([&length.to_le_bytes(), transmit.contents].concat());
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(buf), Some(meta)) = (bufs.first_mut(), meta.first_mut()) else { return Poll::Ready(Ok(0)) };
        let packet = ready!(incoming.poll_recv(cx)).ok_or_else(ended)?;
        let len = packet.len().min(buf.len());
        buf[..len].copy_from_slice(&packet[..len]);
        *meta = RecvMeta { addr: FAR, len, stride: len, ecn: None, dst_ip: None };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(FAR)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Waits for room in the stream.
struct TunnelPoller {
    /// Locked by the one connection there is.
    sender: Mutex<PollSender<Vec<u8>>>,
}

impl fmt::Debug for TunnelPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl UdpPoller for TunnelPoller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let room = ready!(sender.poll_reserve(cx)).map_err(|_| ended());
        // The room is whoever's that sends next.
        sender.abort_send();
        Poll::Ready(room)
    }
}
