//! The first exchange on every connection of the control plane: both ends prove the swarm's secret.
//!
//! It happens in the transport, between encryption and protocols, on TCP and QUIC alike: the dialer opens one stream,
//! the proof runs on it, and only then does libp2p see the connection. (libp2p's pre-shared-key wrapper does not cover
//! QUIC.)

use super::name;
use futures::{AsyncReadExt, AsyncWriteExt, future::poll_fn};
use libp2p::core::{
    ConnectedPoint,
    muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox},
};
use std::io;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;
use tsnode_protocol::{
    PeerId,
    proof::{Code, Ends, Membership, Nonce, Side},
};

const PATIENCE: Duration = Duration::from_secs(5);
/// What the listener says at the end.
const WELCOME: u8 = 1;

/// What this end knows and proves.
#[derive(Clone)]
pub(super) struct Doorkeeper {
    pub membership: Membership,
    pub me: PeerId,
    /// Where strangers are reported.
    pub refused: tokio::sync::mpsc::Sender<(Option<PeerId>, libp2p::PeerId, String)>,
}

impl Doorkeeper {
    /// Lets the connection through once both ends have proven themselves.
    pub async fn admit(
        self,
        peer: libp2p::PeerId,
        muxer: StreamMuxerBox,
        point: ConnectedPoint,
    ) -> io::Result<(libp2p::PeerId, StreamMuxerBox)> {
        let result = self.exchange(peer, muxer, point.is_dialer()).await;
        if let Err(error) = &result {
            // A full queue means strangers come faster than they can be reported.
            let _ = self.refused.try_send((name(&peer), peer, error.to_string()));
        }
        result
    }

    async fn exchange(
        &self,
        peer: libp2p::PeerId,
        mut muxer: StreamMuxerBox,
        dialer: bool,
    ) -> io::Result<(libp2p::PeerId, StreamMuxerBox)> {
        let other = name(&peer).ok_or_else(|| refused("its key is not ed25519"))?;
        let proof = async {
            let stream = if dialer {
                poll_fn(|cx| muxer.poll_outbound_unpin(cx)).await?
            } else {
                poll_fn(|cx| muxer.poll_inbound_unpin(cx)).await?
            };
            let mut talk = std::pin::pin!(self.talk(stream, other, dialer));
            // The connection moves only while it is polled.
            poll_fn(|cx| {
                while let Poll::Ready(event) = muxer.poll_unpin(cx) {
                    event?;
                }
                talk.as_mut().poll(cx)
            })
            .await
        };
        timeout(PATIENCE, proof).await.unwrap_or_else(|_| Err(refused("no proof of membership in time")))?;
        Ok((peer, muxer))
    }

    async fn talk(&self, mut stream: SubstreamBox, other: PeerId, dialer: bool) -> io::Result<()> {
        let done = if dialer { self.dial(&mut stream, other).await } else { self.listen(&mut stream, other).await };
        // The far end's close is not waited for: what counts has been said.
        drop(stream);
        done
    }

    async fn dial(&self, stream: &mut SubstreamBox, other: PeerId) -> io::Result<()> {
        let nonce = Nonce(crate::random_bytes());
        stream.write_all(&nonce.0).await?;
        stream.flush().await?;
        // A listener of another swarm hangs up here or at the last byte.
        let closed = |_| refused("not of this swarm");
        let theirs = Nonce(read(stream).await.map_err(closed)?);
        let code = Code(read(stream).await.map_err(closed)?);
        let ends = Ends { dialer: self.me, listener: other, dialer_nonce: nonce, listener_nonce: theirs };
        if !self.membership.accepts(Side::Listener, &ends, code) {
            return Err(refused("not of this swarm"));
        }
        stream.write_all(&self.membership.code(Side::Dialer, &ends).0).await?;
        stream.flush().await?;
        let [last] = read(stream).await.map_err(closed)?;
        if last == WELCOME { Ok(()) } else { Err(refused("not of this swarm")) }
    }

    async fn listen(&self, stream: &mut SubstreamBox, other: PeerId) -> io::Result<()> {
        let theirs = Nonce(read(stream).await?);
        let nonce = Nonce(crate::random_bytes());
        let ends = Ends { dialer: other, listener: self.me, dialer_nonce: theirs, listener_nonce: nonce };
        stream.write_all(&nonce.0).await?;
        stream.write_all(&self.membership.code(Side::Listener, &ends).0).await?;
        stream.flush().await?;
        let closed = |_| refused("not of this swarm");
        let code = Code(read(stream).await.map_err(closed)?);
        if !self.membership.accepts(Side::Dialer, &ends, code) {
            return Err(refused("not of this swarm"));
        }
        stream.write_all(&[WELCOME]).await?;
        stream.flush().await
    }
}

async fn read<const N: usize>(stream: &mut SubstreamBox) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
