//! What a peer remembers: its measurements, the swarm it is in, the members it knew. In a ledger, one process at a time.

use crate::{
    ledger::{Ledger, LedgerError, advice},
    plain,
};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tsnode_protocol::{Epoch, Life, Secret, SwarmId, Term};

/// Ledger of what is remembered: a few kilobytes.
const STATE_FILE: &str = "state.log";
/// Ledger of what clients got.
const JOURNAL_FILE: &str = "journal.log";

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
         ask a member for a new invite and join again with it: tsnode join ts1…",
        path.display()
    )]
    Swarm {
        /// The data folder.
        path: PathBuf,
    },
}

/// A swarm, and what its members know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belonging {
    /// Which.
    pub swarm: SwarmId,
    /// Its secret; none of an open one.
    pub secret: Option<Secret>,
}

impl Belonging {
    /// The same in every version.
    fn text(&self) -> String {
        let secret = self.secret.map_or_else(|| "open".to_owned(), |s| data_encoding::HEXLOWER.encode(&s.0));
        format!("{} {secret}", self.swarm)
    }

    fn parse(text: &str) -> Option<Self> {
        let (swarm, secret) = text.split_once(' ')?;
        let secret = match secret {
            "open" => None,
            hex => Some(Secret(data_encoding::HEXLOWER.decode(hex.as_bytes()).ok()?.try_into().ok()?)),
        };
        Some(Self { swarm: swarm.parse().ok()?, secret })
    }

    /// Until version 7 an invite was remembered: version, swarm, and a secret or none. Open swarms of those days go on, since
    /// nobody has invites to them; a private one's members have other words now.
    fn parse_open_invite(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix("ts1")?.to_uppercase();
        let bytes = data_encoding::BASE32_NOPAD.decode(body.as_bytes()).ok()?;
        let ([_, _, swarm @ .., secret], _) = bytes.split_first_chunk::<19>()?;
        (*secret == 0).then_some(Self { swarm: SwarmId(*swarm), secret: None })
    }
}

/// What was measured here, each remembered by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The processor.
    Processor,
    /// What a layer of the model takes on it.
    Profile,
    /// Cards that are one device, by the first one's number and how many they are, and the model on them.
    Cards(u16, u16),
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("probe"),
            Self::Profile => f.write_str("profile"),
            Self::Cards(first, count) => write!(f, "cards {first} {count}"),
        }
    }
}

/// A locked data folder and what is remembered in it. Clones share both.
#[derive(Clone)]
pub struct Store {
    folder: PathBuf,
    /// Held while the disk writes: a few notes a minute.
    notes: Arc<Mutex<Notes>>,
    /// Held as long as any clone is.
    _lock: Arc<File>,
}

struct Notes {
    ledger: Ledger,
    known: BTreeMap<String, Vec<u8>>,
    /// The disk has refused something, and does not have all of this.
    behind: bool,
}

impl Store {
    /// Makes the folder if need be (for its owner alone), locks it, and reads what is remembered.
    ///
    /// # Errors
    /// When it cannot be used, or another process does.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let io = |error| StoreError::Io { path: folder.to_owned(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
        let lock = lock(folder)?;
        let mut known = BTreeMap::new();
        let ledger = open_ledger(&folder.join(STATE_FILE), |record| {
            if let Some((key, value)) = read_note(record) {
                known.insert(key.to_owned(), value.to_vec());
            }
        })?;
        let notes = Notes { ledger, known, behind: false };
        Ok(Self { folder: folder.to_owned(), notes: Arc::new(Mutex::new(notes)), _lock: Arc::new(lock) })
    }

    /// The ledger of what clients got, its records handed to `record`.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open_journal(&self, record: impl FnMut(&[u8])) -> Result<Ledger, StoreError> {
        open_ledger(&self.folder.join(JOURNAL_FILE), record)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What was remembered of a measurement.
    #[must_use]
    pub fn measured(&self, what: Measured) -> Option<Vec<u8>> {
        self.get(&what.to_string())
    }

    /// Remembers it.
    pub fn set_measured(&self, what: Measured, bytes: &[u8]) {
        self.set(&what.to_string(), bytes);
    }

    /// The swarm this peer was in last; none where it was in none.
    ///
    /// # Errors
    /// When it was a private one and is noted in words of another version: to be in any other instead is not for this peer
    /// to choose.
    pub fn swarm(&self) -> Result<Option<Belonging>, StoreError> {
        let Some(text) = self.get("swarm") else { return Ok(None) };
        let text = String::from_utf8_lossy(&text);
        let known = Belonging::parse(&text).or_else(|| Belonging::parse_open_invite(&text));
        known.map(Some).ok_or_else(|| StoreError::Swarm { path: self.folder.clone() })
    }

    /// Remembers the swarm.
    pub fn set_swarm(&self, swarm: &Belonging) {
        self.set("swarm", swarm.text().as_bytes());
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

    /// What is remembered makes things quicker; without it a peer works all the same. Until the disk takes it again, it is
    /// remembered as long as this process runs.
    /// Whether the disk has it now.
    fn set(&self, key: &str, value: &[u8]) -> bool {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = notes.known.insert(key.to_owned(), value.to_vec());
        if before.is_some_and(|b| b == value) && !notes.behind {
            return true;
        }
        let written = notes.write(key, value);
        match (&written, notes.behind) {
            (Ok(()), true) => {
                tracing::info!(folder = %self.folder.display(), "the disk takes what is remembered again")
            }
            (Err(error), false) => {
                let (folder, advice) = (self.folder.display(), advice(error));
                tracing::warn!(%folder, key, %error, "will not be remembered when this peer starts again{advice}");
            }
            _ => {}
        }
        notes.behind = written.is_err();
        written.is_ok()
    }

    /// Writes a file of the folder whole or not at all, for its owner alone.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_file(&self, name: &str, content: &str) -> std::io::Result<()> {
        let (path, beside) = (self.folder.join(name), self.folder.join(format!(".{name}.new")));
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside);
        let written = file.and_then(|mut file| file.write_all(content.as_bytes()).and_then(|()| file.sync_all()));
        let placed = written.and_then(|()| fs::rename(&beside, path));
        if placed.is_err() {
            // The first error is the one worth reporting.
            let _ = fs::remove_file(beside);
        }
        placed
    }

    /// Removes a file of the folder, if it is there.
    pub fn remove_file(&self, name: &str) {
        // Nothing to remove is as good.
        let _ = fs::remove_file(self.folder.join(name));
    }
}

