//! The program replaces itself: a release's archive is found, fetched, verified and put in its place, and the program before is kept.

mod executable;
mod releases;
#[cfg(test)]
mod tests;

pub use executable::{Installer, ProgramPlace, Workshop};
pub use releases::{Archive, Releases};

use crate::plain;
use semver::Version;
use std::io;
use std::path::{Path, PathBuf};

/// Why the program is not replaced.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// Nobody said where releases are.
    #[error(
        "there is no public release yet: name the address of a folder with releases by TSNODE_RELEASES or --from, or update from \
         source: cargo install --path node"
    )]
    Nowhere,
    /// Hashes and archives come the same way, which nobody may stand in.
    #[error("{0}: an address that begins with https:// is needed; plain http:// is for this host alone")]
    Insecure(String),
    /// There are no archives for such machines.
    #[error(
        "there are archives for x86_64 and aarch64 under Linux only; update from source: cargo install --path node"
    )]
    Platform,
    /// No answer, or one of an error.
    #[error("{url}: {why}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why.
        why: String,
    },
    /// More came than there can be.
    #[error("{url}: it has more than {most} bytes")]
    TooLong {
        /// What was asked.
        url: String,
        /// The most there can be.
        most: u64,
    },
    /// The list of hashes has nothing for this machine.
    #[error("{url}: it names no archive for {target}")]
    NoArchive {
        /// The list.
        url: String,
        /// What was looked for.
        target: String,
    },
    /// Another version than was asked for.
    #[error("{url}: it is about version {found}, and {wanted} was asked for")]
    OtherVersion {
        /// The list.
        url: String,
        /// Its version.
        found: Version,
        /// What was asked for.
        wanted: Version,
    },
    /// The archive is not what the list says.
    #[error(
        "{archive}: it has SHA-256 {found}, and SHA256SUMS says {wanted}: it was cut or changed on the way; nothing was changed here"
    )]
    Hash {
        /// Which.
        archive: String,
        /// What came.
        found: String,
        /// What should have come.
        wanted: String,
    },
    /// The archive has no program, or one that does not run or is another.
    #[error("{archive}: {why}; nothing was changed here")]
    Unusable {
        /// Which.
        archive: String,
        /// Why.
        why: String,
    },
    /// Others keep this program.
    #[error("{}: {owner} brought it, and is to update it: {next}", .path.display())]
    Owned {
        /// The program.
        path: PathBuf,
        /// Who.
        owner: &'static str,
        /// What to say.
        next: &'static str,
    },
    /// There is no program before this one.
    #[error("{}: there is no program before this one to go back to", .0.display())]
    NoPrevious(PathBuf),
    /// The disk.
    #[error("{}: {}", .path.display(), plain::io_error(.error))]
    Disk {
        /// Where.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
}

impl UpdateError {
    /// An error of the disk, said of a path.
    fn disk(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::Disk { path: path.to_owned(), error }
    }
}
