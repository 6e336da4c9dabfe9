//! Streams cut into frames.
//!
//! Payloads are moved, not copied, on their way out, and copied once on their way in: from QUIC's packets into memory that
//! the receiver uses again.

use super::LinkError;
use super::priority::StreamKind;
use super::scavenger::CountedStream;
use super::tuning::Tuning;
use bytes::Bytes;
use std::sync::Arc;
use tsnode_protocol::{
    codec::{self, CodecError},
    limits::FRAME_BYTES,
    stream::{FRAME_HEADER, decode_frame, frame_header, frame_length},
};

/// Bytes given to QUIC at a time. It frees what was acknowledged piece by piece, so larger ones hold its window up, and it
/// looks for what to send among all, so smaller ones make it look longer.
const PIECE: usize = 64 * 1024;
/// Memory taken for a frame before any of it has come; it grows with what comes.
const FIRST: usize = 64 * 1024;

/// Both directions of a stream.
#[derive(Debug)]
pub struct Stream {
    /// To the far end.
    pub sender: FrameSender,
    /// From the far end.
    pub receiver: FrameReceiver,
}

impl Stream {
    pub(super) fn new(
        (sender, receiver): (quinn::SendStream, quinn::RecvStream),
        kind: StreamKind,
        tuning: &Arc<Tuning>,
    ) -> Self {
        let mut sender = FrameSender { stream: sender, kind, tuning: tuning.clone(), _counted: None, finished: false };
        sender.become_kind(kind);
        let tuning = tuning.clone();
        let header = [0; FRAME_HEADER];
        let receiver = FrameReceiver { stream: receiver, tuning, header, known: 0, frame: Vec::new(), filled: 0 };
        Self { sender, receiver }
    }
}

/// Sends frames. Dropped before [`Self::finish`], it resets the stream: the far end sees an error, not an end.
#[derive(Debug)]
pub struct FrameSender {
    stream: quinn::SendStream,
    kind: StreamKind,
    tuning: Arc<Tuning>,
    /// Among those that others give way to, or that give way.
    _counted: Option<CountedStream>,
    finished: bool,
}

impl FrameSender {
    /// What the stream turned out to be for.
    pub(super) fn become_kind(&mut self, kind: StreamKind) {
        self.kind = kind;
        self.set_urgency(0);
    }

    /// It counts as long as it lives.
    pub(super) fn count(&mut self, counted: CountedStream) {
        self._counted = Some(counted);
    }

