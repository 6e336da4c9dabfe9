//! Why a model does not come from peers: what, where, what to do next.

use crate::{hardware::memory::Size, plain};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a model is not here.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody gave what has to be known first.
    #[error("no peer gives {what} of {model}: {why}")]
    NotGiven {
        /// Of which model.
        model: String,
        /// What.
        what: &'static str,
        /// What the last one said.
        why: String,
    },
    /// More of it would be here than its owner allows.
    #[error("with {what} of {model} there would be {} of it here, more than --model-budget ({})", Size(*.bytes), Size(*.budget))]
    Budget {
        /// Which.
        model: String,
        /// What is to come.
        what: String,
        /// What there would be beside what is served, and with it (bytes).
        bytes: u64,
        /// The most (bytes).
        budget: u64,
    },
    /// There is not enough room.
    #[error("{model} needs {} more in {}, and {} are free: make room, or choose another --data-dir", Size(*.needed), .folder.display(), Size(*.free))]
    Room {
        /// Which.
        model: String,
        /// Where.
        folder: PathBuf,
        /// What is to come (bytes).
        needed: u64,
        /// What is free (bytes).
        free: u64,
    },
    /// The disk.
    #[error("{}: {}", .path.display(), plain::io_error(.error))]
    Disk {
        /// Where.
        path: PathBuf,
        /// What it says.
        error: std::io::Error,
    },
    /// What came is no model, or another.
    #[error("{model} cannot be used: {why}")]
    Unusable {
        /// Which.
        model: String,
        /// Why.
        why: String,
    },
    /// Nobody gives anything any more.
    #[error("{model}: nothing came for {} s, {} of {} are here; it goes on when a peer has it", .waited.as_secs(), Size(*.done), Size(*.bytes))]
    Starved {
        /// Which.
        model: String,
        /// How long.
        waited: Duration,
        /// What is here (bytes).
        done: u64,
        /// Of so much (bytes).
        bytes: u64,
    },
}

impl FetchError {
    pub(super) fn disk(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |error| Self::Disk { path: path.to_owned(), error }
    }
}
