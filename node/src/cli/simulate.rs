//! `tsnode simulate`: requests on a planned cluster, event by event.

mod args;
mod compare;
mod control;
mod metric;
mod placement;
mod policies;
mod print;
mod provision;
mod run;
mod several;
mod sharing;
mod stopping;

use self::{
    args::SimulationJob,
    compare::Sweep,
    run::{PolicyRun, Site, too_large},
    stopping::stoppable,
};
use super::{json, output, plan::problem_args, verb};
use crate::cli::exit::{Exit, ExitKind};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tsnode_coordinator::scheduler::regions;
use tsnode_simulator::{
    diagram::timeline::{self, Label},
    outcome::PlanOutcome,
    summary::keeps,
};

pub(super) fn command() -> Command {
    let example = "tsnode simulate --cluster cloud32 --workload coding --rate 3 --slo e2e=5x --svg timeline.svg\n  \
                   tsnode simulate --cluster cloud32 --rate 6 --bursty 4 --compare live,shares,random --svg rates.svg";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    verb("simulate", "Run requests on a planned cluster, event by event", example)
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .args(problem_args().into_iter().map(|a| if a.get_id() == "cluster" { a.required(true) } else { a }))
        .arg(value(
            "plan",
            "FILE",
            "A plan as `tsnode plan --cluster … --json` prints it, or auto to search one [default: auto]",
        ))
        .arg(value("policy", "NAME", "How requests are routed and batched [default: live+chunked, what nodes do]"))
        .arg(value("compare", "A,B,…", "Run several policies side by side").conflicts_with("policy"))
        .arg(
            value("trace", "FILE", "These requests at their times, instead of drawn ones")
                .conflicts_with_all(["requests", "bursty"]),
        )
        .arg(value("requests", "N", "Draw so many [default: 5000]"))
        .arg(value("bursty", "C2", "Gaps with this squared coefficient of variation instead of Poisson's 1"))
        .arg(value(
            "rates",
            "R,S,…",
            "Also run at these rates, on the same plan [with --compare and --svg: 0.5 to 1.5 times the rate]",
        ))
        .arg(value(
            "metric",
            "NAME",
            "What is shown over rates: in-time, or the P99 of ttft, tbt, e2e [default: in-time]",
        ))
        .arg(value("svg", "FILE", "Draw what groups did when; with --compare or --rates, policies over rates"))
        .arg(json())
        .after_long_help(policies::help())
        .subcommand(provision::command())
        .subcommand(control::command())
        .subcommand(placement::command())
        .subcommand(sharing::command())
        .subcommand_negates_reqs(true)
        .args_conflicts_with_subcommands(true)
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    if let Some(("provision", matches)) = matches.subcommand() {
        return provision::run(matches).await;
    }
    if let Some(("control", matches)) = matches.subcommand() {
        return control::run(matches).await;
    }
    if let Some(("placement", matches)) = matches.subcommand() {
        return placement::run(matches).await;
    }
    if let Some(("sharing", matches)) = matches.subcommand() {
        return sharing::run(matches).await;
    }
    let job = SimulationJob::read(matches)?;
    stoppable(move |stopped| simulate(&job, stopped)).await
}

fn simulate(job: &SimulationJob, stopped: &AtomicBool) -> Result<(), Exit> {
    let regions = if job.written.is_some() { Vec::new() } else { searched(job) };
    let (mut sites, plan) = match &job.written {
        Some(written) => {
            let (site, plan) = Site::given(&job.problem, written)?;
            (vec![site], plan)
        }
        None => (Site::searched(&regions), PlanOutcome::together(&job.problem, &regions)),
    };
    too_large(&job.problem, &plan, &job.requests)?;
    let mut runs = Vec::new();
    for policy in &job.policies {
        let arrivals = &job.requests.arrivals;
        runs.push(PolicyRun::new(&job.problem, &mut sites, arrivals, policy, job.asked.seed, stopped));
        if stopped.load(Ordering::Relaxed) {
            break;
        }
    }
    let sweep = (!job.rates.is_empty()).then(|| Sweep::new(job, &mut sites, stopped));
    draw(job, &plan, &runs, sweep.as_ref())?;
    if job.json {
        let runs: Vec<_> = runs.iter().map(PolicyRun::json).collect();
        let mut document = json!({ "plan": plan, "runs": runs });
        if let Some(sweep) = &sweep {
            document["rates"] = sweep.json(job);
        }
        return output::print_json(&document);
    }
    print_all(job, &plan, &runs, sweep.as_ref())
}

/// The plan, in one region or in several.
fn searched(job: &SimulationJob) -> Vec<regions::Region> {
    let (asked, problem) = (&job.asked, &job.problem);
    if problem.cluster.devices() <= regions::MOST {
        return vec![regions::Region { problem: problem.clone(), share: 1.0, found: asked.search(problem).found }];
    }
    let started = Instant::now();
    regions::search(problem, asked.seed, asked.effort(), &|| asked.budget.is_some_and(|b| started.elapsed() >= b))
}

fn print_all(job: &SimulationJob, plan: &PlanOutcome, runs: &[PolicyRun], sweep: Option<&Sweep>) -> Result<(), Exit> {
    say!(
        "{} on {}, {} requests at {:.2}/s, planned for {}/s, {}: {:.1} % in time by closed forms\n",
        plan.model,
        plan.cluster,
        job.requests.arrivals.len(),
        job.requests.rate(),
        plan.rate,
        plan.slo,
        plan.attainment * 100.0
    );
    for run in runs {
        print::run(run, plan)?;
    }
    if runs.len() > 1 {
        compare::table(runs)?;
    }
    if let Some(sweep) = sweep {
        say!("");
        sweep.print(job)?;
    }
    Ok(())
}

/// The picture asked for: policies over rates, or what groups did under the first policy.
fn draw(job: &SimulationJob, plan: &PlanOutcome, runs: &[PolicyRun], sweep: Option<&Sweep>) -> Result<(), Exit> {
    let (Some(path), Some(run)) = (&job.svg, runs.first()) else { return Ok(()) };
    let picture = match sweep {
        Some(sweep) => sweep.svg(job),
        None => timeline(job, plan, run),
    };
    std::fs::write(path, picture).map_err(|e| Exit::file(ExitKind::Other, path, &e))
}

fn timeline(job: &SimulationJob, plan: &PlanOutcome, run: &PolicyRun) -> String {
    let label = |g: &tsnode_simulator::outcome::GroupLine| Label { phase: g.phase, name: g.devices.join(" + ") };
    let labels: Vec<Label> = plan.groups.iter().map(label).collect();
    let title = format!(
        "{} on {}, {}, {}: {:.1} % of {} requests in time",
        plan.model,
        plan.cluster,
        run.name,
        plan.slo,
        run.summary.attainment * 100.0,
        run.summary.requests
    );
    let (problem, kv) = (&job.problem, job.problem.model.kv());
    timeline::svg(&title, &labels, &run.outcome, kv, &|t| !keeps(t, &problem.slo, &problem.reference))
}
