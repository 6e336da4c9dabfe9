//! Replays a plan request by request, event by event: what closed forms ([`crate::scheduler::pair`]) take on average happens
//! one after another. Prompts in order at each prefill group, KV in order on each link, decode batches formed anew before
//! each iteration. The planner chooses among a search's last candidates so, and `coordinator/simulator` runs its experiments
//! on the same machines.
//!
//! | question | where |
//! |---|---|
//! | what happens when | [`agenda`] |
//! | how long does an iteration take | [`iteration_cost`] |
//! | machines, KV between them, requests | [`machines`], driving [`crate::policy`] |
//! | a pipeline with several batches on their way | `ring`; a plan's group as one: [`pipeline`] |
//! | prompts of which a part is computed elsewhere | `parted` |
//! | prompts that are computed where they are answered after all | [`gated`] |
//! | what machines did when | [`timeline`], if it is asked for |

pub mod agenda;
pub mod gated;
pub mod iteration_cost;
pub mod machines;
mod parted;
pub mod pipeline;
mod ring;
pub mod timeline;

use crate::{
    policy::{
        choice::{Batches, Dispatch, MachineRoom},
        routing::{Asked, MachineNo, Routing, RoutingDecision},
        shares::PhasePair as Share,
    },
    rng::Rng,
    scheduler::{
        Evaluator, Problem,
        cluster::InstanceId,
        evaluate::{self, Evaluation, GroupNo},
        pair::KvPath,
        parallel::ParallelConfig,
    },
};
use gated::{GatedRouting, ReplayGate};
use machines::{Arrival, KvLinks, Machine, Outcome, ReplayTrace, Simulation};
use parted::Parted;
use pipeline::Pipeline;
use std::collections::BTreeMap;
use std::sync::Arc;
use tsnode_protocol::{Seconds, Tokens};

/// How a replay is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Of arrivals, lengths and routes.
    pub seed: u64,
    /// How many requests are sent.
    pub requests: usize,
}

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// Share that kept its deadlines; requests that no route takes keep none.
    pub attainment: f64,
    /// Whole times as multiples of the reference's, in order; infinite for requests not taken.
    pub scales: Vec<f64>,
    /// Tokens a second, all groups together.
    pub tokens_per_second: f64,
    /// Mean time to the first token of those taken (s).
    pub ttft: f64,
}

impl ReplayReport {
    /// The SLO scale that this share of requests keeps: the deadline ThunderServe §5.1 compares by.
    #[must_use]
    pub fn scale_at(&self, share: f64) -> f64 {
        let place = (self.scales.len() as f64 * share).ceil() as usize;
        self.scales.get(place.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
    }
}

/// Replays requests of a problem's workload on a plan, prompts computed as the problem says.
#[must_use]
pub fn replay(evaluator: &mut Evaluator<'_>, groups: &[GroupNo], plan: &Evaluation, how: Replay) -> ReplayReport {
    let batches = evaluator.problem().prompts.batches();
    replay_by(evaluator, groups, plan, batches, how)
}

/// The same with machines that batch otherwise.
#[must_use]
pub fn replay_by(
    evaluator: &mut Evaluator<'_>,
    groups: &[GroupNo],
    plan: &Evaluation,
    batches: Batches,
    how: Replay,
) -> ReplayReport {
    let problem = evaluator.problem();
    let (arrivals, kinds) = requests(problem, how, 1.0);
    let parts =
        ReplayPlan::new(evaluator, groups, plan, &|problem, config, room| stepping(batches, problem, config, room));
    let outcome = parts.simulation(|ways| Dispatch::Shares.routing(ways, 0.0)).run(&arrivals, &|_| false);
    report(problem, &outcome, &kinds)
}

/// Replays requests of a problem's workload on a plan's groups, routed as gateways route them by this policy. Where they come in
/// bursts, `variation` is the square of the coefficient of variation of the time between them.
#[must_use]
pub fn replay_routed(
    parts: ReplayPlan,
    problem: &Problem,
    dispatch: Dispatch,
    how: Replay,
    variation: f64,
) -> ReplayReport {
    let (arrivals, kinds) = requests(problem, how, variation);
    let outcome = parts.dispatched(dispatch).run(&arrivals, &|_| false);
    report(problem, &outcome, &kinds)
}

/// A group as a machine that batches as nodes can.
#[must_use]
pub fn stepping(batches: Batches, problem: &Problem, config: &ParallelConfig, room: MachineRoom) -> Machine {
    let batching = batches.batching(room);
    if batches.fill_pipelines() {
        Machine { batching, cost: Arc::new(Pipeline::new(problem, config)) }
    } else {
        Machine { batching, cost: Arc::new(config.clone()) }
    }
}

/// A plan's groups as machines, with its routes and its links.
#[derive(Debug, Default)]
pub struct ReplayPlan {
    machines: Vec<Machine>,
    ways: Vec<Share<MachineNo>>,
    links: Layered,
}

impl ReplayPlan {
    /// Of a plan; `of` makes a machine of a group's configuration, with room for so much.
    #[must_use]
    pub fn new(
        evaluator: &mut Evaluator<'_>,
        groups: &[GroupNo],
        plan: &Evaluation,
        of: &dyn Fn(&Problem, &ParallelConfig, MachineRoom) -> Machine,
    ) -> Self {
        let layers = f64::from(evaluator.problem().model.shape.layers);
        let mut links = Layered { layers, ..Layered::default() };
        for share in plan.shares.iter().filter(|s| s.prefill != s.decode) {
            let way = evaluator.way(groups[share.prefill], groups[share.decode]).clone();
            links.ways.insert((machine(share.prefill), machine(share.decode)), way);
        }
        let problem = evaluator.problem();
        let group = |g: &GroupNo| {
            let config = &evaluator.shelved(*g).rated.config;
            let (places, stages) = (config.batch as usize, config.stages.len());
            // Each place has a state beside its tokens, of models that keep some.
            let states = problem.model.state_tokens().0 * places as f64;
            let capacity = (config.kv_tokens.0 - states).max(0.0) as u64;
            of(problem, config, MachineRoom { places, tokens: capacity, stages })
        };
        let share =
            |s: &evaluate::RouteShare| Share { prefill: machine(s.prefill), decode: machine(s.decode), share: s.share };
        let ways = plan.shares.iter().map(share).collect();
        Self { machines: groups.iter().map(group).collect(), ways, links }
    }

