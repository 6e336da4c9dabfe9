//! What a peer keeps and could do without: what can be made again, or is not needed to serve. It lies in `sled`, which spins for
//! ever over some damage and panics over other. It is opened by a process of its own first, for so long and no longer; what that does
//! not come through is moved aside, and the peer goes on.

use super::disk;
use crate::platform;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::time::timeout;

/// The command that opens such a folder to see whether it can be.
pub const VERB: &str = "check-index";
/// How long that may take: some megabytes are read in a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long who had it before may take to let it go: `sled` frees its lock from a thread of its own, after what held it is dropped, and
/// a child that is being started has the open file until it runs its program.
const UNLOCKING: Duration = Duration::from_secs(3);
/// Bytes of it that are kept in memory.
const CACHE: u64 = 8 << 20;

/// One such folder.
#[derive(Clone, Copy, Debug)]
pub struct Spare {
    /// Its name in the data folder.
    pub folder: &'static str,
    /// What is in it, as logs say it.
    pub name: &'static str,
    /// What follows where it is lost.
    pub without: &'static str,
}

impl Spare {
    /// Whether a data folder has it.
    #[must_use]
    pub fn is_in(&self, data_dir: &Path) -> bool {
        data_dir.join(self.folder).exists()
    }

    /// That of a data folder; it is made where there is none, and none where it cannot be had. What is damaged is moved aside and said.
    pub async fn open(&self, data_dir: &Path) -> Option<sled::Db> {
        let Self { folder, name, without } = self;
        let folder = data_dir.join(folder);
        if folder.exists()
            && let Err(why) = is_sound(&folder).await
        {
            let aside = disk::move_aside(&folder).map_or_else(|e| e.to_string(), |to| to.display().to_string());
            tracing::info!(%why, %aside, "{name} is damaged and moved aside: {without}");
        }
        let opened = timeout(PATIENCE, tokio::task::spawn_blocking(move || open(&folder))).await;
        let why = match opened {
            Ok(Ok(Ok(db))) => return Some(db),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(panic)) => panic.to_string(),
            Err(_) => format!("opening it took more than {} s", PATIENCE.as_secs()),
        };
        tracing::info!(why, "{name} cannot be had, and nothing is kept in it: {without}");
        None
    }
}

/// Opens such a folder, once who had it before lets it go.
///
/// # Errors
/// When `sled` says that it cannot, or it is locked for [`UNLOCKING`].
pub fn open(folder: &Path) -> sled::Result<sled::Db> {
    let until = Instant::now() + UNLOCKING;
    // What is set is flushed by whoever sets it; a thread for that would end with the first write that a full disk refuses.
    let config = sled::Config::new().path(folder).cache_capacity(CACHE).flush_every_ms(None);
    loop {
        match config.open() {
            Err(error) if is_locked(&error) && Instant::now() < until => thread::sleep(Duration::from_millis(10)),
            opened => return opened,
        }
    }
}

/// `sled` has no kind of error for it.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.to_string().starts_with("could not acquire lock"))
}

/// Has another process open it.
async fn is_sound(folder: &Path) -> Result<(), String> {
    let mut command = Command::new(platform::own_program().map_err(|e| e.to_string())?);
    command.arg(VERB).arg(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = platform::of_its_own(&mut command).kill_on_drop(true).spawn().map_err(|e| e.to_string())?;
    let ended = timeout(PATIENCE, child.wait()).await;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("opening it ended with {status}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            // It holds the files until it is gone.
            let _ = child.kill().await;
            Err(format!("opening it took more than {} s", PATIENCE.as_secs()))
        }
    }
}

/// What that process does: opens it and reads all that is in it.
///
/// # Errors
/// When it cannot be.
pub fn check(folder: &OsStr) -> Result<(), String> {
    let db = open(Path::new(folder)).map_err(|e| e.to_string())?;
    db.iter().try_for_each(|entry| entry.map(|_| ())).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_had_once_who_has_it_lets_it_go() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path()).unwrap();
        let error = sled::Config::new().path(folder.path()).open().unwrap_err();
        assert!(is_locked(&error), "{error}");
        let second = thread::scope(|scope| {
            let second = scope.spawn(|| open(folder.path()));
            thread::sleep(Duration::from_millis(50));
            drop(first);
            second.join().unwrap()
        });
        assert!(second.is_ok());
    }
}
