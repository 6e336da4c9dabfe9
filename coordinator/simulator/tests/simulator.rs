//! Whatever comes, every policy on every cluster ends every request once, within its limits, and alike each time.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use proptest::prelude::*;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, BatchLimits, Batching, RequestNo, RequestPhase, Seen, Task},
        chunked::Chunked,
        pools::LivePools,
        prefill_first::PrefillFirst,
        routing::{Asked, MachineNo, Routing},
        shares::{PhasePair, Shares},
        shortest::Shortest,
    },
    replay::{
        iteration_cost::IterationCost,
        machines::{Alike, Arrival, Machine, Outcome, Simulation},
    },
};
use tsnode_protocol::{Seconds, SecondsPerToken};
use tsnode_simulator::{
    measured_cost::{CostLine, Table},
    policy::{ageing::Ageing, dispatch::Anywhere, greedy::Greedy, pools::Pools, shortest_queue::ShortestQueue},
};

const LIMITS: BatchLimits = BatchLimits { tasks: 8, tokens: 512 };
/// KV that is never short, and KV that holds little more than the largest request of these tests.
const AMPLE: u64 = 200_000;
const TIGHT: u64 = 2000;

/// Passes everything on and looks at what is chosen.
#[derive(Debug)]
struct Watched<B> {
    inner: B,
    /// Limits that a batch must keep.
    limits: Option<BatchLimits>,
    under_way: usize,
}

impl<B: Batching> Watched<B> {
    fn new(inner: B, limits: Option<BatchLimits>) -> Box<Self> {
        Box::new(Self { inner, limits, under_way: 0 })
    }
}

/// A machine cut in stages; the first has most to do.
#[derive(Debug)]
struct StageCut {
    whole: Table,
    stages: usize,
}

impl IterationCost for StageCut {
    fn iteration(&self, batch: &Batch) -> Seconds {
        self.whole.iteration(batch)
    }
    fn stages(&self) -> usize {
        self.stages
    }
    fn stage(&self, place: usize, batch: &Batch) -> Seconds {
        let parts = (self.stages * (self.stages + 1) / 2) as f64;
        self.iteration(batch) * ((self.stages - place) as f64 / parts)
    }
}

