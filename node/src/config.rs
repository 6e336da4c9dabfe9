//! Configuration: flags over `TSNODE_*` variables over a TOML file over defaults, each value with its origin.

mod error;
mod knobs;
mod lent_models;
mod node_config;
pub mod secrets;
mod settings_file;
pub mod values;
mod warnings;

pub use error::{ConfigError, SettingOrigin};
pub use knobs::{KNOBS, Knob};
pub use lent_models::BETWEEN;
use settings_file::InFile;
pub use settings_file::ModelTable;
pub use settings_file::usual_file;
pub use warnings::{HostSize, unknown_variables};

use crate::{
    limits::{KEPT, LIMITS_FILE},
    store::folders::xdg,
};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest value that is repeated in an error.
const SHOWN_CHARS: usize = 40;

/// All settings as text, with their origins.
#[derive(Clone, Debug)]
pub struct Settings(BTreeMap<&'static str, (String, SettingOrigin)>, Vec<ModelTable>);

impl Settings {
    /// Gathers settings. `flags` are those given; `file` is read if it exists, and must exist if `named`.
    ///
    /// # Errors
    /// When the file cannot be read or holds what is no setting, or a setting is said to be nothing.
    pub fn gather(
        flags: &BTreeMap<String, String>,
        variables: impl Fn(&str) -> Option<String>,
        file: &Path,
        named: bool,
    ) -> Result<Self, ConfigError> {
        let InFile { values: in_file, models } =
            if named || file.exists() { settings_file::read(file)? } else { InFile::default() };
        let mut all = BTreeMap::new();
        for knob in KNOBS {
            let variable = knob.variable();
            let found = if let Some(value) = flags.get(knob.name) {
                (value.clone(), SettingOrigin::Flag)
            } else if let Some(value) = variables(&variable) {
                (value, SettingOrigin::Variable(variable))
            } else if let Some((value, former)) =
                knob.former_variable().and_then(|former| Some((variables(&former)?, former)))
            {
                (value, SettingOrigin::Variable(former))
            } else if let Some((value, line)) = in_file.get(knob.name) {
                (value.clone(), SettingOrigin::File(file.to_owned(), *line))
            } else {
                (knob.default.to_owned(), SettingOrigin::Default)
            };
            all.insert(knob.name, found);
        }
        let settings = Self(all, models);
        // A script's empty variable is no wish for the default: an invite that was not there would found a swarm.
        let empty =
            settings.iter().find(|(_, value, origin)| value.trim().is_empty() && **origin != SettingOrigin::Default);
        match empty {
            Some((name, ..)) => Err(settings.wrong(name, "nothing is said; leave it out, or give it a value".into())),
            None => Ok(settings),
        }
    }

    /// The same with what the owner has said while a peer of this data folder ran: above the settings file, below variables and flags.
    ///
    /// # Errors
    /// When the file that keeps it cannot be read or holds what is not kept there.
    pub fn with_kept_limits(mut self) -> Result<Self, ConfigError> {
        let path = self.data_dir().join(LIMITS_FILE);
        if !path.exists() {
            return Ok(self);
        }
        let wrong = |line: usize, error: String| ConfigError::Value {
            place: format!("{}:{line}", path.display()),
            error: format!("{error}; remove the file, and say limits anew with: tsnode limits set"),
        };
        let found = settings_file::read(&path).map_err(|error| match error {
            ConfigError::Unreadable { error, .. } => wrong(1, error),
            other => other,
        })?;
        if let Some(model) = found.models.first() {
            return Err(wrong(model.line, "models are not kept there".into()));
        }
        for (name, (value, line)) in found.values {
            let kept = KEPT.into_iter().find(|kept| *kept == name);
            let kept = kept.ok_or_else(|| wrong(line, format!("{name} is not kept there")))?;
            let below = matches!(self.origin(kept), None | Some(SettingOrigin::Default | SettingOrigin::File(..)));
            if below {
                self.0.insert(kept, (value, SettingOrigin::File(path.clone(), line)));
            }
        }
        Ok(self)
    }

    /// What a flag or a variable says of the limits that are kept, which holds again at the next start.
    fn fixed_limits(&self) -> BTreeMap<&'static str, String> {
        let fixed = KEPT
            .into_iter()
            .filter(|name| matches!(self.origin(name), Some(SettingOrigin::Flag | SettingOrigin::Variable(_))));
        fixed.map(|name| (name, self.place(name))).collect()
    }

    /// Every setting with its value and origin.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, &SettingOrigin)> {
        self.0.iter().map(|(name, (value, origin))| (*name, value.as_str(), origin))
    }

    /// What the file says of each model, in its order: name of the value, value and line.
    pub fn model_tables(&self) -> impl Iterator<Item = &ModelTable> {
        self.1.iter()
    }

    /// A setting's text; empty where nothing is said.
    #[must_use]
    pub fn text(&self, name: &'static str) -> &str {
        self.0.get(name).map_or("", |(value, _)| value)
    }

    /// The data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        match self.text("data-dir") {
            "" => xdg("XDG_DATA_HOME", ".local/share").join("tsnode"),
            path => path.into(),
        }
    }

    /// A setting by its own meaning; `None` where nothing is said.
    ///
    /// # Errors
    /// Names setting, value and origin.
    pub fn parse<T>(&self, name: &'static str) -> Result<Option<T>, ConfigError>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|e: T::Err| self.wrong(name, e.to_string()))
    }

    fn wrong(&self, name: &'static str, error: String) -> ConfigError {
        ConfigError::Value { place: self.place(name), error }
    }

    fn origin(&self, name: &'static str) -> Option<&SettingOrigin> {
        self.0.get(name).map(|(_, origin)| origin)
    }

    /// A setting with its value, as it was said.
    fn place(&self, name: &'static str) -> String {
        let value = shown(name, &self.text(name).replace(BETWEEN, " "));
        match self.origin(name) {
            Some(SettingOrigin::Flag) => format!("--{name} {value}"),
            Some(SettingOrigin::Variable(variable)) => format!("{variable}={value}"),
            Some(file @ SettingOrigin::File(..)) => format!("{file}: {} = {value}", name.replace('-', "_")),
            Some(SettingOrigin::Read(from)) => from.clone(),
            Some(SettingOrigin::Default) | None => format!("{name} = {value} (default)"),
        }
    }

    fn whole<T>(&self, name: &'static str, range: RangeInclusive<T>) -> Result<Option<T>, ConfigError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let read = |text| values::whole(text, &range).map_err(|error| self.wrong(name, error));
        Some(self.text(name)).filter(|text| !text.is_empty()).map(read).transpose()
    }

    fn address(&self, name: &'static str) -> Result<SocketAddr, ConfigError> {
        let usual = KNOBS.iter().find(|knob| knob.name == name).and_then(|knob| knob.default.parse().ok());
        let usual = usual.ok_or_else(|| self.wrong(name, "an address is needed".into()))?;
        values::address(self.text(name), usual).map_err(|error| self.wrong(name, error))
    }

    /// Where HTTP listens.
    ///
    /// # Errors
    /// When that is no address.
    pub fn http(&self) -> Result<SocketAddr, ConfigError> {
        self.address("http")
    }

    fn choice<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let found = choices.iter().find(|(text, _)| *text == self.text(name)).map(|(_, value)| *value);
        let names: Vec<&str> = choices.iter().map(|(text, _)| *text).collect();
        found.ok_or_else(|| self.wrong(name, format!("choose one of {}", names.join(", "))))
    }

    fn flag(&self, name: &'static str) -> Result<bool, ConfigError> {
        self.choice(name, &[("true", true), ("false", false), ("1", true), ("0", false)])
    }
}

/// A value as an error repeats it: no key, and nothing that would fill the screen before the reason.
fn shown(name: &str, value: &str) -> String {
    let cut = value.char_indices().nth(SHOWN_CHARS).map(|(at, _)| at);
    match (name, cut) {
        ("api-key", _) if !value.is_empty() => "…".into(),
        // What follows may be the secret of a swarm.
        ("invite", _) if value.chars().count() > 12 => format!("{}…", value.chars().take(8).collect::<String>()),
        (_, Some(at)) => format!("{:?}…", &value[..at]),
        _ if !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic()) => value.to_owned(),
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests;
