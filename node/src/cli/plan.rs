//! `tsnode plan`: the swarm's plan, or with `--cluster` the plan a cluster would get.

use super::{asking_args, is_set, show, switch, verb};
use crate::{
    config::Settings,
    exit::{Exit, Kind},
};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    scheduler::{
        Cluster, Evaluator, Problem, Slo, Space, Workload, bound, cluster_file,
        figures::Column,
        finals, light,
        models::{self, Model},
        outcome::Outcome,
        picture, regions,
        search::{Effort, Found},
        slo::Reference,
    },
    simulator::{Replay, Report},
};
use tsnode_protocol::Seconds;

/// Steps of the search when no budget is given: four times the paper's.
const STEPS: usize = 400;
/// Steps that no budget reaches.
const ENDLESS: usize = 1_000_000_000;
/// Requests replayed for each finalist.
const REPLAYED: usize = 1000;
/// Rate at which weights come from disk when a plan loads them anew.
const LOADING: f64 = 1e9;
/// Time until the next plan, over which a full plan must repay its loading.
const HORIZON: Seconds = Seconds(3600.0);

pub(super) fn command() -> Command {
    let example =
        "tsnode plan\n  tsnode plan --cluster cloud32 --model LLaMA-30B --workload coding --rate 3 --slo e2e=5x";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).requires("cluster")
    };
    verb("plan", "Groups, phases and routes, and why", example)
        .args(asking_args())
        .arg(
            Arg::new("cluster")
                .long("cluster")
                .value_name("FILE")
                .help("Plan for this cluster instead: a TOML file, or one of cloud32, a100x8"),
        )
        .arg(
            value(
                "plan-model",
                "NAME",
                "Model by name (LLaMA-30B, Llama-3-8B …) or a config.json [default: LLaMA-30B]",
            )
            .long("model"),
        )
        .arg(value("workload", "NAME", "coding, conversation, or a trace's CSV file [default: conversation]"))
        .arg(value("rate", "R", "Requests a second [default: 3]"))
        .arg(value("slo", "TARGETS", "ttft=, tpot=, e2e= as a scale of an A100's time or in seconds [default: e2e=5x]"))
        .arg(value("figures", "COLUMN", "GPU figures: vendor or paper [default: vendor]"))
        .arg(value("links", "VARIANT", "Links between hosts: default, or one the file names (high, low)"))
        .arg(value("seed", "S", "Seed of the search [default: 0]"))
        .arg(value("budget", "MS", "Search this long instead of a fixed number of steps"))
        .arg(value("lose", "HOST", "Plan, then lose these hosts and plan again").action(clap::ArgAction::Append))
        .arg(value("svg", "FILE", "Draw the plan into this file"))
        .arg(switch("why", "Show the next best plans and what each loses").requires("cluster"))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some(cluster) = matches.get_one::<String>("cluster") else { return show::plan(settings, matches).await };
    let asked = Asked::read(cluster, matches)?;
    if asked.lose.is_empty() { asked.plan(matches) } else { asked.lose(matches) }
}

/// The command line, understood.
struct Asked {
    cluster: Cluster,
    model: Model,
    workload: Workload,
    rate: f64,
    slo: Slo,
    column: Column,
    seed: u64,
    budget: Option<Duration>,
    lose: Vec<String>,
}

/// A plan with its numbers.
struct Planned {
    found: Found,
    outcome: Outcome,
    /// Not of clusters planned in regions.
    report: Option<Report>,
    took: Duration,
}

