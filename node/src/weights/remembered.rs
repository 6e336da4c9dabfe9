//! Which models were fetched into a folder: where nobody is there who has one, the last of them is lent again.

use super::{drafts, notes};
use crate::store::disk;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tsnode_protocol::{ModelCard, ModelId, limits, weights::WeightsFile};

/// Folder of fetched models in the data folder.
pub(super) const FOLDER: &str = "models";
/// The note's name.
const FILE: &str = "last.json";
/// Longest note (bytes).
const BYTES: u64 = 64 << 10;

/// A model that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    pub name: String,
    /// Its folder, in that of fetched models.
    pub path: PathBuf,
    /// Whether it was never lent: its owner wanted it here, whatever its size, and has not said that others get it.
    #[serde(default)]
    pub only_pulled: bool,
}

impl Remembered {
    fn of(card: &ModelCard) -> Self {
        Self { name: card.name.clone(), path: PathBuf::from(card.id.to_string()), only_pulled: false }
    }

    /// The model that its folder is called after.
    pub fn model(&self) -> Option<ModelId> {
        self.path.to_str()?.parse().ok()
    }

    fn is_inside(&self) -> bool {
        self.path.components().all(|part| matches!(part, Component::Normal(_)))
    }
}

/// The folder of a model of that name, where all of it came from peers before: a model as any other.
#[must_use]
pub fn pulled(data_dir: &Path, name: &str) -> Option<PathBuf> {
    let models = data_dir.join(FOLDER);
    let folder = models.join(last(&models, |other| other.name == name)?.path);
    let (manifest, _) = notes::read(&folder)?;
    // What is not whole is called otherwise.
    let is_there = |(n, file): (usize, &WeightsFile)| {
        let about = fs::metadata(folder.join(drafts::name(&manifest, n)));
        about.is_ok_and(|about| about.is_file() && about.len() == file.bytes)
    };
    manifest.files.iter().enumerate().all(is_there).then_some(folder)
}

/// The last of a folder that is one of those that are meant, if it is still there.
pub(super) fn last(folder: &Path, is_meant: impl Fn(&Remembered) -> bool) -> Option<Remembered> {
    let last = all(folder).into_iter().rfind(is_meant)?;
    (last.is_inside() && folder.join(&last.path).exists()).then_some(last)
}

/// From now on this one is the last, and lent.
pub(super) fn set_last(folder: &Path, card: &ModelCard) {
    let _turn = turn();
    let mut fetched = all(folder);
    fetched.retain(|other| other.name != card.name);
    fetched.push(Remembered::of(card));
    write(folder, &fetched);
}

/// It was pulled; which one is the last stays as it is.
pub(super) fn add(folder: &Path, card: &ModelCard) {
    let _turn = turn();
    let mut fetched = all(folder);
    match fetched.iter_mut().find(|other| other.name == card.name) {
        Some(known) => *known = Remembered { only_pulled: known.only_pulled, ..Remembered::of(card) },
        None => {
            let pulled = Remembered { only_pulled: true, ..Remembered::of(card) };
            fetched.insert(fetched.len().saturating_sub(1), pulled);
        }
    }
    write(folder, &fetched);
}

/// It is here no more.
pub(super) fn forget(folder: &Path, model: ModelId) {
    let _turn = turn();
    let mut fetched = all(folder);
    let before = fetched.len();
    fetched.retain(|other| other.model() != Some(model));
    if fetched.len() < before {
        write(folder, &fetched);
    }
}

/// Who has it may read the note and write it anew: several tasks do.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of them, the last one at the end. A note that cannot be read is none.
pub(super) fn all(folder: &Path) -> Vec<Remembered> {
    let path = folder.join(FILE);
    let is_note = fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() <= BYTES);
    let note = is_note.then(|| fs::read(path).ok()).flatten();
    note.and_then(|note| serde_json::from_slice(&note).ok()).unwrap_or_default()
}

