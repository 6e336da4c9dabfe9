//! `tsnode simulate control`: the control plane under faults, from a seed, with its invariants checked.

mod verdict;

use super::stopping::stoppable;
use crate::cli::{
    exit::{Exit, ExitKind},
    is_set, joined, json, output,
    plan::asked::usage,
    verb,
};
use clap::{Arg, ArgMatches, Command};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::num::NonZero;
use std::str::FromStr;
use std::sync::{
    atomic::{AtomicBool, AtomicU64, Ordering},
    mpsc,
};
use std::time::{Duration, Instant};
use tsnode_simulator::simulation::{Fault, PlannerKind, ScenarioReport, Script, cast::MOST_MODELS, simulate};
use verdict::{ScenariosSummary, fared, verdict};

/// Most peers of one scenario: memory grows with their square.
const MOST_PEERS: usize = 2000;
/// Most clients a second.
const MOST_CLIENTS: f64 = 1000.0;
/// Where seeds take peers in turn, the fewest and most.
const PEERS: (u64, u64) = (5, 50);

pub(super) fn command() -> Command {
    let example = "tsnode simulate control --seed 7 --peers 12\n  \
                   tsnode simulate control --seed 0 --seeds 1000\n  \
                   tsnode simulate control --seed 0 --seeds 100 --clients 3\n  \
                   tsnode simulate control --seed 3 --peers 8 --faults crash,pause --minutes 5 --json";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    verb("control", "Simulate the control plane under faults, from a seed", example)
        .arg(value("seed", "S", "Everything that is left to chance [default: 0]"))
        .arg(value("peers", "N", "Peers [default: 8; with --seeds, 5 to 50 in turn]"))
        .arg(value("seeds", "COUNT", "So many scenarios, from --seed on; prints those that end badly and a summary"))
        .arg(value("minutes", "M", "How long there are faults, of the scenario's own time [default: 0.5]"))
        .arg(value(
            "faults",
            "A,B,…",
            "Of loss, partition, crash, pause, disk, clock, lie, leave; or none [default: all]",
        ))
        .arg(value("planner", "NAME", "sketch (quick) or scheduler (the node's own) [default: sketch]"))
        .arg(value("models", "N", "Models of the swarm, of which each peer lends some; with several, what clients ask for turns over [default: 1]"))
        .arg(value("clients", "N", "Clients that ask in a second, whose answers are checked [default: 0]"))
        .arg(json())
}

/// What is to run.
#[derive(Clone)]
struct ControlQuery {
    seed: u64,
    peers: Option<usize>,
    seeds: u64,
    faulty: Duration,
    faults: Vec<Fault>,
    fault_names: Option<String>,
    planning: PlannerKind,
    clients: f64,
    models: u8,
    json: bool,
}

fn number<T: FromStr>(matches: &ArgMatches, name: &str) -> Result<Option<T>, Exit> {
    let text = matches.get_one::<String>(name);
    text.map(|t| t.parse().map_err(|_| usage(format!("--{name} {t}: not a number that can be used")))).transpose()
}

impl ControlQuery {
    fn read(matches: &ArgMatches) -> Result<Self, Exit> {
        let peers: Option<usize> = number(matches, "peers")?;
        if peers.is_some_and(|n| !(1..=MOST_PEERS).contains(&n)) {
            return Err(usage(format!("--peers: from 1 to {MOST_PEERS}")));
        }
        let minutes: f64 = number(matches, "minutes")?.unwrap_or(0.5);
        if !(0.0..=24.0 * 60.0).contains(&minutes) {
            return Err(usage("--minutes: from 0 to a day's"));
        }
        let fault_names = matches.get_one::<String>("faults").cloned();
        let faults = match fault_names.as_deref() {
            None => Fault::ALL.map(|f| f.1).to_vec(),
            Some("none") => Vec::new(),
            Some(names) => names.split(',').map(fault).collect::<Result<_, _>>()?,
        };
        let planning = match matches.get_one::<String>("planner").map(String::as_str) {
            None | Some("sketch") => PlannerKind::Sketch,
            Some("scheduler") => PlannerKind::Scheduler,
            Some(other) => return Err(usage(format!("--planner {other}: sketch or scheduler"))),
        };
        let clients: f64 = number(matches, "clients")?.unwrap_or(0.0);
        if !(0.0..=MOST_CLIENTS).contains(&clients) {
            return Err(usage(format!("--clients: from 0 to {MOST_CLIENTS}")));
        }
        let models: u8 = number(matches, "models")?.unwrap_or(1);
        if !(1..=MOST_MODELS).contains(&models) {
            return Err(usage(format!("--models: from 1 to {MOST_MODELS}")));
        }
        Ok(Self {
            seed: number(matches, "seed")?.unwrap_or(0),
            peers,
            seeds: number(matches, "seeds")?.unwrap_or(1).max(1),
            faulty: Duration::from_secs_f64(minutes * 60.0),
            faults,
            fault_names,
            planning,
            clients,
            models,
            json: is_set(matches, "json"),
        })
    }

