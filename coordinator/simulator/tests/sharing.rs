//! Several services on one machine (SeaLLM §4.2): the order against brute force, and what must hold under every order.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_coordinator::{
    Time,
    policy::{
        batching::{Batch, BatchLimits, Batching, RequestNo, RequestPhase, Seen, ServiceNo, Task},
        routing::Asked,
    },
    replay::{
        iteration_cost::IterationCost,
        machines::{Alike, Arrival, Machine, Outcome, ReplayTrace, Simulation},
    },
    service_monitor::{AnsweredRequest, Event, ServiceMonitor},
};
use tsnode_protocol::{Seconds, SecondsPerToken};
use tsnode_simulator::{
    measured_cost::ServiceCosts,
    policy::{
        doubling::{Doubling, ServiceProfile},
        feedback::{Feedback, Queues},
        pages::Pages,
        round_robin::{FirstCome, RoundRobin},
        sharing::{
            Sharing,
            order::{Lead, MemoryRule, Order, PromptStart, Rules},
        },
        shortest_queue::ShortestQueue,
    },
    summary::normalised,
};

/// A model that takes so long for a prompt token and for a step, whatever the batch.
#[derive(Clone, Copy, Debug)]
struct ConstantSpeed {
    token: f64,
    step: f64,
}

impl IterationCost for ConstantSpeed {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let step = if batch.answers > 0 { self.step } else { 0.0 };
        Seconds(self.token * batch.prompt_tokens as f64 + step)
    }
}

fn run(batching: Box<dyn Batching>, cost: Arc<dyn IterationCost>, arrivals: &[Arrival]) -> Outcome {
    let links = Alike { per_token: SecondsPerToken(0.0) };
    let machine = Machine { batching, cost };
    Simulation::new(vec![machine], Box::new(ShortestQueue::new(1)), Box::new(links)).run(arrivals, &|_| false)
}

const ONE: BatchLimits = BatchLimits { tasks: 1, tokens: 1 << 20 };
const AMPLE: u64 = 1 << 40;
/// As printed, as we run it, and with one rule of the two.
const RULES: [Rules; 3] = [
    Rules { prompts: PromptStart::Wait, memory: MemoryRule::Kept, lead: Lead::First },
    Rules { prompts: PromptStart::Join, memory: MemoryRule::Kept, lead: Lead::First },
    Doubling::RULES,
];

/// Every order of `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for shorter in permutations(last) {
        for place in 0..=last {
            let mut order = shorter.clone();
            order.insert(place, last);
            all.push(order);
        }
    }
    all
}

/// A service whose requests are all alike.
#[derive(Clone, Copy, Debug)]
struct UniformService {
    speed: ConstantSpeed,
    prompt: u32,
    answer: u32,
}

impl UniformService {
    fn asked(&self, service: usize) -> Asked {
        Asked { service: ServiceNo(service as u16), ..Asked::new(self.prompt, self.answer) }
    }

    fn takes(&self) -> f64 {
        self.speed.token * f64::from(self.prompt) + self.speed.step * f64::from(self.answer - 1)
    }
}

fn kinds() -> impl Strategy<Value = Vec<UniformService>> {
    let kind = (1u32..50, 1u32..50, 1u32..200, 1u32..60).prop_map(|(token, step, prompt, answer)| UniformService {
        speed: ConstantSpeed { token: f64::from(token) * 1e-4, step: f64::from(step) * 1e-3 },
        prompt,
        answer,
    });
    prop::collection::vec(kind, 1..5)
}

/// The machine's services with what is exactly right of them.
fn exact(kinds: &[UniformService], rules: Rules) -> (Box<dyn Batching>, Arc<dyn IterationCost>) {
    let profile = |k: &UniformService| ServiceProfile::of(&[Seconds(k.takes())]);
    let pages = Pages::new(AMPLE, vec![16; kinds.len()]);
    let policy = Doubling::new(kinds.iter().map(profile).collect(), ONE, pages).by(rules);
    let speeds = kinds.iter().map(|k| Arc::new(k.speed) as Arc<dyn IterationCost>).collect();
    (Box::new(policy), Arc::new(ServiceCosts::new(speeds).unwrap()))
}