impl Asked {
    fn read(cluster: &str, matches: &ArgMatches) -> Result<Self, Exit> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
        let column: Column = text("figures").unwrap_or("vendor").parse().map_err(usage)?;
        let cluster = read_cluster(cluster, column, text("links"))?;
        let number = |name: &str, default: f64| match text(name) {
            None => Ok(default),
            Some(t) => t.parse::<f64>().map_err(|_| usage(format!("--{name} {t:?} is no number"))),
        };
        let whole = |name: &str| match text(name) {
            None => Ok(None),
            Some(t) => t.parse::<u64>().map(Some).map_err(|_| usage(format!("--{name} {t:?} is no whole number"))),
        };
        Ok(Self {
            cluster,
            model: read_model(text("plan-model").unwrap_or("LLaMA-30B"))?,
            workload: read_workload(text("workload").unwrap_or("conversation"))?,
            rate: number("rate", 3.0)?,
            slo: text("slo").unwrap_or("e2e=5x").parse().map_err(|e| usage(format!("--slo: {e}")))?,
            column,
            seed: whole("seed")?.unwrap_or(0),
            budget: whole("budget")?.map(Duration::from_millis),
            lose: matches.get_many::<String>("lose").into_iter().flatten().cloned().collect(),
        })
    }

    fn problem(&self, cluster: Cluster) -> Result<Problem, Exit> {
        let reference = Reference::a100(&self.model, self.column)
            .ok_or_else(|| Exit::new(Kind::Other, "no figures for the reference GPU"))?;
        let (model, workload) = (self.model.clone(), self.workload.clone());
        let problem = Problem::new(cluster, model, workload, self.rate, self.slo, reference, Space::default());
        problem.map_err(|e| usage(e.to_string()))
    }

    fn search(&self, problem: &Problem) -> Planned {
        let started = Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let steps = if self.budget.is_some() { ENDLESS } else { STEPS };
        let effort = Effort { steps, threads, ..Effort::default() };
        let late = || self.budget.is_some_and(|b| started.elapsed() >= b);
        if problem.cluster.devices() > regions::MOST {
            return self.in_regions(problem, effort, started);
        }
        let replay = Replay { seed: self.seed, requests: REPLAYED };
        let (found, report) = finals::plan(problem, self.seed, effort, replay, &late);
        let took = started.elapsed();
        let mut outcome = Outcome::new(problem, &found);
        outcome.bound = bound::attainment(problem).filter(|b| *b < 1.0);
        Planned { found, outcome, report: Some(report), took }
    }

    /// Region by region, with a bar while somebody watches.
    fn in_regions(&self, problem: &Problem, effort: Effort, started: Instant) -> Planned {
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
        Planned { found: Found::default(), outcome: Outcome::together(problem, &all), report: None, took }
    }

    fn plan(&self, matches: &ArgMatches) -> Result<(), Exit> {
        let problem = self.problem(self.cluster.clone())?;
        let planned = self.search(&problem);
        draw(&planned.outcome, matches)?;
        if is_set(matches, "json") {
            return show::print_json(&planned.json());
        }
        planned.print(is_set(matches, "why"))
    }

    /// Plans, loses hosts, and compares: nothing done, phases flipped, planned anew.
    fn lose(&self, matches: &ArgMatches) -> Result<(), Exit> {
        if self.cluster.devices() > regions::MOST {
            let (n, most) = (self.cluster.devices(), regions::MOST);
            return Err(usage(format!("--lose compares plans of up to {most} devices; this cluster has {n}")));
        }
        let before = self.search(&self.problem(self.cluster.clone())?);
        let whole = self.problem(self.cluster.clone())?;
        let left = self.problem(self.cluster.clone().without(&self.lose).map_err(usage)?)?;
        let standing = standing(&whole, &left, &before.found);
        let started = Instant::now();
        let flipped = light::reschedule(&left, &standing);
        let flipping = started.elapsed();
        let full = self.search(&left);
        let loading = Seconds(self.model.bytes() / LOADING);
        let repays = light::repays(&full.found.evaluation, &flipped.evaluation, 1.0, loading, HORIZON);
        let flips: Vec<String> = standing
            .iter()
            .zip(&flipped.phases)
            .filter(|(s, p)| s.phase != **p)
            .map(|(s, p)| {
                let names: Vec<String> = s
                    .members
                    .iter()
                    .map(|&(i, n)| format!("{n}×{} {}", left.cluster.figures(i).name, left.cluster.instance(i).name))
                    .collect();
                format!("{}: {} becomes {p}", names.join(" + "), s.phase)
            })
            .collect();
        draw(&full.outcome, matches)?;
        if is_set(matches, "json") {
            return show::print_json(&json!({
                "before": before.json(), "lost": self.lose, "flips": flips,
                "attainment_unchanged": flipped.before.attainment,
                "attainment_flipped": flipped.evaluation.attainment,
                "flip_evaluations": flipped.evaluations, "flip_s": flipping.as_secs_f64(),
                "loading_s": loading.0, "full_plan_repays": repays, "full": full.json(),
            }));
        }
        before.print(false)?;
        say!("\nwithout {}:", self.lose.join(", "));
        say!("  as it stands       {:5.1} % in time", flipped.before.attainment * 100.0);
        say!(
            "  phases flipped     {:5.1} % in time, nothing loaded, found in {:.1} ms ({} evaluations)",
            flipped.evaluation.attainment * 100.0,
            flipping.as_secs_f64() * 1e3,
            flipped.evaluations
        );
        for flip in &flips {
            say!("    {flip}");
        }
        say!(
            "  planned anew       {:5.1} % in time, about {:.0} s of loading, found in {:.0} ms: {}",
            full.outcome.attainment * 100.0,
            loading.0,
            full.took.as_secs_f64() * 1e3,
            if repays { "repays within the hour" } else { "does not repay within the hour" }
        );
        Ok(())
    }
}

