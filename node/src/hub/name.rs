//! Names of the hub's models: `org/repo`, `org/repo:Q4_K_M`, `org/repo@revision`.

use std::fmt;
use std::str::FromStr;

/// Longest part of a repository's name, as the hub has it.
const PART_BYTES: usize = 96;
/// Longest name of a branch, tag or commit.
const REVISION_BYTES: usize = 128;
/// How people write that a name is the hub's; it is so without.
const PREFIXES: [&str; 4] = ["hf://", "https://huggingface.co/", "huggingface.co/", "hf.co/"];
/// Bytes of a text that an error repeats.
const SHOWN: usize = 80;

/// No name of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no model: {why}; write org/repo, org/repo:Q4_K_M, org/repo@revision, a path, or an alias of `tsnode models search`"
)]
pub struct NameError {
    text: String,
    why: String,
}

impl NameError {
    /// That a text is none, and why.
    pub(super) fn new(text: &str, why: impl Into<String>) -> Self {
        Self { text: text.chars().take(SHOWN).collect(), why: why.into() }
    }
}

/// A repository of the hub: `org/repo`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepoId(String);

impl RepoId {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its folder in the cache.
    #[must_use]
    pub fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The repository whose folder is called so.
    #[must_use]
    pub fn of_folder(name: &str) -> Option<Self> {
        let (org, repo) = name.strip_prefix("models--")?.split_once("--")?;
        format!("{org}/{repo}").parse().ok()
    }
}

impl FromStr for RepoId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').filter(|(_, repo)| !repo.contains('/'));
        let Some((org, repo)) = parts else { return Err("a repository has two parts, as org/repo".into()) };
        let is_fine = |part: &str| {
            let edge = |c: char| matches!(c, '.' | '-');
            !part.is_empty()
                && part.len() <= PART_BYTES
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
                && !part.starts_with(edge)
                && !part.ends_with(edge)
                && !part.contains("..")
                && !part.contains("--")
        };
        match is_fine(org) && is_fine(repo) {
            true => Ok(Self(text.to_owned())),
            false => Err("its parts have letters, digits, single dots and dashes, and underscores".into()),
        }
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A branch, a tag or a commit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(String);

impl Revision {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a commit, which never means anything else.
    #[must_use]
    pub fn is_commit(&self) -> bool {
        self.0.len() == 40 && self.0.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self("main".into())
    }
}

impl FromStr for Revision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
        let is_fine = text.len() <= REVISION_BYTES
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'))
            && text.split('/').all(is_part)
            && !text.contains("..");
        if is_fine { Ok(Self(text.to_owned())) } else { Err("that is no branch, tag or commit".into()) }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a GGUF file's weights are stored, as its name says: `Q4_K_M`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quant(String);

impl Quant {
    /// As it is written, in upper case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What a GGUF file's name says of how it is stored.
    #[must_use]
    pub fn of_file(file: &str) -> Option<Self> {
        let stem = file.get(..file.len().checked_sub(5)?).filter(|_| file.to_ascii_lowercase().ends_with(".gguf"))?;
        let words = stem.split(['-', '.', '/']).rev().map(str::to_ascii_uppercase);
        words.into_iter().find(|word| is_quant(word)).map(Self)
    }
}

/// `Q4_K_M`, `IQ2_XXS`, `BF16` and the like.
fn is_quant(word: &str) -> bool {
    let digits = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    matches!(word, "F16" | "BF16" | "F32" | "MXFP4" | "MXFP4_MOE")
        || ["Q", "IQ", "TQ"].iter().any(|kind| word.strip_prefix(kind).is_some_and(digits))
}

impl FromStr for Quant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = text.to_ascii_uppercase();
        let is_fine = word.len() <= 16 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_fine && is_quant(&word) { Ok(Self(word)) } else { Err("a quantisation is written as Q4_K_M".into()) }
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A model of the hub.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName {
    /// Where it is.
    pub repo: RepoId,
    /// Which of its GGUF files.
    pub quant: Option<Quant>,
    /// As of when.
    pub revision: Revision,
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = |why: String| NameError::new(text, why);
        let own = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
        let (rest, revision) = match own.split_once('@') {
            Some((rest, revision)) => (rest, revision.parse().map_err(wrong)?),
            None => (own, Revision::default()),
        };
        let (repo, quant) = match rest.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant.parse().map_err(wrong)?)),
            None => (rest, None),
        };
        Ok(Self { repo: repo.parse().map_err(wrong)?, quant, revision })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        if self.revision != Revision::default() {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_people_write_them() {
        for (text, meant) in [
            ("org/repo", "org/repo"),
            ("org/repo:q4_k_m", "org/repo:Q4_K_M"),
            ("org/repo@v1.0", "org/repo@v1.0"),
            ("org/repo:Q8_0@refs/pr/1", "org/repo:Q8_0@refs/pr/1"),
            ("org/repo@main", "org/repo"),
            ("hf.co/org/repo:IQ2_XXS", "org/repo:IQ2_XXS"),
            ("https://huggingface.co/org/repo", "org/repo"),
        ] {
            let name: ModelName = text.parse().unwrap();
            assert_eq!(name.to_string(), meant, "{text}");
            assert_eq!(meant.parse::<ModelName>().unwrap(), name);
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        for wrong in [
            "../repo",
            "org/..",
            "org/../etc",
            "org/re..po",
            "org/a--b",
            "org/",
            "/etc/passwd",
            "org/repo@../main",
            "org/repo@a/../b",
            "org/repo@/main",
            "org/repo@.hidden",
            "org/repo:../x",
            "org/repo:Q4 K",
            "org/re po",
            "org/rep\u{7}o",
            "org/repo/more",
            "ｏrg/repo",
        ] {
            let said = wrong.parse::<ModelName>().unwrap_err().to_string();
            assert!(said.contains("names no model") && !said.contains('\n'), "{wrong}: {said}");
        }
        let long = format!("org/{}", "a".repeat(PART_BYTES + 1));
        assert!(long.parse::<ModelName>().is_err());
    }

    #[test]
    fn files_say_how_they_are_stored() {
        let of = |file: &str| Quant::of_file(file).map(|quant| quant.to_string());
        assert_eq!(of("Llama-3.2-1B-Instruct-Q4_K_M.gguf").as_deref(), Some("Q4_K_M"));
        assert_eq!(of("model.q8_0.gguf").as_deref(), Some("Q8_0"));
        assert_eq!(of("Q5_K_M/big-00001-of-00002.gguf").as_deref(), Some("Q5_K_M"));
        assert_eq!(of("Qwen3-0.6B-BF16.gguf").as_deref(), Some("BF16"));
        assert_eq!((of("Qwen3.gguf"), of("Q4_K_M.safetensors"), of("")), (None, None, None));
    }

    #[test]
    fn folders_of_the_cache_are_repositories() {
        let repo: RepoId = "org/my-model_1.5".parse().unwrap();
        assert_eq!(repo.folder(), "models--org--my-model_1.5");
        assert_eq!(RepoId::of_folder(&repo.folder()), Some(repo));
        for other in ["datasets--a--b", "models--gpt2", "models--..--x", ".locks"] {
            assert_eq!(RepoId::of_folder(other), None, "{other}");
        }
    }
}
