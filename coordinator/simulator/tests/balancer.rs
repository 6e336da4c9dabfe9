//! Cronus: its balancer against reference cases, and what two machines that share prompts must keep whatever comes.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use crate::shared;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tsnode_coordinator::{
    policy::{
        batching::{Batch, Batching, RequestNo, RequestPhase, Seen, Task},
        routing::Asked,
    },
    replay::machines::{Arrival, Outcome, Simulation},
    scheduler::Workload,
};
use tsnode_protocol::{Seconds, SecondsPerToken};
use tsnode_simulator::{
    capacity::Capacity,
    cronus::{Approach, GpuPair, SETTINGS, at_once, perfect_balance},
    policy::balancer::{AverageContext, ChunkFit, FastMachine, PromptFit, first_part},
    trace::{Arriving, drawn},
};

const ALL: [Approach; 7] = [
    Approach::DataParallel,
    Approach::PipelineParallel,
    Approach::HighLow,
    Approach::LowHigh,
    Approach::Cronus(AverageContext::AsPrinted),
    Approach::Cronus(AverageContext::FirstAndLast),
    Approach::Ready,
];

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn algorithm_1_cuts_where_the_reference_does() {
    let all: Value = serde_json::from_str(&shared::read("reference/cronus_balancer_cases.json")).unwrap();
    let cases = all["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let whole = |name: &str| case[name].as_u64().unwrap();
        let per_token = |name: &str| SecondsPerToken(case[name].as_f64().unwrap());
        let seconds = |name: &str| Seconds(case[name].as_f64().unwrap());
        let slow = PromptFit { fixed: seconds("bp"), per_token: per_token("kp") };
        let fast = ChunkFit { fixed: seconds("bcst"), per_before: per_token("kcp"), per_context: per_token("kcd") };
        let beside = FastMachine {
            answers: whole("decode_requests") as u32,
            context: whole("decode_context_sum"),
            free_blocks: whole("free_blocks"),
            block: whole("block_size") as u32,
            tokens: whole("max_batched_tokens") as u32,
        };
        let readings = [("as_printed", AverageContext::AsPrinted), ("first_chunk_at_Lp", AverageContext::FirstAndLast)];
        for (name, reading) in readings {
            let ours = first_part(whole("prompt_tokens") as u32, &slow, &fast, &beside, reading);
            assert_eq!(u64::from(ours), case["expected"][name].as_u64().unwrap(), "{name}: {case}");
        }
    }
    println!("{} cases alike in both readings", cases.len());
}

fn list(requests: usize) -> Vec<Asked> {
    let conversation = Workload::named("conversation").unwrap();
    drawn(&conversation, 1.0, requests, Arriving::Poisson, 1).into_iter().map(|a| a.asked).collect()
}

/// A pair as fast as the paper's first column.
fn pair() -> GpuPair {
    GpuPair::calibrated(&SETTINGS[0], &list(300)).unwrap()
}

#[test]
fn calibrated_gpus_carry_what_the_papers_did() {
    let list = list(300);
    for setting in &SETTINGS {
        let pair = GpuPair::calibrated(setting, &list).unwrap();
        for (ours, paper) in pair.measured(&list).iter().zip([setting.fast_alone, setting.slow_alone]) {
            assert!((ours.prefill / paper.prefill - 1.0).abs() < 1e-6, "{setting:?}: {ours:?}");
            assert!((ours.decode / paper.decode - 1.0).abs() < 1e-3, "{setting:?}: {ours:?}");
        }
    }
}

/// By hand: a fast machine of 10 prompts and 10 answers a second and a slow one of 5 prompts: in a second of 7.5 requests
/// the slow one computes 5 prompts, the fast one 2.5 prompts and 7.5 answers.
#[test]
fn perfect_balance_keeps_both_busy() {
    let fast = Capacity { prefill: 10.0, decode: 10.0 };
    let with = |prefill| perfect_balance(fast, Capacity { prefill, decode: 1.0 });
    assert!((with(5.0) - 7.5).abs() < 1e-12);
    // A slow one that could compute all prompts leaves the answers as the limit.
    assert!((with(20.0) - 10.0).abs() < 1e-12);
}

#[test]
fn sharing_prompts_carries_more_than_whole_requests_or_phases() {
    let list = list(300);
    let pair = pair();
    let rate = |approach| list.len() as f64 / pair.simulation(approach).run(&at_once(&list), &|_| false).end.0;
    let [whole, printed, ours] =
        [Approach::DataParallel, Approach::Cronus(AverageContext::FirstAndLast), Approach::Ready].map(rate);
    assert!(ours > whole && ours > printed, "whole requests {whole}, Cronus {printed}, ours {ours}");
    assert!(printed > rate(Approach::LowHigh) && printed > rate(Approach::HighLow));
}

/// What machines were given and what they did.
#[derive(Debug, Default)]
struct Log {
    /// Prompt tasks of each request: tokens before, tokens.
    prompts: BTreeMap<RequestNo, Vec<(u32, u32)>>,
    ends: BTreeMap<(RequestNo, RequestPhase), u32>,
    computed: u64,
    /// KV that each machine holds.
    held: BTreeMap<usize, i64>,
    requests: BTreeMap<(usize, RequestNo), i64>,
}