/// The groups of a plan that lost none of their devices, in terms of what is left.
fn standing(whole: &Problem, left: &Problem, found: &Found) -> Vec<light::Standing> {
    let mut evaluator = Evaluator::new(whole);
    let there = |id: tsnode_coordinator::scheduler::InstanceId| {
        let instance = whole.cluster.instance(id);
        left.cluster.ids().find(|i| {
            let other = left.cluster.instance(*i);
            other.name == instance.name && left.cluster.figures(*i).name == whole.cluster.figures(id).name
        })
    };
    let mut all = Vec::new();
    for part in &found.grouping.parts {
        let Some(group) = evaluator.group(&part.members, part.phase) else { continue };
        let mut config = evaluator.shelved(group).rated.config.clone();
        let members: Option<Vec<_>> = part.members.iter().map(|&(i, n)| Some((there(i)?, n))).collect();
        let Some(members) = members else { continue };
        for stage in &mut config.stages {
            if let Some(instance) = there(stage.instance) {
                stage.instance = instance;
            }
        }
        all.push(light::Standing { members, config, phase: part.phase });
    }
    all
}

impl Planned {
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
        show::table(&rows)?;
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
            show::table(&rows)?;
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

fn draw(outcome: &Outcome, matches: &ArgMatches) -> Result<(), Exit> {
    let Some(path) = matches.get_one::<String>("svg") else { return Ok(()) };
    std::fs::write(path, picture::svg(outcome)).map_err(|e| Exit::new(Kind::Other, format!("{path}: {e}")))
}

fn usage(message: impl Into<String>) -> Exit {
    Exit::new(Kind::Usage, message)
}

fn read(path: &Path) -> Result<String, Exit> {
    std::fs::read_to_string(path).map_err(|e| usage(format!("{}: {e}", path.display())))
}

fn read_cluster(name: &str, column: Column, links: Option<&str>) -> Result<Cluster, Exit> {
    let shipped = cluster_file::SHIPPED.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
    let text = match shipped {
        Some(text) => text,
        None => read(Path::new(name))?,
    };
    cluster_file::read(&text, column, links).map_err(|e| usage(format!("{name}: {}", e.to_string().trim_end())))
}

fn read_model(name: &str) -> Result<Model, Exit> {
    if let Some(model) = models::by_name(name) {
        return Ok(model);
    }
    let path = PathBuf::from(name);
    let path = if path.is_dir() { path.join("config.json") } else { path };
    if !path.exists() {
        let known: Vec<&str> = models::names().collect();
        return Err(usage(format!("no model is called {name:?} and no file either; known are {}", known.join(", "))));
    }
    let bytes = read(&path)?;
    let config = tsnode_kernels::config::ModelConfig::parse(bytes.as_bytes());
    let config = config.map_err(|e| usage(format!("{}: {e}", path.display())))?;
    Ok(Model::in_16_bit(name.to_owned(), config.shape(0, 0, 0)))
}

fn read_workload(name: &str) -> Result<Workload, Exit> {
    if let Some(workload) = Workload::named(name) {
        return Ok(workload);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(usage(format!(
            "no workload is called {name:?} and no file either; there are coding and conversation"
        )));
    }
    let title = path.file_stem().map_or_else(|| name.to_owned(), |s| s.to_string_lossy().into_owned());
    Workload::from_trace(&title, &read(path)?).map_err(|e| usage(format!("{name}: {e}")))
}
