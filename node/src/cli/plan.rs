//! `tsnode plan`: the swarm's plan, or with `--cluster` the plan a cluster would get.

pub(super) mod asked;
mod loss;
mod services;
mod swarm;

use self::asked::PlanQuery;
use super::{asking_args, is_set, output, switch, verb, verbose};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    planner::reranking,
    replay::{Replay, ReplayReport},
    scheduler::{
        Problem, regions,
        search::{Effort, Found},
    },
};
use tsnode_simulator::{bound, diagram, outcome::PlanOutcome};

/// Steps of the search when no budget is given: four times the paper's.
const STEPS: usize = 400;
/// Steps that no budget reaches.
const ENDLESS: usize = 1_000_000_000;
/// Requests replayed for each finalist.
const REPLAYED: usize = 1000;

pub(super) fn command() -> Command {
    let example = "tsnode plan --why\n  tsnode plan --cluster cloud32 --model LLaMA-30B --workload coding --rate 3 --slo e2e=5x\n  \
                   tsnode plan --cluster cloud32 --service LLaMA-30B:coding:1 --service LLaMA-13B:conversation:4";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).requires("cluster")
    };
    verb("plan", "Groups, phases and routes, and why", example)
        .args(asking_args())
        .args(problem_args())
        .arg(
            value("service", "MODEL[:WORKLOAD[:RATE[:SLO]]]", "One of several services that share the cluster; repeat")
                .action(ArgAction::Append)
                .conflicts_with_all(["plan-model", "workload", "rate", "slo", "lose"]),
        )
        .arg(value("lose", "HOST", "Plan, then lose these hosts and plan again").action(ArgAction::Append))
        .arg(value("svg", "FILE", "Draw the plan into this file"))
        .arg(switch("why", "Show the next best plans and what each loses"))
        .arg(verbose("Also plans that differ by next to nothing").requires("why").conflicts_with("cluster"))
}

/// What says which problem to plan.
pub(super) fn problem_args() -> Vec<Arg> {
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).requires("cluster")
    };
    vec![
        Arg::new("cluster")
            .long("cluster")
            .value_name("FILE")
            .help("Plan for this cluster: a TOML file, or one of cloud32, a100x8"),
        value("plan-model", "NAME", "Model by name (LLaMA-30B, Llama-3-8B …) or a config.json [default: LLaMA-30B]")
            .long("model"),
        value("workload", "NAME", "coding, conversation, or a trace's CSV file [default: conversation]"),
        value("rate", "R", "Requests a second [default: 3]"),
        value("slo", "TARGETS", "ttft=, tpot=, e2e= as a scale of an A100's time or in seconds [default: e2e=5x]"),
        value("figures", "COLUMN", "GPU figures: vendor or paper [default: vendor]"),
        value("links", "VARIANT", "Links between hosts: default, or one the file names (high, low)"),
        value("seed", "S", "Seed of the search [default: 0]"),
        value("budget", "MS", "Search this long instead of a fixed number of steps"),
    ]
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some(cluster) = matches.get_one::<String>("cluster") else { return swarm::plan(settings, matches).await };
    let asked = PlanQuery::read(cluster, matches)?;
    match (asked.sharing.is_empty(), asked.lose.is_empty()) {
        (false, _) => asked.share(matches),
        (true, false) => asked.lose(matches),
        (true, true) => asked.plan(matches),
    }
}

/// A plan with its numbers.
pub(super) struct ValuedPlan {
    pub(super) found: Found,
    pub(super) outcome: PlanOutcome,
    /// Not of clusters planned in regions.
    report: Option<ReplayReport>,
    took: Duration,
}

impl PlanQuery {
    pub(super) fn effort(&self) -> Effort {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Effort { steps: if self.budget.is_some() { ENDLESS } else { STEPS }, threads, ..Effort::default() }
    }

    pub(super) fn search(&self, problem: &Problem) -> ValuedPlan {
        let (started, effort) = (Instant::now(), self.effort());
        let late = || self.budget.is_some_and(|b| started.elapsed() >= b);
        if problem.cluster.devices() > regions::MOST {
            return self.in_regions(problem, effort, started);
        }
        let replay = Replay { seed: self.seed, requests: REPLAYED };
        let (found, report) = reranking::plan(problem, self.seed, effort, replay, &late);
        let took = started.elapsed();
        let mut outcome = PlanOutcome::new(problem, &found);
        outcome.bound = bound::attainment(problem).filter(|b| *b < 1.0);
        ValuedPlan { found, outcome, report: Some(report), took }
    }

    /// Region by region, with a bar while somebody watches.
    fn in_regions(&self, problem: &Problem, effort: Effort, started: Instant) -> ValuedPlan {
        let effort = Effort { steps: effort.steps.min(STEPS), ..effort };
        let bar = indicatif::ProgressBar::new_spinner().with_message(format!(
            "planning {} devices in regions of {}",
            problem.cluster.devices(),
            regions::MOST
        ));
        bar.enable_steady_tick(Duration::from_millis(100));
        let late = || self.budget.is_some_and(|b| started.elapsed() >= b);
        let all = regions::search(problem, self.seed, effort, &late);
        bar.finish_and_clear();
        let took = started.elapsed();
        ValuedPlan { found: Found::default(), outcome: PlanOutcome::together(problem, &all), report: None, took }
    }

