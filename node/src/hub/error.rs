//! Why a model cannot be had by its name: what, where, what to do next.

use super::name::{ModelName, NameError, RepoId};
use crate::{hardware::memory::Size, plain};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No name of a model.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nobody answers at the hub's address.
    #[error("{endpoint}: {why}; {HINT_OFFLINE}")]
    Unreachable {
        /// Whose.
        endpoint: String,
        /// What happened.
        why: String,
    },
    /// What answers is no hub.
    #[error(
        "{url}: what answers there is no model hub ({why}); look at HF_ENDPOINT, and whether the network wants a login first"
    )]
    NotAHub {
        /// What was asked.
        url: String,
        /// How one sees it.
        why: String,
    },
    /// The hub gives it only to people that it knows.
    #[error("{repo} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account{}", if *.has_token { " (the one that is set may not read it)" } else { "" })]
    Gated {
        /// Which.
        repo: RepoId,
        /// Where its terms are.
        page: String,
        /// Whether a token was shown.
        has_token: bool,
    },
    /// There is no such repository, or the token may not see it.
    #[error(
        "the hub knows no model {repo}, or it is private: look at its name with `tsnode models search`, or set HF_TOKEN"
    )]
    NoRepo {
        /// Which.
        repo: RepoId,
    },
    /// There is no such branch, tag or commit.
    #[error("{name} is not there: the hub has no such revision of it")]
    NoRevision {
        /// Which.
        name: ModelName,
    },
    /// The hub lists a file and does not have it.
    #[error("{repo}: the hub has no file {file}")]
    NoFile {
        /// Whose.
        repo: RepoId,
        /// Which.
        file: String,
    },
    /// The hub wants to be left alone for longer than is waited.
    #[error("{endpoint} takes no more requests for now; ask again in {} s, or set HF_TOKEN: known accounts may ask more", .wait.as_secs())]
    Busy {
        /// Whose.
        endpoint: String,
        /// How long.
        wait: Duration,
    },
    /// Another answer that is none of success.
    #[error("{url}: the hub answered {status}; try again later")]
    Status {
        /// What was asked.
        url: String,
        /// The answer's status.
        status: u16,
    },
    /// An answer that does not say what it should.
    #[error("{url}: the hub's answer cannot be used: {why}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The stream broke, again and again.
    #[error("{repo}: {file} broke off at {} of {} ({why}); the same command goes on from there", Size(*.done), Size(*.total))]
    Broken {
        /// Whose.
        repo: RepoId,
        /// Which.
        file: String,
        /// What is on disk (bytes).
        done: u64,
        /// Of how much.
        total: u64,
        /// How it broke.
        why: String,
    },
    /// What came is not what the hub's hash says.
    #[error("{repo}: {file} as it came has another hash than the hub says; nothing of it is kept, try again")]
    Hash {
        /// Whose.
        repo: RepoId,
        /// Which.
        file: String,
    },
    /// There is not enough room.
    #[error("{name} needs {} more in {}, and {} are free: make room, or name another folder with HF_HUB_CACHE", Size(*.needed), .folder.display(), Size(*.free))]
    Room {
        /// What for.
        name: ModelName,
        /// Where.
        folder: PathBuf,
        /// What is to come (bytes).
        needed: u64,
        /// What is free (bytes).
        free: u64,
    },
    /// The repository has nothing that can be served.
    #[error("{repo} has neither safetensors nor GGUF files{}", if *.pickles { ": PyTorch pickles only, which are turned with: tsnode models pull NAME, then tsnode models import FOLDER" } else { "" })]
    NoWeights {
        /// Which.
        repo: RepoId,
        /// Whether there are pickles.
        pickles: bool,
    },
    /// There are other quantisations than the one that is named.
    #[error("{name}: the repository has {}; name one of them, as {}:{}", .there.join(", "), .name.repo, .there[0])]
    NoQuant {
        /// What was named.
        name: ModelName,
        /// What there is; at least one.
        there: Vec<String>,
    },
    /// It is not here, and may not be fetched.
    #[error("{name} is not whole in {}, and HF_HUB_OFFLINE forbids to fetch it{}", .folder.display(), .lacking.as_ref().map_or(String::new(), |file| format!(" ({file} is missing)")))]
    Offline {
        /// What.
        name: ModelName,
        /// The cache.
        folder: PathBuf,
        /// A file that is missing, where others are there.
        lacking: Option<String>,
    },
    /// It is not here.
    #[error("{name} is not in {}; fetch it with: tsnode models pull {name}", .folder.display())]
    Absent {
        /// What.
        name: ModelName,
        /// The cache.
        folder: PathBuf,
    },
    /// The disk.
    #[error("{}: {}", .path.display(), plain::io_error(.error))]
    Disk {
        /// Where.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
}

const HINT_OFFLINE: &str = "look at the network and HF_ENDPOINT; with HF_HUB_OFFLINE=1 only what is here is used";

impl HubError {
    /// Whether the hub could not be asked at all, so that somebody else may have what was asked for.
    #[must_use]
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotAHub { .. } | Self::Offline { .. })
    }

    /// An error of the disk, said of a path.
    pub(super) fn disk(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::Disk { path: path.to_owned(), error }
    }
}
