//! A model out of its GGUF files: which files there are, their tensors as a checkpoint, and its small files.

use crate::{
    gguf::{Architecture, Gguf, GgufError, TensorInfo, small_files},
    weights::{Checkpoint, FileTensor, Storage, WeightsError},
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Files of one model.
const FILES: u32 = 512;
/// A model's weights and small files.
pub(super) struct OpenedGguf {
    pub checkpoint: Checkpoint,
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Opens a model by its file, or the first of its files.
pub(super) fn open(path: &Path) -> Result<OpenedGguf, WeightsError> {
    let paths = files_of(path)?;
    let maps = paths.iter().map(|path| Storage::map(path)).collect::<Result<Vec<_>, _>>()?;
    open_all(&paths, &maps)
}

/// Opens a model by all of its files, whatever they are called.
pub(super) fn open_all<P: AsRef<Path>>(paths: &[P], maps: &[Storage]) -> Result<OpenedGguf, WeightsError> {
    let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    let path = paths.first().copied().unwrap_or(Path::new(""));
    let mut heads = Vec::new();
    for (map, path) in maps.iter().zip(&paths) {
        heads.push(Gguf::parse(map.bytes()).map_err(because(path))?);
    }
    let metadata = &heads.first().ok_or_else(|| because(path)(GgufError::Split("no file of a model".into())))?.metadata;
    let architecture = Architecture::of(metadata).map_err(because(path))?;
    complete(&heads).map_err(because(path))?;
    let files = small_files(metadata, &heads).map_err(because(path))?;
    let mut checkpoint = Checkpoint::of_gguf(architecture);
    for ((head, map), path) in heads.iter().zip(maps).zip(&paths) {
        let parts = parts(architecture, head).map_err(because(path))?;
        checkpoint.add_parts(map.clone(), parts).map_err(|name| because(path)(GgufError::Twice(name)))?;
    }
    Ok(OpenedGguf { checkpoint, files })
}

fn because(path: &Path) -> impl Fn(GgufError) -> WeightsError + '_ {
    |error| WeightsError::Gguf { path: path.to_owned(), error }
}

/// A file's tensors under the names models ask for.
fn parts(architecture: &'static Architecture, head: &Gguf<'_>) -> Result<Vec<FileTensor>, GgufError> {
    let part = |tensor: &TensorInfo<'_>| {
        let unknown = || GgufError::Tensor {
            name: tensor.name.to_owned(),
            problem: format!("is no part of {} as it is computed here; the answers would be wrong", architecture.name),
        };
        let name = architecture.hugging_face(tensor.name).ok_or_else(unknown)?;
        let shift = if name.ends_with("norm.weight") { -architecture.norm_shift } else { 0.0 };
        Ok(FileTensor { name, shape: tensor.shape.clone(), stored: tensor.stored, range: tensor.range.clone(), shift })
    };
    head.tensors.iter().map(part).collect()
}

/// Refuses files of which one holds fewer tensors than were written.
fn complete(heads: &[Gguf<'_>]) -> Result<(), GgufError> {
    let found: usize = heads.iter().map(|head| head.tensors.len()).sum();
    match heads.first().map(|head| head.metadata.count("split.tensors.count")).transpose()?.flatten() {
        Some(written) if written as usize != found => {
            Err(GgufError::Split(format!("the model's files hold {found} tensors, {written} were written")))
        }
        _ => Ok(()),
    }
}

/// All files of the model that `path` is the first of.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let map = Storage::map(path)?;
    let head = Gguf::parse(map.bytes()).map_err(because(path))?;
    let count = head.metadata.count("split.count").map_err(because(path))?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![path.to_owned()]);
    }
    let split = |why: String| because(path)(GgufError::Split(why));
    if count > FILES {
        return Err(split(format!("one of {count} files, at most {FILES} are read")));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((stem, 1, total)) = numbered(&name).filter(|(_, _, total)| *total == count) else {
        return Err(split(format!("one of {count} files: give the one called …-00001-of-{count:05}.gguf")));
    };
    Ok((1..=count).map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{total:05}.gguf"))).collect())
}

/// `name-00002-of-00003.gguf` in parts.
fn numbered(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| digits.parse().ok().filter(|_| digits.len() == 5);
    Some((stem, five(number)?, five(total)?))
}

/// What a model is called by its file.
pub(super) fn model_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = numbered(&name).map_or(name.strip_suffix(".gguf").unwrap_or(&name), |(stem, _, _)| stem);
    if stem.is_empty() { "model".to_owned() } else { stem.to_owned() }
}

/// GGUF models of a folder, by the first of their files.
pub(super) fn models_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let first = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        is_gguf(path) && numbered(&name).is_none_or(|(_, number, _)| number == 1)
    };
    let mut models: Vec<_> = entries.map(|entry| entry.path()).filter(first).collect();
    models.sort();
    models
}

/// Whether a file is called like a GGUF file.
pub(super) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_model_are_found_by_their_numbers() {
        assert_eq!(numbered("a-b-00001-of-00012.gguf"), Some(("a-b", 1, 12)));
        assert_eq!(numbered("a-1-of-2.gguf"), None);
        assert_eq!(model_name(Path::new("/x/Llama-3-8B-Q4_K_M-00001-of-00002.gguf")), "Llama-3-8B-Q4_K_M");
        assert_eq!(model_name(Path::new("tiny.gguf")), "tiny");
    }
}