/// Least sum of latencies over means when what is left is done in one order or another, from `from` on.
fn best(left: &[(f64, f64, f64)], from: f64) -> f64 {
    let cost = |order: Vec<usize>| {
        let mut now = from;
        let ends = order.into_iter().map(|i| {
            let (time, came, mean) = left[i];
            now += time;
            (now - came) / mean
        });
        ends.sum::<f64>()
    };
    permutations(left.len()).into_iter().map(cost).fold(f64::INFINITY, f64::min)
}

fn total(outcome: &Outcome, kinds: &[UniformService]) -> f64 {
    let mean = |a: &Arrival| kinds[usize::from(a.asked.service.0)].takes();
    outcome.traces.iter().map(|t| (t.end - t.arrival.at).0 / mean(&t.arrival)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Theorem 1, for requests that are present together.
    #[test]
    fn no_order_of_present_requests_is_better(
        kinds in kinds(),
        of in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        rules in prop::sample::select(RULES.to_vec()),
    ) {
        // They come while the machine is at something else that takes a second, so that all are there when it chooses.
        let mut arrivals: Vec<Arrival> = of
            .iter()
            .map(|i| i.index(kinds.len()))
            .map(|k| Arrival { at: Seconds(0.5), asked: kinds[k].asked(k) })
            .collect();
        let left: Vec<_> = arrivals.iter().map(|a| kinds[usize::from(a.asked.service.0)].takes()).map(|t| (t, 0.5, t)).collect();
        let other = UniformService { speed: ConstantSpeed { token: 1.0, step: 1.0 }, prompt: 1, answer: 1 };
        arrivals.insert(0, Arrival { at: Seconds(0.0), asked: other.asked(kinds.len()) });
        let kinds: Vec<UniformService> = kinds.into_iter().chain([other]).collect();
        let (policy, cost) = exact(&kinds, rules);
        let found = total(&run(policy, cost, &arrivals), &kinds);
        let least = 1.0 + best(&left, 1.0);
        prop_assert!((found - least).abs() < 1e-9 * least, "{found} where {least} can be had");
    }

    /// The same from the moment on when others come while one is being answered: what it has had counts.
    #[test]
    fn nor_when_they_come_while_one_runs(
        kinds in kinds(),
        first in any::<prop::sample::Index>(),
        steps in any::<prop::sample::Index>(),
        of in prop::collection::vec(any::<prop::sample::Index>(), 1..7),
        rules in prop::sample::select(RULES.to_vec()),
    ) {
        let first = first.index(kinds.len());
        let early = kinds[first];
        prop_assume!(early.answer > 2);
        // They come half a step before a boundary, with at least one more step to do.
        let steps = 1 + steps.index(early.answer as usize - 2);
        let prompt = early.speed.token * f64::from(early.prompt);
        let boundary = prompt + early.speed.step * steps as f64;
        let at = boundary - 0.5 * early.speed.step;
        let of: Vec<usize> = of.iter().map(|i| i.index(kinds.len())).collect();
        let mut arrivals = vec![Arrival { at: Seconds(0.0), asked: early.asked(first) }];
        arrivals.extend(of.iter().map(|&k| Arrival { at: Seconds(at), asked: kinds[k].asked(k) }));
        let (policy, cost) = exact(&kinds, rules);
        let found = total(&run(policy, cost, &arrivals), &kinds);
        let mut left = vec![(early.takes() - boundary, 0.0, early.takes())];
        left.extend(of.iter().map(|&k| (kinds[k].takes(), at, kinds[k].takes())));
        let least = best(&left, boundary);
        prop_assert!((found - least).abs() < 1e-9 * least, "{found} where {least} can be had");
    }
}

#[test]
fn as_they_came_is_not_the_best() {
    let kind = |step| UniformService { speed: ConstantSpeed { token: 0.001, step }, prompt: 10, answer: 11 };
    let kinds = [kind(1.0), kind(0.01)];
    let arrivals = [(0.0, 0), (0.5, 1)].map(|(at, k)| Arrival { at: Seconds(at), asked: kinds[k].asked(k) });
    let (ours, cost) = exact(&kinds, Doubling::RULES);
    let ours = run(ours, cost.clone(), &arrivals);
    let theirs = run(Box::new(FirstCome::new(ONE, Pages::new(AMPLE, vec![16; 2]))), cost, &arrivals);
    assert!(ours.traces[1].end < Seconds(1.2) && ours.traces[1].end < ours.traces[0].end, "the short one overtakes");
    assert!(theirs.traces[1].end > theirs.traces[0].end, "it waits");
    assert!(3.0 * total(&ours, &kinds) < total(&theirs, &kinds));
}

/// Steps of a second: who needs more than its service mostly does is overtaken once its budget is used up.
#[test]
fn a_used_up_budget_doubles_and_others_overtake() {
    let speed = ConstantSpeed { token: 0.0, step: 1.0 };
    let at = |at: f64, steps: u32| Arrival { at: Seconds(at), asked: Asked::new(1, steps + 1) };
    let ends = |arrivals: &[Arrival]| {
        let profile = ServiceProfile::of(&[Seconds(4.0)]);
        let policy = Doubling::new(vec![profile], ONE, Pages::new(AMPLE, vec![16]));
        let outcome = run(Box::new(policy), Arc::new(speed), arrivals);
        outcome.traces.iter().map(|t| t.end.0).collect::<Vec<f64>>()
    };
    // Four seconds are used up at 4: eight more, after the other's three.
    assert_eq!(ends(&[at(0.0, 9), at(0.5, 3)]), [12.0, 7.0]);
    // A third that comes when the first has had eleven of twelve seconds waits for the last one.
    assert_eq!(ends(&[at(0.0, 12), at(0.5, 3), at(13.5, 1)]), [15.0, 7.0, 16.0]);
}

/// A stream of short requests that fills the machine, and a long one in the midst of it.
#[test]
fn nobody_waits_much_longer_than_patience() {
    let kinds = [
        UniformService { speed: ConstantSpeed { token: 0.0, step: 0.01 }, prompt: 10, answer: 11 },
        UniformService { speed: ConstantSpeed { token: 0.0, step: 0.05 }, prompt: 10, answer: 101 },
    ];
    let mut arrivals: Vec<Arrival> =
        (0..2000).map(|n| Arrival { at: Seconds(f64::from(n) * 0.1), asked: kinds[0].asked(0) }).collect();
    arrivals.insert(5, Arrival { at: Seconds(0.45), asked: kinds[1].asked(1) });
    let end = |patience: f64, rules: Rules| {
        let profile = |k: &UniformService| ServiceProfile::of(&[Seconds(k.takes())]).patient(Seconds(patience));
        let pages = Pages::new(AMPLE, vec![16; 2]);
        let policy = Doubling::new(kinds.iter().map(profile).collect(), ONE, pages).by(rules);
        let speeds = kinds.iter().map(|k| Arc::new(k.speed) as Arc<dyn IterationCost>).collect();
        run(Box::new(policy), Arc::new(ServiceCosts::new(speeds).unwrap()), &arrivals).traces[5].end.0
    };
    for rules in RULES {
        assert!(end(f64::INFINITY, rules) > 200.0, "it waits until the stream ends");
        // Then come those who are as late as it is, each of a tenth of a second: none, or few.
        let late = end(20.0, rules) - (0.45 + 20.0 + kinds[1].takes());
        assert!((-1.0..1.0).contains(&late), "{late} s after its patience and its own time");
    }
}

/// Passes everything on and looks at what is chosen.
#[derive(Debug)]
struct Watched<O: Order> {
    inner: Sharing<O>,
    limits: BatchLimits,
    services: BTreeMap<RequestNo, ServiceNo>,
    batch: Batch,
    ended: BTreeSet<(RequestNo, RequestPhase)>,
}

impl<O: Order> Batching for Watched<O> {
    fn add(&mut self, task: Task) -> bool {
        self.services.insert(task.request, task.service);
        self.inner.add(task)
    }
    fn queues_ahead(&self) -> bool {
        self.inner.queues_ahead()
    }
    fn has_room(&self, memory: u64) -> bool {
        self.inner.has_room(memory)
    }
    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool {
        self.inner.reserve(request, memory)
    }
    fn release(&mut self, request: RequestNo) -> u64 {
        self.inner.release(request)
    }
    fn select(&mut self) -> Batch {
        let (batch, pages) = (self.inner.select(), self.inner.pages());
        assert!(batch.prompts == 0 || batch.answers == 0, "one phase: {batch:?}");
        assert!(batch.tasks() <= self.limits.tasks, "{batch:?}");
        assert!(batch.tasks() == 1 || batch.tokens() <= u64::from(self.limits.tokens), "{batch:?}");
        assert!(pages.used() <= pages.all(), "more memory than there is");
        self.batch = batch;
        batch
    }
    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.inner.chosen(&mut |request, part| {
            assert_eq!(self.services[&request], self.batch.service, "one service");
            assert_eq!(part == RequestPhase::Prompt, self.batch.prompts > 0);
            starting(request, part);
        });
    }
    fn took(&mut self, time: Seconds) {
        self.inner.took(time);
    }
    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        self.inner.ran(iterations, ended);
        for &(request, part) in ended.iter() {
            assert!(self.ended.insert((request, part)), "it ended before");
            assert_eq!(self.services[&request], self.batch.service, "one service");
        }
    }
    fn seen(&self) -> Seen {
        self.inner.seen()
    }
    fn first_waiting(&self) -> Option<u64> {
        self.inner.first_waiting()
    }
    fn has_places(&self) -> bool {
        self.inner.has_places()
    }
}

