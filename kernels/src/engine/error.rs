//! Why a batch was not computed, or KV not moved.

use crate::{cuda::GpuError, pages::PagesError, wire::PayloadError};
use tsnode_protocol::{RequestId, TileHeader};

/// Why a batch was not computed, or KV not moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A stage was cut for another number of ranks.
    #[error("a stage of {found} ranks where there are {expected}")]
    Ranks {
        /// It was cut for.
        found: usize,
        /// There are.
        expected: usize,
    },
    /// No such stage is loaded.
    #[error("the stage is not loaded")]
    NoStage,
    /// No such sequence was admitted on the stage.
    #[error("{0} was not admitted")]
    NoSequence(RequestId),
    /// The sequence was admitted already.
    #[error("{0} is admitted already")]
    Twice(RequestId),
    /// What a sequence was to begin with is not here, or not as much of it.
    #[error("what the sequence was to begin with is gone")]
    NoPrefix,
    /// Tokens are not the next ones of their sequence, or there is no room for them.
    #[error("{request}: tokens {start}..{end} where {present} of {room} are present")]
    Position {
        /// The sequence.
        request: RequestId,
        /// First token.
        start: u32,
        /// One past the last.
        end: u32,
        /// Tokens present.
        present: usize,
        /// Tokens reserved for.
        room: usize,
    },
    /// Rows or tokens do not fit the batch or the model.
    #[error("{what}: {found} where {expected} fit")]
    Size {
        /// Of what.
        what: &'static str,
        /// Given.
        found: usize,
        /// Allowed.
        expected: usize,
    },
    /// KV of a model some of whose layers keep a state of a sequence: it is of no use without that, which is in no tile.
    #[error("KV of such a model stays where it is: some of its layers keep a state that is not sent")]
    State,
    /// A tile outside the stage or the sequence.
    #[error("tile outside the sequence: {0:?}")]
    Tile(TileHeader),
    /// A payload that does not fit its tile.
    #[error("tile payload: {0}")]
    Payload(#[from] PayloadError),
    /// No pages.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// The GPU does not do it, or no more.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}
