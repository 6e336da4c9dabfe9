//! What verbs are made of: their flags, those of settings, and how values are read.

use crate::config::{KNOBS, values};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

pub(super) fn verb(name: &'static str, about: &'static str, example: &str) -> Command {
    Command::new(name)
        .about(about)
        .after_help(format!("Example:\n  {example}"))
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Settings file [default: $XDG_CONFIG_HOME/tsnode/config.toml]"),
        )
        .args(knobs(&["log", "log-format"]))
        .mut_args(|a| a)
}

/// A verb that asks a running peer.
pub(super) fn asking(name: &'static str, about: &'static str, example: &str) -> Command {
    verb(name, about, example).args(asking_args())
}

pub(super) fn asking_args() -> Vec<Arg> {
    let api = Arg::new("api").long("api").value_name("URL").help("Peer to ask [default: the one in the data folder]");
    let mut args = knobs(&["data-dir", "api-key", "api-key-file"]);
    args.extend([api, json()]);
    args
}

pub(super) fn knobs(names: &[&str]) -> Vec<Arg> {
    let is_switch = |default: &str| matches!(default, "true" | "false");
    let chosen = KNOBS.iter().filter(|k| names.contains(&k.name) && !(names.len() > 2 && k.name.starts_with("log")));
    chosen
        .map(|knob| {
            let arg = Arg::new(knob.name).long(knob.name).aliases(knob.former).help(help(knob.help, knob.default));
            if is_switch(knob.default) {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
            } else if ["model", "keep"].contains(&knob.name) {
                arg.value_name("VALUE").action(ArgAction::Append)
            } else {
                arg.value_name("VALUE")
            }
        })
        .collect()
}

fn help(text: &str, default: &str) -> String {
    if default.is_empty() { text.to_owned() } else { format!("{text} [default: {default}]") }
}

pub(super) fn json() -> Arg {
    switch("json", "Print one JSON document")
}

pub(super) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub(super) fn verbose(help: &'static str) -> Arg {
    switch("verbose", help).short('v')
}

pub(super) fn is_set(matches: &ArgMatches, name: &str) -> bool {
    matches.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false)
}

/// Reads a whole number in a range, and says which there are.
pub(super) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| values::whole(text, &range)
}

/// Reads a number in a range, and says which there are.
pub(super) fn decimal(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| values::decimal(text, &range)
}