fn watched<O: Order + 'static>(inner: Sharing<O>, limits: BatchLimits) -> Box<dyn Batching> {
    let (services, batch, ended) = (BTreeMap::new(), Batch::default(), BTreeSet::new());
    Box::new(Watched { inner, limits, services, batch, ended })
}

#[derive(Clone, Copy, Debug)]
enum Orders {
    Doubling(Rules),
    ByPrompt,
    FirstCome,
    RoundRobin,
    Feedback,
}

fn policy(order: Orders, pages: Pages, patience: Seconds) -> Box<dyn Batching> {
    let limits = BatchLimits { tasks: 6, tokens: 512 };
    let profile = |mean: f64| ServiceProfile::of(&[0.5 * mean, 1.5 * mean].map(Seconds)).patient(patience);
    let (per_token, levels) = (SecondsPerToken(1e-4), 6);
    let profiles = vec![profile(0.5), profile(2.0)];
    match order {
        Orders::Doubling(rules) => watched(Doubling::new(profiles, limits, pages).by(rules), limits),
        Orders::ByPrompt => {
            let profiles = profiles.iter().map(|p| p.by_prompt(per_token, &[Seconds(0.3)])).collect();
            watched(Doubling::new(profiles, limits, pages), limits)
        }
        Orders::FirstCome => watched(FirstCome::new(limits, pages), limits),
        Orders::RoundRobin => watched(RoundRobin::new(limits, pages), limits),
        Orders::Feedback => {
            let queues = Queues { quantum: Seconds(0.02), levels, prompt: vec![per_token; 2], patience };
            watched(Feedback::new(queues, limits, pages), limits)
        }
    }
}

