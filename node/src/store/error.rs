//! Why a data folder cannot be used, and what its owner does about it.

use crate::{plain, store::ledger::advice};
use std::{io, path::PathBuf};
use tsnode_protocol::SwarmId;

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be made, read or written.
    #[error("{}: {}{}", path.display(), plain::io_error(error), advice(error))]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process has it.
    #[error("{}: used by another tsnode{owner}; stop it, or give this one its own --data-dir", path.display())]
    Locked {
        /// Which.
        path: PathBuf,
        /// ` (process 123)`, if it is known.
        owner: String,
    },
    /// A file in it is of another version.
    #[error("{}: {error}; move it away to start afresh (the identity beside it stays)", path.display())]
    Version {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: String,
    },
    /// The swarm is remembered in words of another version.
    #[error(
        "{}: another version of tsnode has noted here which private swarm this peer is in, and this one cannot read it; \
         ask a member for a new invite and join again with it: tsnode join --invite -",
        path.display()
    )]
    Swarm {
        /// The data folder.
        path: PathBuf,
    },
    /// Nobody knows any more which swarm it was.
    #[error(
        "{}: damage has taken what said which swarm this peer is in{}; it goes to no other one by itself. Put back a copy \
         of state.log, or ask a member for a new invite and join again with it: tsnode join --invite -, or have a peer of another \
         swarm in a folder of its own, with --data-dir",
        path.display(),
        private.map_or(String::new(), |swarm| format!(", the private {swarm}"))
    )]
    Lost {
        /// The data folder.
        path: PathBuf,
        /// The private swarm, if that much is known.
        private: Option<SwarmId>,
    },
}
