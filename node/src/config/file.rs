//! The settings file: TOML, one value a line.

use super::{ConfigError, KNOBS, values};
use crate::{plain, store::folders::xdg};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file used where none is named.
#[must_use]
pub fn usual_file() -> PathBuf {
    xdg("XDG_CONFIG_HOME", ".config").join("tsnode/config.toml")
}

/// Keys of the file, with dashes, and their lines.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, (String, usize)>, ConfigError> {
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
    let mut found = BTreeMap::new();
    for (key, value) in table {
        let line =
            text.lines().position(|l| l.trim_start().trim_start_matches('[').starts_with(&key)).map_or(1, |n| n + 1);
        let (name, path) = (key.replace('_', "-"), path.to_owned());
        let Some(knob) = KNOBS.iter().find(|knob| knob.is_called(&name)) else {
            let near = values::nearest(&name, KNOBS.map(|k| k.name)).map(|near| near.replace('-', "_"));
            let next =
                near.map_or("`tsnode config show` lists all settings".into(), |n| format!("did you mean `{n}`?"));
            return Err(ConfigError::Unknown { path, line, key, next });
        };
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(n) => n.to_string(),
            toml::Value::Float(x) => x.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            _ => return Err(ConfigError::Shape { path, line, key }),
        };
        if found.insert(knob.name.to_owned(), (value, line)).is_some() {
            return Err(ConfigError::Twice { path, line, key });
        }
    }
    Ok(found)
}
