//! A peer as a service of systemd: what its unit says, how it is written, and how it goes again. For launchd and Windows there is
//! the text that those would be given.

pub mod launchd;
mod systemd;
mod unit;
pub mod windows;

pub use systemd::{Installed, Purged, Removed, Status, Systemd};
pub use unit::{Credential, Level, Unit, UnitError, folder_of, is_ours};

use crate::plain;
use std::io;
use std::path::{Path, PathBuf};

/// What the unit is called.
pub const NAME: &str = "tsnode.service";

/// Why a service is not installed, looked at or removed.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Another program started this system.
    #[error(
        "systemd does not run this system, so that there is nothing to install a service with; have `tsnode join` started by what \
         starts programs here (`tsnode service install --dry-run` prints the unit that systemd would get)"
    )]
    NoSystemd,
    /// The user's own systemd cannot be asked.
    #[error(
        "systemd does not answer this user ({said}): log in as the user, not by su or sudo, or have root say \
         `loginctl enable-linger USER`; or install a service of the system with --system"
    )]
    NoSession {
        /// What systemctl said.
        said: String,
    },
    /// Root's work.
    #[error("{}: only root may do that; say the same by sudo, or leave --system out for a service of this user", .0.display())]
    NotRoot(PathBuf),
    /// A unit of somebody else's.
    #[error("{} was not written by `tsnode service install`, and stays as it is; move it away first", .0.display())]
    Foreign(PathBuf),
    /// A unit that came with a package.
    #[error("{} came with a package, and is this service already: systemctl enable --now tsnode; its settings are in /etc/tsnode/config.toml", .0.display())]
    Packaged(PathBuf),
    /// What cannot be said in a unit.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// systemd refused.
    #[error("systemctl {what}: {said}")]
    Refused {
        /// What was asked.
        what: String,
        /// What it said.
        said: String,
    },
    /// The peer ended as soon as it was started.
    #[error("the unit is installed, and the peer ended at once{}: {journal} says why", .code.map_or_else(String::new, |code| format!(" with exit code {code}")))]
    Ended {
        /// Its exit code.
        code: Option<i32>,
        /// What shows its log.
        journal: &'static str,
    },
    /// A folder that is not a peer's.
    #[error("{} does not look like a data folder of tsnode, and is not removed; the service is", .0.display())]
    NoDataFolder(PathBuf),
    /// The disk.
    #[error("{}: {}", .path.display(), plain::io_error(.error))]
    Disk {
        /// Where.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
}

impl ServiceError {
    /// An error of the disk, said of a path.
    fn disk(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::Disk { path: path.to_owned(), error }
    }
}
