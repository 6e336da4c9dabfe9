//! The same requests in the simulator: on the plan that the swarm follows, by its peers' adverts.

use crate::{
    cli::{
        bench::serve::{
            arrivals::PlannedRequest,
            report::{Metric, Report},
        },
        exit::{Exit, Kind},
        swarm_settings,
    },
    hardware::cores::Cores,
    view::SwarmView,
};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_coordinator::{
    members::Members,
    policy::{choice::Dispatch, routing::Asked},
    replay::machines::{Arrival, Outcome, ReplayTrace},
};
use tsnode_protocol::{Advert, DeviceKind, PeerId, Phase, Plan, Seconds};
use tsnode_simulator::{
    live_plan::{LivePlan, LivePlanRun, Overheads},
    percentile::Sorted,
};
use tsnode_testnet::PeerInfo;

/// Between requests that are simulated alone: nothing of one is left when the next comes.
const APART: f64 = 3600.0;

/// Which processors peers share: those named, in turn; or all of this machine's, where none are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hosts {
    named: Vec<Cores>,
    /// Of each of these its host, and of each host its processors.
    of: Vec<usize>,
    cores: Vec<f64>,
}

impl Hosts {
    /// Peers have these processors in turn.
    pub fn new(named: Vec<Cores>) -> Result<Self, String> {
        let mut hosts: Vec<&Cores> = Vec::new();
        let mut of = Vec::new();
        for cores in &named {
            cores.check().map_err(|e| e.to_string())?;
            let host = hosts.iter().position(|host| *host == cores).unwrap_or(hosts.len());
            if host == hosts.len() {
                hosts.push(cores);
            }
            of.push(host);
        }
        if let Some((a, b)) = overlapping(&hosts) {
            return Err(format!("{a} and {b} overlap: peers have the same processors, or others"));
        }
        let all = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cores = if hosts.is_empty() { vec![all() as f64] } else { hosts.iter().map(|h| h.len() as f64).collect() };
        Ok(Self { named, of, cores })
    }

    /// All processors of all hosts.
    pub fn processors(&self) -> f64 {
        self.cores.iter().sum()
    }

    /// Who computes where: peers with a model in their order, the threads as they say.
    fn shared(&self, peers: &[PeerInfo], members: &Members<'_>) -> BTreeMap<PeerId, (usize, f64)> {
        let computing = peers.iter().filter(|peer| !peer.gateway).enumerate();
        let one = |(n, peer): (usize, &PeerInfo)| {
            let id: PeerId = peer.id.parse().ok()?;
            let threads = members.get(&id)?.devices.iter().find_map(|device| match device.kind {
                DeviceKind::Cpu { threads } => Some(f64::from(threads)),
                DeviceKind::Cuda(_) => None,
            })?;
            let host = if self.named.is_empty() { 0 } else { self.of[n % self.of.len()] };
            Some((id, (host, threads)))
        };
        computing.filter_map(one).collect()
    }
}

fn overlapping<'c>(hosts: &[&'c Cores]) -> Option<(&'c Cores, &'c Cores)> {
    let numbers = |cores: &Cores| -> BTreeSet<String> { cores.to_string().split(',').map(str::to_owned).collect() };
    let pairs = hosts.iter().enumerate().flat_map(|(n, a)| hosts[n + 1..].iter().map(move |b| (*a, *b)));
    pairs.into_iter().find(|(a, b)| !numbers(a).is_disjoint(&numbers(b)))
}

/// Requests that were asked one after another.
pub(super) struct Alone {
    pub planned: Vec<PlannedRequest>,
    pub report: Report,
    /// Processor time that all processes used meanwhile (s).
    pub used: f64,
    /// Processors that they use while nothing is asked.
    pub idle: f64,
}

impl Alone {
    /// What was measured beside what the simulator says of the same requests, one after another.
    fn overheads(&self, simulate: impl Fn(Seconds) -> Outcome) -> Overheads {
        let beyond = |outcome: &Outcome, metric: Metric| {
            let ours = sorted(outcome, metric, 0.0).at(0.5);
            Seconds((self.report.at(metric, 0.5).unwrap_or(ours) - ours).max(0.0))
        };
        let plain = simulate(Seconds(0.0));
        let step = beyond(&plain, Metric::Tpot);
        let request = beyond(&simulate(step), Metric::Ttft);
        let computed = plain.busy.iter().sum::<f64>() * plain.end.0;
        let tokens: f64 = self.planned.iter().map(|p| f64::from(p.answer)).sum();
        let beside = self.used - self.idle * self.report.duration.as_secs_f64() - computed;
        Overheads { step, request, idle: self.idle, token: Seconds((beside / tokens.max(1.0)).max(0.0)) }
    }
}

/// What the simulator makes of a replay.
#[derive(Debug)]
pub(super) struct Simulated {
    pub overheads: Overheads,
    /// Groups of each phase.
    pub groups: Vec<(Phase, usize)>,
    pub processors: f64,
    /// Processors that compute, on average.
    pub busy: f64,
    pub outcome: Outcome,
}

