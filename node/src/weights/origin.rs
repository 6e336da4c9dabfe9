//! Where a folder's model came from before peers gave it, kept beside its weights: whoever has it knows, with nobody there to ask, under
//! which terms it may be given on.

use crate::store::disk;
use std::fs;
use std::io;
use std::path::Path;
use tsnode_protocol::ModelOrigin;

/// The note's name.
const FILE: &str = "origin.json";
/// Longest note (bytes).
const BYTES: u64 = 64 << 10;

/// What is known of the model at a path: its folder, or a file in that. A note that cannot be read is none.
#[must_use]
pub fn kept_origin(path: &Path) -> Option<ModelOrigin> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let note = folder.join(FILE);
    fs::metadata(&note).ok().filter(|about| about.is_file() && about.len() <= BYTES)?;
    let origin: ModelOrigin = serde_json::from_slice(&fs::read(note).ok()?).ok()?;
    origin.check().is_ok().then_some(origin)
}

/// Keeps what members say now. What was gated once stays so.
pub(super) fn keep(folder: &Path, said: ModelOrigin) -> io::Result<()> {
    let known = kept_origin(folder);
    let is_gated = said.is_gated || known.as_ref().is_some_and(|known| known.is_gated);
    let origin = ModelOrigin { is_gated, is_given: false, ..said };
    if known.as_ref() == Some(&origin) {
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
        assert_eq!(kept_origin(folder), None);
        keep(folder, said("org/a@0", true)).unwrap();
        fs::write(&file, "weights").unwrap();
        let kept = ModelOrigin { is_given: false, ..said("org/a@0", true) };
        assert_eq!((kept_origin(folder), kept_origin(&file)), (Some(kept.clone()), Some(kept)));
        keep(folder, said("org/b@0", false)).unwrap();
        let now = kept_origin(folder).unwrap();
        assert_eq!((now.source.as_str(), now.is_gated, now.is_given), ("org/b@0", true, false));
        // What a terminal would obey is no origin, nor is a note that was cut.
        fs::write(folder.join(FILE), serde_json::to_vec(&said("a\u{1b}[2J", false)).unwrap()).unwrap();
        assert_eq!(kept_origin(folder), None);
        fs::write(folder.join(FILE), "{").unwrap();
        assert_eq!(kept_origin(folder), None);
    }
}
