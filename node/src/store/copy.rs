//! `state.copy`: all that `state.log` has and that cannot be measured again, once more, so that one damaged file makes nobody forget
//! which swarm is its own.

use super::{
    error::StoreError,
    note::{NEVER, SWARM, is_measured, note, open_ledger, read_note},
};
use crate::store::ledger::{Ledger, LedgerCondition};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The file: a ledger of one record.
pub(super) const COPY_FILE: &str = "state.copy";
/// Name of the note that counts changes of what is copied. In `state.log` it follows each change, so that a file whose end was
/// lost is known to be behind.
pub(super) const EDITION: &str = "edition";

/// Notes by name.
pub(super) type NotesByName = BTreeMap<String, Vec<u8>>;

/// The copy on the disk.
pub(super) struct StateCopy(Ledger);

/// What was read of it.
pub(super) struct Copied {
    /// How its file was found.
    pub found: LedgerCondition,
    /// Its notes, where its record is whole.
    pub notes: Option<NotesByName>,
}

impl StateCopy {
    pub(super) fn open(folder: &Path) -> Result<(Self, Copied), StoreError> {
        let mut notes = None;
        let ledger = open_ledger(&folder.join(COPY_FILE), |record| notes = decoded(record))?;
        let found = ledger.found();
        Ok((Self(ledger), Copied { found, notes }))
    }

    /// Copies these, at once or not at all.
    pub(super) fn write(&mut self, known: &NotesByName) -> io::Result<()> {
        self.0.rewrite([encoded(known)])
    }
}

/// Whether a note is in the copy, too. Where members of other swarms were is worth no second copy.
pub(super) fn is_copied(key: &str, known: &NotesByName) -> bool {
    let swarm = known.get(SWARM).map(|text| String::from_utf8_lossy(text));
    let own = swarm.as_deref().and_then(|text| text.split_once(' ')).map(|(swarm, _)| format!("known {swarm}"));
    !is_measured(key) && (!key.starts_with("known ") || own.as_deref() == Some(key))
}

/// The edition of notes.
pub(super) fn edition(notes: &NotesByName) -> u64 {
    notes.get(EDITION).and_then(|bytes| bytes.as_slice().try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// What counts of both files, and whether the notes of `state.log` are not it any more. `sound` says whether that has lost
/// nothing, as far as can be seen.
pub(super) fn reconciled(state: NotesByName, sound: bool, copy: Option<&NotesByName>) -> (NotesByName, bool) {
    match copy {
        // An owner who has put back a whole `state.log` knows more than a peer that knew nothing.
        Some(copy) if !sound || (edition(copy) > edition(&state) && (knows_swarm(copy) || !knows_swarm(&state))) => {
            let own = state.into_iter().filter(|(key, _)| is_measured(key) || key.starts_with("known "));
            let mut notes: NotesByName = own.collect();
            notes.extend(copy.iter().map(|(key, value)| (key.clone(), value.clone())));
            (notes, true)
        }
        _ => (state, false),
    }
}

fn knows_swarm(notes: &NotesByName) -> bool {
    notes.get(SWARM).is_some_and(|text| !text.starts_with(NEVER.as_bytes()))
}

fn encoded(known: &NotesByName) -> Vec<u8> {
    let copied = known.iter().filter(|(key, _)| is_copied(key, known));
    copied.fold(Vec::new(), |mut all, (key, value)| {
        let note = note(key, value);
        all.extend_from_slice(&(note.len() as u32).to_le_bytes());
        all.extend_from_slice(&note);
        all
    })
}

fn decoded(mut record: &[u8]) -> Option<NotesByName> {
    let mut notes = NotesByName::new();
    while let Some((length, rest)) = record.split_first_chunk::<4>() {
        let (one, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (key, value) = read_note(one)?;
        notes.insert(key.to_owned(), value.to_vec());
        record = rest;
    }
    record.is_empty().then_some(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(of: &[(&str, &[u8])]) -> NotesByName {
        of.iter().map(|(key, value)| ((*key).to_owned(), value.to_vec())).collect()
    }

    #[test]
    fn what_cannot_be_measured_again_is_copied() {
        let all = notes(&[
            (SWARM, b"sw-1 open"),
            ("known sw-1", b"here"),
            ("known sw-2", b"there"),
            ("probe", b"fast"),
            ("paused", &[1]),
            (EDITION, &7_u64.to_le_bytes()),
        ]);
        let copy = decoded(&encoded(&all)).unwrap();
        assert_eq!(copy.keys().collect::<Vec<_>>(), [EDITION, "known sw-1", "paused", SWARM]);
        assert_eq!(edition(&copy), 7);
        assert_eq!(decoded(b"\x09\0\0\0no"), None);
    }

    #[test]
    fn the_later_counts_and_the_damaged_does_not() {
        let at =
            |edition: u64, swarm: &[u8]| notes(&[(SWARM, swarm), (EDITION, &edition.to_le_bytes()), ("probe", b"p")]);
        let swarm = |state: NotesByName, sound, copy: &NotesByName| {
            reconciled(state, sound, Some(copy)).0.remove(SWARM).unwrap()
        };
        assert_eq!(swarm(at(2, b"b"), true, &at(1, b"a")), b"b");
        assert_eq!(swarm(at(1, b"a"), true, &at(2, b"b")), b"b");
        // Of an earlier note nobody can tell that it is one.
        assert_eq!(swarm(at(2, b"a"), false, &at(2, b"b")), b"b");
        // A version before this one knows of no copy.
        assert_eq!(swarm(at(2, b"c"), true, &at(2, b"b")), b"c");
        let lost = at(9, b"lost sw-1");
        assert_eq!(swarm(at(2, b"c"), true, &lost), b"c", "it was put back");
        assert_eq!(swarm(at(2, b"c"), false, &lost), b"lost sw-1");
        let (all, changed) = reconciled(notes(&[("probe", b"p")]), false, Some(&notes(&[(SWARM, b"b")])));
        assert!(changed && all == notes(&[(SWARM, b"b"), ("probe", b"p")]));
        assert_eq!(reconciled(at(1, b"a"), false, None), (at(1, b"a"), false));
    }
}
