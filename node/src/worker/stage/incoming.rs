//! Prompt flow 4: what comes from the stage before, checked and bounded before a worker sees it.

use super::StageError;
use crate::data_plane::links::FrameReceiver;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tsnode_protocol::{Token, limits, ring::RingFrame};

/// What frames of the stage before may take until the worker has done with them (bytes): the largest step while it is computed, and
/// another that waits. A stage before that sends what no leader asked for waits itself then.
pub(in crate::worker) const ROOM: usize = 2 * limits::ACTIVATION_BYTES;

/// A frame and the activations that came with it.
#[derive(Debug)]
pub(in crate::worker) struct Arrived {
    pub frame: RingFrame,
    /// Rows of f32 in little-endian bytes; empty unless the frame is a step from a stage before.
    pub hidden: Vec<f32>,
    /// What it takes of what there is room for, where it is another peer's.
    _room: Option<OwnedSemaphorePermit>,
}

impl From<RingFrame> for Arrived {
    fn from(frame: RingFrame) -> Self {
        Self { frame, hidden: Vec::new(), _room: None }
    }
}

/// Reads frames of the stage before into `worker` until the stream ends, as far as there is `room` for them (bytes).
pub(in crate::worker) async fn read_ring(
    mut stream: FrameReceiver,
    worker: mpsc::Sender<Arrived>,
    room: usize,
) -> Result<(), StageError> {
    let left = Arc::new(Semaphore::new(room));
    while let Some(mut frame) = stream.recv::<RingFrame>().await? {
        frame.check().map_err(|why| stream.refuse(why))?;
        frame.shorten_reason();
        let hidden = match &frame {
            RingFrame::Step(step) if step.rows > 0 => {
                let bytes = stream.recv_bytes(limits::ACTIVATION_BYTES).await?.ok_or(StageError::Upstream)?;
                from_bytes(&bytes)
            }
            _ => Vec::new(),
        };
        let takes = u32::try_from(takes(&frame, &hidden).min(room)).unwrap_or(u32::MAX);
        let taken = left.clone().acquire_many_owned(takes).await.map_err(|_| StageError::Upstream)?;
        worker.send(Arrived { frame, hidden, _room: Some(taken) }).await.map_err(|_| StageError::Upstream)?;
    }
    Ok(())
}

/// Memory that what came takes, as far as it is much (bytes).
fn takes(frame: &RingFrame, hidden: &[f32]) -> usize {
    let tokens = match frame {
        RingFrame::Admit(admit) => admit.tokens.len(),
        RingFrame::Step(step) => step.entries.iter().map(|entry| entry.tokens.len()).sum(),
        _ => 0,
    };
    tokens * size_of::<Token>() + size_of_val(hidden)
}

fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
