//! Which files of a folder hold its weights, and which of them has a tensor that several hold.

use super::WeightsError;
use crate::json;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Component, Path};
use tsnode_protocol::limits;

/// Files of one checkpoint.
const SHARDS: usize = 512;
/// The one file of most models.
const WHOLE: &str = "model.safetensors";
/// What says which file has which tensor, where there are several.
const INDEX: &str = "model.safetensors.index.json";
/// What numbered files are called before their number, unless there is only one kind of them.
const STEM: &str = "model";
/// Names of files in an error.
const NAMED: usize = 4;

/// Files of a folder's weights.
#[derive(Debug, Default)]
pub(super) struct WeightFiles {
    /// In the order they are read, within the folder.
    pub names: Vec<String>,
    /// Which of them has a tensor, as far as an index says so.
    pub index: BTreeMap<String, String>,
    /// What was decided, if there was something to decide.
    pub note: Option<String>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// The files of a folder: its whole file, as transformers prefers it; or those that its index names; or, as vLLM has it
/// where there is neither, all that are numbered, or the only one there is.
pub(super) fn find(folder: &Path) -> Result<WeightFiles, WeightsError> {
    let (whole, index) = (folder.join(WHOLE).exists(), folder.join(INDEX));
    let alone = |name: &str| WeightFiles { names: vec![name.to_owned()], ..WeightFiles::default() };
    if index.exists() {
        match read_index(&index) {
            Ok(map) if !whole || map.values().any(|file| file == WHOLE) => return Ok(indexed(map)),
            Err(error) if !whole => return Err(error),
            // It tells of files that the whole one was made of, or was to be cut into.
            _ => {}
        }
        let note = format!("{} is not read, since {WHOLE} lies beside it and holds the whole model", index.display());
        return Ok(WeightFiles { note: Some(note), ..alone(WHOLE) });
    }
    if whole {
        return Ok(alone(WHOLE));
    }
    let others = others(folder);
    if let Some((stem, total)) = numbered_set(&others) {
        let names: Vec<String> = (1..=total).map(|number| numbered(stem, number, total)).collect();
        return match names.iter().find(|name| !folder.join(name).exists()) {
            Some(name) => Err(WeightsError::NoShard { path: folder.join(name), total }),
            None => Ok(WeightFiles { names, ..WeightFiles::default() }),
        };
    }
    match &others[..] {
        [one] if is_safetensors(one) => Ok(alone(one)),
        _ => Err(WeightsError::NoFiles { found: listed(&others) }),
    }
}

/// The folder whose numbered files one file belongs to, if it is one of several.
pub(super) fn siblings(path: &Path) -> Option<&Path> {
    let name = path.file_name()?.to_str()?;
    parts(name).filter(|(_, _, total)| *total > 1).and_then(|_| path.parent())
}

fn indexed(index: BTreeMap<String, String>) -> WeightFiles {
    let names: BTreeSet<&String> = index.values().collect();
    WeightFiles { names: names.into_iter().cloned().collect(), index, note: None }
}

/// Which file has which tensor.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    let broken = |error: String| WeightsError::Index { path: path.to_owned(), error };
    let io = |error| WeightsError::Io { path: path.to_owned(), error };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > limits::MODEL_FILE_BYTES as u64 {
        return Err(broken(format!("{bytes} bytes, at most {} are read", limits::MODEL_FILE_BYTES)));
    }
    let text = std::fs::read(path).map_err(io)?;
    let read = serde_json::from_slice(&json::plain(&text));
    let wanted = "weight_map, the names of tensors and of the file that each is in,";
    let ShardIndex { mut weight_map } = read.map_err(|e| broken(json::fault(&e, wanted)))?;
    for (tensor, file) in &mut weight_map {
        *file = within(file).ok_or_else(|| {
            let short = |text: &str| text.chars().take(80).collect::<String>();
            let (file, tensor) = (short(file), short(tensor));
            broken(format!(
                "weight_map names {file:?} for {tensor}, which is no file within the folder: get the file again"
            ))
        })?;
    }
    let files: BTreeSet<&String> = weight_map.values().collect();
    match files.len() {
        1..=SHARDS => Ok(weight_map),
        0 => Err(broken("weight_map names no file: get the file again".into())),
        many => Err(broken(format!("weight_map names {many} files, at most {SHARDS} are read"))),
    }
}

