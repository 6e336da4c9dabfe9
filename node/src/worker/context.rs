//! What a stage is, what it works with, and how tasks beside its ring speak to it.

use super::compute::Compute;
use crate::{data_plane::links::Links, history::History, text::grammar::Grammars};
use std::sync::{Arc, atomic::AtomicUsize};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tsnode_kernels::engine::StageKey;
use tsnode_protocol::{KvDtype, LayerRange, ModelId, ModelShape, PeerId, ring::RingFrame};

/// What a stage is, and what it works with.
#[derive(Clone)]
pub(super) struct StageContext {
    pub compute: Compute,
    pub links: Links,
    /// This peer.
    pub me: PeerId,
    pub key: StageKey,
    pub model: ModelId,
    /// What the model is called.
    pub name: Arc<str>,
    pub shape: ModelShape,
    pub layers: LayerRange,
    pub dtype: KvDtype,
    /// Place in the ring.
    pub position: u16,
    /// What answers that have to have a form are held to, at the last stage.
    pub grammars: Arc<Grammars>,
    /// Sequences on all stages of this peer.
    pub held: Arc<AtomicUsize>,
    /// Where it is counted what is computed for others.
    pub history: History,
    pub tasks: TaskTracker,
}

impl StageContext {
    /// Whether it takes tokens rather than activations.
    pub fn is_first(&self) -> bool {
        self.position == 0
    }

    /// Whether it chooses tokens.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.shape.layers
    }
}

/// Frames that did not come round the ring but from this peer's own tasks: KV that arrived or was sent.
pub(super) type SideFrames = mpsc::Sender<AdmittedFrame>;

/// Tells one stay of a sequence on a stage from a later one: it may go, and come back at once.
pub(super) type AdmissionNo = u64;

/// A frame about a sequence as it was admitted.
pub(super) struct AdmittedFrame {
    pub admission: AdmissionNo,
    pub frame: RingFrame,
}
