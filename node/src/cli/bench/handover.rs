//! `tsnode bench handover`: what splitting a request costs its client, and whether the cost gate knows.
//!
//! Real peers, on links as slow as asked for. Each answer is asked for in place and split, layer by layer and in one piece, in
//! turns; prompts are new each time, so that nothing is there from before.

mod client;
mod gate;
mod swarms;

use super::open;
use crate::cli::{json, show::print_json, verb};
use crate::exit::{Exit, Kind};
use clap::{Arg, ArgMatches, Command, value_parser};
use client::Times;
use gate::Point;
use serde::Serialize;
use std::path::PathBuf;
use swarms::{Kept, Swarms};

/// Prompts, tokens.
const PROMPTS: &str = "256,512,1024";
/// Of the gate's sweep.
const SWEPT: u32 = 512;

pub(super) fn command() -> Command {
    let number = |name: &'static str, help: &'static str| Arg::new(name).long(name).value_name("N").help(help);
    verb(
        "handover",
        "What a hand-over of KV costs a client, on links of any speed",
        "tsnode bench handover --link-mbit 1000",
    )
    .arg(
        Arg::new("prompts")
            .long("prompts")
            .value_name("TOKENS")
            .value_delimiter(',')
            .value_parser(value_parser!(u32).range(1..))
            .default_value(PROMPTS)
            .help("Lengths of prompts"),
    )
    .arg(number("answer", "Tokens of an answer").value_parser(value_parser!(u32).range(3..)).default_value("64"))
    .arg(number("rounds", "Answers of each kind").value_parser(value_parser!(u32).range(1..)).default_value("5"))
    .arg(
        // Two peers on hosts of their own do not take each other's cores.
        number("threads", "Threads of a peer [default: half of the cores, since two peers share them]")
            .value_parser(value_parser!(u32).range(1..=1024)),
    )
    .arg(number("link-mbit", "What the link carries [default: what this machine can]").value_parser(value_parser!(f64)))
    .arg(
        Arg::new("sweep")
            .long("sweep")
            .value_name("MBIT")
            .value_delimiter(',')
            .value_parser(value_parser!(f64))
            .help("Ask the cost gate on links of these speeds too, with a decode peer of one thread (minutes)"),
    )
    .arg(super::model())
    .arg(json())
}

/// One length of prompt.
#[derive(Serialize)]
struct Row {
    prompt: u32,
    in_place: Times,
    by_layers: Times,
    whole: Times,
    /// By layers over in place, less one.
    second_over: f64,
    all_over: f64,
    kv_bytes: u64,
}

#[derive(Serialize)]
struct Report {
    model: String,
    /// Of each peer that is held against another.
    threads: usize,
    link_mbit: Option<f64>,
    rows: Vec<Row>,
    sweep: Vec<Point>,
    crossing: Option<gate::Crossing>,
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let watch = !crate::cli::is_set(matches, "json");
    let source = open(matches)?;
    let (name, shape) = (source.card().name.clone(), source.card().shape);
    let number = |name: &str| matches.get_one::<u32>(name).copied().unwrap_or(1);
    let (answer, rounds) = (number("answer"), number("rounds"));
    let prompts: Vec<u32> = matches.get_many::<u32>("prompts").into_iter().flatten().copied().collect();
    let asked = prompts.iter().copied().chain([SWEPT]).max().unwrap_or(SWEPT);
    if asked + answer > shape.context {
        let what = format!("{name} has room for {} tokens; {asked} and {answer} were asked for", shape.context);
        return Err(Exit::new(Kind::Usage, what));
    }
    let model = matches.get_one::<PathBuf>("model").map(|path| path.display().to_string());
    let link_mbit = matches.get_one::<f64>("link-mbit").copied();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = matches.get_one::<u32>("threads").map_or((cores / 2).max(1), |threads| *threads as usize);
    let mut report = Report { model: name, threads, link_mbit, rows: Vec::new(), sweep: Vec::new(), crossing: None };
    let ask = client::Ask { vocab: shape.vocab, answer, rounds };
    report.rows = overlap(&ask, &prompts, threads, model.as_deref(), link_mbit, watch).await?;
    if let Some(rates) = matches.get_many::<f64>("sweep") {
        let rates: Vec<f64> = rates.copied().collect();
        (report.sweep, report.crossing) = gate::sweep(&ask, SWEPT, &rates, model.as_deref(), watch).await?;
    }
    if watch { Ok(()) } else { print_json(&report) }
}

async fn overlap(
    ask: &client::Ask,
    prompts: &[u32],
    threads: usize,
    model: Option<&str>,
    link_mbit: Option<f64>,
    watch: bool,
) -> Result<Vec<Row>, Exit> {
    let swarms = Swarms::new(model)?;
    let alone = swarms.up("alone", &[threads], &[], None).await?;
    let layers = swarms.up("layers", &[threads; 2], &["--kv-pace", "layers"], link_mbit).await?;
    let whole = swarms.up("whole", &[threads; 2], &["--kv-pace", "whole"], link_mbit).await?;
    if watch {
        say!("ms, medians of {}: second token, all of {} tokens", ask.rounds, ask.answer);
        let heads = ["in place", "by layers", "in one piece"];
        say!(
            "{:>7}{:>18}{:>18}{:>18}{:>22}{:>14}",
            "prompt",
            heads[0],
            heads[1],
            heads[2],
            "by layers is over",
            "trace tells"
        );
    }
    let mut rows = Vec::new();
    for &prompt in prompts {
        let all: [&Kept; 3] = [&alone, &layers, &whole];
        let [(in_place, _), (by_layers, trace), (whole, _)] = ask.in_turns(all, prompt).await?;
        let row = Row {
            prompt,
            second_over: by_layers.second / in_place.second - 1.0,
            all_over: by_layers.all / in_place.all - 1.0,
            in_place,
            by_layers,
            whole,
            kv_bytes: trace.kv_bytes,
        };
        if watch {
            row.print();
        }
        rows.push(row);
    }
    for swarm in [alone, layers, whole] {
        swarm.down().await?;
    }
    Ok(rows)
}

impl Row {
    fn print(&self) {
        let ms = |t: &Times| format!("{:.1}, {:.0}", t.second * 1e3, t.all * 1e3);
        let over = format!("{:.1} % and {:.2} %", self.second_over * 1e2, self.all_over * 1e2);
        let [a, b, c] = [&self.in_place, &self.by_layers, &self.whole].map(ms);
        let traced = format!("{:.1} %", self.by_layers.traced * 1e2);
        say!("{:>7}{a:>18}{b:>18}{c:>18}{over:>22}{traced:>14}", self.prompt);
        // Where a difference comes from: the way there, the prompt's own steps, the hand-over behind it, the step after that.
        for (name, t) in [("in place", &self.in_place), ("by layers", &self.by_layers), ("in one piece", &self.whole)] {
            let parts = [t.queue, t.prefill, t.handed_over, t.second - t.first - t.handed_over].map(|s| s * 1e3);
            let [queue, prefill, handed_over, step] = parts;
            say!(
                "{name:>25}: queue {queue:.1}, prompt {prefill:.1}, hand-over after it {handed_over:.1}, next step {step:.1}"
            );
        }
    }
}