    fn script(&self, seed: u64) -> Script {
        let turn = PEERS.0 + seed % (PEERS.1 - PEERS.0 + 1);
        let peers = self.peers.unwrap_or(if self.seeds > 1 { turn as usize } else { 8 });
        Script {
            faulty: self.faulty,
            faults: self.faults.clone(),
            planning: self.planning,
            clients: self.clients,
            models: self.models,
            ..Script::new(seed, peers)
        }
    }

    /// The command that runs one of the scenarios again.
    fn replay(&self, script: &Script) -> String {
        let mut line = format!("tsnode simulate control --seed {} --peers {}", script.seed, script.peers);
        let minutes = self.faulty.as_secs_f64() / 60.0;
        if (minutes - 0.5).abs() > 1e-9 {
            line.push_str(&format!(" --minutes {minutes}"));
        }
        if let Some(names) = &self.fault_names {
            line.push_str(&format!(" --faults {names}"));
        }
        if self.planning == PlannerKind::Scheduler {
            line.push_str(" --planner scheduler");
        }
        if self.models > 1 {
            line.push_str(&format!(" --models {}", self.models));
        }
        if self.clients > 0.0 {
            line.push_str(&format!(" --clients {}", self.clients));
        }
        line
    }
}

fn fault(name: &str) -> Result<Fault, Exit> {
    let known = Fault::ALL.iter().find(|(known, _)| *known == name.trim());
    let names = || Fault::ALL.map(|f| f.0).join(", ");
    known.map(|f| f.1).ok_or_else(|| usage(format!("--faults {name}: one of {}", names())))
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let asked = ControlQuery::read(matches)?;
    if asked.seeds > 1 {
        return stoppable(move |stopped| series(&asked, stopped)).await;
    }
    // One scenario says nothing before its end: the first signal ends the process.
    joined(tokio::task::spawn_blocking(move || one(&asked))).await?
}

fn one(asked: &ControlQuery) -> Result<(), Exit> {
    let script = asked.script(asked.seed);
    let report = simulate(&script);
    if asked.json {
        let lines: Vec<Value> =
            report.lines.iter().map(|(at, line)| json!({ "at_s": at.as_secs_f64(), "what": line })).collect();
        let mut document = verdict(&script, &report);
        document["timeline"] = lines.into();
        output::print_json(&document)?;
    } else {
        for (at, line) in &report.lines {
            say!("{:8.2} s  {line}", at.as_secs_f64());
        }
        let figures = &report.figures;
        let bytes: u64 = figures.said.values().map(|(_, bytes)| bytes).sum();
        say!(
            "\n{} peers for {:.0} s: {} plans took effect, {} messages of {:.0} kB were said, {} false deaths",
            script.peers,
            report.lasted.as_secs_f64(),
            figures.plans,
            figures.said.values().map(|(count, _)| count).sum::<u64>(),
            bytes as f64 / 1e3,
            figures.false_deaths
        );
        if let Some(after) = figures.agreed_after {
            say!("all agreed {after:.2} s after the last fault");
        }
        if let Some(after) = figures.served_after {
            say!("{}\na client of each had its answer {after:.2} s after that", fared(&figures.requests));
        }
    }
    match &report.broken {
        None => {
            if !asked.json {
                say!("every invariant holds");
            }
            Ok(())
        }
        Some(broken) => Err(Exit::new(ExitKind::Other, format!("{broken}; again: {}", asked.replay(&script)))),
    }
}

/// Many scenarios, on all processors; the summary is the same whatever their order.
fn series(asked: &ControlQuery, stopped: &AtomicBool) -> Result<(), Exit> {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} scenarios, {eta} left");
    let bar = ProgressBar::new(asked.seeds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let (send, told) = mpsc::sync_channel::<(Script, ScenarioReport)>(64);
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut sum = ScenariosSummary::default();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    let k = next.fetch_add(1, Ordering::Relaxed);
                    if k >= asked.seeds {
                        return;
                    }
                    let script = asked.script(asked.seed + k);
                    let report = simulate(&script);
                    if send.send((script, report)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (script, report) in told {
            bar.inc(1);
            if let Some(broken) = &report.broken {
                bar.suspend(|| note!("{broken}; again: {}", asked.replay(&script)));
            }
            sum.add(&script, report);
        }
    });
    bar.finish_and_clear();
    sum.print(asked, started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<ControlQuery, Exit> {
        ControlQuery::read(&command().try_get_matches_from(line.split(' ').skip(2)).unwrap())
    }

    #[test]
    fn a_story_is_told_again_by_the_line_that_is_printed() {
        let line = "tsnode simulate control --seed 5 --peers 9 --minutes 0.25 --faults crash,pause --clients 2.5";
        let read = asked(line).ok().unwrap();
        assert_eq!(read.replay(&read.script(5)), line);
        let report = simulate(&read.script(5));
        assert!(report.broken.is_none() && report.figures.requests.complete > 0);
        assert_eq!(verdict(&read.script(5), &report)["requests"]["complete"], report.figures.requests.complete);
    }

    #[test]
    fn more_clients_than_a_story_can_hold_are_refused() {
        let refused = |n: &str| asked(&format!("tsnode simulate control --clients {n}")).is_err();
        assert!(refused("1001") && refused("NaN") && refused("many") && !refused("1000"));
    }
}
