//! The same requests in the simulator: on the plan that the swarm follows, by its peers' adverts.

use super::{
    calibration::{Alone, AskedCrowd, Calibration},
    together::{self, ComputingPeers, PeersOnHosts},
};
use crate::{
    cli::{
        bench::serve::{arrivals::PlannedRequest, report::Metric},
        exit::{Exit, ExitKind},
        swarm_settings,
    },
    hardware::cores::Cores,
    view::SwarmView,
};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_coordinator::{
    members::Members,
    policy::{
        choice::Dispatch,
        routing::{Asked, MachineNo},
    },
    replay::machines::{Arrival, Contention, Outcome, ReplayTrace},
};
use tsnode_protocol::{Advert, DeviceKind, PeerId, Phase, Plan, Seconds};
use tsnode_simulator::{
    live_plan::{LivePlan, LivePlanRun, Overheads, PromptSpeed},
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

    /// How many peers compute on processors of these.
    pub fn computing(&self, peers: &[PeerInfo], view: &SwarmView) -> ComputingPeers {
        self.places(&self.shared(peers, view)).computing()
    }

    fn places<'p>(&'p self, peers: &'p BTreeMap<PeerId, (usize, f64)>) -> PeersOnHosts<'p> {
        PeersOnHosts { peers, cores: &self.cores }
    }

    /// Who computes where: peers with a model in their order, the threads as they say.
    fn shared(&self, peers: &[PeerInfo], view: &SwarmView) -> BTreeMap<PeerId, (usize, f64)> {
        let computing = peers.iter().filter(|peer| !peer.gateway).enumerate();
        let one = |(n, peer): (usize, &PeerInfo)| {
            let id: PeerId = peer.id.parse().ok()?;
            let advert = view.peers.iter().find(|peer| peer.id == id).map(|peer| &peer.advert)?;
            let threads = advert.devices.iter().find_map(|device| match device.kind {
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

/// The swarm as a peer saw it when requests were asked one after another, and with the plan that was in force longest of the trace.
pub(super) struct SwarmViews<'v> {
    pub before: &'v SwarmView,
    pub in_force: &'v SwarmView,
}

/// What the simulator makes of a replay.
#[derive(Debug)]
pub(super) struct SimulatedReplay {
    pub calibration: Calibration,
    /// What peers that compute at once lose to each other.
    pub contention: Contention,
    /// What requests at once took for which there are not processors enough, if any were asked so. Nothing is taken from that.
    pub crowd: Option<CrowdComparison>,
    /// Groups of each phase.
    pub groups: Vec<(Phase, usize)>,
    pub processors: f64,
    /// Processors that compute, on average.
    pub busy: f64,
    pub outcome: Outcome,
    /// Who leads each group, in the order of the machines.
    pub leaders: Vec<Option<PeerId>>,
}

/// So many requests at once, live and in the simulator.
#[derive(Debug)]
pub(super) struct CrowdComparison {
    pub at_once: usize,
    pub times: Vec<CrowdTime>,
}

/// The time that a share of them does not pass (s).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CrowdTime {
    pub metric: Metric,
    pub share: f64,
    pub live: f64,
    pub simulated: f64,
}

/// One of the trace's requests in the simulator.
pub(super) struct SimulatedRequest<'r> {
    pub trace: &'r ReplayTrace,
    /// Who computed its prompt and who its answer.
    pub peers: [Option<PeerId>; 2],
    /// From its coming to its first token and to its end, as who asked sees it (s).
    pub first: f64,
    pub whole: f64,
}

impl SimulatedReplay {
    /// Of the requests that were asked alone and at once, with what came of them, and of the trace's.
    pub fn new(
        views: &SwarmViews<'_>,
        peers: &[PeerInfo],
        hosts: &Hosts,
        alone: &Alone,
        planned: &[PlannedRequest],
    ) -> Result<Self, Exit> {
        let asked = alone.all().flat_map(|asked| &asked.planned).enumerate();
        let apart: Vec<Arrival> = asked.map(|(n, p)| arrival(n as f64 * APART, p.prompt, p.answer)).collect();
        let calibration = simulated(views.before, peers, hosts, |live, run| {
            let threads = run.hosts.values().map(|(_, threads)| threads).sum::<f64>() / run.hosts.len().max(1) as f64;
            let simulate = |step, prompts| live.run(&apart, &LivePlanRun { step, prompts, ..run.clone() });
            alone.calibration(threads.max(1.0), simulate)
        })?;
        let (overheads, prompts) = (calibration.overheads, calibration.prompts());
        let arrivals: Vec<Arrival> = planned.iter().map(|p| arrival(p.at.as_secs_f64(), p.prompt, p.answer)).collect();
        let tokens: f64 = planned.iter().map(|p| f64::from(p.answer)).sum();
        let took = arrivals.last().map_or(1.0, |a| a.at.0.max(1.0));
        let contention = contention(views.before, peers, hosts, alone, &overheads);
        let mean = (arrivals.len() as f64 / took, tokens / took);
        // Peers compute side by side while requests run: as much is done beside steps then as when some were asked at once, of whose
        // times the contention was taken with just that left out.
        let (requests, each) = alone.together.last().map_or(mean, |asked| {
            let (requests, tokens) = asked.rates();
            (requests.max(mean.0), tokens.max(mean.1))
        });
        let left = overheads.left(&hosts.cores, requests, each);
        let crowd = alone.crowd.as_ref();
        let crowd =
            crowd.map(|crowd| CrowdComparison::new(crowd, views.before, (peers, hosts), &calibration, &contention));
        let (outcome, groups, leaders) = simulated(views.in_force, peers, hosts, |live, run| {
            let (step, contention) = (overheads.step, contention.clone());
            let outcome = live.run(&arrivals, &LivePlanRun { step, prompts, left, contention, ..run });
            let count = |phase| live.groups().iter().filter(|g| g.phase == phase).count();
            let groups = [Phase::Prefill, Phase::Decode, Phase::Mixed].map(|phase| (phase, count(phase)));
            (outcome, groups, live.groups().iter().map(|g| g.stages.first().map(|stage| stage.peer)).collect())
        })?;
        let (processors, busy) = (hosts.processors(), outcome.busy.iter().sum());
        let crowd = crowd.transpose()?;
        Ok(Self { calibration, contention, crowd, groups: groups.to_vec(), processors, busy, outcome, leaders })
    }

    /// The n-th of the trace.
    pub fn request(&self, n: usize) -> Option<SimulatedRequest<'_>> {
        let trace = self.outcome.traces.get(n)?;
        let leader = |machine: MachineNo| self.leaders.get(machine.0 as usize).copied().flatten();
        let peers = trace.route.map_or([None; 2], |route| [route.prompt, route.answer].map(leader));
        let (first, whole) = seen(trace, &self.calibration.overheads);
        Some(SimulatedRequest { trace, peers, first, whole })
    }

    /// The time that a share of the requests does not pass (s).
    pub fn at(&self, metric: Metric, share: f64) -> f64 {
        match (metric, &self.outcome.timeline) {
            (Metric::Itl, Some(timeline)) => timeline.gaps().at(share).0,
            _ => sorted(&self.outcome, metric, &self.calibration.overheads).at(share),
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

impl CrowdComparison {
    fn new(
        AskedCrowd { asked, rounds }: &AskedCrowd,
        view: &SwarmView,
        (peers, hosts): (&[PeerInfo], &Hosts),
        calibration: &Calibration,
        contention: &Contention,
    ) -> Result<Self, Exit> {
        let (overheads, prompts) = (calibration.overheads, calibration.prompts());
        let at_once = rounds.at_once;
        let each = asked.planned.chunks(at_once).enumerate();
        let arrivals: Vec<Arrival> = each
            .flat_map(|(n, round)| round.iter().map(move |p| arrival(n as f64 * APART, p.prompt, p.answer)))
            .collect();
        let (requests, tokens) = asked.rates();
        let left = overheads.left(&hosts.cores, requests, tokens);
        let outcome = simulated(view, peers, hosts, |live, run| {
            let (step, contention) = (overheads.step, contention.clone());
            live.run(&arrivals, &LivePlanRun { step, prompts, left, contention, ..run })
        })?;
        let time = |(metric, share)| {
            let live = asked.report.at(metric, share).unwrap_or(f64::NAN);
            CrowdTime { metric, share, live, simulated: sorted(&outcome, metric, &overheads).at(share) }
        };
        let of = |metric| [(metric, 0.5), (metric, 0.9)];
        let times = [Metric::Ttft, Metric::E2el].into_iter().flat_map(of).map(time).collect();
        Ok(Self { at_once, times })
    }
}

/// What peers that compute at once lose to each other, by the longer requests alone and at once.
fn contention(
    view: &SwarmView,
    peers: &[PeerInfo],
    hosts: &Hosts,
    Alone { asked: [_, asked], together, crowd, .. }: &Alone,
    overheads: &Overheads,
) -> Contention {
    let left = |requests: f64, tokens: f64| overheads.left(&hosts.cores, requests, tokens);
    let together = (&together[..], crowd.as_ref().map(|crowd| &crowd.rounds));
    together::contention(&asked.computed, together, hosts.places(&hosts.shared(peers, view)), left)
}

/// Runs on a view's plan what it is told to, with nothing beside steps.
fn simulated<T>(
    view: &SwarmView,
    peers: &[PeerInfo],
    hosts: &Hosts,
    simulate: impl FnOnce(&LivePlan<'_>, LivePlanRun) -> T,
) -> Result<T, Exit> {
    let wrong = |why: &str| Exit::new(ExitKind::Other, format!("the swarm's plan cannot be simulated: {why}"));
    let adverts: BTreeMap<PeerId, Advert> = view.peers.iter().map(|p| (p.id, p.advert.clone())).collect();
    let members: Members<'_> = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
    let plan: &Plan = view.plan.as_ref().ok_or_else(|| wrong("there is none"))?;
    let model = view.models.first().ok_or_else(|| wrong("it has no model"))?.id;
    let live = LivePlan::new(&members, plan, model, view.split).map_err(|e| wrong(&e.to_string()))?;
    let dispatch = swarm_settings::of(view).routed(model, &plan.chosen).map_or(Dispatch::Live, Dispatch::from);
    let run = LivePlanRun {
        dispatch,
        split: view.split,
        step: Seconds(0.0),
        prompts: PromptSpeed::default(),
        cores: hosts.cores.clone(),
        left: hosts.cores.clone(),
        hosts: hosts.shared(peers, view),
        contention: Contention::default(),
    };
    Ok(simulate(&live, run))
}

fn arrival(at: f64, prompt: u32, answer: u32) -> Arrival {
    Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) }
}

/// A metric of every request that ended, as who asked sees it; gaps are the timeline's.
pub(super) fn sorted(outcome: &Outcome, metric: Metric, beside: &Overheads) -> Sorted {
    let ended = outcome.traces.iter().filter(|t| t.end.is_finite());
    let of = |t: &ReplayTrace| {
        let (first, whole) = seen(t, beside);
        match (metric, t.arrival.asked.answer) {
            (Metric::Ttft, _) => first,
            (Metric::E2el, _) => whole,
            (Metric::Tpot | Metric::Itl, 0 | 1) => f64::NAN,
            (Metric::Tpot | Metric::Itl, answer) => (whole - first) / f64::from(answer - 1),
        }
    };
    Sorted::new(ended.map(of))
}

/// From a request's coming to its first token and to its end, as who asked sees it (s).
fn seen(t: &ReplayTrace, beside: &Overheads) -> (f64, f64) {
    let first = (t.first - t.arrival.at + beside.request).0;
    // Nobody has the end before the first token.
    (first, (t.end - t.arrival.at + beside.whole).0.max(first))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tsnode_coordinator::policy::routing::RoutingDecision;

    /// A request that came then, waited 100 ms, had its first token after 200 more, and its end a second later.
    pub fn traced(at: f64) -> ReplayTrace {
        let [arrived, prompt_start, first, end] = [0.0, 0.1, 0.3, 1.3].map(|after| Seconds(at + after));
        let arrival = arrival(arrived.0, 61, 41);
        let route = Some(RoutingDecision::whole(MachineNo(0), MachineNo(1)));
        ReplayTrace { arrival, route, prompt_start, first, answer_start: first, end, sending: Seconds(0.0) }
    }

    /// These requests on a group for prompts and one for answers, with 10 ms beside steps to a first token and 5 to an end.
    pub fn replay(traces: Vec<ReplayTrace>) -> SimulatedReplay {
        let overheads = Overheads { request: Seconds(0.01), whole: Seconds(0.005), ..Overheads::default() };
        SimulatedReplay {
            calibration: Calibration { overheads, ..Calibration::default() },
            contention: Contention::default(),
            crowd: None,
            groups: vec![(Phase::Prefill, 1), (Phase::Decode, 1)],
            processors: 2.0,
            busy: 0.5,
            outcome: Outcome { traces, ..Outcome::default() },
            leaders: [8, 9].map(|n| Some(PeerId([n; 32]))).to_vec(),
        }
    }

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
