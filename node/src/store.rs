//! What a peer remembers: its measurements, the swarm it is in, the members it knew. In a ledger, one process at a time, and what
//! cannot be measured again in a copy beside it.
//!
//! A peer that was in a private swarm never starts in an open one by itself. Where no file says any more which swarm it was in, that
//! is remembered instead, until its owner says where it belongs.

mod copy;
pub mod disk;
pub mod folders;
pub mod identity;
pub mod invites;
pub mod keys;
pub mod ledger;
pub mod local;
pub mod sealed;
mod traces;

pub use traces::{HTTP_FILE, INVITE_FILE, invited_to, own_invite};

use self::{
    copy::{Copied, EDITION, Notes as Known, StateCopy, edition, is_copied, reconciled},
    traces::Trace,
};
use crate::{
    plain,
    store::{
        identity::KEY_FILE,
        ledger::{Found, Ledger, LedgerError, advice},
    },
};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tsnode_protocol::{Epoch, Invite, Life, PeerId, Secret, SwarmId, Term};

/// Ledger of what is remembered: a few kilobytes.
const STATE_FILE: &str = "state.log";
/// Ledger of what clients got.
const RESPONSE_LOG_FILE: &str = "journal.log";
/// Name of the note of the swarm.
const SWARM: &str = "swarm";
/// How that note begins where nobody knows which it was: no version takes it for a swarm.
const NEVER: &str = "lost ";
/// Name of the note of an invite that is being used; of no bytes where none is.
const JOINING: &str = "joining";

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
    /// GPUs that are one device, by the first one's number and how many they are, and the model on them.
    Gpus(u16, u16),
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("probe"),
            Self::Profile => f.write_str("profile"),
            Self::Gpus(first, count) => write!(f, "GPUs {first} {count}"),
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
    copy: StateCopy,
    known: Known,
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
        disk::make_folder(folder).map_err(io)?;
        let lock = lock(folder)?;
        disk::sweep(folder);
        let mut state = Known::new();
        let ledger = open_ledger(&folder.join(STATE_FILE), |record| {
            if let Some((key, value)) = read_note(record) {
                state.insert(key.to_owned(), value.to_vec());
            }
        })?;
        let (copy, copied) = StateCopy::open(folder)?;
        let mut notes = Notes { ledger, copy, known: Known::new(), behind: false };
        notes.take(folder, state, &copied).map_err(io)?;
        Ok(Self { folder: folder.to_owned(), notes: Arc::new(Mutex::new(notes)), _lock: Arc::new(lock) })
    }

    /// The ledger of what clients got, its records handed to `record`.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open_response_log(&self, record: impl FnMut(&[u8])) -> Result<Ledger, StoreError> {
        let path = self.folder.join(RESPONSE_LOG_FILE);
        let ledger = open_ledger(&path, record)?;
        if ledger.found() == Found::Emptied {
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
        self.get(&what.to_string())
    }

    /// Remembers it.
    pub fn set_measured(&self, what: Measured, bytes: &[u8]) {
        self.set(&what.to_string(), bytes);
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

impl Notes {
    /// Takes what counts of what both files hold, and has both hold it.
    fn take(&mut self, folder: &Path, state: Known, copied: &Copied) -> io::Result<()> {
        // A file that its peer's first start left empty is none.
        let was_used = folder.join(KEY_FILE).exists();
        let lost = |found| found == Found::Damaged || (found == Found::Emptied && was_used);
        let found = self.ledger.found();
        let sound = !lost(found) && (found != Found::Nothing || copied.notes.is_none());
        let (known, changed) = reconciled(state, sound, copied.notes.as_ref());
        self.known = known;
        // Whoever has a key has had a record in it.
        let copy_lost = copied.notes.is_none() && copied.found != Found::Nothing && was_used;
        say(folder, (found, lost(found)), (copied.found, copy_lost), changed);
        let is_sure = copied.notes.is_some() || (sound && found != Found::Torn);
        if let Some(text) = self.doubted(folder, is_sure, lost(found) || copy_lost) {
            return self.write(&[(SWARM, text.as_bytes())]);
        }
        let due: Vec<_> = self.known.iter().filter(|(key, _)| is_copied(key, &self.known)).collect();
        let is_same = copied.notes.as_ref().is_some_and(|notes| notes.iter().eq(due));
        if changed {
            self.write_anew()?;
        } else if !is_same {
            self.copy.write(&self.known)?;
        }
        traces::set_damaged_aside(folder);
        Ok(())
    }

    /// What to note of the swarm, where the note of it is lost, or may be one of before: what else tells of it, or that nobody knows.
    fn doubted(&self, folder: &Path, is_sure: bool, is_lost: bool) -> Option<String> {
        let trace = traces::look(folder);
        let note = self.known.get(SWARM).map(|text| String::from_utf8_lossy(text));
        // Whoever was killed as it mended them had seen damage, too.
        let was_damaged = |file| disk::beside(&folder.join(file), "broken").exists();
        let is_doubted = match (&note, trace) {
            (Some(text), Trace::Open(other) | Trace::Private(Some(other))) => {
                !is_sure && Belonging::parse(text).is_some_and(|noted| noted.swarm != other)
            }
            (Some(_), _) => false,
            (None, Trace::Nothing) => is_lost || was_damaged(STATE_FILE) || was_damaged(copy::COPY_FILE),
            (None, _) => true,
        };
        is_doubted.then(|| match trace {
            Trace::Open(swarm) => Belonging { swarm, secret: None }.text(),
            Trace::Private(Some(swarm)) => format!("{NEVER}{swarm}"),
            Trace::Private(None) | Trace::Nothing => NEVER.to_owned(),
        })
    }

    fn write(&mut self, new: &[(&str, &[u8])]) -> io::Result<()> {
        for (key, value) in new {
            self.known.insert((*key).to_owned(), value.to_vec());
        }
        // Where members are changes often, and is copied with what comes next.
        let has_copy = new.iter().any(|(key, _)| is_copied(key, &self.known) && !key.starts_with("known "));
        if has_copy {
            let next = edition(&self.known).saturating_add(1);
            self.known.insert(EDITION.to_owned(), next.to_le_bytes().to_vec());
        }
        // Of a swarm that was left nothing stays that could be read for the one that is.
        let is_moved = new.iter().any(|(key, _)| *key == SWARM);
        if self.behind || is_moved || self.ledger.is_long() {
            return self.write_anew();
        }
        let edition = self.known.get(EDITION).filter(|_| has_copy).map(|value| note(EDITION, value));
        self.ledger.append(new.iter().map(|(key, value)| note(key, value)).chain(edition))?;
        self.ledger.sync()?;
        if has_copy { self.copy.write(&self.known) } else { Ok(()) }
    }

    /// Both files: the edition comes last.
    fn write_anew(&mut self) -> io::Result<()> {
        let (last, others): (Vec<_>, Vec<_>) = self.known.iter().partition(|(key, _)| *key == EDITION);
        self.ledger.rewrite(others.into_iter().chain(last).map(|(key, value)| note(key, value)))?;
        self.copy.write(&self.known)
    }
}

/// Says what was lost, and what of it was had twice.
fn say(folder: &Path, state: (Found, bool), copy: (Found, bool), restored: bool) {
    let name = |file: &str| folder.join(file).display().to_string();
    for (file, (found, lost)) in [(STATE_FILE, state), (copy::COPY_FILE, copy)] {
        // Of damage the ledger has told.
        if found == Found::Emptied && lost {
            tracing::warn!(file = name(file), "empty: what was in it is lost; check the disk if this happens again");
        }
    }
    if restored {
        let (file, from) = (name(STATE_FILE), name(copy::COPY_FILE));
        tracing::warn!(
            file,
            from,
            "records were lost, and all but measurements was read from its copy; check the disk if this happens again"
        );
    } else if copy.1 {
        tracing::info!(file = name(copy::COPY_FILE), "written anew from {STATE_FILE}");
    }
}

/// Whether a note is a measurement, which can be made again.
fn is_measured(key: &str) -> bool {
    [Measured::Processor, Measured::Profile].iter().any(|what| what.to_string() == key) || key.starts_with("GPUs ")
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
        store.set_swarm(&belonging()).unwrap();
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
            assert!(error.contains("tsnode join --invite -"), "{error}");
        }
        store.set_swarm(&belonging()).unwrap();
        assert_eq!(store.swarm().unwrap(), Some(belonging()));
    }

    #[test]
    fn damage_costs_what_it_hits_and_the_peer_starts() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.set_swarm(&belonging()).unwrap();
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
                // The copy has all of it.
                assert_eq!(store.swarm().unwrap(), Some(belonging()), "byte {at}");
                assert!(store.endorsed().is_some() && store.paused(), "byte {at}");
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

    /// A folder whose peer was in [`belonging`], and in another swarm before, as its files are then.
    fn private(folder: &Path) -> [(PathBuf, Vec<u8>); 2] {
        let store = Store::open(folder).unwrap();
        store.set_swarm(&Belonging { swarm: SwarmId([8; 16]), secret: None }).unwrap();
        store.set_swarm(&belonging()).unwrap();
        store.set_known(belonging().swarm, &["/ip4/10.0.0.1/tcp/1".into()]);
        store.set_paused(true);
        fs::write(folder.join(KEY_FILE), "a key").unwrap();
        [STATE_FILE, copy::COPY_FILE].map(|file| (folder.join(file), fs::read(folder.join(file)).unwrap()))
    }

    #[test]
    fn damage_to_one_file_costs_nothing_and_damage_to_both_leads_to_no_other_swarm() {
        let folder = tempfile::tempdir().unwrap();
        let files = private(folder.path());
        let put_back = || files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        let broken = |whole: &[u8], n: usize| {
            let (mut bytes, at) = (whole.to_vec(), n * 7 % whole.len());
            match n % 4 {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << (n % 8),
                2 => bytes[at..].fill(0),
                _ => {
                    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = blake3::hash(&[i as u8, n as u8]).as_bytes()[0])
                }
            }
            bytes
        };
        for n in 0..120 {
            for (path, whole) in &files {
                put_back();
                fs::write(path, broken(whole, n)).unwrap();
                let store = Store::open(folder.path()).unwrap();
                assert_eq!(store.swarm().unwrap(), Some(belonging()), "{n}: {}", path.display());
                assert!(store.paused() && store.known(belonging().swarm).len() == 1, "{n}: {}", path.display());
                drop(store);
                // And both are whole again.
                for (other, _) in &files {
                    fs::write(other, b"").unwrap();
                    assert_eq!(Store::open(folder.path()).unwrap().swarm().unwrap(), Some(belonging()));
                }
            }
            put_back();
            files.iter().for_each(|(path, whole)| fs::write(path, broken(whole, n)).unwrap());
            for start in 0..2 {
                let store = Store::open(folder.path()).unwrap();
                match store.swarm() {
                    Ok(swarm) => assert_eq!(swarm, Some(belonging()), "{n}, start {start}"),
                    Err(error) => assert!(matches!(error, StoreError::Lost { .. }), "{n}, start {start}: {error}"),
                }
            }
            for entry in fs::read_dir(folder.path()).unwrap().flatten() {
                if entry.file_name().to_string_lossy().contains(".broken") {
                    fs::remove_file(entry.path()).unwrap();
                }
            }
        }
    }

    /// As a version before left it: a key, a ledger, and an invite beside it.
    #[test]
    fn an_emptied_ledger_without_a_copy_leads_to_no_open_swarm() {
        for (content, ticket, lost) in [
            (&b""[..], true, true),
            (&b""[..], false, true),
            (b"noise", true, true),
            (b"noise", false, true),
            // Cut off where a record ends, which only the invite tells.
            (b"tsnode\0\x01", true, true),
            (b"tsnode\0\x01", false, false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(KEY_FILE), "a key").unwrap();
            fs::write(folder.path().join(STATE_FILE), content).unwrap();
            let ticket = ticket.then_some(tsnode_protocol::Ticket {
                id: tsnode_protocol::InviteId([1; 8]),
                secret: Secret([2; 32]),
                expires: 1,
            });
            let invite = Invite { swarm: belonging().swarm, ticket, addresses: Vec::new() };
            if ticket.is_some() {
                fs::write(folder.path().join(INVITE_FILE), invite.to_string()).unwrap();
            }
            for _ in 0..2 {
                let swarm = Store::open(folder.path()).unwrap().swarm();
                assert_eq!(swarm.is_err(), lost, "{content:?}, {ticket:?}: {swarm:?}");
                if let Err(error) = swarm {
                    let said = error.to_string();
                    assert!(said.contains("tsnode join --invite -") && said.contains("--data-dir"), "{said}");
                    assert_eq!(said.contains(&belonging().swarm.to_string()), ticket.is_some(), "{said}");
                }
            }
            // Until its owner says where it belongs.
            Store::open(folder.path()).unwrap().set_swarm(&belonging()).unwrap();
            assert_eq!(Store::open(folder.path()).unwrap().swarm().unwrap(), Some(belonging()));
        }
    }

    #[test]
    fn an_invite_that_is_being_used_is_remembered_until_its_peer_is_in() {
        let folder = tempfile::tempdir().unwrap();
        let invite = Invite { swarm: belonging().swarm, ticket: None, addresses: Vec::new() };
        let again = || Store::open(folder.path()).unwrap();
        again().set_joining(None).unwrap();
        again().set_joining(Some(&invite)).unwrap();
        assert_eq!(again().joining(), Some(invite.clone()));
        again().set_swarm(&belonging()).unwrap();
        assert_eq!(again().joining(), None);
        let written = fs::read(folder.path().join(STATE_FILE)).unwrap();
        let text = invite.to_string();
        assert!(!written.windows(text.len()).any(|w| w == text.as_bytes()), "nothing of it stays");
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
