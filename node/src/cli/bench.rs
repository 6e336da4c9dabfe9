//! `tsnode bench`: what this machine does with a model and with a link, and what a server does for its clients.

mod codec;
mod engine;
mod kv_transfer;
mod link;
pub(super) mod serve;
mod turnover;

use super::loading::Loading;
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    hardware::memory::{Need, StageHolder},
};
use clap::{Arg, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use tsnode_kernels::{
    device,
    engine::Threads,
    load::LoadReport,
    source::{ModelSource, StageModel},
};

pub(super) fn command() -> Command {
    Command::new("bench")
        .about("Measure")
        .subcommand_required(true)
        .subcommand(engine::command())
        .subcommand(codec::command())
        .subcommand(kv_transfer::command())
        .subcommand(link::command())
        .subcommand(serve::command())
        .subcommand(turnover::command())
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    match matches.subcommand() {
        Some(("engine", matches)) => engine::run(matches),
        Some(("kv-transfer", matches)) => kv_transfer::run(matches).await,
        Some(("codec", matches)) => codec::run(matches),
        Some(("serve", matches)) => serve::run(settings, matches).await,
        Some(("turnover", matches)) => turnover::run(settings, matches).await,
        Some((_, matches)) => link::run(settings, matches).await,
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
    source.map_err(|e| Exit::new(ExitKind::Model, e.to_string()))
}

/// All layers, if they fit beside `kv` bytes of KV pages; with a bar if somebody is to `watch`.
fn loaded(source: &ModelSource, threads: Threads, kv: u64, watch: bool) -> Result<(StageModel, LoadReport), Exit> {
    let broken = |e: &dyn std::fmt::Display| Exit::new(ExitKind::Model, e.to_string());
    let layers = source.card().shape.all_layers();
    let need = Need::of(source, layers, StageHolder::Ranks(threads.ranks), kv).map_err(|e| broken(&e))?;
    let advice = "name a smaller model with --model";
    need.within_or(device::free_memory(), advice).map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
    let mut loading = Loading::default();
    let mut show = |far| {
        if watch {
            loading.show(Some(far)).iter().for_each(|line| say!("{line}"));
        }
    };
    source.load_stage_by(threads, layers, &mut show).map_err(|e| broken(&e))
}
