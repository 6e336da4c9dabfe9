//! `tsnode simulate`: requests on a planned cluster, event by event.

mod provision;

use super::{
    is_set, json,
    plan::{
        asked::{Asked, usage},
        problem_args,
    },
    show, verb,
};
use crate::exit::{Exit, Kind};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    policy::batching::Limits,
    scheduler::{Evaluator, Problem, outcome::Outcome, regions, search},
    simulator::{
        Batches, Dispatch, Parts,
        machines::{Arrival, Trace},
        percentile::Sorted,
        summary::{Spread, Summary},
        trace::{self, Arriving},
    },
};

/// Splitwise's limits of an iteration (§IV-B).
const MIXED: Limits = Limits { tasks: 512, tokens: 2048 };
/// Tokens of an iteration with chunks, as nodes have them.
const CHUNKS: u32 = 512;
/// Busier than this, a machine holds everything up.
const SATURATED: f64 = 0.98;
/// Where the last requests wait longer than this part of the time in which requests came, queues only grow.
const GROWING: f64 = 0.1;

/// Ways to route and to batch, by name.
const POLICIES: [(&str, Dispatch, Batches, &str); 7] = [
    ("live", Dispatch::Live, Batches::Turns, "the plan's shares corrected by queues, prompts first"),
    ("shares", Dispatch::Shares, Batches::Turns, "the plan's shares alone"),
    ("shortest", Dispatch::Shortest, Batches::Turns, "the shortest queues, whatever the shares"),
    ("random", Dispatch::Random, Batches::Turns, "any route"),
    ("live+chunked", Dispatch::Live, Batches::Chunked(CHUNKS), "as live; answers, and prompts in chunks beside them"),
    ("live+mixed", Dispatch::Live, Batches::Mixed(MIXED), "as live; prompts and answers in one iteration"),
    ("shortest+mixed", Dispatch::Shortest, Batches::Mixed(MIXED), "as shortest; prompts and answers in one iteration"),
];

pub(super) fn command() -> Command {
    let example = "tsnode simulate --cluster cloud32 --workload coding --rate 3 --slo e2e=5x\n  \
                   tsnode simulate --cluster cloud32 --rate 6 --bursty 4 --compare live,shares,random";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let names: Vec<String> = POLICIES.iter().map(|(name, _, _, what)| format!("{name} ({what})")).collect();
    verb("simulate", "Run requests on a planned cluster, event by event", example)
        .args(problem_args().into_iter().map(|a| if a.get_id() == "cluster" { a.required(true) } else { a }))
        .arg(value("policy", "NAME", "How requests are routed and batched [default: live]"))
        .arg(value("compare", "A,B,…", "Run several policies side by side").conflicts_with("policy"))
        .arg(value("trace", "FILE", "These requests at their times, instead of drawn ones"))
        .arg(value("requests", "N", "Draw so many [default: 5000]"))
        .arg(value("bursty", "C2", "Gaps with this squared coefficient of variation instead of Poisson's 1"))
        .arg(json())
        .after_long_help(format!("Policies:\n  {}", names.join("\n  ")))
        .subcommand(provision::command())
        .subcommand_negates_reqs(true)
        .args_conflicts_with_subcommands(true)
}

/// One policy's result.
struct Run {
    name: &'static str,
    summary: Summary,
    took: Duration,
    /// Requests still unserved when the last one came.
    left: usize,
    /// Queues grew as long as requests came.
    saturated: bool,
    cut: bool,
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    if let Some(("provision", matches)) = matches.subcommand() {
        return provision::run(matches).await;
    }
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let asked = Asked::read(text("cluster").unwrap_or_default(), matches)?;
    let policies = policies(text("compare").or(text("policy")).unwrap_or("live"))?;
    let whole = |name: &str, default: usize| match text(name) {
        None => Ok(default),
        Some(t) => t.parse().map_err(|_| usage(format!("--{name} {t:?} is no whole number"))),
    };
    let problem = asked.problem(&asked.service, asked.cluster.clone())?;
    let arrivals = match text("trace") {
        Some(file) => {
            let content = std::fs::read_to_string(file).map_err(|e| usage(format!("{file}: {e}")))?;
            trace::read(&content).map_err(|e| usage(format!("{file}: {e}")))?
        }
        None => {
            let arriving = match text("bursty") {
                None => Arriving::Poisson,
                Some(t) => Arriving::Bursty(variation(t)?),
            };
            trace::drawn(&problem.workload, problem.rate, whole("requests", 5000)?.max(1), arriving, asked.seed)
        }
    };
    // A signal ends the run with what there is.
    let stopped = Arc::new(AtomicBool::new(false));
    let listener = tokio::spawn({
        let stopped = stopped.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    });
    let is_json = is_set(matches, "json");
    let done = tokio::task::spawn_blocking(move || simulate(&asked, &problem, &arrivals, &policies, &stopped, is_json));
    let result = done.await.map_err(|e| Exit::new(Kind::Other, e.to_string()))?;
    listener.abort();
    result
}