/// Passes everything on and writes it down.
#[derive(Debug)]
struct Watched {
    inner: Box<dyn Batching>,
    machine: usize,
    log: Arc<Mutex<Log>>,
}

impl Watched {
    fn holds(&self, request: RequestNo, memory: u64) {
        let mut log = self.log.lock().unwrap();
        *log.held.entry(self.machine).or_default() += memory as i64;
        *log.requests.entry((self.machine, request)).or_default() += memory as i64;
    }
}

impl Batching for Watched {
    fn add(&mut self, task: Task) -> bool {
        self.holds(task.request, task.memory);
        if task.part == RequestPhase::Prompt {
            let mut log = self.log.lock().unwrap();
            log.prompts.entry(task.request).or_default().push((task.before, task.tokens));
        }
        self.inner.add(task)
    }
    fn queues_ahead(&self) -> bool {
        self.inner.queues_ahead()
    }
    fn has_room(&self, memory: u64) -> bool {
        self.inner.has_room(memory)
    }
    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool {
        let takes = self.inner.reserve(request, memory);
        if takes {
            self.holds(request, memory);
        }
        takes
    }
    fn asks_for_kv(&self) -> bool {
        self.inner.asks_for_kv()
    }
    fn release(&mut self, request: RequestNo) -> u64 {
        let memory = self.inner.release(request);
        let mut log = self.log.lock().unwrap();
        assert_eq!(log.requests.remove(&(self.machine, request)), Some(memory as i64), "memory of {request:?}");
        *log.held.entry(self.machine).or_default() -= memory as i64;
        memory
    }
    fn select(&mut self) -> Batch {
        let batch = self.inner.select();
        self.log.lock().unwrap().computed += batch.prompt_tokens;
        batch
    }
    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.inner.chosen(starting);
    }
    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        self.inner.ran(iterations, ended);
        let mut log = self.log.lock().unwrap();
        ended.iter().filter(|e| e.1 == RequestPhase::Answer).for_each(|e| *log.ends.entry(*e).or_default() += 1);
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

fn watched(pair: &GpuPair, approach: Approach, arrivals: &[Arrival]) -> (Outcome, Log) {
    let (mut machines, routing) = pair.parts(approach);
    let log = Arc::new(Mutex::new(Log::default()));
    let watch = |(machine, inner): (usize, Box<dyn Batching>)| Watched { inner, machine, log: log.clone() };
    machines = machines
        .into_iter()
        .enumerate()
        .map(|(m, mut machine)| {
            machine.batching = Box::new(watch((m, machine.batching)));
            machine
        })
        .collect();
    let outcome = Simulation::new(machines, routing, Box::new(pair.links())).run(arrivals, &|_| false);
    (outcome, Arc::try_unwrap(log).unwrap().into_inner().unwrap())
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let request = (0.0f64..0.3, 1u32..6000, 1u32..300);
    prop::collection::vec(request, 1..80).prop_map(|all| {
        let mut at = Seconds(0.0);
        let mut next = |(gap, prompt, answer)| {
            at += Seconds(gap);
            Arrival { at, asked: Asked::new(prompt, answer) }
        };
        all.into_iter().map(&mut next).collect()
    })
}

/// Every prompt token once, every request ended once, all memory given back.
fn check(outcome: &Outcome, log: &Log, arrivals: &[Arrival]) {
    assert_eq!((outcome.arrived, outcome.turned_away), (arrivals.len(), 0));
    for (place, trace) in outcome.traces.iter().enumerate() {
        let (request, asked) = (RequestNo(place as u32), trace.arrival.asked);
        assert!(trace.end.is_finite() && trace.arrival.at <= trace.prompt_start, "{trace:?}");
        assert!(trace.prompt_start < trace.first && trace.first <= trace.end, "{trace:?}");
        let route = trace.route.unwrap();
        assert!(route.split.is_none_or(|s| 0 < s && s < asked.prompt && route.prompt != route.answer), "{trace:?}");
        let parts = &log.prompts[&request];
        assert_eq!(parts.len(), 1 + usize::from(route.split.is_some()));
        let mut done = 0;
        for (before, tokens) in parts {
            assert_eq!(*before, done, "{request:?}");
            done += tokens;
        }
        assert_eq!(done, asked.prompt, "{request:?}");
        let ends = log.ends.get(&(request, RequestPhase::Answer)).copied().unwrap_or(0);
        assert_eq!(ends, u32::from(asked.answer > 1), "{request:?}");
    }
    assert_eq!(log.computed, arrivals.iter().map(|a| u64::from(a.asked.prompt)).sum::<u64>());
    assert!(log.held.values().all(|h| *h == 0) && log.requests.is_empty(), "{:?}", log.held);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_token_is_computed_once_and_all_memory_comes_back(
        arrivals in arrivals(),
        approach in prop::sample::select(ALL.to_vec()),
        scarce in any::<bool>(),
    ) {
        thread_local! { static PAIR: GpuPair = pair(); }
        let mut pair = PAIR.with(Clone::clone);
        if scarce {
            // Little more than the largest request.
            (pair.fast.capacity, pair.slow.capacity) = (9000, 8000);
        }
        let (outcome, log) = watched(&pair, approach, &arrivals);
        check(&outcome, &log, &arrivals);
        let (again, _) = watched(&pair, approach, &arrivals);
        prop_assert_eq!(&again.traces, &outcome.traces);
    }
}
