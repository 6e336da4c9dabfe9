//! `state.log` and its copy: written together, and read so that damage to either costs nothing.

use super::{
    belonging::Belonging,
    copy::{self, Copied, EDITION, NotesByName as Known, StateCopy, edition, is_copied, reconciled},
    disk,
    error::StoreError,
    former_swarm::{self, FolderTrace},
    identity::KEY_FILE,
    ledger::{Ledger, LedgerCondition},
    note::{NEVER, SWARM, note, open_ledger, read_note},
};
use std::{io, path::Path};

/// Ledger of what is remembered: a few kilobytes.
pub(super) const STATE_FILE: &str = "state.log";

/// What is remembered, in memory and in both files.
pub(super) struct Notes {
    pub ledger: Ledger,
    copy: StateCopy,
    pub known: Known,
    /// The disk has refused something, and does not have all of this.
    pub behind: bool,
}

impl Notes {
    /// Reads both files of a folder.
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        let mut state = Known::new();
        let ledger = open_ledger(&folder.join(STATE_FILE), |record| {
            if let Some((key, value)) = read_note(record) {
                state.insert(key.to_owned(), value.to_vec());
            }
        })?;
        let (copy, copied) = StateCopy::open(folder)?;
        let mut notes = Self { ledger, copy, known: Known::new(), behind: false };
        notes.take(folder, state, &copied).map_err(|error| StoreError::Io { path: folder.to_owned(), error })?;
        Ok(notes)
    }

    /// Takes what counts of what both files hold, and has both hold it.
    fn take(&mut self, folder: &Path, state: Known, copied: &Copied) -> io::Result<()> {
        // A file that its peer's first start left empty is none.
        let was_used = folder.join(KEY_FILE).exists();
        let lost = |found| found == LedgerCondition::Damaged || (found == LedgerCondition::Emptied && was_used);
        let found = self.ledger.found();
        let sound = !lost(found) && (found != LedgerCondition::Nothing || copied.notes.is_none());
        let (known, changed) = reconciled(state, sound, copied.notes.as_ref());
        self.known = known;
        // Whoever has a key has had a record in it.
        let copy_lost = copied.notes.is_none() && copied.found != LedgerCondition::Nothing && was_used;
        say(folder, (found, lost(found)), (copied.found, copy_lost), changed);
        let is_sure = copied.notes.is_some() || (sound && found != LedgerCondition::Torn);
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
        former_swarm::set_damaged_aside(folder);
        Ok(())
    }

    /// What to note of the swarm, where the note of it is lost, or may be one of before: what else tells of it, or that nobody knows.
    fn doubted(&self, folder: &Path, is_sure: bool, is_lost: bool) -> Option<String> {
        let trace = former_swarm::look(folder);
        let note = self.known.get(SWARM).map(|text| String::from_utf8_lossy(text));
        // Whoever was killed as it mended them had seen damage, too.
        let was_damaged = |file| disk::beside(&folder.join(file), "broken").exists();
        let is_doubted = match (&note, trace) {
            (Some(text), FolderTrace::Open(other) | FolderTrace::Private(Some(other))) => {
                !is_sure && Belonging::parse(text).is_some_and(|noted| noted.swarm != other)
            }
            (Some(_), _) => false,
            (None, FolderTrace::Nothing) => is_lost || was_damaged(STATE_FILE) || was_damaged(copy::COPY_FILE),
            (None, _) => true,
        };
        is_doubted.then(|| match trace {
            FolderTrace::Open(swarm) => Belonging { swarm, secret: None }.text(),
            FolderTrace::Private(Some(swarm)) => format!("{NEVER}{swarm}"),
            FolderTrace::Private(None) | FolderTrace::Nothing => NEVER.to_owned(),
        })
    }

    /// Remembers these, on the disk before this returns.
    pub(super) fn write(&mut self, new: &[(&str, &[u8])]) -> io::Result<()> {
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
fn say(folder: &Path, state: (LedgerCondition, bool), copy: (LedgerCondition, bool), restored: bool) {
    let name = |file: &str| folder.join(file).display().to_string();
    for (file, (found, lost)) in [(STATE_FILE, state), (copy::COPY_FILE, copy)] {
        // Of damage the ledger has told.
        if found == LedgerCondition::Emptied && lost {
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