impl<B: Batching> Batching for Watched<B> {
    fn add(&mut self, task: Task) -> bool {
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
    fn at_once(&self) -> usize {
        self.inner.at_once()
    }
    fn select(&mut self) -> Batch {
        assert!(self.under_way < self.inner.at_once(), "more batches than it can have");
        let batch = self.inner.select();
        self.under_way += usize::from(!batch.is_empty());
        if let Some(limits) = self.limits {
            assert!(batch.tasks() <= limits.tasks, "{batch:?}");
            assert!(batch.tasks() == 1 || batch.tokens() <= u64::from(limits.tokens), "{batch:?}");
            assert!(batch.is_empty() || batch.iterations >= 1);
            // What is used fits: there is room for nothing at least.
            assert!(self.inner.has_room(0), "more memory than there is");
        }
        batch
    }
    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.inner.chosen(starting);
    }
    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        self.under_way -= 1;
        self.inner.ran(iterations, ended);
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

#[derive(Clone, Copy, Debug)]
enum BatchingKind {
    Ageing,
    PrefillFirst,
    Greedy,
    Chunked,
}

#[derive(Clone, Copy, Debug)]
enum Routes {
    Shortest,
    Pools,
    Shares,
    Live,
    Anywhere,
    Queues,
    LivePools,
}

fn simulation(machines: usize, batches: BatchingKind, routes: Routes, capacity: u64, stages: usize) -> Simulation {
    let line = |y: f64| CostLine::new(vec![(1.0, y), (1000.0, 20.0 * y)]).unwrap();
    let cost = Arc::new(StageCut { whole: Table { prompt: line(0.01), answer: line(0.02) }, stages });
    let batching = || -> Box<dyn Batching> {
        match batches {
            BatchingKind::Ageing => Watched::new(Ageing::new(LIMITS, capacity), Some(LIMITS)),
            BatchingKind::PrefillFirst => Watched::new(PrefillFirst::new(4, capacity).in_stages(stages), None),
            BatchingKind::Chunked => {
                Watched::new(Chunked::new(LIMITS.tokens, LIMITS.tasks, capacity).in_stages(stages), None)
            }
            BatchingKind::Greedy => Watched::new(Greedy::new(1000, 2000), None),
        }
    };
    let all = (0..machines).map(|_| Machine { batching: batching(), cost: cost.clone() }).collect();
    let place = |m: usize| MachineNo(m as u32);
    let share = 1.0 / machines as f64;
    let ways: Vec<PhasePair<MachineNo>> =
        (0..machines).map(|m| PhasePair { prefill: place(m), decode: place((m + 1) % machines), share }).collect();
    let routing: Box<dyn Routing> = match routes {
        Routes::Shortest => Box::new(ShortestQueue::new(machines)),
        Routes::Pools => Box::new(Pools::new(machines / 2, &vec![capacity; machines])),
        Routes::Shares => Box::new(Shares::new(ways, false)),
        Routes::Live => Box::new(Shares::new(ways, true)),
        Routes::Anywhere => Box::new(Anywhere::new(ways, 7)),
        Routes::Queues => Box::new(Shortest::new(ways)),
        Routes::LivePools => {
            // The first half computes prompts for all others; one machine alone does both.
            let (first, of) = (0..machines.div_ceil(2), machines / 2..machines);
            let way = |prefill, decode| PhasePair { prefill: place(prefill), decode: place(decode), share };
            Box::new(LivePools::new(first.flat_map(|p| of.clone().map(move |a| way(p, a))).collect()))
        }
    };
    Simulation::new(all, routing, Box::new(Alike { per_token: SecondsPerToken(1e-5) }))
}

fn check(outcome: &Outcome, requests: usize) {
    assert_eq!((outcome.traces.len(), outcome.arrived, outcome.turned_away), (requests, requests, 0));
    for trace in &outcome.traces {
        let t = trace;
        assert!(t.end.is_finite(), "a request never ended: {t:?}");
        assert!(t.arrival.at <= t.prompt_start && t.prompt_start < t.first && t.first <= t.end, "{t:?}");
        if t.arrival.asked.answer > 1 {
            assert!(t.first <= t.answer_start && t.answer_start < t.end, "{t:?}");
        }
    }
    assert!(outcome.busy.iter().all(|b| (0.0..=1.0 + 1e-9).contains(b)));
}

/// Requests at random moments.
pub fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let request = (0.0f64..0.5, 1u32..1200, 1u32..300);
    prop::collection::vec(request, 1..60).prop_map(|all| {
        let mut at = Seconds(0.0);
        let mut next = |(gap, prompt, answer)| {
            at += Seconds(gap);
            Arrival { at, asked: Asked::new(prompt, answer) }
        };
        all.into_iter().map(&mut next).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_alike_each_time(
        arrivals in arrivals(),
        machines in 1usize..6,
        stages in 1usize..5,
        batches in prop::sample::select(vec![BatchingKind::Ageing, BatchingKind::PrefillFirst, BatchingKind::Greedy, BatchingKind::Chunked]),
        routes in prop::sample::select(vec![
            Routes::Shortest, Routes::Pools, Routes::Shares, Routes::Live, Routes::Anywhere, Routes::Queues,
            Routes::LivePools,
        ]),
    ) {
        let run = || simulation(machines, batches, routes, AMPLE, stages).run(&arrivals, &|_| false);
        let outcome = run();
        check(&outcome, arrivals.len());
        prop_assert_eq!(&run().traces, &outcome.traces);
    }

    /// Machines may come to wait for each other's memory (prompts hold what answers need); the run ends all the same, and
    /// memory is never overdrawn.
    #[test]
    fn tight_memory_is_never_overdrawn(
        arrivals in arrivals(),
        machines in 1usize..6,
        routes in prop::sample::select(vec![Routes::Shortest, Routes::Pools, Routes::Shares, Routes::LivePools]),
    ) {
        let outcome = simulation(machines, BatchingKind::Ageing, routes, TIGHT, 1).run(&arrivals, &|_| false);
        prop_assert_eq!(outcome.arrived, arrivals.len());
    }
}

#[test]
fn a_stopped_run_gives_what_there_is() {
    let all: Vec<Arrival> =
        (0..20_000).map(|n| Arrival { at: Seconds(f64::from(n) * 0.1), asked: Asked::new(50, 3) }).collect();
    let outcome =
        simulation(2, BatchingKind::PrefillFirst, Routes::Live, AMPLE, 1).run(&all, &|arrived| arrived > 5000);
    assert!(outcome.arrived > 5000 && outcome.arrived < 20_000, "{}", outcome.arrived);
    assert!(outcome.traces.iter().take(4000).all(|t| t.end.is_finite()));
}

/// Two machines of equal shares, one with a long prompt on it: as long as that lasts the next requests go to the other.
#[test]
fn the_shortest_queue_is_found() {
    let long = Arrival { at: Seconds(0.0), asked: Asked::new(1200, 1) };
    let short = |n: u32| Arrival { at: Seconds(f64::from(n) * 1e-3), asked: Asked::new(10, 1) };
    let all: Vec<Arrival> = std::iter::once(long).chain((1..40).map(short)).collect();
    let beside = |routes| {
        let outcome = simulation(2, BatchingKind::PrefillFirst, routes, AMPLE, 1).run(&all, &|_| false);
        let busy = outcome.traces[0].route.unwrap().prompt;
        outcome.traces[1..].iter().filter(|t| t.route.unwrap().prompt == busy).count()
    };
    assert_eq!(beside(Routes::Queues), 0, "the shortest queue");
    assert!(beside(Routes::Shares).abs_diff(19) <= 2, "half, whatever the queues");
}

/// A second for each stage, whatever the batch.
#[derive(Debug)]
struct EvenStages(usize);

impl IterationCost for EvenStages {
    fn iteration(&self, _: &Batch) -> Seconds {
        Seconds(1.0)
    }
    fn stages(&self) -> usize {
        self.0
    }
}

/// Two requests on a pipeline of two stages take turns: while one is at the second stage the other is at the first.
#[test]
fn a_pipeline_is_at_a_batch_with_every_stage() {
    let batching = Watched::new(PrefillFirst::new(4, AMPLE).in_stages(2), None);
    let routing = Box::new(ShortestQueue::new(1));
    let links = Box::new(Alike { per_token: SecondsPerToken(0.0) });
    let machine = Machine { batching, cost: Arc::new(EvenStages(2)) };
    let both = [Arrival { at: Seconds(0.0), asked: Asked::new(10, 3) }; 2];
    let outcome = Simulation::new(vec![machine], routing, links).run(&both, &|_| false);
    let times = |n: usize| {
        let t = outcome.traces[n];
        [t.prompt_start, t.first, t.answer_start, t.end].map(|s| s.0)
    };
    assert_eq!(times(0), [0.0, 2.0, 2.0, 6.0]);
    assert_eq!(times(1), [1.0, 3.0, 3.0, 7.0]);
    assert!((outcome.busy[0] - 6.0 / 7.0).abs() < 1e-12, "{:?}", outcome.busy);
}