fn orders() -> impl Strategy<Value = Orders> {
    let taken_back = Rules { memory: MemoryRule::TakenBack, ..RULES[0] };
    prop::sample::select(vec![
        Orders::Doubling(RULES[0]),
        Orders::Doubling(RULES[1]),
        Orders::Doubling(taken_back),
        Orders::Doubling(Doubling::RULES),
        Orders::ByPrompt,
        Orders::FirstCome,
        Orders::RoundRobin,
        Orders::Feedback,
    ])
}

fn requests() -> impl Strategy<Value = Vec<Arrival>> {
    let request = (0.0f64..0.4, 0u16..2, 1u32..1200, 1u32..300);
    prop::collection::vec(request, 1..50).prop_map(|all| {
        let mut at = Seconds(0.0);
        let mut next = |(gap, service, prompt, answer)| {
            at += Seconds(gap);
            Arrival { at, asked: Asked { service: ServiceNo(service), ..Asked::new(prompt, answer) } }
        };
        all.into_iter().map(&mut next).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Under every order, with memory that is never short and with memory for little more than the largest request.
    #[test]
    fn every_request_ends_once_within_limits(
        arrivals in requests(),
        order in orders(),
        pages in prop::sample::select(vec![94u64, 150, 1 << 20]),
        patience in prop::sample::select(vec![0.0, 3.0, f64::INFINITY]),
    ) {
        let speeds = [ConstantSpeed { token: 1e-4, step: 0.01 }, ConstantSpeed { token: 2e-4, step: 0.02 }];
        let cost = || Arc::new(ServiceCosts::new(speeds.map(|s| Arc::new(s) as Arc<dyn IterationCost>).to_vec()).unwrap());
        let again = || run(policy(order, Pages::new(pages, vec![25, 16]), Seconds(patience)), cost(), &arrivals);
        let outcome = again();
        for t in &outcome.traces {
            prop_assert!(t.end.is_finite(), "a request never ended: {t:?}");
            prop_assert!(t.arrival.at <= t.prompt_start && t.prompt_start < t.first && t.first <= t.end, "{t:?}");
        }
        prop_assert_eq!(&again().traces, &outcome.traces);
    }
}

/// A peer's service monitors, told of a simulated machine's requests, say of them what comparisons here do.
#[test]
fn a_service_monitor_normalises_as_comparisons_do() {
    let speed = |token: f64, step: f64| ConstantSpeed { token: token * 1e-4, step: step * 1e-3 };
    let kinds = [
        UniformService { speed: speed(2.0, 4.0), prompt: 120, answer: 10 },
        UniformService { speed: speed(5.0, 9.0), prompt: 60, answer: 40 },
    ];
    let arrivals: Vec<Arrival> = (0..300)
        .map(|n| Arrival {
            at: Seconds(f64::from(n) * 0.2),
            asked: kinds[usize::from(n % 3 == 0)].asked(usize::from(n % 3 == 0)),
        })
        .collect();
    let (policy, cost) = exact(&kinds, Doubling::RULES);
    let outcome = run(policy, cost, &arrivals);
    let means = kinds.map(|kind| Seconds(kind.takes()));
    for (service, mean) in means.into_iter().enumerate() {
        let theirs = outcome.traces.iter().filter(|t| usize::from(t.arrival.asked.service.0) == service);
        let mut ended: Vec<ReplayTrace> = theirs.copied().collect();
        ended.sort_by(|a, b| a.end.0.total_cmp(&b.end.0));
        let mut monitor = ServiceMonitor::new(Time::ZERO);
        for trace in &ended {
            let (whole, alone) = (trace.end - trace.arrival.at, Some(mean));
            let answered =
                AnsweredRequest { whole, alone, in_time: Some(whole < mean * 2.0), ..AnsweredRequest::default() };
            monitor.on_event(Time::from_secs_f64(trace.end.0), Event::Answered(answered));
        }
        let report = monitor.report(Time::from_secs_f64(ended.last().unwrap().end.0)).unwrap();
        let expected = normalised(&ended, &means);
        let (said, performance) = (report.normalised.unwrap(), report.performance().unwrap());
        assert!((said.mean - expected.mean()).abs() < 1e-9, "{said:?}, {}", expected.mean());
        // The mean of what requests take alone is a sum here, and a number there.
        assert!(said.p99 > expected.at(0.98) - 1e-9 && said.p99 < expected.at(1.0) + 1e-9, "{said:?}");
        assert!(said.mean > 1.02, "they wait for each other: {said:?}");
        let kept = ended.iter().filter(|t| (t.end - t.arrival.at) < mean * 2.0).count();
        assert_eq!((report.answered, performance.attainment), (ended.len(), kept as f64 / ended.len() as f64));
    }
}
