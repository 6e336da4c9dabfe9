//! What a text means that names a model: something on disk, an alias, or a model of the hub.

use super::{
    catalogue,
    name::{ModelName, NameError},
};
use std::path::{Path, PathBuf};

/// What is called so is a file.
const ENDINGS: [&str; 4] = [".gguf", ".safetensors", ".bin", ".pth"];

/// What somebody asks for who names a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedModel {
    /// Something on this host's disk.
    Path(PathBuf),
    /// A model of the hub.
    Model(ModelName),
}

impl AskedModel {
    /// What a text means. What is on disk goes first, as everywhere; what looks like a path is one.
    ///
    /// # Errors
    /// When it is neither.
    pub fn of(text: &str) -> Result<Self, NameError> {
        let path = Path::new(text);
        let lower = text.to_ascii_lowercase();
        let is_path = path.exists()
            || text.starts_with(['/', '.', '~'])
            || (ENDINGS.iter().any(|ending| lower.ends_with(ending)) && !text.contains("://"))
            || !text.contains(['/', ':']);
        if is_path { Ok(Self::Path(path.to_owned())) } else { model(text).map(Self::Model) }
    }
}

/// The model of the hub that a text names, by an alias or in full.
///
/// # Errors
/// When it names none.
pub fn model(text: &str) -> Result<ModelName, NameError> {
    if let Some(alias) = catalogue::find(text) {
        return Ok(alias.model.clone());
    }
    if text.contains(':') && !text.contains('/') {
        let near = catalogue::nearest(text).map_or(String::new(), |near| format!("; did you mean {near}?"));
        return Err(NameError::new(text, format!("the catalogue has no such alias{near}")));
    }
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_told_apart() {
        let asked = |text: &str| AskedModel::of(text).unwrap();
        for path in ["./org/repo", "/models/x", "~/x", "model.gguf", "org/repo.gguf", "folder", "."] {
            assert_eq!(asked(path), AskedModel::Path(path.into()), "{path}");
        }
        assert!(
            matches!(asked("org/repo"), AskedModel::Model(_)) && matches!(asked("llama3.2:1b"), AskedModel::Model(_))
        );
        let said = AskedModel::of("llama3.2:1c").unwrap_err().to_string();
        assert!(said.contains("did you mean llama3.2:1b?"), "{said}");
        // What is there is meant.
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("org/repo");
        std::fs::create_dir_all(&there).unwrap();
        assert_eq!(asked(there.to_str().unwrap()), AskedModel::Path(there.clone()));
    }
}
