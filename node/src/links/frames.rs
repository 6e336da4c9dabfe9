//! Streams cut into frames.

use super::LinkError;
use bytes::{Buf, BytesMut};
use tsnode_protocol::{
    codec,
    limits::FRAME_BYTES,
    stream::{FRAME_HEADER, decode_frame, frame_header, frame_length},
};

/// Bytes taken from QUIC at a time.
const CHUNK: usize = 64 * 1024;

/// Both directions of a stream.
#[derive(Debug)]
pub struct Stream {
    /// To the far end.
    pub sender: FrameSender,
    /// From the far end.
    pub receiver: FrameReceiver,
}

impl Stream {
    pub(super) fn new(sender: quinn::SendStream, receiver: quinn::RecvStream) -> Self {
        Self {
            sender: FrameSender { stream: sender, finished: false },
            receiver: FrameReceiver { stream: receiver, buffer: BytesMut::new(), ended: false },
        }
    }
}

/// Sends frames. Dropped before [`Self::finish`], it resets the stream: the far end sees an error, not an end.
#[derive(Debug)]
pub struct FrameSender {
    stream: quinn::SendStream,
    finished: bool,
}

impl FrameSender {
    /// Sends a message.
    ///
    /// # Errors
    /// When it is too large, or the far end no longer reads.
    pub async fn send<T: codec::Wire>(&mut self, message: &T) -> Result<(), LinkError> {
        let bytes = codec::encode(message);
        self.send_bytes(&bytes, FRAME_BYTES).await
    }

    /// Sends bytes as one frame of at most `limit`.
    ///
    /// # Errors
    /// When they are too many, or the far end no longer reads.
    pub async fn send_bytes(&mut self, bytes: &[u8], limit: usize) -> Result<(), LinkError> {
        let header = frame_header(bytes.len(), limit)?;
        self.stream.write_all(&header).await.map_err(|e| LinkError::Lost(e.to_string()))?;
        self.stream.write_all(bytes).await.map_err(|e| LinkError::Lost(e.to_string()))
    }

    /// That was all.
    ///
    /// # Errors
    /// When the stream has ended already.
    pub fn finish(&mut self) -> Result<(), LinkError> {
        self.finished = true;
        self.stream.finish().map_err(|e| LinkError::Lost(e.to_string()))
    }

    /// Resolves when the far end no longer reads.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopped = self.stream.stopped();
        async move {
            // However it ended, it has.
            let _ = stopped.await;
        }
    }
}

impl Drop for FrameSender {
    fn drop(&mut self) {
        if !self.finished {
            // A stream that has ended needs no reset.
            let _ = self.stream.reset(0u8.into());
        }
    }
}

/// Receives frames. Its futures may be dropped at any point without losing bytes. Dropped, it tells the far end that
/// nobody reads any more.
#[derive(Debug)]
pub struct FrameReceiver {
    stream: quinn::RecvStream,
    buffer: BytesMut,
    ended: bool,
}

impl FrameReceiver {
    /// The next message; `None` at a clean end.
    ///
    /// # Errors
    /// When the stream breaks, or what comes is no such message.
    pub async fn recv<T: codec::Wire>(&mut self) -> Result<Option<T>, LinkError> {
        match self.recv_bytes(FRAME_BYTES).await? {
            Some(bytes) => Ok(Some(decode_frame(&bytes)?)),
            None => Ok(None),
        }
    }

    /// The next frame's bytes, at most `limit`; `None` at a clean end. Memory is taken as bytes come, not as they are
    /// announced.
    ///
    /// # Errors
    /// When the stream breaks, ends inside a frame, or announces more than `limit`.
    pub async fn recv_bytes(&mut self, limit: usize) -> Result<Option<Vec<u8>>, LinkError> {
        loop {
            if let Some(frame) = self.whole_frame(limit)? {
                return Ok(Some(frame));
            }
            if self.ended {
                let cut = || Err(LinkError::Lost("the stream ended inside a frame".into()));
                return if self.buffer.is_empty() { Ok(None) } else { cut() };
            }
            match self.stream.read_chunk(CHUNK, true).await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk.bytes),
                Ok(None) => self.ended = true,
                Err(error) => return Err(LinkError::Lost(error.to_string())),
            }
        }
    }

    fn whole_frame(&mut self, limit: usize) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(header) = self.buffer.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
        let length = frame_length(*header, limit)?;
        if self.buffer.len() < FRAME_HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEADER);
        Ok(Some(self.buffer.split_to(length).to_vec()))
    }
}
