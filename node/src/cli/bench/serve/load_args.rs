//! What every verb that puts load on a server is told: whom it asks, how much at once, and how the outcome is counted and shown.

use super::{drawable, report::GoodputTarget};
use crate::cli::{exit::Exit, is_set, json as json_flag, knobs, switch, whole};
use clap::{Arg, ArgMatches, value_parser};
use std::path::PathBuf;

/// What a command line says of them.
pub(in crate::cli) struct LoadArgs {
    pub seed: u64,
    /// Most requests at once.
    pub concurrency: usize,
    pub goodput: Vec<GoodputTarget>,
    /// Where the outcome is drawn.
    pub svg: Option<PathBuf>,
    pub hides_bar: bool,
    pub json: bool,
}

impl LoadArgs {
    /// Nothing runs whose outcome could not be drawn.
    pub fn of(matches: &ArgMatches) -> Result<Self, Exit> {
        let svg = matches.get_one::<PathBuf>("svg").cloned();
        if let Some(file) = &svg {
            drawable(file)?;
        }
        Ok(Self {
            seed: matches.get_one("seed").copied().unwrap_or(0),
            concurrency: matches.get_one("max-concurrency").copied().unwrap_or(1),
            goodput: matches.get_many::<GoodputTarget>("goodput").into_iter().flatten().copied().collect(),
            svg,
            hides_bar: is_set(matches, "disable-tqdm"),
            json: is_set(matches, "json"),
        })
    }
}

/// The server, and what it wants to be told before it answers.
pub(in crate::cli) fn server() -> Vec<Arg> {
    let mut args = knobs(&["data-dir", "api-key", "api-key-file"]);
    args.push(
        Arg::new("api")
            .long("base-url")
            .visible_alias("api")
            .value_name("URL")
            .help("Server to ask, with or without /v1 [default: the peer in the data folder]"),
    );
    args
}

pub(in crate::cli) fn number(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

pub(in crate::cli) fn tokens(name: &'static str, help: &'static str) -> Arg {
    number(name, "TOKENS", help).value_parser(whole(1_u32..=1 << 20))
}

pub(in crate::cli) fn seed(help: &'static str) -> Arg {
    number("seed", "N", help).value_parser(whole(0..=u64::MAX)).default_value("0")
}

pub(in crate::cli) fn concurrency(help: &'static str) -> Arg {
    number("max-concurrency", "N", help).value_parser(whole(1_usize..=4096)).default_value("256")
}

pub(in crate::cli) fn goodput() -> Arg {
    number("goodput", "METRIC:MS", "Targets that count as kept, as ttft:500 tpot:50 e2el:10000, in milliseconds")
        .num_args(1..)
        .value_parser(|text: &str| text.parse::<GoodputTarget>())
}

/// How the outcome is shown, of which a drawing has this.
pub(in crate::cli) fn shown(drawing: &'static str) -> [Arg; 3] {
    let svg = number("svg", "FILE", drawing).value_parser(value_parser!(PathBuf));
    [svg, switch("disable-tqdm", "Show no progress bar"), json_flag()]
}
