//! A policy's run on a plan, and what came of it.

use super::{super::plan::asked::usage, args::TracedRequests, policies::ComparedPolicy};
use crate::cli::exit::Exit;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    policy::choice::MachineRoom,
    replay::{
        ReplayPlan,
        machines::{Arrival, Outcome, ReplayTrace},
    },
    scheduler::{Evaluation, Evaluator, Problem, evaluate::GroupNo, parallel::ParallelConfig, regions::Region, search},
};
use tsnode_protocol::Bytes;
use tsnode_simulator::{
    fixed_plan::{Written, given},
    kv_memory::PagedKv,
    outcome,
    percentile::Sorted,
    summary::Summary,
};

/// Where the last requests wait longer than this part of the time in which requests came, queues only grow.
const GROWING: f64 = 0.1;

/// A plan, or the part of it that one region has.
pub(super) struct Site<'p> {
    evaluator: Evaluator<'p>,
    groups: Vec<GroupNo>,
    evaluation: Evaluation,
    share: f64,
}

impl<'p> Site<'p> {
    /// Of regions that were searched.
    pub(super) fn searched(regions: &'p [Region]) -> Vec<Self> {
        let site = |region: &'p Region| {
            let mut evaluator = Evaluator::new(&region.problem);
            let groups = search::shelved(&mut evaluator, &region.found.grouping).unwrap_or_default();
            Self { evaluator, groups, evaluation: region.found.evaluation.clone(), share: region.share }
        };
        regions.iter().map(site).collect()
    }

    /// Of a plan that was written down.
    pub(super) fn given(problem: &'p Problem, written: &Written) -> Result<(Self, outcome::PlanOutcome), Exit> {
        let mut evaluator = Evaluator::new(problem);
        let plan = given(&mut evaluator, written).map_err(|e| usage(format!("the plan does not fit: {e}")))?;
        let outcome = outcome::PlanOutcome::of(&mut evaluator, &plan.groups, &plan.evaluation);
        Ok((Self { evaluator, groups: plan.groups, evaluation: plan.evaluation, share: 1.0 }, outcome))
    }
}

/// One policy's result.
pub(super) struct PolicyRun {
    pub(super) name: &'static str,
    pub(super) summary: Summary,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// Requests still unserved when the last one came.
    pub(super) left: usize,
    /// Groups whose queues grew as long as requests came, if queues did; counted from 0.
    pub(super) saturated: Option<Vec<usize>>,
    /// Requests that were taken and never ended: memory that is too small, or machines that wait for each other's.
    pub(super) stuck: usize,
    pub(super) cut: bool,
}

impl PolicyRun {
    /// Runs requests under a policy.
    pub(super) fn new(
        problem: &Problem,
        sites: &mut [Site<'_>],
        arrivals: &[Arrival],
        policy: &ComparedPolicy,
        seed: u64,
        stopped: &AtomicBool,
    ) -> Self {
        let machine = |problem: &Problem, config: &ParallelConfig, room: MachineRoom| {
            policy.batched.machine(problem, config, room)
        };
        let part = |site: &mut Site<'_>| {
            (ReplayPlan::new(&mut site.evaluator, &site.groups, &site.evaluation, &machine), site.share)
        };
        let parts = sites.iter_mut().map(part).fold(ReplayPlan::default(), |all, (one, share)| all.beside(one, share));
        let bar = indicatif::ProgressBar::new(arrivals.len() as u64).with_message(policy.name);
        let style = indicatif::ProgressStyle::with_template("{msg} {bar:40} {pos} of {len} requests, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()));
        let started = Instant::now();
        let mut outcome =
            parts.simulation(|ways| policy.dispatch.routing(ways, seed)).recorded().run(arrivals, &|arrived| {
                bar.set_position(arrived as u64);
                stopped.load(Ordering::Relaxed)
            });
        let took = started.elapsed();
        bar.finish_and_clear();
        let last = arrivals.last().map_or(0.0, |a| a.at.0);
        let cut = stopped.load(Ordering::Relaxed) && outcome.arrived < arrivals.len();
        outcome.traces.truncate(outcome.arrived.max(1));
        let taken = || outcome.traces.iter().filter(|t| t.route.is_some());
        let stuck = if cut { 0 } else { taken().filter(|t| !t.end.is_finite()).count() };
        let shape = &problem.model.shape;
        let token = shape.kv_elements_per_token_layer() as f64 * problem.model.element;
        let kv = problem.model.kv();
        let summary = Summary::new(&outcome, &problem.slo, &problem.reference, kv);
        Self {
            name: policy.name,
            left: taken().filter(|t| t.end.0 > last).count(),
            saturated: saturated(&outcome),
            stuck,
            summary: summary.with_kv(&outcome, kv, PagedKv::new(shape.layers, Bytes(token))),
            outcome,
            took,
            cut,
        }
    }

    pub(super) fn json(&self) -> Value {
        let groups = self.saturated.as_ref().map(|all| all.iter().map(|g| g + 1).collect::<Vec<_>>());
        json!({
            "policy": self.name, "summary": self.summary, "simulated_in_s": self.took.as_secs_f64(),
            "left_over": self.left, "saturated": self.saturated.is_some(), "saturated_groups": groups.unwrap_or_default(),
            "never_ended": self.stuck, "cut_short": self.cut,
        })
    }
}

/// No group holds a request's KV: said before anything runs.
pub(super) fn too_large(problem: &Problem, plan: &outcome::PlanOutcome, requests: &TracedRequests) -> Result<(), Exit> {
    let most = plan.groups.iter().map(|g| g.kv_tokens).max().unwrap_or(0);
    let need = |a: &Arrival| a.asked.prompt_memory() + a.asked.answer_memory();
    match requests.arrivals.iter().position(|a| need(a) > most) {
        Some(place) => Err(usage(format!(
            "{}: {} prompt and {} answer tokens; the largest group of {} holds {most}",
            requests.name(place),
            requests.arrivals[place].asked.prompt,
            requests.arrivals[place].asked.answer,
            problem.model.name
        ))),
        None => Ok(()),
    }
}

/// Whether the last tenth of the requests waited, before prompts and before answers, for a good part of the whole time;
/// and at which groups they did.
fn saturated(outcome: &Outcome) -> Option<Vec<usize>> {
    let traces = &outcome.traces;
    let long = GROWING * (traces.last()?.arrival.at - traces.first()?.arrival.at).0;
    let tail = || traces.iter().skip(traces.len() - traces.len().div_ceil(10)).filter(|t| t.end.is_finite());
    if Sorted::new(tail().map(|t| prompt_wait(t) + answer_wait(t))).at(0.5) <= long {
        return None;
    }
    let mut waits = vec![Vec::new(); outcome.busy.len()];
    for (trace, route) in tail().filter_map(|t| Some((t, t.route?))) {
        waits[route.prompt.0 as usize].push(prompt_wait(trace));
        waits[route.answer.0 as usize].push(answer_wait(trace));
    }
    let waits = waits.into_iter().map(|all| Sorted::new(all.into_iter()).at(0.75)).enumerate();
    Some(waits.filter(|(_, wait)| *wait > long).map(|(group, _)| group).collect())
}

fn prompt_wait(trace: &ReplayTrace) -> f64 {
    (trace.prompt_start - trace.arrival.at).0
}

fn answer_wait(trace: &ReplayTrace) -> f64 {
    if trace.arrival.asked.answer > 1 { (trace.answer_start - trace.first).0 } else { 0.0 }
}
