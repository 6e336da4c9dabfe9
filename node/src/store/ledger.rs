//! A file that records are added to, on the disk: opened, added to and written anew such that what was written stays
//! readable through kill -9, full disks, and damage to parts of it.

use crate::{platform, store::disk};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use tsnode_protocol::ledger::{self, HEADER, OtherVersion};

/// Largest file that is read: several times what any of them may become.
const FILE_BYTES: u64 = 512 << 20;
/// A file that has doubled since it was last written anew, and by at least this, is written anew.
const SLACK: u64 = 256 << 10;

/// An open ledger. One process has it: the data folder's lock sees to that.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    /// Where the last whole record ends.
    length: u64,
    /// How long it was when it was last written anew.
    fresh: u64,
    /// A write failed half-way, and what it left could not be cut off yet.
    torn: bool,
    /// How it was when it was opened.
    found: LedgerCondition,
}

/// How a ledger was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerCondition {
    /// There was none.
    Nothing,
    /// A file of no bytes, or of fewer than any ledger has: its writer was killed as it made it, or it is damaged.
    Emptied,
    /// As it was left.
    Whole,
    /// Its last record was being written when its writer died.
    Torn,
    /// Records are lost.
    Damaged,
}

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The disk refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another version wrote it.
    #[error(transparent)]
    Version(#[from] OtherVersion),
}

impl Ledger {
    /// Opens or makes a ledger, for its owner alone, and hands all its records to `record`. A torn end is cut off. Where
    /// anything else is damaged, what is whole is written anew, and the damaged file is kept beside it.
    ///
    /// # Errors
    /// When it cannot be read or written, or is of another version.
    pub fn open(path: &Path, mut record: impl FnMut(&[u8])) -> Result<Self, LedgerError> {
        // What a process left that was killed while it wrote anew; most often there is none.
        let _ = fs::remove_file(disk::beside(path, "new"));
        let mut bytes = Vec::new();
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => {
                (&file).take(FILE_BYTES).read_to_end(&mut bytes)?;
                Some(file)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let contents = ledger::read(&bytes)?;
        contents.records.iter().for_each(|r| record(r));
        let found = match file {
            None => LedgerCondition::Nothing,
            Some(_) if contents.damaged > 0 => LedgerCondition::Damaged,
            Some(_) if bytes.len() < HEADER.len() => LedgerCondition::Emptied,
            Some(_) if contents.end < bytes.len() => LedgerCondition::Torn,
            Some(_) => LedgerCondition::Whole,
        };
        let length = contents.end as u64;
        if let (LedgerCondition::Whole | LedgerCondition::Torn, Some(file)) = (found, file) {
            if found == LedgerCondition::Torn {
                let bytes = bytes.len() - contents.end;
                tracing::info!(file = %path.display(), bytes, "its end was cut off, which was being written when this peer ended last");
            }
            let mut ledger = Self { path: path.to_owned(), file, length, fresh: length, torn: true, found };
            ledger.mend()?;
            return Ok(ledger);
        }
        let kept = if found == LedgerCondition::Damaged { Some(disk::keep_aside(path)?) } else { None };
        let (file, length) = place(path, contents.records.iter().map(|r| r.to_vec()))?;
        if let Some(kept) = kept {
            tracing::warn!(
                file = %path.display(), bytes = contents.damaged, records = contents.records.len(), kept = %kept.display(),
                "damaged: what could be read of it is used on, the damaged file is kept; check the disk if this happens again"
            );
        }
        Ok(Self { path: path.to_owned(), file, length, fresh: length, torn: false, found })
    }

    /// How it was when it was opened.
    #[must_use]
    pub fn found(&self) -> LedgerCondition {
        self.found
    }

    /// Adds records, all in one write. On the disk they are at the latest after [`Self::sync`]; the end of this process they
    /// outlive at once.
    ///
    /// # Errors
    /// When they cannot be written. Then none counts as written, and the file is as it was, or will be before the next write.
    pub fn append(&mut self, records: impl IntoIterator<Item = Vec<u8>>) -> io::Result<()> {
        self.mend()?;
        let mut bytes = Vec::new();
        records.into_iter().try_for_each(|r| push(&mut bytes, &r))?;
        if let Err(error) = self.file.write_all(&bytes) {
            self.torn = true;
            // The first error is the one worth reporting; the next write tries this again.
            let _ = self.mend();
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Waits until the disk has everything.
    ///
    /// # Errors
    /// When it does not take it.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Replaces all records, at once or not at all.
    ///
    /// # Errors
    /// When they cannot be written; the ledger stays as it was.
    pub fn rewrite(&mut self, records: impl IntoIterator<Item = Vec<u8>>) -> io::Result<()> {
        let (file, length) = place(&self.path, records)?;
        (self.file, self.length, self.fresh, self.torn) = (file, length, length, false);
        Ok(())
    }

    /// Whether most of it is likely to be of no use any more.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.length > self.fresh * 2 + SLACK
    }

    /// Its size (bytes).
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Cuts off what a failed write left.
    fn mend(&mut self) -> io::Result<()> {
        if !self.torn {
            return Ok(());
        }
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length))?;
        self.torn = false;
        Ok(())
    }
}

