//! `tsnode bench`: what this machine does with a model.

mod engine;
mod kv;

use crate::exit::{Exit, Kind};
use clap::{Arg, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use tsnode_kernels::source::ModelSource;

pub(super) fn command() -> Command {
    Command::new("bench")
        .about("Measure")
        .subcommand_required(true)
        .subcommand(engine::command())
        .subcommand(kv::command())
}

pub(super) fn run(matches: &ArgMatches) -> Result<(), Exit> {
    match matches.subcommand() {
        Some(("engine", matches)) => engine::run(matches),
        Some((_, matches)) => kv::run(matches),
        None => Ok(()),
    }
}

fn model() -> Arg {
    Arg::new("model")
        .long("model")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .help("Model: a folder or a GGUF file [default: the embedded one]")
}

fn open(matches: &ArgMatches) -> Result<ModelSource, Exit> {
    let source = match matches.get_one::<PathBuf>("model") {
        Some(path) => ModelSource::open(path),
        None => ModelSource::embedded(),
    };
    source.map_err(|e| Exit::new(Kind::Model, e.to_string()))
}
