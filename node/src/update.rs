//! The program replaces itself: a release's archive is found, fetched, verified and put in its place, and the program before is kept.

mod executable;
mod releases;
mod signature;
#[cfg(test)]
mod tests;

pub use executable::{Installer, ProgramPlace, Workshop};
pub use releases::{Archive, Releases};
pub use signature::{KeyId, ReleaseKeys, SignatureError};

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
    /// Nobody said whose releases are taken.
    #[error(
        "this program was built with no key by which it knows a release: name the public key of whoever keeps the folder by \
         TSNODE_RELEASE_KEY or --key (scripts/sign_release.sh makes one and signs with it)"
    )]
    NoKey,
    /// It is no key.
    #[error(
        "{0:?} is no key of releases: such a key is RW and 54 more letters, as scripts/sign_release.sh and minisign print it"
    )]
    Key(String),
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
    /// The list of hashes has no signature.
    #[error(
        "{url}: the signature of the release cannot be had ({why}), and nothing is taken without one; nothing was changed here"
    )]
    Unsigned {
        /// What was asked.
        url: String,
        /// Why.
        why: String,
    },
    /// The list of hashes is not signed as it has to be.
    #[error("{url}: {why}; nothing was changed here")]
    Signature {
        /// The signature.
        url: String,
        /// Why.
        why: SignatureError,
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
