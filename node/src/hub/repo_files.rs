//! Which files of a repository make a model: safetensors with what belongs to them, or the GGUF files of one quantisation.

use super::{
    error::HubError,
    name::{ModelName, Quant},
};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Where nothing else is said: what llama.cpp and Ollama take.
const USUAL_QUANT: &str = "Q4_K_M";
/// Says in which file each tensor is.
pub const INDEX: &str = "model.safetensors.index.json";
/// What a folder of safetensors must have beside its weights.
const NEEDED: [&str; 2] = ["config.json", "tokenizer.json"];

/// What is opened to serve a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointFormat {
    /// A folder of safetensors.
    Folder,
    /// A GGUF file, or the first of several.
    Gguf(String),
    /// A folder of PyTorch pickles, which are not served.
    Pickles,
}

/// A model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenFiles {
    /// By their paths in the repository, in order.
    pub files: Vec<String>,
    /// What is opened.
    pub form: CheckpointFormat,
}

/// Chooses among a repository's files.
///
/// # Errors
/// When none of them are a model's, or several models are as good.
pub fn choose(files: &[String], name: &ModelName) -> Result<ChosenFiles, HubError> {
    let models = ggufs(files);
    if let Some(quant) = &name.quant {
        return of_quant(&models, quant, name);
    }
    let weights = safetensors(files);
    if !weights.is_empty() {
        return Ok(ChosenFiles { files: with_small(files, weights), form: CheckpointFormat::Folder });
    }
    if models.len() == 1 {
        return Ok(gguf(&models[0].1));
    }
    if let Ok(quant) = USUAL_QUANT.parse()
        && !models.is_empty()
    {
        return of_quant(&models, &quant, name);
    }
    let pickles: Vec<String> = files.iter().filter(|file| is_pickle(file)).cloned().collect();
    match pickles.is_empty() {
        true => Err(HubError::NoWeights { repo: name.repo.clone(), pickles: false }),
        false => Ok(ChosenFiles { files: with_small(files, pickles), form: CheckpointFormat::Pickles }),
    }
}