    fn plan(&self, matches: &ArgMatches) -> Result<(), Exit> {
        let problem = self.problem(&self.service, self.cluster.clone())?;
        let planned = self.search(&problem);
        draw(&[&planned.outcome], matches)?;
        if is_set(matches, "json") {
            return output::print_json(&planned.json());
        }
        planned.print(is_set(matches, "why"))
    }
}

impl ValuedPlan {
    fn json(&self) -> serde_json::Value {
        json!({
            "plan": self.outcome,
            "search_s": self.took.as_secs_f64(),
            "replay": self.report.as_ref().map(|report| json!({
                "requests": REPLAYED, "attainment": report.attainment, "ttft_s": report.ttft,
                "tokens_per_second": report.tokens_per_second, "slo_scale_at_90": finite(report.scale_at(0.9)),
            })),
        })
    }

    fn print(&self, why: bool) -> Result<(), Exit> {
        let o = &self.outcome;
        say!("{} on {}: {} at {} requests/s, {}\n", o.model, o.cluster, o.workload, o.rate, o.slo);
        let mut rows = vec![
            ["", "PHASE", "DEVICES", "STAGES", "PROMPT", "TOKEN", "BATCH", "PREFILLS", "DECODES"]
                .map(String::from)
                .to_vec(),
        ];
        for (i, g) in o.groups.iter().enumerate() {
            let stages: Vec<String> = g.stages.iter().map(|s| format!("{} tp{} [{}]", s.gpu, s.tp, s.layers)).collect();
            rows.push(vec![
                format!("{}", i + 1),
                g.phase.to_string(),
                g.devices.join(" + "),
                shortened(&stages),
                format!("{:.0} ms", g.prompt_s * 1e3),
                format!("{:.1} ms", g.token_s * 1e3),
                g.batch.to_string(),
                percent(g.prefills),
                percent(g.decodes),
            ]);
        }
        output::table(&rows)?;
        say!("");
        let mut rows = vec![["PREFILL", "DECODE", "SHARE", "OF PREFILL'S", "KV", "IN TIME"].map(String::from).to_vec()];
        for r in o.routes.iter().filter(|r| r.prefill != r.decode) {
            rows.push(vec![
                (r.prefill + 1).to_string(),
                (r.decode + 1).to_string(),
                percent(r.share),
                percent(r.of_prefill),
                format!("{:.0} ms", r.kv_s * 1e3),
                percent(r.kept),
            ]);
        }
        if rows.len() > 1 {
            output::table(&rows)?;
            say!("");
        }
        let replayed = self.report.as_ref().map(|r| format!(", {} of {REPLAYED} replayed", percent(r.attainment)));
        say!("in time    {} of requests by closed forms{}", percent(o.attainment), replayed.unwrap_or_default());
        if let Some(bound) = o.bound {
            say!(
                "bound      no plan keeps more than {}: the gap is at most {}",
                percent(bound),
                percent(bound - o.attainment)
            );
        }
        if o.carried < 0.999 {
            say!("turned away  {} of requests: the cluster cannot carry the rest in time", percent(1.0 - o.carried));
        }
        if o.attainment < 0.005 {
            say!("           nothing this cluster can do meets these targets; this is its best effort");
        }
        say!("load       prefill up to {}, decode up to {}", percent(o.prefill_load), percent(o.decode_load));
        if !o.idle.is_empty() {
            say!("idle       {}", o.idle.join(", "));
        }
        say!("search     {} plans in {:.0} ms", o.evaluations, self.took.as_secs_f64() * 1e3);
        for (i, other) in o.runners_up.iter().enumerate().filter(|_| why) {
            let worth = if other.loses >= 0.0 {
                format!("keeps {} less", percent(other.loses))
            } else {
                format!("keeps {} more by closed forms, and less when replayed", percent(-other.loses))
            };
            say!("\nrunner-up {}: {worth}", i + 1);
            for group in &other.groups {
                say!("  {group}");
            }
        }
        Ok(())
    }
}

fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Long pipelines as their first stage, their number and their last.
fn shortened(stages: &[String]) -> String {
    match stages {
        [first, .., last] if stages.len() > 3 => format!("{first} → … {} stages … → {last}", stages.len()),
        _ => stages.join(" → "),
    }
}

fn draw(outcomes: &[&PlanOutcome], matches: &ArgMatches) -> Result<(), Exit> {
    let Some(path) = matches.get_one::<String>("svg") else { return Ok(()) };
    std::fs::write(path, diagram::plan::svg(outcomes)).map_err(|e| Exit::file(ExitKind::Other, path, &e))
}
