//! `tsnode bench kv-transfer`: what splitting a request costs its client, and whether the cost gate knows.
//!
//! Two real peers, on links as slow as asked for. Each answer is asked for in place and split, layer by layer and in one piece, in
//! turns, and the same peer decodes all of them; prompts are new each time, so that nothing is there from before.

mod client;
mod link_speeds;
mod swarms;

use super::open;
use crate::{
    cli::{
        exit::{Exit, ExitKind},
        interrupts::Interrupts,
        json,
        output::print_json,
        verb, whole,
    },
    config::values,
    hardware::DeviceName,
    platform,
};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use client::{KvTransferMode, Slowdown, Times};
use link_speeds::Point;
use serde::Serialize;
use std::path::PathBuf;
use swarms::{HostedPeer, Swarms};

/// Prompts, tokens.
const PROMPTS: &str = "256,512,1024";
/// Of the gate's sweep.
const SWEPT: u32 = 512;

pub(super) fn command() -> Command {
    let number = |name: &'static str, help: &'static str| Arg::new(name).long(name).value_name("N").help(help);
    verb(
        "kv-transfer",
        "What a KV transfer costs a client, on links of any speed",
        "tsnode bench kv-transfer --link-mbit 1000",
    )
    // What it was called before.
    .alias("handover")
    .arg(
        Arg::new("prompts")
            .long("prompts")
            .value_name("TOKENS")
            .value_delimiter(',')
            .value_parser(whole(1..=u32::MAX))
            .default_value(PROMPTS)
            .help("Lengths of prompts"),
    )
    .arg(number("answer", "Tokens of an answer").value_parser(whole(3..=u32::MAX)).default_value("64"))
    .arg(number("rounds", "Answers of each kind").value_parser(whole(1..=u32::MAX)).default_value("5"))
    .arg(
        // Two peers on hosts of their own do not take each other's cores.
        number("threads", "Threads of a peer [default: half of the cores, since two peers share them]")
            .value_parser(whole(1_u32..=1024)),
    )
    .arg(
        Arg::new("device")
            .long("device")
            .value_name("DEVICE")
            .value_parser(value_parser!(DeviceName))
            .help("What both peers compute on: cpu, or a GPU as cuda:0, with --kv-memory for each [default: cpu]"),
    )
    .arg(Arg::new("kv-memory").long("kv-memory").value_name("BYTES").help("KV pages of each peer, as 4GiB"))
    .arg(
        Arg::new("kv-codec")
            .long("kv-codec")
            .value_name("CODEC")
            .help("KV on the wire: auto, raw, int8, int4 or int3"),
    )
    .arg(number("link-mbit", "What the link carries [default: what this machine can]").value_parser(values::above_0))
    .arg(
        Arg::new("apart")
            .long("apart")
            .action(ArgAction::SetTrue)
            .help("Keep all else off the cores that prompts are computed on elsewhere, as a host with cores to spare does (Linux)"),
    )
    .arg(
        Arg::new("sweep")
            .long("sweep")
            .value_name("MBIT")
            .value_delimiter(',')
            .value_parser(values::above_0)
            .help("Ask the cost gate on links of these speeds too, with a decode peer of one thread (minutes)"),
    )
    .arg(super::model())
    .arg(json())
}

/// One length of prompt.
#[derive(Serialize)]
struct PromptLengthRow {
    prompt: u32,
    in_place: Times,
    by_layers: Times,
    whole: Times,
    /// By layers over in place, less one.
    second_over: Slowdown,
    all_over: Slowdown,
    kv_bytes: u64,
}

#[derive(Serialize)]
struct Report {
    model: String,
    /// Of each peer.
    threads: usize,
    link_mbit: Option<f64>,
    rows: Vec<PromptLengthRow>,
    sweep: Vec<Point>,
    crossing: Option<link_speeds::Crossing>,
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
        return Err(Exit::new(ExitKind::Usage, what));
    }
    let flags = flags(matches);
    let link_mbit = matches.get_one::<f64>("link-mbit").copied();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = matches.get_one::<u32>("threads").map_or((cores / 2).max(1), |threads| *threads as usize);
    let mut report = Report { model: name, threads, link_mbit, rows: Vec::new(), sweep: Vec::new(), crossing: None };
    let ask = client::BenchAsk { vocab: shape.vocab, answer, rounds };
    let apart = if crate::cli::is_set(matches, "apart") { Some(CoresApart::of(&own_cores()?, threads)?) } else { None };
    // Peers are not left behind.
    let mut interrupts = Interrupts::heard();
    let overlap = overlap(&ask, &prompts, (threads, apart), &flags, link_mbit, watch);
    report.rows = interrupts.unless(Box::pin(overlap)).await?;
    if let Some(rates) = matches.get_many::<f64>("sweep") {
        let rates: Vec<f64> = rates.copied().collect();
        let sweep = link_speeds::sweep(&ask, SWEPT, &rates, &flags, watch);
        (report.sweep, report.crossing) = interrupts.unless(Box::pin(sweep)).await?;
    }
    if watch { Ok(()) } else { print_json(&report) }
}

