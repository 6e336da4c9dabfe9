//! A connection and its streams as libp2p takes them.

use super::QuicError;
use futures::{AsyncRead, AsyncWrite, FutureExt as _, future::BoxFuture};
use libp2p::core::{StreamMuxer, muxing::StreamMuxerEvent};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::ReadBuf;

type Halves = (quinn::SendStream, quinn::RecvStream);
type OpeningStream = BoxFuture<'static, Result<Halves, quinn::ConnectionError>>;

/// A connection.
pub(in crate::control_plane::swarm) struct Muxer {
    connection: quinn::Connection,
    /// What is under way: a stream that the far end opens, one that is opened here, and the end.
    incoming: Option<OpeningStream>,
    outgoing: Option<OpeningStream>,
    closing: Option<BoxFuture<'static, quinn::ConnectionError>>,
}

impl Muxer {
    pub(super) fn new(connection: quinn::Connection) -> Self {
        Self { connection, incoming: None, outgoing: None, closing: None }
    }
}

impl StreamMuxer for Muxer {
    type Substream = QuicStream;
    type Error = QuicError;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<QuicStream, QuicError>> {
        let connection = self.connection.clone();
        let incoming = self.incoming.get_or_insert_with(|| async move { connection.accept_bi().await }.boxed());
        let halves = ready!(incoming.poll_unpin(cx));
        self.incoming = None;
        Poll::Ready(Ok(QuicStream::new(halves?)))
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<QuicStream, QuicError>> {
        let connection = self.connection.clone();
        let outgoing = self.outgoing.get_or_insert_with(|| async move { connection.open_bi().await }.boxed());
        let halves = ready!(outgoing.poll_unpin(cx));
        self.outgoing = None;
        Poll::Ready(Ok(QuicStream::new(halves?)))
    }

    /// quinn drives itself, and connections stay where they are.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, QuicError>> {
        Poll::Pending
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), QuicError>> {
        let connection = self.connection.clone();
        let closing = self.closing.get_or_insert_with(|| {
            connection.close(0_u32.into(), &[]);
            async move { connection.closed().await }.boxed()
        });
        Poll::Ready(match ready!(closing.poll_unpin(cx)) {
            quinn::ConnectionError::LocallyClosed => Ok(()),
            error => Err(error.into()),
        })
    }
}

/// A stream of both directions.
pub(in crate::control_plane::swarm) struct QuicStream {
    sender: quinn::SendStream,
    receiver: quinn::RecvStream,
    /// How closing it went: libp2p closes streams more than once.
    closed: Option<Result<(), io::ErrorKind>>,
}

impl QuicStream {
    fn new((sender, receiver): Halves) -> Self {
        Self { sender, receiver, closed: None }
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.closed.is_some_and(|closed| closed.is_err()) {
            return Poll::Ready(Ok(0));
        }
        let mut buffer = ReadBuf::new(bytes);
        // quinn's halves are streams of both kinds where another crate has it so.
        ready!(tokio::io::AsyncRead::poll_read(Pin::new(&mut self.receiver), cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sender).poll_write(cx, bytes).map_err(Into::into)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(Pin::new(&mut self.sender), cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(closed) = self.closed {
            return Poll::Ready(closed.map_err(Into::into));
        }
        let closed = ready!(tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut self.sender), cx));
        self.closed = Some(closed.as_ref().map_err(io::Error::kind).copied());
        Poll::Ready(closed)
    }
}