    /// This and another region's, which gets a part of all requests.
    #[must_use]
    pub fn beside(mut self, other: Self, part: f64) -> Self {
        let before = self.machines.len() as u32;
        let moved = |m: MachineNo| MachineNo(m.0 + before);
        // Instances are numbered anew in each region.
        let hosts = self.links.ways.values().flat_map(|w| &w.links).map(|l| l.0.0.max(l.1.0) + 1).max().unwrap_or(0);
        let host = |i: InstanceId| InstanceId(i.0 + hosts);
        for ((a, b), mut way) in other.links.ways {
            way.links.iter_mut().for_each(|l| (l.0, l.1) = (host(l.0), host(l.1)));
            self.links.ways.insert((moved(a), moved(b)), way);
        }
        self.links.layers = other.links.layers;
        self.ways.extend(other.ways.into_iter().map(|w| Share {
            prefill: moved(w.prefill),
            decode: moved(w.decode),
            share: w.share * part,
        }));
        self.machines.extend(other.machines);
        self
    }

    /// Ready to run, requests routed as gateways route them by this policy: who turn nobody away.
    #[must_use]
    pub fn dispatched(mut self, dispatch: Dispatch) -> Simulation {
        self.turn_nobody_away();
        if dispatch != Dispatch::Cronus {
            return self.simulation(|ways| dispatch.routing(ways, 0.0));
        }
        let costs = self.machines.iter().map(|machine| machine.cost.clone()).collect();
        let paths = self.links.ways.iter().map(|(pair, way)| (*pair, (way.latency, way.per_token))).collect();
        self.simulation(|ways| Box::new(Parted::new(ways, costs, paths)))
    }

    /// The same behind a cost gate. Parting prompts is a choice of its own.
    #[must_use]
    pub fn gated(mut self, dispatch: Dispatch, gate: ReplayGate) -> Simulation {
        if dispatch == Dispatch::Cronus {
            return self.dispatched(dispatch);
        }
        self.turn_nobody_away();
        self.simulation(|ways| Box::new(GatedRouting::new(dispatch.routing(ways, 0.0), gate)))
    }

    fn turn_nobody_away(&mut self) {
        let whole: f64 = self.ways.iter().map(|way| way.share).sum();
        if whole > 0.0 {
            self.ways.iter_mut().for_each(|way| way.share /= whole);
        }
    }