/// The names under which a repository's files can be asked for, one for each model.
pub fn names(files: &[String], name: &ModelName) -> Vec<ModelName> {
    let whole = ModelName { quant: None, ..name.clone() };
    let has_folder = !safetensors(files).is_empty() || files.iter().any(|file| is_pickle(file));
    let quants: BTreeSet<Option<Quant>> = ggufs(files).into_iter().map(|(quant, _)| quant).collect();
    let of_quant = |quant| ModelName { quant, ..name.clone() };
    let folder = has_folder.then_some(whole).into_iter();
    folder.chain(quants.into_iter().map(of_quant)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A file that a choice lacks, as its index or the numbers in its names say.
pub fn lacking(choice: &ChosenFiles, index: Option<&[u8]>) -> Option<String> {
    let has = |file: &str| choice.files.iter().any(|other| other == file);
    if let CheckpointFormat::Gguf(first) = &choice.form {
        return numbered(first)?.rest().find(|file| !has(file));
    }
    let needed = NEEDED.into_iter().find(|file| !has(file)).map(str::to_owned);
    let first = choice.files.iter().find_map(|file| numbered(file));
    let counted = || first.and_then(|first| first.rest().find(|file| !has(file)));
    let listed = || index.and_then(|index| indexed(index).into_iter().find(|file| !has(file)));
    needed.or_else(|| if has("model.safetensors") { None } else { listed().or_else(counted) })
}

/// The files that an index names.
fn indexed(index: &[u8]) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct RepoIndex {
        weight_map: BTreeMap<String, String>,
    }
    serde_json::from_slice(index).map_or(BTreeSet::new(), |RepoIndex { weight_map }| weight_map.into_values().collect())
}

/// The weights that transformers would load: one file, or the parts that its index names.
fn safetensors(files: &[String]) -> Vec<String> {
    if files.iter().any(|file| file == "model.safetensors") {
        return vec!["model.safetensors".into()];
    }
    let is_part = |file: &&String| {
        !file.contains('/') && file.starts_with("model") && file.ends_with(".safetensors") && numbered(file).is_some()
    };
    files.iter().filter(is_part).cloned().collect()
}

fn is_pickle(file: &str) -> bool {
    file.starts_with("pytorch_model") && file.ends_with(".bin") && !file.contains('/')
}

/// Weights with the small files beside them: settings, tokenizers, templates, licences; also those of an encoder's parts.
fn with_small(files: &[String], weights: Vec<String>) -> Vec<String> {
    let is_small = |file: &str| {
        let (folder, own) = file.rsplit_once('/').unwrap_or(("", file));
        let is_json = own.ends_with(".json");
        match folder {
            "" => is_json || own.ends_with(".jinja") || own.to_ascii_uppercase().starts_with("LICENSE"),
            _ => own == "config.json" && !folder.contains('/') && folder.starts_with(|c: char| c.is_ascii_digit()),
        }
    };
    let is_of_others = |file: &str| file.ends_with(".index.json") && !weights.iter().any(|w| numbered(w).is_some());
    let small = files.iter().filter(|file| is_small(file) && !is_of_others(file)).cloned();
    small.chain(weights.iter().cloned()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The GGUF models of a repository: how each is stored, and its files.
fn ggufs(files: &[String]) -> Vec<(Option<Quant>, Vec<String>)> {
    let mut models: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // What sees or hears is another network.
    let is_model = |file: &&String| {
        let lower = file.to_ascii_lowercase();
        lower.ends_with(".gguf") && !lower.contains("mmproj") && !lower.contains("imatrix")
    };
    for file in files.iter().filter(is_model) {
        let stem = numbered(file).map_or(file.clone(), |parts| parts.stem.to_owned());
        models.entry(stem).or_default().push(file.clone());
    }
    models.into_values().map(|files| (Quant::of_file(&files[0]), files)).collect()
}

fn of_quant(models: &[(Option<Quant>, Vec<String>)], quant: &Quant, name: &ModelName) -> Result<ChosenFiles, HubError> {
    let found = models.iter().find(|(own, _)| own.as_ref() == Some(quant)).map(|(_, files)| gguf(files));
    found.ok_or_else(|| {
        let there: BTreeSet<String> = models.iter().filter_map(|(own, _)| own.as_ref().map(Quant::to_string)).collect();
        match there.is_empty() {
            true => HubError::NoWeights { repo: name.repo.clone(), pickles: false },
            false => HubError::NoQuant { name: name.clone(), there: there.into_iter().collect() },
        }
    })
}

fn gguf(files: &[String]) -> ChosenFiles {
    let mut files = files.to_vec();
    files.sort();
    ChosenFiles { form: CheckpointFormat::Gguf(files[0].clone()), files }
}

/// A file that is one of several.
#[derive(Clone, Copy)]
struct Numbered<'f> {
    stem: &'f str,
    total: u32,
    ending: &'f str,
}

impl<'f> Numbered<'f> {
    /// All files that there are with it.
    fn rest(self) -> impl Iterator<Item = String> + 'f {
        let Self { stem, total, ending } = self;
        (1..=total).map(move |number| format!("{stem}-{number:05}-of-{total:05}{ending}"))
    }
}

/// `model-00001-of-00003.safetensors` in parts.
fn numbered(file: &str) -> Option<Numbered<'_>> {
    /// Files of one model.
    const MOST: u32 = 1000;
    let (rest, ending) = file.rsplit_once('.').map(|(rest, _)| (rest, &file[rest.len()..]))?;
    let (rest, total) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| digits.parse::<u32>().ok().filter(|n| digits.len() == 5 && (1..=MOST).contains(n));
    five(number)?;
    Some(Numbered { stem, total: five(total)?, ending })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn of(text: &str, names: &[&str]) -> Result<ChosenFiles, String> {
        choose(&files(names), &text.parse().unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn safetensors_come_with_what_belongs_to_them_and_nothing_else() {
        let there = [
            "README.md",
            "LICENSE",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "original/consolidated.00.pth",
            "1_Pooling/config.json",
            "pytorch_model.bin.index.json",
        ];
        let choice = of("a/b", &there).unwrap();
        let wanted = ["1_Pooling/config.json", "LICENSE", "config.json", "model.safetensors", "tokenizer.json"];
        assert_eq!((choice.files, choice.form), (files(&wanted), CheckpointFormat::Folder));
        let parts = ["config.json", INDEX, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let choice = of("a/b", &parts).unwrap();
        assert_eq!(choice.files.len(), 4);
    }

    #[test]
    fn what_is_missing_is_named() {
        let small = ["config.json", "tokenizer.json"];
        let lacks =
            |more: &[&str], index: Option<&[u8]>| lacking(&of("a/b", &[&small[..], more].concat()).unwrap(), index);
        assert_eq!(lacks(&["model.safetensors"], None), None);
        assert_eq!(
            lacks(&["model-00001-of-00002.safetensors"], None).as_deref(),
            Some("model-00002-of-00002.safetensors")
        );
        let index = br#"{"weight_map": {"x": "model-00001-of-00001.safetensors", "y": "other.safetensors"}}"#;
        assert_eq!(lacks(&["model-00001-of-00001.safetensors"], Some(index)).as_deref(), Some("other.safetensors"));
        let bare = of("a/b", &["model.safetensors", "config.json"]).unwrap();
        assert_eq!(lacking(&bare, None).as_deref(), Some("tokenizer.json"));
        let gguf = of("a/b:Q4_0", &["x-Q4_0-00001-of-00003.gguf", "x-Q4_0-00002-of-00003.gguf"]).unwrap();
        assert_eq!(lacking(&gguf, None).as_deref(), Some("x-Q4_0-00003-of-00003.gguf"));
    }

    #[test]
    fn a_quantisation_is_one_model_of_several() {
        let there = ["m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "mmproj-F16.gguf"];
        assert_eq!(of("a/b:q8_0", &there).unwrap().form, CheckpointFormat::Gguf("m-Q8_0-00001-of-00002.gguf".into()));
        assert_eq!(of("a/b:Q8_0", &there).unwrap().files.len(), 2);
        assert_eq!(of("a/b", &there).unwrap().files, ["m-Q4_K_M.gguf"], "the usual one");
        let said = of("a/b:Q2_K", &there).unwrap_err();
        assert!(said.contains("the repository has Q4_K_M, Q8_0; name one of them, as a/b:Q4_K_M"), "{said}");
        assert_eq!(of("a/b", &["only.gguf"]).unwrap().files, ["only.gguf"]);
        let named = names(&files(&there), &"a/b".parse().unwrap());
        assert_eq!(named.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a/b:Q4_K_M", "a/b:Q8_0"]);
    }

    #[test]
    fn pickles_are_no_model_yet() {
        assert_eq!(of("a/b", &["config.json", "pytorch_model.bin"]).unwrap().form, CheckpointFormat::Pickles);
        assert!(of("a/b", &["README.md"]).unwrap_err().contains("neither safetensors nor GGUF"));
    }
}