fn variation(text: &str) -> Result<f64, Exit> {
    let valid = text.parse::<f64>().ok().filter(|c| c.is_finite() && *c >= 1.0);
    valid.ok_or_else(|| usage(format!("--bursty {text:?}: a number of at least 1, as in --bursty 4")))
}

type Policy = (&'static str, Dispatch, Batches);

fn policies(names: &str) -> Result<Vec<Policy>, Exit> {
    let known: Vec<&str> = POLICIES.iter().map(|p| p.0).collect();
    let find = |name: &str| {
        let found = POLICIES.iter().find(|p| p.0 == name.trim()).map(|p| (p.0, p.1, p.2));
        found.ok_or_else(|| usage(format!("no policy is called {name:?}; there are {}", known.join(", "))))
    };
    names.split(',').map(find).collect()
}

fn simulate(
    asked: &Asked,
    problem: &Problem,
    arrivals: &[Arrival],
    policies: &[Policy],
    stopped: &AtomicBool,
    is_json: bool,
) -> Result<(), Exit> {
    let regions = planned(asked, problem);
    let outcome = Outcome::together(problem, &regions);
    too_large(problem, &outcome, arrivals)?;
    let mut runs = Vec::new();
    for policy in policies {
        runs.push(run_one(problem, &regions, arrivals, *policy, asked.seed, stopped));
        if stopped.load(Ordering::Relaxed) {
            break;
        }
    }
    if is_json {
        let run = |r: &Run| {
            json!({ "policy": r.name, "summary": r.summary, "simulated_in_s": r.took.as_secs_f64(),
                "left_over": r.left, "saturated": r.saturated, "cut_short": r.cut })
        };
        return show::print_json(&json!({ "plan": outcome, "runs": runs.iter().map(run).collect::<Vec<_>>() }));
    }
    say!("{} on {}, {} requests, {}\n", outcome.model, outcome.cluster, arrivals.len(), outcome.slo);
    for run in &runs {
        print(run, &outcome)?;
    }
    if runs.len() > 1 { compare(&runs) } else { Ok(()) }
}

/// The plan, in one region or in several.
fn planned(asked: &Asked, problem: &Problem) -> Vec<regions::Region> {
    if problem.cluster.devices() <= regions::MOST {
        return vec![regions::Region { problem: problem.clone(), share: 1.0, found: asked.search(problem).found }];
    }
    let started = Instant::now();
    regions::search(problem, asked.seed, asked.effort(), &|| asked.budget.is_some_and(|b| started.elapsed() >= b))
}

/// No group holds a request's KV: said before anything runs.
fn too_large(problem: &Problem, plan: &Outcome, arrivals: &[Arrival]) -> Result<(), Exit> {
    let most = plan.groups.iter().map(|g| g.kv_tokens).max().unwrap_or(0);
    let need = |a: &Arrival| a.asked.prompt_memory() + a.asked.answer_memory();
    match arrivals.iter().position(|a| need(a) > most) {
        Some(place) => Err(usage(format!(
            "request {}: {} prompt and {} answer tokens; the largest group of {} holds {most}",
            place + 1,
            arrivals[place].asked.prompt,
            arrivals[place].asked.answer,
            problem.model.name
        ))),
        None => Ok(()),
    }
}

fn run_one(
    problem: &Problem,
    regions: &[regions::Region],
    arrivals: &[Arrival],
    (name, dispatch, batches): Policy,
    seed: u64,
    stopped: &AtomicBool,
) -> Run {
    let part = |region: &regions::Region| {
        let mut evaluator = Evaluator::new(&region.problem);
        let groups = search::shelved(&mut evaluator, &region.found.grouping).unwrap_or_default();
        (Parts::new(&mut evaluator, &groups, &region.found.evaluation, batches), region.share)
    };
    let parts = regions.iter().map(part).fold(Parts::default(), |all, (one, share)| all.beside(one, share));
    let bar = indicatif::ProgressBar::new(arrivals.len() as u64).with_message(name);
    let style = indicatif::ProgressStyle::with_template("{msg} {bar:40} {pos} of {len} requests, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()));
    let started = Instant::now();
    let outcome = parts.simulation(dispatch, seed).run(arrivals, &|arrived| {
        bar.set_position(arrived as u64);
        stopped.load(Ordering::Relaxed)
    });
    let took = started.elapsed();
    bar.finish_and_clear();
    let last = arrivals.last().map_or(0.0, |a| a.at.0);
    let unserved = |t: &&Trace| t.route.is_some() && t.end.0 > last;
    let cut = outcome.arrived < arrivals.len();
    let mut outcome = outcome;
    outcome.traces.truncate(outcome.arrived.max(1));
    Run {
        name,
        left: outcome.traces.iter().filter(unserved).count(),
        saturated: is_saturated(&outcome.traces),
        summary: Summary::new(&outcome, &problem.slo, &problem.reference, problem.model.kv()),
        took,
        cut,
    }
}

/// Whether the last tenth of the requests waited, before prompts and before answers, for a good part of the whole time.
fn is_saturated(traces: &[Trace]) -> bool {
    let (Some(first), Some(last)) = (traces.first(), traces.last()) else { return false };
    let waited = |t: &Trace| {
        let answer = if t.arrival.asked.answer > 1 { (t.answer_start - t.first).0 } else { 0.0 };
        (t.prompt_start - t.arrival.at).0 + answer
    };
    let tail = traces.iter().skip(traces.len() - traces.len().div_ceil(10)).filter(|t| t.end.is_finite());
    Sorted::new(tail.map(waited)).at(0.5) > GROWING * (last.arrival.at - first.arrival.at).0
}

fn print(run: &Run, plan: &Outcome) -> Result<(), Exit> {
    let s = &run.summary;
    if run.cut {
        say!("cut short: what the first {} requests came to\n", s.requests);
    }
    let row = |name: &str, t: &Spread| {
        let time = |s: f64| if s < 10.0 { format!("{:.0} ms", s * 1e3) } else { format!("{s:.1} s") };
        [name.to_owned(), time(t.p50), time(t.p90), time(t.p99), time(t.mean)].to_vec()
    };
    let head = [run.name, "P50", "P90", "P99", "MEAN"].map(String::from).to_vec();
    show::table(&[
        head,
        row("first token", &s.ttft),
        row("per token", &s.tpot),
        row("whole answer", &s.e2e),
        row("queued", &s.queued),
        row("second token", &s.second_token_gap),
    ])?;
    say!("");
    let mut rows =
        vec![["", "PHASE", "DEVICES", "BUSY", "PROMPTS", "ANSWERS", "KV SENT (16 BIT)"].map(String::from).to_vec()];
    for (i, (group, part)) in plan.groups.iter().zip(&s.machines).enumerate() {
        rows.push(vec![
            (i + 1).to_string(),
            group.phase.to_string(),
            group.devices.join(" + "),
            format!("{:.1} %", part.busy * 100.0),
            part.prompts.to_string(),
            part.answers.to_string(),
            format!("{:.1} GB", part.sent_bytes / 1e9),
        ]);
    }
    show::table(&rows)?;
    say!("\nin time     {:.1} % of {} requests", s.attainment * 100.0, s.requests);
    say!(
        "throughput  {:.2} requests/s, {:.0} tokens/s over {:.0} s",
        s.requests_per_second,
        s.tokens_per_second,
        s.took
    );
    if s.turned_away > 0 {
        say!("turned away {} requests: the plan does not carry them in time", s.turned_away);
    }
    if run.saturated {
        let full: Vec<String> = s
            .machines
            .iter()
            .enumerate()
            .filter(|(_, p)| p.busy > SATURATED)
            .map(|(i, _)| (i + 1).to_string())
            .collect();
        let which = if full.is_empty() { "no group alone".to_owned() } else { format!("groups {}", full.join(", ")) };
        say!("saturated   {} requests were unserved when the last one came; busy all the time: {which}", run.left);
    }
    say!("simulated   {} events in {:.0} ms\n", s.events, run.took.as_secs_f64() * 1e3);
    Ok(())
}

fn compare(runs: &[Run]) -> Result<(), Exit> {
    let head = ["POLICY", "IN TIME", "FIRST TOKEN P50", "P99", "ANSWER P50", "P99", "REQUESTS/S"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for run in runs {
        let s = &run.summary;
        rows.push(vec![
            run.name.to_owned(),
            format!("{:.1} %", s.attainment * 100.0),
            format!("{:.2} s", s.ttft.p50),
            format!("{:.2} s", s.ttft.p99),
            format!("{:.1} s", s.e2e.p50),
            format!("{:.1} s", s.e2e.p99),
            format!("{:.2}", s.requests_per_second),
        ]);
    }
    show::table(&rows)
}