/// Makes a ledger of these records in the place of what was there, at once or not at all.
fn place(path: &Path, records: impl IntoIterator<Item = Vec<u8>>) -> io::Result<(File, u64)> {
    let draft = disk::beside(path, "new");
    let written = write_draft(&draft, records).and_then(|made| {
        fs::rename(&draft, path)?;
        disk::sync_folder(path)?;
        Ok(made)
    });
    written.inspect_err(|_| {
        // The first error is the one worth reporting.
        let _ = fs::remove_file(&draft);
    })
}

fn write_draft(draft: &Path, records: impl IntoIterator<Item = Vec<u8>>) -> io::Result<(File, u64)> {
    let file =
        platform::for_owner(OpenOptions::new().read(true).write(true).create(true).truncate(true)).open(draft)?;
    let mut out = BufWriter::new(file);
    let (mut length, mut bytes) = (HEADER.len() as u64, Vec::new());
    out.write_all(&HEADER)?;
    for record in records {
        bytes.clear();
        push(&mut bytes, &record)?;
        out.write_all(&bytes)?;
        length += bytes.len() as u64;
    }
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok((file, length))
}

fn push(bytes: &mut Vec<u8>, record: &[u8]) -> io::Result<()> {
    ledger::push(bytes, record).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// What a person can do about a disk that refuses; begins with a semicolon, or is empty.
#[must_use]
pub fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind::{
        AlreadyExists, FileTooLarge, NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => "; free some space, or name a folder elsewhere with --data-dir",
        PermissionDenied | ReadOnlyFilesystem => {
            "; make it writable for this user, or name a folder elsewhere with --data-dir"
        }
        NotADirectory | AlreadyExists => "; --data-dir names a folder",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> (Ledger, Vec<Vec<u8>>) {
        let mut records = Vec::new();
        let ledger = Ledger::open(path, |r| records.push(r.to_vec())).unwrap();
        (ledger, records)
    }

    fn words(range: std::ops::Range<u32>) -> impl Iterator<Item = Vec<u8>> {
        range.map(|n| format!("record {n}").into_bytes())
    }

    #[test]
    fn what_is_written_stays_and_is_written_anew_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.log");
        let (mut ledger, records) = open(&path);
        assert!(records.is_empty());
        ledger.append(words(0..5)).unwrap();
        ledger.append(words(5..9)).unwrap();
        drop(ledger);
        let (mut ledger, records) = open(&path);
        assert!(records.into_iter().eq(words(0..9)));
        ledger.rewrite(words(7..9)).unwrap();
        ledger.append(words(9..10)).unwrap();
        assert!(!ledger.is_long());
        assert!(open(&path).1.into_iter().eq(words(7..10)));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn a_torn_end_is_cut_off_and_damage_is_kept_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.log");
        open(&path).0.append(words(0..9)).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let (mut ledger, records) = open(&path);
        assert!(records.into_iter().eq(words(0..8)) && ledger.found() == LedgerCondition::Torn);
        ledger.append(words(8..9)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(open(&path).0.found(), LedgerCondition::Whole);

        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let (mut ledger, records) = open(&path);
        assert_eq!((records.len(), ledger.found()), (8, LedgerCondition::Damaged));
        assert_eq!(fs::read(folder.path().join("some.log.broken")).unwrap(), damaged);
        ledger.append(words(9..10)).unwrap();
        assert_eq!(open(&path).1.len(), 9);
    }

    #[test]
    fn a_file_of_nothing_but_zeros_is_damaged_and_an_empty_one_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.log");
        assert_eq!(open(&path).0.found(), LedgerCondition::Nothing);
        for length in [0, 7] {
            fs::write(&path, vec![0; length]).unwrap();
            let (mut ledger, _) = open(&path);
            assert_eq!(ledger.found(), if length == 0 { LedgerCondition::Emptied } else { LedgerCondition::Damaged });
            ledger.append(words(0..1)).unwrap();
            assert_eq!(open(&path).1.len(), 1);
        }
        fs::write(&path, vec![0; 400]).unwrap();
        let (ledger, records) = open(&path);
        assert_eq!((ledger.found(), records.len()), (LedgerCondition::Damaged, 0));
        assert_eq!(fs::read(folder.path().join("some.log.broken-2")).unwrap(), vec![0; 400]);
    }

    #[test]
    fn another_version_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.log");
        fs::write(&path, b"tsnode\0\x07 and more").unwrap();
        let refusal = Ledger::open(&path, |_| {}).unwrap_err();
        assert!(matches!(refusal, LedgerError::Version(OtherVersion(7))), "{refusal}");
        assert_eq!(fs::read(&path).unwrap(), b"tsnode\0\x07 and more");
    }
}
