//! A model's small files, read from its folder: so large at most, and JSON as all read it alike.

use super::SourceError;
use crate::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use tsnode_protocol::limits;

/// Small files a gateway needs, as far as a model has them; the first two it must have.
pub const SMALL_FILES: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

pub(super) fn read_small(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, SourceError> {
    let mut files = BTreeMap::new();
    for (i, name) in SMALL_FILES.into_iter().enumerate() {
        let path = folder.join(name);
        let metadata = match std::fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if i < 2 => return Err(SourceError::File { path, error }),
            Err(_) => continue,
        };
        refuse_large(&path, metadata.len())?;
        let bytes = std::fs::read(&path).map_err(|error| SourceError::File { path: path.clone(), error })?;
        // As plain JSON: others are given these files, and all read them alike.
        let plain = name.ends_with(".json").then(|| json::plain(&bytes)).filter(|plain| plain.len() != bytes.len());
        let bytes = plain.map(Cow::into_owned).unwrap_or(bytes);
        refuse_large(&path, bytes.len() as u64)?;
        files.insert(name.to_owned(), bytes);
    }
    Ok(files)
}

pub(super) fn refuse_large(path: &Path, bytes: u64) -> Result<(), SourceError> {
    let limit = limits::MODEL_FILE_BYTES;
    if bytes > limit as u64 { Err(SourceError::TooLarge { path: path.to_owned(), bytes, limit }) } else { Ok(()) }
}