/// What both peers are started with beside their threads.
fn flags(matches: &ArgMatches) -> Vec<String> {
    let model = matches.get_one::<PathBuf>("model").map(|path| path.display().to_string());
    let device = matches.get_one::<DeviceName>("device").map(ToString::to_string);
    let said = |name: &str| matches.get_one::<String>(name).cloned();
    let named = [
        ("--model", model),
        ("--device", device),
        ("--kv-memory", said("kv-memory")),
        ("--kv-codec", said("kv-codec")),
    ];
    named.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).flatten().collect()
}

/// Those that this process may use, by number.
fn own_cores() -> Result<Vec<usize>, Exit> {
    let allowed = platform::allowed_processors();
    let allowed = allowed.map_err(|error| Exit::new(ExitKind::Usage, format!("--apart: {error}")))?;
    Ok(allowed.into_iter().collect())
}

/// Cores for two peers on one host, so that the first one's threads have theirs to themselves.
struct CoresApart {
    /// As `--cores` takes them: of the peer that prefills, whose threads are on the first of these, and of the other one.
    peers: [String; 2],
}

impl CoresApart {
    /// Where there are so many, and each peer computes with so many threads.
    fn of(cores: &[usize], threads: usize) -> Result<Self, Exit> {
        let there = cores.len();
        if there < 2 * threads {
            let what = format!("--apart wants {threads} cores for each peer, and there are {there}: set --threads");
            return Err(Exit::new(ExitKind::Usage, what));
        }
        let named = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Ok(Self { peers: [named(cores), named(&cores[threads..])] })
    }
}

async fn overlap(
    ask: &client::BenchAsk,
    prompts: &[u32],
    (threads, apart): (usize, Option<CoresApart>),
    flags: &[String],
    link_mbit: Option<f64>,
    watch: bool,
) -> Result<Vec<PromptLengthRow>, Exit> {
    let swarms = Swarms::new(flags)?;
    let peer = |cores: Option<&String>| HostedPeer { threads, cores: cores.cloned() };
    let peers = [0, 1].map(|place| peer(apart.as_ref().map(|apart| &apart.peers[place])));
    let pair = swarms.up("pair", peers, link_mbit).await?;
    if watch {
        say!("ms, medians of {}: second token, all of {} tokens", ask.rounds, ask.answer);
        let heads = ["in place", "by layers", "in one piece"];
        say!(
            "{:>7}{:>18}{:>18}{:>18}{:>34}{:>14}",
            "prompt",
            heads[0],
            heads[1],
            heads[2],
            "by layers is over, round by round",
            "trace tells"
        );
    }
    let mut rows = Vec::new();
    for &prompt in prompts {
        let [in_place, layers, whole] = ask
            .in_turns(&pair, [KvTransferMode::IN_PLACE, KvTransferMode::LAYERS, KvTransferMode::WHOLE], prompt)
            .await?;
        let row = PromptLengthRow {
            prompt,
            second_over: layers.over(&in_place, |t| t.second),
            all_over: layers.over(&in_place, |t| t.all),
            in_place: in_place.times(),
            by_layers: layers.times(),
            whole: whole.times(),
            kv_bytes: whole.trace().map_or(0, |trace| trace.kv_bytes),
        };
        if watch {
            row.print();
        }
        rows.push(row);
    }
    pair.down().await?;
    Ok(rows)
}

impl PromptLengthRow {
    fn print(&self) {
        let ms = |t: &Times| format!("{:.1}, {:.0}", t.second * 1e3, t.all * 1e3);
        let percent = |over: Slowdown| format!("{:.2} ± {:.2} %", over.median * 1e2, over.error * 1e2);
        let over = format!("{}, {}", percent(self.second_over), percent(self.all_over));
        let [a, b, c] = [&self.in_place, &self.by_layers, &self.whole].map(ms);
        let traced = format!("{:.1} %", self.by_layers.traced * 1e2);
        say!("{:>7}{a:>18}{b:>18}{c:>18}{over:>34}{traced:>14}", self.prompt);
        // Where a difference comes from: the way there, the prompt's own steps, the KV transfer behind it, the step after that.
        for (name, t) in [("in place", &self.in_place), ("by layers", &self.by_layers), ("in one piece", &self.whole)] {
            let parts = [t.queue, t.prefill, t.handed_over, t.second - t.first - t.handed_over].map(|s| s * 1e3);
            let [queue, prefill, handed_over, step] = parts;
            say!(
                "{name:>25}: queue {queue:.1}, prompt {prefill:.1}, KV transfer after it {handed_over:.1}, next step {step:.1}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CoresApart;

    #[test]
    fn threads_that_compute_prompts_share_their_cores_with_nothing() {
        let peers = |cores: &[usize], threads| CoresApart::of(cores, threads).map(|apart| apart.peers).ok();
        assert_eq!(peers(&[0, 1], 1), Some(["0,1".into(), "1".into()]), "and what is sent goes by the second");
        assert_eq!(peers(&[4, 5, 6, 7, 9], 2), Some(["4,5,6,7,9".into(), "6,7,9".into()]));
        assert_eq!([peers(&[3], 1), peers(&[0, 1], 2)], [None, None]);
    }
}
