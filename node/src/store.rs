//! What a peer remembers: its measurements, the swarm it is in, the members it knew. In a ledger, one process at a time, and what
//! cannot be measured again in a copy beside it.
//!
//! A peer that was in a private swarm never starts in an open one by itself. Where no file says any more which swarm it was in, that
//! is remembered instead, until its owner says where it belongs.

mod belonging;
mod copy;
pub mod disk;
mod error;
pub mod folders;
mod former_swarm;
mod handed_on;
pub mod identity;
pub mod invites;
pub mod keys;
pub mod ledger;
mod note;
pub mod owner_token;
pub mod sealed;
pub mod spare;
mod state_log;

pub use belonging::Belonging;
pub use error::StoreError;
pub use former_swarm::{HTTP_FILE, INVITE_FILE, invited_to, own_invite};
pub use handed_on::MEASURED_FILE;
pub use note::Measured;

use crate::platform;
use ledger::{Ledger, LedgerCondition, advice};
use note::{NEVER, SWARM, open_ledger};
use state_log::{Notes, STATE_FILE};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tsnode_protocol::{Epoch, Invite, Life, PeerId, SwarmId, SwarmSetting, Term};

/// Ledger of what clients got.
const RESPONSE_LOG_FILE: &str = "response.log";
/// What it was called in the version before.
const FORMER_RESPONSE_LOG_FILE: &str = "journal.log";
/// Name of the note of an invite that is being used; of no bytes where none is.
const JOINING: &str = "joining";

/// A locked data folder and what is remembered in it. Clones share both.
#[derive(Clone)]
pub struct Store {
    folder: PathBuf,
    /// Held while the disk writes: a few notes a minute.
    notes: Arc<Mutex<Notes>>,
    /// Held as long as any clone is.
    _lock: Arc<File>,
}

/// A data folder that no peer uses as long as this is there.
#[derive(Debug)]
pub struct Unused {
    _lock: File,
}

impl Unused {
    /// Keeps peers out of it.
    ///
    /// # Errors
    /// When it cannot be used, or one is in it.
    pub fn hold(folder: &Path) -> Result<Self, StoreError> {
        lock(folder).map(|lock| Self { _lock: lock })
    }
}

