//! The same requests in the simulator: on the plan that the swarm follows, by its peers' adverts.

use super::together::{self, AskedTogether, ComputedRequest, PeersOnHosts};
use crate::{
    cli::{
        bench::serve::{
            arrivals::PlannedRequest,
            report::{Metric, Report},
        },
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

    /// How many peers at most compute at once on processors of their own.
    pub fn at_once(&self, peers: &[PeerInfo], view: &SwarmView) -> usize {
        self.places(&self.shared(peers, view)).at_once()
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

/// Requests that were asked one after another, alike but for their number.
pub(super) struct AskedAlone {
    pub planned: Vec<PlannedRequest>,
    pub report: Report,
    /// Processor time that all processes used meanwhile (s).
    pub used: f64,
    /// Where they were computed.
    pub computed: Vec<ComputedRequest>,
}

/// Those with shorter answers, and then those with longer ones.
pub(super) struct Alone {
    pub asked: [AskedAlone; 2],
    /// Of the longer ones some at once, of each number that was tried.
    pub together: Vec<AskedTogether>,
    /// Processors that all processes use while nothing is asked.
    pub idle: f64,
}

impl Alone {
    /// What was measured beside what the simulator says of the same requests, one after another. Steps are computed by so many threads.
    ///
    /// What longer answers take more is steps alone: the first token's way to who asked hides some of those that follow it. But what slows
    /// the answers of one length down is half as much again in what is left for the end, and an end goes a first token's way, with
    /// nothing more to wait for: where it seems to take longer than one, that is steps, by all that is behind first tokens.
    fn overheads(&self, threads: f64, simulate: impl Fn(Seconds) -> Outcome) -> Overheads {
        let plain = simulate(Seconds(0.0));
        let mut step = self.step_by_lengths(&plain);
        let mut stepped = simulate(step);
        let (mut request, mut whole) = (self.to_first(&stepped), self.to_end(&stepped));
        if whole > request {
            step = self.step_behind_first(&plain);
            stepped = simulate(step);
            request = self.to_first(&stepped);
            whole = request;
        }
        let beside = |n: usize| self.beside(n, &stepped, threads);
        let token = Seconds(((beside(1) - beside(0)) / self.more()).max(0.0));
        let asked = Seconds((beside(0) - token.0 * f64::from(self.answer(0))).max(0.0));
        Overheads { step, request, whole, idle: self.idle, asked, token }
    }

    /// How many tokens more the longer ones have.
    fn more(&self) -> f64 {
        f64::from(self.answer(1).saturating_sub(self.answer(0)).max(1))
    }

    /// The median time of these requests (s), as measured.
    fn live(&self, n: usize, metric: Metric) -> f64 {
        self.asked[n].report.at(metric, 0.5).unwrap_or_default()
    }

    /// What each step takes more than is simulated without anything beside it, by what longer answers take more.
    fn step_by_lengths(&self, plain: &Outcome) -> Seconds {
        let longer = |of: &dyn Fn(usize) -> f64| (of(1) - of(0)) / self.more();
        let live = longer(&|n| self.live(n, Metric::E2el));
        Seconds((live - longer(&|n| self.of(plain, n, whole).at(0.5))).max(0.0))
    }

    /// The same by what is behind first tokens, in the middle of both lengths.
    fn step_behind_first(&self, plain: &Outcome) -> Seconds {
        let each = |n: usize| {
            let live = self.live(n, Metric::E2el) - self.live(n, Metric::Ttft);
            let ours = self.of(plain, n, |t| (t.end - t.first).0).at(0.5);
            (live - ours) / f64::from(self.answer(n).saturating_sub(1).max(1))
        };
        Seconds(f64::midpoint(each(0), each(1)).max(0.0))
    }

    /// What it takes beside steps until a first token is there, in the middle of both lengths.
    fn to_first(&self, stepped: &Outcome) -> Seconds {
        let ours = |n: usize| self.of(stepped, n, |t| (t.first - t.arrival.at).0).at(0.5);
        let first = |n: usize| self.live(n, Metric::Ttft) - ours(n);
        Seconds(f64::midpoint(first(0), first(1)).max(0.0))
    }

    /// And until the end is.
    fn to_end(&self, stepped: &Outcome) -> Seconds {
        Seconds((self.live(1, Metric::E2el) - self.of(stepped, 1, whole).at(0.5)).max(0.0))
    }

    /// Tokens of these answers.
    fn answer(&self, n: usize) -> u32 {
        self.asked[n].planned.first().map_or(0, |p| p.answer)
    }

    /// Something of these requests as they were simulated.
    fn of(&self, outcome: &Outcome, n: usize, what: impl Fn(&ReplayTrace) -> f64) -> Sorted {
        let answer = self.answer(n);
        Sorted::new(outcome.traces.iter().filter(|t| t.arrival.asked.answer == answer).map(what))
    }

    /// Processor time of one of these requests beside its steps (s), whose processors are taken by them in the simulator.
    fn beside(&self, n: usize, stepped: &Outcome, threads: f64) -> f64 {
        let AskedAlone { planned, report, used, .. } = &self.asked[n];
        let requests = planned.len().max(1) as f64;
        let computed = self.of(stepped, n, |t| (t.end - t.arrival.at - t.sending).0).mean();
        (used - self.idle * report.duration.as_secs_f64()) / requests - computed * threads
    }
}

/// From a request's coming to its end (s).
fn whole(t: &ReplayTrace) -> f64 {
    (t.end - t.arrival.at).0
}

/// The swarm as a peer saw it when requests were asked one after another, and with the plan that was in force longest of the trace.
pub(super) struct SwarmViews<'v> {
    pub before: &'v SwarmView,
    pub in_force: &'v SwarmView,
}

/// What the simulator makes of a replay.
#[derive(Debug)]
pub(super) struct SimulatedReplay {
    pub overheads: Overheads,
    /// What peers that compute at once lose to each other.
    pub contention: Contention,
    /// Groups of each phase.
    pub groups: Vec<(Phase, usize)>,
    pub processors: f64,
    /// Processors that compute, on average.
    pub busy: f64,
    pub outcome: Outcome,
    /// Who leads each group, in the order of the machines.
    pub leaders: Vec<Option<PeerId>>,
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
        let asked = alone.asked.iter().flat_map(|asked| &asked.planned).enumerate();
        let apart: Vec<Arrival> = asked.map(|(n, p)| arrival(n as f64 * APART, p.prompt, p.answer)).collect();
        let overheads = simulated(views.before, peers, hosts, |live, run| {
            let threads = run.hosts.values().map(|(_, threads)| threads).sum::<f64>() / run.hosts.len().max(1) as f64;
            alone.overheads(threads.max(1.0), |step| live.run(&apart, &LivePlanRun { step, ..run.clone() }))
        })?;
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
        let (outcome, groups, leaders) = simulated(views.in_force, peers, hosts, |live, run| {
            let (step, contention) = (overheads.step, contention.clone());
            let outcome = live.run(&arrivals, &LivePlanRun { step, left, contention, ..run });
            let count = |phase| live.groups().iter().filter(|g| g.phase == phase).count();
            let groups = [Phase::Prefill, Phase::Decode, Phase::Mixed].map(|phase| (phase, count(phase)));
            (outcome, groups, live.groups().iter().map(|g| g.stages.first().map(|stage| stage.peer)).collect())
        })?;
        let (processors, busy) = (hosts.processors(), outcome.busy.iter().sum());
        Ok(Self { overheads, contention, groups: groups.to_vec(), processors, busy, outcome, leaders })
    }

    /// The n-th of the trace.
    pub fn request(&self, n: usize) -> Option<SimulatedRequest<'_>> {
        let trace = self.outcome.traces.get(n)?;
        let leader = |machine: MachineNo| self.leaders.get(machine.0 as usize).copied().flatten();
        let peers = trace.route.map_or([None; 2], |route| [route.prompt, route.answer].map(leader));
        let (first, whole) = seen(trace, &self.overheads);
        Some(SimulatedRequest { trace, peers, first, whole })
    }

    /// The time that a share of the requests does not pass (s).
    pub fn at(&self, metric: Metric, share: f64) -> f64 {
        match (metric, &self.outcome.timeline) {
            (Metric::Itl, Some(timeline)) => timeline.gaps().at(share).0,
            _ => sorted(&self.outcome, metric, &self.overheads).at(share),
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

/// What peers that compute at once lose to each other, by the longer requests alone and at once.
fn contention(
    view: &SwarmView,
    peers: &[PeerInfo],
    hosts: &Hosts,
    Alone { asked: [_, longer], together, .. }: &Alone,
    overheads: &Overheads,
) -> Contention {
    let left = |requests: f64, tokens: f64| overheads.left(&hosts.cores, requests, tokens);
    together::contention(&longer.computed, together, hosts.places(&hosts.shared(peers, view)), left)
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
fn sorted(outcome: &Outcome, metric: Metric, beside: &Overheads) -> Sorted {
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
    use crate::cli::bench::serve::{
        client::{RequestOutcome, Run},
        timed_answer::TimedAnswer,
    };
    use std::time::Duration;
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
        SimulatedReplay {
            overheads: Overheads { request: Seconds(0.01), whole: Seconds(0.005), ..Overheads::default() },
            contention: Contention::default(),
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

    const MS: Duration = Duration::from_millis(1);

    /// Four requests for so many tokens, which took so long, and processors so many seconds.
    fn asked(answer: u32, (first, whole): (Duration, Duration), used: f64) -> AskedAlone {
        let outcome = |index| {
            let answer = Ok(TimedAnswer { first, whole, ..TimedAnswer::default() });
            RequestOutcome { index, late: Duration::ZERO, answer }
        };
        let run = Run { outcomes: (0..4).map(outcome).collect(), took: Duration::from_secs(1), ..Run::default() };
        let planned = vec![PlannedRequest { at: Duration::ZERO, prompt: 9, answer }; 4];
        AskedAlone { planned, report: Report::new(&run, |_| 9, Vec::new()), used, computed: Vec::new() }
    }

    /// A request for so many tokens in the simulator: its prompt, each step after it, and what is added to both (s).
    fn trace(answer: u32, (prompt, each): (f64, f64), step: f64) -> ReplayTrace {
        let at = Seconds(0.0);
        let first = Seconds(prompt + step);
        let end = Seconds(first.0 + f64::from(answer - 1) * (each + step));
        let arrival = Arrival { at, asked: Asked::new(9, answer) };
        ReplayTrace { arrival, route: None, prompt_start: at, first, answer_start: first, end, sending: at }
    }

    fn near(seconds: f64, ms: f64) -> bool {
        (seconds * 1e3 - ms).abs() < 1e-6
    }

    /// A first token that is on its way for 20 ms, while steps of 2 ms go on: each token after it seems to take less than a step, and what
    /// longer answers take more does not.
    #[test]
    fn what_is_beside_steps_is_told_apart_by_answers_of_two_lengths() {
        // Each is there after 10 ms and its steps, and took a processor 5 ms and 3 ms for each token.
        let both = [24, 72].map(|answer: u32| {
            let used = 0.25 + 4.0 * (5e-3 + 3e-3 * f64::from(answer));
            asked(answer, (30 * MS, (10 + 2 * answer) * MS), used)
        });
        let alone = Alone { asked: both, together: Vec::new(), idle: 0.25 };
        // By their layers prompts take four milliseconds, and each step after them half a one.
        let trace = |answer: u32, step: f64| trace(answer, (4e-3, 5e-4), step);
        let simulate = |step: Seconds| Outcome {
            traces: [24, 24, 72, 72].map(|answer| trace(answer, step.0)).into(),
            ..Outcome::default()
        };
        let found = alone.overheads(1.0, simulate);
        assert!(near(found.step.0, 1.5), "{found:?}");
        // 30 ms, of which 4 + 1.5 are the prompt's step; and 10 + 2 · 72 ms, of which 5.5 + 71 · 2 are steps.
        assert!(near(found.request.0, 24.5) && near(found.whole.0, 6.5), "{found:?}");
        // Of 5 + 3 · 24 ms steps have 5.5 + 23 · 2, of 5 + 3 · 72 they have 5.5 + 71 · 2.
        assert!(near(found.token.0, 1.0) && near(found.asked.0, 1.5), "{found:?}");
        let left = found.left(&[2.0], 10.0, 100.0)[0];
        assert!((left - (2.0 - 0.25 - 0.015 - 0.1)).abs() < 1e-9, "{left}");
        let seen = |metric| sorted(&simulate(found.step), metric, &found).at(0.0);
        assert!(near(seen(Metric::Ttft), 30.0) && near(seen(Metric::E2el), 58.0));
        let short = ReplayTrace { end: Seconds(6e-3), ..trace(24, 1.5e-3) };
        let outcome = Outcome { traces: vec![short], ..Outcome::default() };
        let both = [Metric::E2el, Metric::Ttft].map(|metric| sorted(&outcome, metric, &found).at(0.5));
        assert!(near(both[0], 30.0) && near(both[1], 30.0), "nobody has the end before the first token: {both:?}");
    }

    /// Steps of 10 ms, of which layers are 8, and of 11 ms while the shorter answers were written: what longer ones take more, 457 ms for 48
    /// tokens, says 9.5 ms a step, and 42 ms beside steps to the end, where a first token takes eight and a half.
    #[test]
    fn what_slowed_down_one_length_is_not_taken_for_an_ends_way() {
        let (shorter, longer) = ((50 * MS, (50 + 23 * 11) * MS), (50 * MS, (50 + 71 * 10) * MS));
        let asked = [asked(24, shorter, 0.0), asked(72, longer, 0.0)];
        let alone = Alone { asked, together: Vec::new(), idle: 0.0 };
        let simulate = |step: Seconds| Outcome {
            traces: [24, 72].map(|answer| trace(answer, (40e-3, 8e-3), step.0)).into(),
            ..Outcome::default()
        };
        let plain = simulate(Seconds(0.0));
        let by_lengths = alone.step_by_lengths(&plain);
        assert!((by_lengths.0 - (0.457 / 48.0 - 8e-3)).abs() < 1e-9, "{by_lengths:?}");
        assert!(alone.to_end(&simulate(by_lengths)).0 > 0.04);
        // Behind first tokens steps took three and two milliseconds more than their layers.
        let found = alone.overheads(1.0, simulate);
        assert!(near(found.step.0, 2.5) && near(found.request.0, 7.5), "{found:?}");
        assert_eq!(found.whole, found.request);
    }
}