/// A file's name within a folder, in one spelling; none for one that leads out of it.
fn within(name: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    // A name that a system would take apart otherwise than this one.
    let foreign = name.contains(['\\', '\0']);
    (!parts.is_empty() && !foreign).then(|| parts.join("/"))
}

/// Files that could be weights, by name.
fn others(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let weights = |name: &String| is_safetensors(name) || Path::new(name).extension() == Some(OsStr::new("bin"));
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).filter(weights).collect();
    names.sort_unstable_by_key(|name| (!is_safetensors(name), name.clone()));
    names
}

fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension() == Some(OsStr::new("safetensors"))
}

/// What numbered files are called, and how many there are: the usual name, or the only one.
fn numbered_set(names: &[String]) -> Option<(&str, u32)> {
    let sets: BTreeSet<(&str, u32)> =
        names.iter().filter_map(|name| parts(name)).map(|(stem, _, total)| (stem, total)).collect();
    let usual: Vec<&(&str, u32)> = sets.iter().filter(|(stem, _)| *stem == STEM).collect();
    match (&usual[..], sets.len()) {
        ([one], _) => Some(**one),
        ([], 1) => sets.first().copied(),
        _ => None,
    }
}

/// `name-00002-of-00003.safetensors` in parts.
fn parts(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| digits.parse::<u32>().ok().filter(|_| digits.len() == 5 && !digits.starts_with('+'));
    let (number, total) = (five(number)?, five(total)?);
    (number >= 1 && number <= total && total as usize <= SHARDS).then_some((stem, number, total))
}

fn numbered(stem: &str, number: u32, total: u32) -> String {
    format!("{stem}-{number:05}-of-{total:05}.safetensors")
}

fn listed(names: &[String]) -> String {
    let some = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "no .safetensors file at all".into(),
        1..=NAMED => format!("only {some}"),
        many => format!("only {some} and {} more", many - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_within_the_folder_or_refused() {
        for (name, one) in [("a", "a"), ("./a", "a"), ("a//b/./c", "a/b/c"), ("a:b", "a:b")] {
            assert_eq!(within(name).as_deref(), Some(one), "{name}");
        }
        for out in ["", ".", "..", "../a", "a/../b", "/a", "a\\b", "a\0"] {
            assert_eq!(within(out), None, "{out:?}");
        }
    }

    #[test]
    fn numbered_files_are_told_by_their_number() {
        assert_eq!(parts("a-b-00002-of-00003.safetensors"), Some(("a-b", 2, 3)));
        let none = ["model-00004-of-00003.safetensors", "model-00000-of-00003.safetensors", "model-1-of-2.safetensors"];
        for name in none.into_iter().chain(["model-+0001-of-00002.safetensors", "model-00001-of-00600.safetensors"]) {
            assert_eq!(parts(name), None, "{name}");
        }
        let set = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            numbered_set(&names).map(|(stem, total)| (stem.to_owned(), total))
        };
        let (model, other) = ("model-00001-of-00002.safetensors", "x-00001-of-00002.safetensors");
        assert_eq!(set(&[other]), Some(("x".into(), 2)));
        assert_eq!(set(&[model, other, "x.safetensors"]), Some(("model".into(), 2)));
        assert_eq!(set(&[model, "model-00001-of-00003.safetensors"]), None);
        assert_eq!(set(&[other, "y-00001-of-00001.safetensors"]), None);
    }
}
