//! A folder's small files out of a GGUF file's metadata.

use super::{
    Gguf, GgufError, Metadata,
    architecture::Architecture,
    config,
    shapes::Shapes,
    tokenizer::{self, special::Special, vocabulary::Vocabulary},
};
use std::collections::BTreeMap;

/// The small files of a folder, by name: from the metadata of the first file and the tensors of all.
pub(crate) fn small_files(metadata: &Metadata<'_>, heads: &[Gguf<'_>]) -> Result<BTreeMap<String, Vec<u8>>, GgufError> {
    let architecture = Architecture::of(metadata)?;
    let (mut files, special) = text_files(metadata)?;
    files.insert("config.json".to_owned(), config::json(metadata, architecture, &Shapes::of(heads), &special)?);
    Ok(files)
}

/// The small files about text, and the tokens config.json names too.
pub(super) fn text_files(metadata: &Metadata<'_>) -> Result<(BTreeMap<String, Vec<u8>>, Special), GgufError> {
    let mut vocabulary = Vocabulary::of(metadata)?;
    let special = Special::of(metadata, &mut vocabulary)?;
    Ok((tokenizer::files(metadata, &vocabulary, &special)?, special))
}