impl Notes {
    fn write(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        if self.behind || self.ledger.is_long() {
            return self.ledger.rewrite(self.known.iter().map(|(key, value)| note(key, value)));
        }
        self.ledger.append([note(key, value)])?;
        self.ledger.sync()
    }
}

/// A note as its ledger has it: the length of its name, the name, the value.
fn note(key: &str, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u16).to_le_bytes(), key.as_bytes(), value].concat()
}

fn read_note(record: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = record.split_first_chunk::<2>()?;
    let (key, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((str::from_utf8(key).ok()?, value))
}

fn open_ledger(path: &Path, record: impl FnMut(&[u8])) -> Result<Ledger, StoreError> {
    Ledger::open(path, record).map_err(|error| match error {
        LedgerError::Io(error) => StoreError::Io { path: path.to_owned(), error },
        LedgerError::Version(error) => StoreError::Version { path: path.to_owned(), error: error.to_string() },
    })
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn belonging() -> Belonging {
        Belonging { swarm: SwarmId([3; 16]), secret: Some(Secret([4; 32])) }
    }

    #[test]
    fn one_process_at_a_time_and_what_is_set_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.set_swarm(&belonging());
        let second = Store::open(folder.path()).err().unwrap().to_string();
        assert!(second.contains(&std::process::id().to_string()), "{second}");
        drop(store);
        let again = Store::open(folder.path()).unwrap();
        assert_eq!(again.swarm().unwrap(), Some(belonging()));
        let (here, there) = (SwarmId([1; 16]), SwarmId([2; 16]));
        again.set_known(here, &["/ip4/10.0.0.1/tcp/1".into(), "/ip4/10.0.0.2/tcp/1".into()]);
        assert_eq!((again.known(here).len(), again.known(there).len()), (2, 0));
        assert_eq!(again.endorsed(), None);
        assert!(again.set_endorsed(Epoch(300), Term(2)));
        assert_eq!(again.endorsed(), Some((Epoch(300), Term(2))));
        let first = again.begin_life(1_800_000_000);
        assert!(again.begin_life(1_799_990_000) > first);
    }

    #[test]
    fn an_open_swarm_of_an_older_version_goes_on_and_a_private_one_is_joined_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.swarm().unwrap(), None);
        // As version 6 wrote them: version, swarm, secret or none, addresses, checksum.
        let invite = |secret: &[u8]| {
            let bytes = [&[6, 0][..], &[3; 16], secret, &[0, 1, 2, 3, 4]].concat();
            format!("ts1{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase())
        };
        store.set("swarm", invite(&[0]).as_bytes());
        assert_eq!(store.swarm().unwrap(), Some(Belonging { swarm: SwarmId([3; 16]), secret: None }));
        for text in [invite(&[&[1][..], &[4; 32]].concat()), "ts1".into(), "ts1é".into(), "later words".into()] {
            store.set("swarm", text.as_bytes());
            let error = store.swarm().unwrap_err().to_string();
            assert!(error.contains("tsnode join ts1…"), "{error}");
        }
        store.set_swarm(&belonging());
        assert_eq!(store.swarm().unwrap(), Some(belonging()));
    }

    #[test]
    fn damage_costs_what_it_hits_and_the_peer_starts() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.set_swarm(&belonging());
        assert!(store.set_endorsed(Epoch(7), Term(1)));
        store.set_paused(true);
        drop(store);
        let path = folder.path().join(STATE_FILE);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(3) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xFF;
            for content in [&damaged[..], &whole[..at]] {
                fs::write(&path, content).unwrap();
                let store = Store::open(folder.path()).unwrap();
                let left = [store.swarm().unwrap().is_some(), store.endorsed().is_some(), store.paused()];
                assert!(content.len() < whole.len() || left.iter().filter(|l| **l).count() >= 2, "byte {at}: {left:?}");
                assert!(store.swarm().unwrap().is_none_or(|s| s == belonging()));
                assert!(store.set_endorsed(Epoch(at as u64), Term(0)));
                drop(store);
                assert_eq!(
                    Store::open(folder.path()).unwrap().endorsed(),
                    Some((Epoch(at as u64), Term(0))),
                    "byte {at}"
                );
            }
        }
    }

    #[test]
    fn a_ledger_of_old_notes_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        (0..20_000)
            .for_each(|n| store.notes.lock().unwrap().ledger.append([note("endorsed", &[n as u8; 12])]).unwrap());
        let path = folder.path().join(STATE_FILE);
        assert!(fs::metadata(&path).unwrap().len() > 600_000);
        assert!(store.set_endorsed(Epoch(5), Term(0)));
        assert!(fs::metadata(&path).unwrap().len() < 100);
        drop(store);
        assert_eq!(Store::open(folder.path()).unwrap().endorsed(), Some((Epoch(5), Term(0))));
    }
}
