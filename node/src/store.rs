//! What a peer remembers: its measurements, the swarm it is in, the members it knew. In `sled`, one process at a time.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tsnode_protocol::{Epoch, Life, SwarmId, Term};

/// Memory for the store's cache: it holds a few kilobytes.
const CACHE_BYTES: u64 = 1 << 20;
/// Form of what is stored.
const SCHEMA: &[u8] = b"1";

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be made, read or written.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Another process has it.
    #[error("{path}: used by another tsnode{owner}; stop it, or give this one its own --data-dir")]
    Locked {
        /// Which.
        path: PathBuf,
        /// ` (process 123)`, if it is known.
        owner: String,
    },
    /// The database is damaged, or of another version.
    #[error("{path}: {error}; move it away to start afresh (the identity beside it stays)")]
    Broken {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: String,
    },
}

/// A locked data folder and the database in it. Clones share both.
#[derive(Clone)]
pub struct Store {
    folder: PathBuf,
    database: sled::Db,
    /// Held as long as any clone is.
    _lock: Arc<File>,
}

impl Store {
    /// Makes the folder if need be (for its owner alone), locks it, and opens the database.
    ///
    /// # Errors
    /// When it cannot be used, or another process does.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let io = |error| StoreError::Io { path: folder.to_owned(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
        let lock = lock(folder)?;
        let path = folder.join("state");
        let broken = |error: String| StoreError::Broken { path: path.clone(), error };
        let database = sled::Config::new()
            .path(&path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(5_000))
            .open()
            .map_err(|e| broken(e.to_string()))?;
        match database.get("schema").map_err(|e| broken(e.to_string()))? {
            None => drop(database.insert("schema", SCHEMA).map_err(|e| broken(e.to_string()))?),
            Some(found) if found == SCHEMA => {}
            Some(_) => return Err(broken("written by another version".into())),
        }
        Ok(Self { folder: folder.to_owned(), database, _lock: Arc::new(lock) })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the hardware was measured at.
    #[must_use]
    pub fn probe(&self) -> Option<Vec<u8>> {
        self.get("probe")
    }

    /// Remembers what the hardware was measured at.
    pub fn set_probe(&self, bytes: &[u8]) {
        self.set("probe", bytes);
    }

    /// The remembered profile of the model.
    #[must_use]
    pub fn profile(&self) -> Option<Vec<u8>> {
        self.get("profile")
    }

    /// Remembers it.
    pub fn set_profile(&self, bytes: &[u8]) {
        self.set("profile", bytes);
    }

    /// The swarm this peer was in last, as an invite.
    #[must_use]
    pub fn swarm(&self) -> Option<String> {
        self.get("swarm").and_then(|b| String::from_utf8(b).ok())
    }

    /// Remembers the swarm.
    pub fn set_swarm(&self, invite: &str) {
        self.set("swarm", invite.as_bytes());
    }

    /// Where members of `swarm` were seen last, as multiaddresses with their ids.
    #[must_use]
    pub fn known(&self, swarm: SwarmId) -> Vec<String> {
        let text = self.get(&known_key(swarm)).and_then(|b| String::from_utf8(b).ok()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Remembers it: a peer that starts again finds its swarm by any of those it knew.
    pub fn set_known(&self, swarm: SwarmId, addresses: &[String]) {
        self.set(&known_key(swarm), addresses.join("\n").as_bytes());
    }

    /// The last epoch and term this peer endorsed a plan of.
    #[must_use]
    pub fn endorsed(&self) -> Option<(Epoch, Term)> {
        let bytes: [u8; 12] = self.get("endorsed")?.try_into().ok()?;
        let (epoch, term) = bytes.split_first_chunk::<8>()?;
        Some((Epoch(u64::from_le_bytes(*epoch)), Term(u32::from_le_bytes(term.try_into().ok()?))))
    }

    /// Remembers it, on the disk before this returns.
    pub fn set_endorsed(&self, epoch: Epoch, term: Term) {
        let bytes = [&epoch.0.to_le_bytes()[..], &term.0.to_le_bytes()].concat();
        self.set("endorsed", &bytes);
    }

    /// Begins this peer's next life: the one after the last, by a clock in seconds since 1970 that may have been moved.
    pub fn begin_life(&self, unix_seconds: u64) -> Life {
        let last = self.get("life").and_then(|b| b.try_into().ok()).map(|b| Life(u32::from_le_bytes(b)));
        let life = Life::after(last, unix_seconds);
        self.set("life", &life.0.to_le_bytes());
        life
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.database.get(key) {
            Ok(value) => value.map(|v| v.to_vec()),
            Err(error) => {
                tracing::warn!(key, %error, "not remembered");
                None
            }
        }
    }

    /// What is remembered makes things quicker; without it a peer works all the same.
    fn set(&self, key: &str, bytes: &[u8]) {
        if let Err(error) = self.database.insert(key, bytes).and_then(|_| self.database.flush()) {
            tracing::warn!(key, %error, "not remembered");
        }
    }

    /// Writes a file of the folder whole or not at all, for its owner alone.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_file(&self, name: &str, content: &str) -> std::io::Result<()> {
        let (path, beside) = (self.folder.join(name), self.folder.join(format!(".{name}.new")));
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(beside, path)
    }

    /// Removes a file of the folder, if it is there.
    pub fn remove_file(&self, name: &str) {
        // Nothing to remove is as good.
        let _ = fs::remove_file(self.folder.join(name));
    }
}

fn known_key(swarm: SwarmId) -> String {
    format!("known {swarm}")
}

fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join("lock");
    let io = |error| StoreError::Io { path: path.clone(), error };
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::Error(error)) => return Err(io(error)),
        Err(fs::TryLockError::WouldBlock) => {
            let mut owner = String::new();
            // Without its number the message says less, and is as true.
            let _ = (&file).take(20).read_to_string(&mut owner);
            let owner = owner.trim().parse::<u32>().map_or_else(|_| String::new(), |pid| format!(" (process {pid})"));
            return Err(StoreError::Locked { path: folder.to_owned(), owner });
        }
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
    writeln!(file, "{}", std::process::id()).map_err(io)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_and_what_is_set_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.set_swarm("ts1abc");
        let second = Store::open(folder.path()).err().unwrap().to_string();
        assert!(second.contains(&std::process::id().to_string()), "{second}");
        drop(store);
        let again = Store::open(folder.path()).unwrap();
        assert_eq!(again.swarm().as_deref(), Some("ts1abc"));
        let (here, there) = (SwarmId([1; 16]), SwarmId([2; 16]));
        again.set_known(here, &["/ip4/10.0.0.1/tcp/1".into(), "/ip4/10.0.0.2/tcp/1".into()]);
        assert_eq!((again.known(here).len(), again.known(there).len()), (2, 0));
        assert_eq!(again.endorsed(), None);
        again.set_endorsed(Epoch(300), Term(2));
        assert_eq!(again.endorsed(), Some((Epoch(300), Term(2))));
        let first = again.begin_life(1_800_000_000);
        assert!(again.begin_life(1_799_990_000) > first);
    }
}