impl Store {
    /// Makes the folder if need be (for its owner alone), locks it, and reads what is remembered.
    ///
    /// # Errors
    /// When it cannot be used, or another process does.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let io = |error| StoreError::Io { path: folder.to_owned(), error };
        disk::make_folder(folder).map_err(io)?;
        let lock = lock(folder)?;
        disk::sweep(folder);
        let notes = Notes::open(folder)?;
        Ok(Self { folder: folder.to_owned(), notes: Arc::new(Mutex::new(notes)), _lock: Arc::new(lock) })
    }

    /// The ledger of what clients got, its records handed to `record`.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open_response_log(&self, record: impl FnMut(&[u8])) -> Result<Ledger, StoreError> {
        let path = self.folder.join(RESPONSE_LOG_FILE);
        let former = self.folder.join(FORMER_RESPONSE_LOG_FILE);
        if !path.exists() && former.exists() {
            fs::rename(&former, &path).map_err(|error| StoreError::Io { path: former, error })?;
        }
        let ledger = open_ledger(&path, record)?;
        if ledger.found() == LedgerCondition::Emptied {
            tracing::info!(file = %path.display(), "empty: clients of before that come back are answered anew");
        }
        Ok(ledger)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What was remembered of a measurement.
    #[must_use]
    pub fn measured(&self, what: Measured) -> Option<Vec<u8>> {
        self.get(&what.to_string()).or_else(|| handed_on::measured(&self.folder, what))
    }

    /// Remembers it.
    pub fn set_measured(&self, what: Measured, bytes: &[u8]) {
        self.set(&what.to_string(), bytes);
        handed_on::note(&self.folder, what, bytes);
    }

    /// The swarm this peer was in last; none where it was in none.
    ///
    /// # Errors
    /// When it is not known which that was, or it was a private one and is noted in words of another version: to be in any
    /// other instead is not for this peer to choose.
    pub fn swarm(&self) -> Result<Option<Belonging>, StoreError> {
        let Some(text) = self.get(SWARM) else { return Ok(None) };
        let text = String::from_utf8_lossy(&text);
        if let Some(private) = text.strip_prefix(NEVER) {
            return Err(StoreError::Lost { path: self.folder.clone(), private: private.parse().ok() });
        }
        let known = Belonging::parse(&text).or_else(|| Belonging::parse_open_invite(&text));
        known.map(Some).ok_or_else(|| StoreError::Swarm { path: self.folder.clone() })
    }

    /// Remembers the swarm, on the disk before this returns: a peer that forgets it would be in another one when it starts again.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn set_swarm(&self, swarm: &Belonging) -> Result<(), StoreError> {
        self.keep([(SWARM, swarm.text().as_bytes()), (JOINING, b"")])
    }

    /// The invite that this peer was using when it ended, and of which it does not know whether it was let in.
    #[must_use]
    pub fn joining(&self) -> Option<Invite> {
        String::from_utf8(self.get(JOINING)?).ok()?.parse().ok()
    }

    /// Remembers that an invite is being used, on the disk before this returns: one that is for a single newcomer must not be used
    /// up in vain.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn set_joining(&self, invite: Option<&Invite>) -> Result<(), StoreError> {
        let text = invite.map(ToString::to_string).unwrap_or_default();
        if text.is_empty() && self.get(JOINING).is_none() { Ok(()) } else { self.keep([(JOINING, text.as_bytes())]) }
    }

    /// Whose key this folder had when it was used last.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        String::from_utf8(self.get("peer")?).ok()?.parse().ok()
    }

    /// Remembers it.
    pub fn set_peer(&self, peer: PeerId) {
        self.set("peer", peer.to_string().as_bytes());
    }

    /// Whether the peer of a folder knows others by whom it finds its swarm again, or was on its way to some. Nothing is made where no
    /// peer was.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process does.
    pub fn remembers_peers(folder: &Path) -> Result<bool, StoreError> {
        if !folder.join(STATE_FILE).exists() {
            return Ok(false);
        }
        let store = Self::open(folder)?;
        Ok(store.joining().is_some() || store.swarm()?.is_some_and(|swarm| !store.known(swarm.swarm).is_empty()))
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

    /// What members had set for a swarm. What cannot be read is none: other members know it, too.
    #[must_use]
    pub fn settings(&self, swarm: SwarmId) -> Vec<SwarmSetting> {
        let said = self.get(&settings_key(swarm)).and_then(|bytes| serde_json::from_slice(&bytes).ok());
        said.filter(|all: &Vec<SwarmSetting>| SwarmSetting::check_all(all).is_ok()).unwrap_or_default()
    }

    /// Remembers it.
    pub fn set_settings(&self, swarm: SwarmId, settings: &[SwarmSetting]) {
        self.set(&settings_key(swarm), &serde_json::to_vec(settings).unwrap_or_default());
    }

    /// The last epoch and term this peer endorsed a plan of.
    #[must_use]
    pub fn endorsed(&self) -> Option<(Epoch, Term)> {
        let bytes: [u8; 12] = self.get("endorsed")?.try_into().ok()?;
        let (epoch, term) = bytes.split_first_chunk::<8>()?;
        Some((Epoch(u64::from_le_bytes(*epoch)), Term(u32::from_le_bytes(term.try_into().ok()?))))
    }

    /// Remembers it, on the disk before this returns; whether the disk has taken it.
    #[must_use]
    pub fn set_endorsed(&self, epoch: Epoch, term: Term) -> bool {
        let bytes = [&epoch.0.to_le_bytes()[..], &term.0.to_le_bytes()].concat();
        self.set("endorsed", &bytes)
    }

    /// Begins this peer's next life: the one after the last, by a clock in seconds since 1970 that may have been moved.
    pub fn begin_life(&self, unix_seconds: u64) -> Life {
        let last = self.get("life").and_then(|b| b.try_into().ok()).map(|b| Life(u32::from_le_bytes(b)));
        let life = Life::after(last, unix_seconds);
        self.set("life", &life.0.to_le_bytes());
        life
    }

    /// Whether the owner had paused the peer.
    #[must_use]
    pub fn paused(&self) -> bool {
        self.get("paused").is_some_and(|b| b == [1])
    }

    /// Remembers it.
    pub fn set_paused(&self, paused: bool) {
        if paused != self.paused() {
            self.set("paused", &[u8::from(paused)]);
        }
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).known.get(key).cloned()
    }

    /// Remembers what makes things quicker; without it a peer works all the same. Until the disk takes it again, it is remembered as
    /// long as this process runs. Says whether the disk has it now.
    fn set(&self, key: &str, value: &[u8]) -> bool {
        match self.put([(key, value)]) {
            Ok(()) => true,
            Err((error, was_behind)) => {
                if !was_behind {
                    let (folder, advice) = (self.folder.display(), advice(&error));
                    tracing::warn!(%folder, key, %error, "will not be remembered when this peer starts again{advice}");
                }
                false
            }
        }
    }

    /// What a peer must not start without.
    fn keep<const N: usize>(&self, notes: [(&str, &[u8]); N]) -> Result<(), StoreError> {
        let path = || self.folder.join(STATE_FILE);
        self.put(notes).map_err(|(error, _)| StoreError::Io { path: path(), error })
    }

    /// Remembers all of these; else says why the disk does not have them, and whether it had refused before.
    fn put<const N: usize>(&self, new: [(&str, &[u8]); N]) -> Result<(), (io::Error, bool)> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = notes.behind;
        let is_new = |(key, value): &(&str, &[u8])| notes.known.get(*key).is_none_or(|b| b != value);
        let changed: Vec<(&str, &[u8])> = new.into_iter().filter(|note| behind || is_new(note)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let written = notes.write(&changed);
        notes.behind = written.is_err();
        if behind && written.is_ok() {
            tracing::info!(folder = %self.folder.display(), "the disk takes what is remembered again");
        }
        written.map_err(|error| (error, behind))
    }

    /// Writes a file of the folder whole or not at all, for its owner alone.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_file(&self, name: &str, content: &str) -> std::io::Result<()> {
        disk::write_whole(&self.folder.join(name), content.as_bytes())
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

fn settings_key(swarm: SwarmId) -> String {
    format!("settings {swarm}")
}

/// A process that ends, or one that it has just started and that is not another program yet, holds the lock for a moment longer.
const LOCK_TRIES: u32 = 20;
const LOCK_AGAIN: std::time::Duration = std::time::Duration::from_millis(20);

fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join("lock");
    let io = |error| StoreError::Io { path: path.clone(), error };
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = platform::for_owner(&mut options).open(&path).map_err(io)?;
    let mut tried = 0;
    let locked = loop {
        match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) if tried < LOCK_TRIES => tried += 1,
            tried => break tried,
        }
        std::thread::sleep(LOCK_AGAIN);
    };
    match locked {
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
mod tests;
