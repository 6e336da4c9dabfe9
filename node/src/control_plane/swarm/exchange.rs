//! What the first exchanges on a connection are made of: one stream, bytes of fixed size, and why it went wrong.

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox, StreamMuxerExt as _, SubstreamBox};
use std::{future::Future, io, pin::pin, task::Poll, time::Duration};
use tsnode_protocol::{
    codec,
    proof::{ConnectionSide, Nonce},
};

/// How long the whole exchange may take: four messages, two round trips, at the slowest links we serve.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Of a hello: magic, version, nonce.
pub(super) const HELLO_BYTES: usize = 6 + 2 + 32;

/// Whether another attempt may end differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does not belong here.
    Stranger,
    /// It may come again, with something better.
    Unfinished,
    /// It has our own identity: nobody is to be blamed, and its owner is to hear of it.
    Twin,
    /// It proved nothing and was refused nothing: it hung up or was silent. A member whose other dial was quicker does so too.
    Unproven,
}

/// Why a connection was not admitted.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdmissionError {
    /// The id is not an ed25519 key.
    #[error("its id {0} is not an ed25519 key")]
    ForeignId(libp2p::PeerId),
    /// It did not answer in time.
    #[error("no proof of membership within {} s", TIME_LIMIT.as_secs())]
    Silent,
    /// It closed the connection before the exchange was over, as it does when our proof does not satisfy it.
    #[error("left before membership was proven: {0}")]
    Left(#[from] io::Error),
    /// Its first bytes are not a hello.
    #[error("does not speak tsnode")]
    Foreign,
    /// It speaks another protocol version.
    #[error("speaks protocol version {theirs}, ours is {}", codec::VERSION)]
    Version {
        /// The version it speaks.
        theirs: u16,
    },
    /// Its code is wrong.
    #[error("is of another swarm or does not know this swarm's secret")]
    Stranger,
    /// It came with an invite that is unknown, expired, revoked or used up, or with a wrong one.
    #[error("came with an invite that is not good")]
    Uninvited,
    /// It came with an invite and has the secret now: it will come again as a member.
    #[error("was let in, and is to come again")]
    Redeemed,
    /// It asked what it is seen as, and wanted no more.
    #[error("only looked")]
    Looked,
    /// It has our own identity, and is another process.
    #[error("has this peer's own identity, and is another process")]
    Twin,
    /// It is this very process, by a way that leads back to it.
    #[error("is this peer itself")]
    Itself,
    /// We could not draw a nonce.
    #[error("cannot draw a nonce: {0}")]
    Random(String),
}

impl AdmissionError {
    /// The same of one that may have asked a question and hung up.
    pub(super) fn of_one_who(self, only_looked: bool) -> Self {
        if only_looked && matches!(self, Self::Left(_)) { Self::Looked } else { self }
    }

    /// What it means for the next attempt.
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::ForeignId(_) | Self::Foreign | Self::Version { .. } | Self::Stranger => Verdict::Stranger,
            // Who had no good invite may come with another.
            Self::Random(_) | Self::Uninvited | Self::Redeemed | Self::Looked => Verdict::Unfinished,
            Self::Silent | Self::Left(_) => Verdict::Unproven,
            Self::Twin | Self::Itself => Verdict::Twin,
        }
    }
}

/// The stream the exchange runs on: the dialer opens it, the listener takes the first that is opened.
pub(super) async fn first_stream(muxer: &mut StreamMuxerBox, side: ConnectionSide) -> io::Result<SubstreamBox> {
    std::future::poll_fn(|cx| {
        let stream = match side {
            ConnectionSide::Dialer => muxer.poll_outbound_unpin(cx),
            ConnectionSide::Listener => muxer.poll_inbound_unpin(cx),
        };
        if stream.is_ready() {
            return stream;
        }
        match muxer.poll_unpin(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Awaits `work` on a stream of `muxer`; streams stand still unless somebody drives their connection.
pub(super) async fn driving<M, T>(muxer: &mut M, work: impl Future<Output = T>) -> Result<T, M::Error>
where
    M: StreamMuxer + Unpin,
{
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        match muxer.poll_unpin(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // An address change: nothing to do with it, but its future wants to be polled again.
            Poll::Ready(Ok(_)) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) fn draw_nonce() -> Result<Nonce, AdmissionError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|e| AdmissionError::Random(e.to_string()))?;
    Ok(Nonce(nonce))
}

pub(super) async fn send(stream: &mut SubstreamBox, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

pub(super) async fn receive<const N: usize>(stream: &mut SubstreamBox) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
