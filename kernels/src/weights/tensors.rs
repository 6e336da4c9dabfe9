//! A model's tensors by name. Whoever wants one for its numbers has it from here alone: so what is read of a model is known, and
//! what is not there of one that is still fetched is refused by name, however it is stored.

use super::{WeightsError, tensor::Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// All of them. Clones share the entries.
#[derive(Default)]
pub(super) struct Tensors {
    entries: Arc<BTreeMap<String, Arc<Entry>>>,
    asked: TensorUse,
}

/// What becomes of a tensor that is asked for.
#[derive(Default)]
enum TensorUse {
    /// It is only looked at how it lies there; numbers that are not there are zeros.
    #[default]
    Outlined,
    /// The same, and it is noted: its file and place there.
    Noted(Mutex<BTreeSet<(usize, usize, usize)>>),
    /// All of it has to be there.
    Needed,
}

impl Tensors {
    /// A tensor, for its numbers.
    ///
    /// # Errors
    /// When they are needed, and not there.
    pub fn get(&self, name: &str) -> Result<Option<&Arc<Entry>>, WeightsError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let Entry { called, storage, shard, range, .. } = &**entry;
        match &self.asked {
            TensorUse::Outlined => {}
            TensorUse::Noted(noted) => {
                noted.lock().unwrap_or_else(PoisonError::into_inner).insert((*shard, range.start, range.end));
            }
            TensorUse::Needed if storage.has(range) => {}
            TensorUse::Needed => {
                return Err(WeightsError::NotHere { file: storage.file.to_string(), name: called.clone() });
            }
        }
        Ok(Some(entry))
    }

    /// Whether there is such a one.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Its sizes.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| &entry.shape[..])
    }

    /// The file it is in.
    pub fn file(&self, name: &str) -> Option<String> {
        self.entries.get(name).map(|entry| entry.storage.file.to_string())
    }

    pub fn insert(&mut self, name: String, entry: Entry) {
        Arc::make_mut(&mut self.entries).insert(name, Arc::new(entry));
    }

    /// The same tensors; those that are asked for are noted from now on.
    pub fn noting(&self) -> Self {
        Self { entries: self.entries.clone(), asked: TensorUse::Noted(Mutex::default()) }
    }

    /// Places of those that were asked for, each with its file.
    pub fn noted(self) -> Vec<(usize, Range<usize>)> {
        let TensorUse::Noted(noted) = self.asked else { return Vec::new() };
        let noted = noted.into_inner().unwrap_or_else(PoisonError::into_inner);
        noted.into_iter().map(|(file, start, end)| (file, start..end)).collect()
    }

    /// The same tensors, of which those that are asked for have to be there.
    pub fn needed(&self) -> Self {
        Self { entries: self.entries.clone(), asked: TensorUse::Needed }
    }

    /// Adds names, sizes and places of some to `hasher`.
    pub fn fingerprint(&self, hasher: &mut blake3::Hasher, which: impl Fn(&str) -> bool) {
        let some = self.entries.iter().filter(|(name, _)| which(name));
        some.for_each(|(name, entry)| entry.fingerprint(name, hasher));
    }
}
