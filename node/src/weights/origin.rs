//! Where a folder's model came from before peers gave it, kept beside its weights: whoever has it knows, with nobody there to ask, under
//! which terms it may be given on.

use crate::store::disk;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tsnode_protocol::ModelOrigin;

/// The note's name.
const FILE: &str = "origin.json";
/// Longest note (bytes).
const BYTES: u64 = 64 << 10;

/// What is known of where a folder's model came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptOrigin {
    /// Nobody said anything.
    Unsaid,
    /// As members said it.
    Said(ModelOrigin),
    /// Something was said, in this note, which cannot be read any more.
    Unreadable(PathBuf),
}

impl KeptOrigin {
    /// Whether its terms have to be accepted by whoever has it, as far as it is known: what cannot be read may have said so.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        match self {
            Self::Unsaid => false,
            Self::Said(origin) => origin.is_gated,
            Self::Unreadable(_) => true,
        }
    }

    /// What was said.
    #[must_use]
    pub fn said(&self) -> Option<&ModelOrigin> {
        if let Self::Said(origin) = self { Some(origin) } else { None }
    }
}

/// What is known of the model at a path: its folder, or a file in that.
#[must_use]
pub fn kept_origin(path: &Path) -> KeptOrigin {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let Some(note) = folder.map(|folder| folder.join(FILE)) else { return KeptOrigin::Unsaid };
    match read(&note) {
        Ok(origin) => KeptOrigin::Said(origin),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            KeptOrigin::Unsaid
        }
        Err(_) => KeptOrigin::Unreadable(note),
    }
}

fn read(note: &Path) -> io::Result<ModelOrigin> {
    let about = fs::metadata(note)?;
    if !about.is_file() || about.len() > BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let origin: ModelOrigin = serde_json::from_slice(&fs::read(note)?).map_err(io::Error::other)?;
    origin.check().map_err(io::Error::other)?;
    Ok(origin)
}

/// Keeps what members say now. What was gated once stays so, and so does what may have been: who fetches it anew, into a folder of which
/// nothing is left, knows what is said then.
pub(super) fn keep(folder: &Path, said: ModelOrigin) -> io::Result<()> {
    let known = kept_origin(folder);
    let origin = ModelOrigin { is_gated: said.is_gated || known.is_gated(), is_given: false, ..said };
    if known.said() == Some(&origin) {
        return Ok(());
    }
    disk::write_whole(&folder.join(FILE), &serde_json::to_vec(&origin).map_err(io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::ModelId;

    fn said(source: &str, is_gated: bool) -> ModelOrigin {
        let (model, licence) = (ModelId([1; 16]), Some("llama3.2".into()));
        ModelOrigin { model, source: source.into(), licence, is_gated, is_given: true }
    }

    #[test]
    fn what_was_gated_once_stays_so_whoever_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, file) = (folder.path(), folder.path().join("model.gguf"));
        assert_eq!(kept_origin(folder), KeptOrigin::Unsaid);
        assert_eq!(kept_origin(&folder.join("none/model.gguf")), KeptOrigin::Unsaid);
        keep(folder, said("org/a@0", true)).unwrap();
        fs::write(&file, "weights").unwrap();
        let kept = KeptOrigin::Said(ModelOrigin { is_given: false, ..said("org/a@0", true) });
        assert_eq!((kept_origin(folder), kept_origin(&file)), (kept.clone(), kept));
        keep(folder, said("org/b@0", false)).unwrap();
        let now = kept_origin(folder).said().unwrap().clone();
        assert_eq!((now.source.as_str(), now.is_gated, now.is_given), ("org/b@0", true, false));
    }

    #[test]
    fn what_cannot_be_read_may_have_been_gated_until_it_is_fetched_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, note) = (folder.path(), folder.path().join(FILE));
        // What a terminal would obey is no origin, nor is a note that was cut.
        let escape = serde_json::to_vec(&said("a\u{1b}[2J", false)).unwrap();
        for broken in [escape, b"{".to_vec(), Vec::new(), vec![b' '; BYTES as usize + 1]] {
            fs::write(&note, broken).unwrap();
            assert_eq!(kept_origin(folder), KeptOrigin::Unreadable(note.clone()));
            assert!(kept_origin(folder).is_gated());
            // Who is there now may not know.
            keep(folder, said("org/b@0", false)).unwrap();
            assert!(kept_origin(folder).said().unwrap().is_gated);
        }
        fs::remove_file(&note).unwrap();
        fs::create_dir(&note).unwrap();
        assert!(kept_origin(folder).is_gated());
        fs::remove_dir(&note).unwrap();
        keep(folder, said("org/b@0", false)).unwrap();
        assert!(!kept_origin(folder).is_gated());
    }
}
