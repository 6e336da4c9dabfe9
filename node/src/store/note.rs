//! One note of what is remembered: its name, its value, and how its ledger has it.

use super::{
    error::StoreError,
    ledger::{Ledger, LedgerError},
};
use std::{fmt, path::Path};
use tsnode_protocol::ModelId;

/// Name of the note of the swarm.
pub(super) const SWARM: &str = "swarm";
/// How that note begins where nobody knows which it was: no version takes it for a swarm.
pub(super) const NEVER: &str = "lost ";

/// What was measured here, each remembered by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The processor.
    Processor,
    /// What a layer of a model takes on it.
    Profile(ModelId),
    /// GPUs that are one device, by the first one's number and how many they are, and a model on them.
    Gpus(u16, u16, ModelId),
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("probe"),
            Self::Profile(model) => write!(f, "profile {model}"),
            Self::Gpus(first, count, model) => write!(f, "GPUs {first} {count} {model}"),
        }
    }
}

/// Whether a note is a measurement, which can be made again.
pub(super) fn is_measured(key: &str) -> bool {
    // A profile had no model's name until there could be several.
    key == Measured::Processor.to_string()
        || key == "profile"
        || ["profile ", "GPUs "].iter().any(|what| key.starts_with(what))
}

/// A note as its ledger has it: the length of its name, the name, the value.
pub(super) fn note(key: &str, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u16).to_le_bytes(), key.as_bytes(), value].concat()
}

/// Its name and value.
pub(super) fn read_note(record: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = record.split_first_chunk::<2>()?;
    let (key, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((str::from_utf8(key).ok()?, value))
}

/// Opens the ledger of such notes, or of other records of the folder.
pub(super) fn open_ledger(path: &Path, record: impl FnMut(&[u8])) -> Result<Ledger, StoreError> {
    Ledger::open(path, record).map_err(|error| match error {
        LedgerError::Io(error) => StoreError::Io { path: path.to_owned(), error },
        LedgerError::Version(error) => StoreError::Version { path: path.to_owned(), error: error.to_string() },
    })
}