    /// What waits on this stream goes before what waits on streams of the same kind that are less urgent. Kinds keep their
    /// order: tokens before activations before KV before files and probes, whatever their urgency. What QUIC has begun
    /// to send may still go at the old urgency.
    pub fn set_urgency(&self, urgency: u8) {
        // A stream that has ended has nothing to hurry.
        let _ = self.stream.set_priority(self.kind.priority(urgency));
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When it is too large, or the far end no longer reads.
    pub async fn send<T: codec::Wire>(&mut self, message: &T) -> Result<(), LinkError> {
        let bytes = codec::encode(message);
        self.send_bytes(&bytes, FRAME_BYTES).await
    }

    /// Sends bytes as one frame of at most `limit`; they are copied.
    ///
    /// # Errors
    /// When they are too many, or the far end no longer reads.
    pub async fn send_bytes(&mut self, bytes: &[u8], limit: usize) -> Result<(), LinkError> {
        let header = frame_header(bytes.len(), limit)?;
        let (first, rest) = bytes.split_at(bytes.len().min(PIECE));
        self.write(Bytes::from([&header, first].concat())).await?;
        for piece in rest.chunks(PIECE) {
            self.write(Bytes::copy_from_slice(piece)).await?;
        }
        Ok(())
    }

    /// Sends bytes as one frame of at most `limit`; they are not copied, and their memory is held until the far end has
    /// them.
    ///
    /// # Errors
    /// When they are too many, or the far end no longer reads.
    pub async fn send_payload(&mut self, mut bytes: Bytes, limit: usize) -> Result<(), LinkError> {
        let header = frame_header(bytes.len(), limit)?;
        self.write(Bytes::copy_from_slice(&header)).await?;
        while !bytes.is_empty() {
            self.write(bytes.split_to(bytes.len().min(PIECE))).await?;
        }
        Ok(())
    }

    /// Announces more than it sends.
    #[cfg(test)]
    pub(super) async fn claim(&mut self, announced: usize, bytes: &[u8]) -> Result<(), LinkError> {
        let header = frame_header(announced, announced)?;
        self.write(Bytes::from([&header, bytes].concat())).await
    }

    async fn write(&mut self, piece: Bytes) -> Result<(), LinkError> {
        if self.kind.ahead() > 0 {
            self.tuning.meter.leaving.hurry(piece.len());
        }
        let mut left = [piece];
        while !left[0].is_empty() {
            let (tuning, ahead) = (self.tuning.clone(), self.kind.ahead());
            let mut writing = std::pin::pin!(self.stream.write_chunks(&mut left));
            let written = std::future::poll_fn(|cx| {
                if ahead == 0 {
                    return writing.as_mut().poll(cx);
                }
                // The window is wider for the moment of this call only: see `StreamKind::ahead`.
                let _wider = tuning.widen(ahead);
                writing.as_mut().poll(cx)
            });
            written.await.map_err(|e| LinkError::Lost(e.to_string()))?;
        }
        Ok(())
    }

    /// What the connection below has come through, all its streams together.
    pub fn path(&self) -> quinn::PathStats {
        self.tuning.connection.stats().path
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
    tuning: Arc<Tuning>,
    header: [u8; FRAME_HEADER],
    /// How much of the header has come.
    known: usize,
    /// The frame that is coming; what lies beyond `filled` is old, and may be longer than the frame.
    frame: Vec<u8>,
    filled: usize,
}

impl FrameReceiver {
    /// The next message; `None` at a clean end.
    ///
    /// # Errors
    /// When the stream breaks, or what comes is no such message.
    pub async fn recv<T: codec::Wire>(&mut self) -> Result<Option<T>, LinkError> {
        let Some(length) = self.fill(FRAME_BYTES).await? else { return Ok(None) };
        self.next();
        Ok(Some(decode_frame(&self.frame[..length]).map_err(|why| self.refuse(why))?))
    }

    /// What came is no message that an honest peer says, as `why` has it: the far end is blamed.
    pub fn refuse(&self, why: CodecError) -> LinkError {
        self.tuning.blame();
        why.into()
    }

    /// The next frame's bytes, at most `limit`; `None` at a clean end. Memory is taken as bytes come, not as they are
    /// announced.
    ///
    /// # Errors
    /// When the stream breaks, ends inside a frame, or announces more than `limit`.
    pub async fn recv_bytes(&mut self, limit: usize) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(length) = self.fill(limit).await? else { return Ok(None) };
        self.next();
        self.frame.truncate(length);
        // Memory that held a far larger frame is kept for the next such.
        let fits = self.frame.capacity() / 2 <= self.frame.len();
        Ok(Some(if fits { std::mem::take(&mut self.frame) } else { self.frame.clone() }))
    }

    /// The same, into `bytes`, whose memory is used for a later frame: a caller that brings the same one again and again
    /// takes memory twice in all. `false` at a clean end.
    ///
    /// # Errors
    /// When the stream breaks, ends inside a frame, or announces more than `limit`.
    pub async fn recv_payload(&mut self, limit: usize, bytes: &mut Vec<u8>) -> Result<bool, LinkError> {
        let Some(length) = self.fill(limit).await? else { return Ok(false) };
        self.next();
        self.frame.truncate(length);
        std::mem::swap(&mut self.frame, bytes);
        Ok(true)
    }

    /// Goes on until the next frame is whole, and says how long it is; `None` at a clean end.
    async fn fill(&mut self, limit: usize) -> Result<Option<usize>, LinkError> {
        let Some(length) = self.length(limit).await? else { return Ok(None) };
        while self.filled < length {
            let room = self.make_room(length);
            match self.stream.read(&mut self.frame[self.filled..room]).await {
                Ok(Some(read)) => self.filled += read,
                Ok(None) => return Err(cut()),
                Err(error) => return Err(LinkError::Lost(error.to_string())),
            }
        }
        Ok(Some(length))
    }

    /// The frame is given away; another may come.
    fn next(&mut self) {
        (self.known, self.filled) = (0, 0);
    }

    /// Makes the frame's memory longer than what has come of it, and says to where this frame may fill it. Memory that a
    /// longer frame left is not cut: it would have to be cleared for the next such.
    fn make_room(&mut self, length: usize) -> usize {
        let wanted = length.min((2 * self.filled).max(FIRST));
        if self.frame.len() < wanted {
            let room = wanted.max(self.frame.capacity().min(length));
            self.frame.resize(room, 0);
        }
        self.frame.len().min(length)
    }

    /// Bytes held for the frame that is coming.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.frame.capacity()
    }

    /// Lets a frame of at most `limit` pass by without keeping it; `false` at a clean end.
    ///
    /// # Errors
    /// When the stream breaks, ends inside a frame, or announces more than `limit`.
    pub(super) async fn pass(&mut self, limit: usize) -> Result<bool, LinkError> {
        let Some(length) = self.length(limit).await? else { return Ok(false) };
        while self.filled < length {
            match self.stream.read_chunk(length - self.filled, true).await {
                Ok(Some(chunk)) => self.filled += chunk.bytes.len(),
                Ok(None) => return Err(cut()),
                Err(error) => return Err(LinkError::Lost(error.to_string())),
            }
        }
        self.next();
        Ok(true)
    }

    /// The length of the next frame, once that has come.
    pub(super) async fn length(&mut self, limit: usize) -> Result<Option<usize>, LinkError> {
        while self.known < FRAME_HEADER {
            match self.stream.read(&mut self.header[self.known..]).await {
                Ok(Some(read)) => self.known += read,
                Ok(None) if self.known == 0 => return Ok(None),
                Ok(None) => return Err(cut()),
                Err(error) => return Err(LinkError::Lost(error.to_string())),
            }
        }
        Ok(Some(frame_length(self.header, limit).map_err(|why| self.refuse(why))?))
    }
}

fn cut() -> LinkError {
    LinkError::Lost("the stream ended inside a frame".into())
}