fn write(folder: &Path, all: &[Remembered]) {
    let few = &all[all.len().saturating_sub(limits::MODELS)..];
    let written = serde_json::to_vec(few).map_err(std::io::Error::other);
    if let Err(error) = written.and_then(|note| disk::write_whole(&folder.join(FILE), &note)) {
        tracing::info!(%error, "what was fetched is not remembered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;
    use tsnode_protocol::weights::{self, WeightsForm, WeightsManifest};

    fn card(n: u8) -> ModelCard {
        ModelCard { id: ModelId([n; 16]), name: format!("org/{n}"), ..sample::card() }
    }

    #[test]
    fn the_last_is_found_by_what_is_meant_and_what_is_added_does_not_become_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let found = |is_meant: fn(&Remembered) -> bool| last(folder, is_meant).and_then(|last| last.model());
        assert_eq!(found(|_| true), None);
        for n in [1, 2, 3] {
            fs::create_dir(folder.join(card(n).id.to_string())).unwrap();
        }
        set_last(folder, &card(1));
        set_last(folder, &card(2));
        add(folder, &card(3));
        assert_eq!(found(|_| true), Some(card(2).id));
        assert_eq!(found(|other| other.name == "org/3"), Some(card(3).id));
        assert_eq!(found(|other| other.name == "org/4"), None);
        set_last(folder, &card(1));
        assert_eq!((found(|_| true), all(folder).len()), (Some(card(1).id), 3));
        // What was pulled is known as such until it is lent, also where it is pulled again; what was lent stays so.
        let pulled =
            || -> Vec<_> { all(folder).iter().filter(|other| other.only_pulled).map(Remembered::model).collect() };
        (1..=3).for_each(|n| add(folder, &card(n)));
        assert_eq!(pulled(), [Some(card(3).id)]);
        set_last(folder, &card(3));
        assert_eq!(pulled(), []);
        set_last(folder, &card(1));
        forget(folder, card(2).id);
        assert_eq!((found(|other| other.name == "org/2"), all(folder).len()), (None, 2));
        // One whose folder is gone is not there.
        fs::remove_dir(folder.join(card(1).id.to_string())).unwrap();
        assert_eq!(found(|_| true), None);
        // Of very many the last stay.
        (0..100).for_each(|n| add(folder, &card(n)));
        assert_eq!((all(folder).len(), all(folder).last().cloned()), (limits::MODELS, Some(Remembered::of(&card(1)))));
        // A note that leads elsewhere leads nowhere.
        let outside = [Remembered { name: "org/5".into(), path: "../else".into(), only_pulled: false }];
        write(folder, &outside);
        assert_eq!(found(|_| true), None);
    }

    #[test]
    fn what_was_pulled_is_a_model_once_all_of_its_files_are_whole() {
        let data_dir = tempfile::tempdir().unwrap();
        let models = data_dir.path().join(FOLDER);
        let folder = models.join(card(1).id.to_string());
        fs::create_dir_all(&folder).unwrap();
        set_last(&models, &card(1));
        let found = || pulled(data_dir.path(), "org/1");
        assert_eq!(found(), None, "it is not known what it is made of");
        let hashes = vec![vec![[1; 32]], vec![[2; 32]]];
        let files = hashes.iter().map(|list| WeightsFile { bytes: 5, root: weights::root(list) }).collect();
        notes::write(&folder, &WeightsManifest { form: WeightsForm::Safetensors, files }, &hashes).unwrap();
        fs::write(folder.join("model-00001-of-00002.safetensors"), "12345").unwrap();
        fs::write(folder.join("model-00002-of-00002.safetensors.incomplete"), "12345").unwrap();
        assert_eq!(found(), None);
        fs::write(folder.join("model-00002-of-00002.safetensors"), "1234").unwrap();
        assert_eq!(found(), None);
        fs::write(folder.join("model-00002-of-00002.safetensors"), "12345").unwrap();
        assert_eq!(found(), Some(folder.clone()));
        assert_eq!(pulled(data_dir.path(), "org/2"), None);
    }
}
