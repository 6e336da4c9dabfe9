//! The settings file: TOML, one value a line, and a table for each model where there are several.

use super::{ConfigError, KNOBS, values};
use crate::{plain, store::folders::xdg};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tsnode_protocol::limits;

/// What is said of a model in its table; dashes may be underscores, as in the names of settings.
pub(super) const OF_A_MODEL: [&str; 6] = ["model", "name", "memory", "kv-dtype", "draft", "keep"];

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct InFile {
    /// Keys, with dashes, and their lines.
    pub values: BTreeMap<String, (String, usize)>,
    /// Models of which more is said than which they are.
    pub models: Vec<ModelTable>,
}

/// A model in the file.
#[derive(Clone, Debug)]
pub struct ModelTable {
    /// The file.
    pub path: PathBuf,
    /// Where its table begins.
    pub line: usize,
    /// What is said of it, with dashes, and the lines of that.
    pub values: BTreeMap<&'static str, (String, usize)>,
}

/// The file used where none is named.
#[must_use]
pub fn usual_file() -> PathBuf {
    xdg("XDG_CONFIG_HOME", ".config").join("tsnode/config.toml")
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<InFile, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| ConfigError::Unreadable { path: path.to_owned(), error: plain::io_error(&e) })?;
    // Without its settings a peer would be another one, in another folder.
    if text.is_empty() {
        return Err(ConfigError::Empty { path: path.to_owned() });
    }
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        line: e.span().map_or(1, |s| text[..s.start.min(text.len())].lines().count().max(1)),
        error: e.message().to_owned(),
    })?;
    let mut found = InFile::default();
    for (key, value) in table {
        let line =
            text.lines().position(|l| l.trim_start().trim_start_matches('[').starts_with(&key)).map_or(1, |n| n + 1);
        let (name, path) = (key.replace('_', "-"), path.to_owned());
        if name == "models" {
            found.models = models(&path, (&text, line), value)?;
            continue;
        }
        let Some(knob) = KNOBS.iter().find(|knob| knob.is_called(&name)) else {
            let near = values::nearest(&name, KNOBS.map(|k| k.name)).map(|near| near.replace('-', "_"));
            let next =
                near.map_or("`tsnode config show` lists all settings".into(), |n| format!("did you mean `{n}`?"));
            return Err(ConfigError::Unknown { path, line, key, next });
        };
        let Some(value) = scalar(value) else { return Err(ConfigError::Shape { path, line, key }) };
        if found.values.insert(knob.name.to_owned(), (value, line)).is_some() {
            return Err(ConfigError::Twice { path, line, key });
        }
    }
    Ok(found)
}

fn scalar(value: toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Float(x) => Some(x.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The tables of `[[models]]`.
fn models(path: &Path, (text, line): (&str, usize), value: toml::Value) -> Result<Vec<ModelTable>, ConfigError> {
    let wrong = || ConfigError::Models { path: path.to_owned(), line };
    let toml::Value::Array(tables) = value else { return Err(wrong()) };
    if tables.len() > limits::MODELS {
        let (place, most) = (format!("{}:{line}: [[models]]", path.display()), limits::MODELS);
        let error = format!("{} models are more than the {most} that a peer may lend", tables.len());
        return Err(ConfigError::Value { place, error });
    }
    let header = |l: &str| l.trim_start().starts_with("[[") && l.contains("models");
    let headers: Vec<usize> = text.lines().enumerate().filter(|(_, l)| header(l)).map(|(n, _)| n + 1).collect();
    let table = |(n, table): (usize, toml::Value)| match table {
        toml::Value::Table(table) => of_a_model(path, (text, headers.get(n).copied().unwrap_or(line)), table),
        _ => Err(wrong()),
    };
    tables.into_iter().enumerate().map(table).collect()
}

fn of_a_model(path: &Path, (text, line): (&str, usize), table: toml::Table) -> Result<ModelTable, ConfigError> {
    let mut of = ModelTable { path: path.to_owned(), line, values: BTreeMap::new() };
    for (key, value) in table {
        let at = text.lines().skip(line).position(|l| l.trim_start().starts_with(&key));
        let (path, line, name) = (path.to_owned(), at.map_or(line, |n| line + n + 1), key.replace('_', "-"));
        let Some(known) = OF_A_MODEL.into_iter().find(|known| *known == name) else {
            let all = || OF_A_MODEL.map(|k| k.replace('-', "_")).join(", ");
            let near = values::nearest(&name, OF_A_MODEL).map(|n| format!("did you mean `{}`?", n.replace('-', "_")));
            let next = near.unwrap_or_else(|| format!("a model in [[models]] has {}", all()));
            return Err(ConfigError::Unknown { path, line, key, next });
        };
        let Some(value) = scalar(value) else { return Err(ConfigError::Shape { path, line, key }) };
        if of.values.insert(known, (value, line)).is_some() {
            return Err(ConfigError::Twice { path, line, key });
        }
    }
    Ok(of)
}