impl Simulated {
    /// Of the requests that were asked alone, with what came of them, and of the trace's.
    pub fn new(
        view: &SwarmView,
        peers: &[PeerInfo],
        hosts: &Hosts,
        alone: &Alone,
        planned: &[PlannedRequest],
    ) -> Result<Self, Exit> {
        let wrong = |why: &str| Exit::new(Kind::Other, format!("the swarm's plan cannot be simulated: {why}"));
        let adverts: BTreeMap<PeerId, Advert> = view.peers.iter().map(|p| (p.id, p.advert.clone())).collect();
        let members: Members<'_> = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
        let plan: &Plan = view.plan.as_ref().ok_or_else(|| wrong("there is none"))?;
        let model = view.models.first().ok_or_else(|| wrong("it has no model"))?.id;
        let live = LivePlan::new(&members, plan, model, view.split).map_err(|e| wrong(&e.to_string()))?;
        let dispatch = swarm_settings::of(view).routed(model, &plan.chosen).map_or(Dispatch::Live, Dispatch::from);
        let shared = hosts.shared(peers, &members);
        let mut run = LivePlanRun { dispatch, step: Seconds(0.0), cores: hosts.cores.clone(), hosts: shared };
        let apart = |n: usize, p: &PlannedRequest| arrival(n as f64 * APART, p.prompt, p.answer);
        let apart: Vec<Arrival> = alone.planned.iter().enumerate().map(|(n, p)| apart(n, p)).collect();
        let overheads = alone.overheads(|step| live.run(&apart, &LivePlanRun { step, ..run.clone() }));
        let arrivals: Vec<Arrival> = planned.iter().map(|p| arrival(p.at.as_secs_f64(), p.prompt, p.answer)).collect();
        let tokens: f64 = planned.iter().map(|p| f64::from(p.answer)).sum();
        let took = arrivals.last().map_or(1.0, |a| a.at.0.max(1.0));
        run.step = overheads.step;
        run.cores = overheads.left(&hosts.cores, tokens / took);
        let outcome = live.run(&arrivals, &run);
        let count = |phase| live.groups().iter().filter(|g| g.phase == phase).count();
        let groups = [Phase::Prefill, Phase::Decode, Phase::Mixed].map(|phase| (phase, count(phase)));
        let busy = outcome.busy.iter().sum();
        Ok(Self { overheads, groups: groups.to_vec(), processors: hosts.processors(), busy, outcome })
    }

    /// The time that a share of the requests does not pass (s).
    pub fn at(&self, metric: Metric, share: f64) -> f64 {
        match (metric, &self.outcome.timeline) {
            (Metric::Itl, Some(timeline)) => timeline.gaps().at(share).0,
            _ => sorted(&self.outcome, metric, self.overheads.request.0).at(share),
        }
    }

    /// Requests and tokens of answers, in a second.
    pub fn throughput(&self) -> (f64, f64) {
        let ended = || self.outcome.traces.iter().filter(|t| t.end.is_finite());
        let tokens: f64 = ended().map(|t| f64::from(t.arrival.asked.answer)).sum();
        let took = self.outcome.end.0.max(1e-9);
        (ended().count() as f64 / took, tokens / took)
    }

    /// Requests whose answers ended.
    pub fn ended(&self) -> usize {
        self.outcome.traces.iter().filter(|t| t.end.is_finite()).count()
    }
}

fn arrival(at: f64, prompt: u32, answer: u32) -> Arrival {
    Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) }
}

/// A metric of every request that ended; gaps are the timeline's.
fn sorted(outcome: &Outcome, metric: Metric, request: f64) -> Sorted {
    let ended = outcome.traces.iter().filter(|t| t.end.is_finite());
    let of = |t: &ReplayTrace| match metric {
        Metric::Ttft => (t.first - t.arrival.at).0 + request,
        Metric::E2el => (t.end - t.arrival.at).0 + request,
        Metric::Tpot | Metric::Itl => match t.arrival.asked.answer {
            0 | 1 => f64::NAN,
            answer => (t.end - t.first).0 / f64::from(answer - 1),
        },
    };
    Sorted::new(ended.map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_the_same_or_others() {
        let one = || "0".parse::<Cores>().unwrap();
        let hosts = Hosts::new(vec![one(), one()]).unwrap();
        assert_eq!((hosts.of, hosts.cores), (vec![0, 0], vec![1.0]));
        let (a, b): (Cores, Cores) = ("0-2".parse().unwrap(), "2-3".parse().unwrap());
        assert_eq!(overlapping(&[&a, &b]), Some((&a, &b)));
        assert_eq!(overlapping(&[&a, &"3-4".parse().unwrap()]), None);
        let any = Hosts::new(Vec::new()).unwrap();
        assert!(any.processors() >= 1.0 && any.of.is_empty());
    }
}