    /// Ready to run, requests routed by a policy over the plan's ways.
    #[must_use]
    pub fn simulation(self, routing: impl FnOnce(Vec<Share<MachineNo>>) -> Box<dyn Routing>) -> Simulation {
        Simulation::new(self.machines, routing(self.ways), Box::new(self.links))
    }
}

fn machine(place: usize) -> MachineNo {
    MachineNo(place as u32)
}

/// Requests of the workload, and which of its kinds each is.
fn requests(problem: &Problem, how: Replay, variation: f64) -> (Vec<Arrival>, Vec<usize>) {
    let (mut rng, mut at) = (Rng::new(how.seed), Seconds(0.0));
    let mut next = || {
        at += gap(&mut rng, 1.0 / problem.rate, variation);
        let kind = rng.below(problem.workload.requests.len());
        let request = problem.workload.requests[kind];
        let asked = Asked::new(request.prompt.0.max(1.0) as u32, request.answer.0.max(1.0) as u32);
        (Arrival { at, asked }, kind)
    };
    (0..how.requests).map(|_| next()).unzip()
}

/// Time to the next request: exponential where requests come independently, as many short gaps beside few long ones as make it vary so
/// much where they come in bursts (hyperexponential with balanced means).
fn gap(rng: &mut Rng, mean: f64, variation: f64) -> Seconds {
    let has_bursts = variation > 1.0 && variation.is_finite();
    if !has_bursts {
        return Seconds(rng.exponential(mean));
    }
    let short = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
    let part = if rng.unit() < short { short } else { 1.0 - short };
    Seconds(rng.exponential(mean / (2.0 * part)))
}

/// KV follows its prompt layer by layer; on each link one prompt's after the other's.
#[derive(Debug, Default)]
struct Layered {
    ways: BTreeMap<(MachineNo, MachineNo), KvPath>,
    layers: f64,
    free: BTreeMap<(InstanceId, InstanceId), Seconds>,
}

impl KvLinks for Layered {
    fn land(&mut self, route: RoutingDecision, prompt: Tokens, start: Seconds, done: Seconds) -> Seconds {
        let Some(way) = self.ways.get(&(route.prompt, route.answer)) else { return done };
        let mut landed = done + way.latency + way.per_token * prompt / self.layers;
        for &(a, b, per_token) in &way.links {
            let time = per_token * prompt;
            let free = self.free.entry((a, b)).or_insert(Seconds(0.0));
            let begin = free.max(start);
            *free = begin + time;
            landed = landed.max(free.max(done + time / self.layers) + way.latency);
        }
        landed
    }
}

fn report(problem: &Problem, outcome: &Outcome, kinds: &[usize]) -> ReplayReport {
    let (mut kept, mut tokens, mut ttft, mut taken) = (0usize, 0.0, 0.0, 0usize);
    let mut scales = Vec::with_capacity(kinds.len());
    for (trace, kind) in outcome.traces.iter().zip(kinds) {
        let (request, deadline) = (problem.workload.requests[*kind], problem.deadlines[*kind]);
        let (first, rest) = problem.reference.times(&request);
        let ReplayTrace { arrival, first: got, end, .. } = *trace;
        let whole = end - arrival.at;
        scales.push(whole / (first + rest * request.steps()));
        if !end.is_finite() {
            continue;
        }
        let in_time =
            got - arrival.at <= deadline.ttft && end - got <= deadline.answer(request.steps()) && whole <= deadline.e2e;
        kept += usize::from(in_time);
        taken += 1;
        ttft += (got - arrival.at).0;
        tokens += request.answer.0;
    }
    scales.sort_by(f64::total_cmp);
    ReplayReport {
        attainment: kept as f64 / kinds.len().max(1) as f64,
        scales,
        tokens_per_second: if outcome.end.0 > 0.0 { tokens / outcome.end.0 } else { 0.0 },
        ttft: ttft / taken.max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_between_requests_vary_as_much_as_is_said() {
        for variation in [1.0, 4.0, 25.0] {
            let mut rng = Rng::new(3);
            let gaps: Vec<f64> = (0..200_000).map(|_| gap(&mut rng, 0.5, variation).0).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let squares = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            // Of the heaviest tail the standard error of the second moment is about 3 %.
            let found = squares / mean.powi(2);
            assert!((mean / 0.5 - 1.0).abs() < 0.05 && (found / variation - 1.0).abs() < 0.15, "{variation}: {found}");
        }
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(gap(&mut Rng::new(1), 1.0, odd).0.is_finite(), "{odd}");
        }
    }
}
