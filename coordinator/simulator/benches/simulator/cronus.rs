//! Cronus's evaluation (§5): Table 2 and Figure 4 from our own runs, on GPUs calibrated to what its parts carry alone.

use crate::lengths;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tsnode_coordinator::{
    policy::{batching::Batch, routing::Asked},
    replay::{
        iteration_cost::IterationCost,
        machines::{Arrival, Outcome, Simulation},
    },
    scheduler::Workload,
};
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    cronus::{Approach, GpuPair, SETTINGS, Setting, at_once, evenly, perfect_balance},
    percentile::Sorted,
    policy::balancer::AverageContext,
    trace::{Arriving, drawn},
};

/// Requests in each run (§5.1).
const REQUESTS: usize = 1000;
/// Load at which latencies are measured: of what the approach carries itself, and of what Disagg. L-H carries.
const LOAD: f64 = 0.75;

const APPROACHES: [(&str, Approach); 7] = [
    ("DP+Chunked", Approach::DataParallel),
    ("PP+Chunked", Approach::PipelineParallel),
    ("Disagg. H-L", Approach::HighLow),
    ("Disagg. L-H", Approach::LowHigh),
    ("Cronus, context as printed", Approach::Cronus(AverageContext::AsPrinted)),
    ("Cronus", Approach::Cronus(AverageContext::FirstAndLast)),
    ("ours", Approach::Ready),
];

/// Hears how long iterations take, by how many answers wait for each (microseconds, tokens).
#[derive(Debug)]
struct IterationTimes {
    cost: Arc<dyn IterationCost>,
    gaps: Arc<Mutex<BTreeMap<u64, u64>>>,
}

impl IterationCost for IterationTimes {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let time = self.cost.iteration(batch);
        note(&self.gaps, time, u64::from(batch.answers) * u64::from(batch.iterations));
        time
    }
}

fn note(gaps: &Mutex<BTreeMap<u64, u64>>, time: Seconds, tokens: u64) {
    if tokens > 0 {
        *gaps.lock().expect("one thread").entry((time.0 * 1e6) as u64).or_insert(0) += tokens;
    }
}

/// What came of a run.
struct CronusResult {
    outcome: Outcome,
    rate: f64,
    /// The 99th percentile of times to the first token, KV's way included, and between tokens (s).
    ttft: f64,
    tbt: f64,
}

fn run(pair: &GpuPair, approach: Approach, arrivals: &[Arrival]) -> CronusResult {
    let (mut machines, routing) = pair.parts(approach);
    let gaps = Arc::new(Mutex::new(BTreeMap::new()));
    for machine in &mut machines {
        machine.cost = Arc::new(IterationTimes { cost: machine.cost.clone(), gaps: gaps.clone() });
    }
    let outcome = Simulation::new(machines, routing, Box::new(pair.links())).run(arrivals, &|_| false);
    assert!(outcome.traces.iter().all(|t| t.end.is_finite()), "every request ends");
    // The second token waits for KV and for a place besides.
    outcome.traces.iter().filter(|t| t.arrival.asked.answer > 1).for_each(|t| {
        let wait = t.answer_start - t.first;
        note(&gaps, wait, u64::from(wait > Seconds(0.0)));
    });
    // KV of whole prompts comes after the first token: the paper counts its way in.
    let way = |t: &tsnode_coordinator::replay::machines::ReplayTrace| {
        t.route.filter(|r| r.split.is_none()).map_or(Seconds(0.0), |_| t.sending)
    };
    let ttft = Sorted::new(outcome.traces.iter().map(|t| (t.first + way(t) - t.arrival.at).0)).at(0.99);
    let gaps = gaps.lock().expect("one thread");
    let mut beyond = gaps.values().sum::<u64>() / 100;
    let tbt = gaps.iter().rev().find(|(_, n)| {
        let found = beyond < **n;
        beyond = beyond.saturating_sub(**n);
        found
    });
    let tbt = tbt.map_or(0.0, |(t, _)| *t as f64 / 1e6);
    CronusResult { rate: arrivals.len() as f64 / outcome.end.0, outcome, ttft, tbt }
}

/// The trace's first requests, whose means are the paper's; without the trace, some like them.
fn asked(shared: Option<&Path>) -> Vec<Asked> {
    if let Some(folder) = shared {
        return lengths(folder, "conv").into_iter().take(REQUESTS).collect();
    }
    println!("Azure's traces are not beside the project: lengths are drawn from their percentiles\n");
    let conversation = Workload::named("conversation").expect("it is known");
    drawn(&conversation, 1.0, REQUESTS, Arriving::Poisson, 1).into_iter().map(|a| a.asked).collect()
}

/// What handing an iteration over takes, that the pipeline of a column carries what the paper's did.
fn handing(setting: &Setting, list: &[Asked]) -> Seconds {
    let mut pair = GpuPair::calibrated(setting, list).expect("its parts are known");
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..20 {
        pair.handing = Seconds(0.5 * (low + high));
        let most = run(&pair, Approach::PipelineParallel, &at_once(list)).rate;
        if most > setting.paper[1] { &mut low } else { &mut high }.clone_from(&pair.handing.0);
    }
    pair.handing
}

fn column(setting: &Setting, list: &[Asked], handing: Seconds) {
    let mut pair = GpuPair::calibrated(setting, list).expect("its parts are known");
    let [fast, slow] = pair.measured(list);
    println!("### {} on A100 and {}\n", setting.model, setting.slow);
    println!(
        "Alone, requests/s: A100 {:.2} prompts, {:.2} answers (factors {:.2}, {:.2}); {} {:.2}, {:.2} ({:.2}, {:.2}); KV {} and {} tokens.\n",
        fast.prefill,
        fast.decode,
        pair.fast.compute,
        pair.fast.bandwidth,
        setting.slow,
        slow.prefill,
        slow.decode,
        pair.slow.compute,
        pair.slow.bandwidth,
        pair.fast.capacity,
        pair.slow.capacity,
    );
    let perfect = perfect_balance(setting.fast_alone, setting.slow_alone);
    println!("Perfect balance: {perfect:.2} requests/s.\n");
    println!(
        "| approach | requests/s | paper | of perfect balance | busy | TTFT P99, TBT P99 at {LOAD} of its own | at {LOAD} of L-H |"
    );
    println!("|---|---|---|---|---|---|---|");
    let pipeline = run(&pair, Approach::PipelineParallel, &at_once(list)).rate;
    println!("| PP+Chunked, links only | {pipeline:.2} | | {:.1} % | | | |", 100.0 * pipeline / perfect);
    pair.handing = handing;
    let common = LOAD * run(&pair, Approach::LowHigh, &at_once(list)).rate;
    for (name, approach) in APPROACHES {
        let most = run(&pair, approach, &at_once(list));
        let place = Approach::TABLE_2.iter().position(|a| *a == approach);
        let paper = place.map_or("".to_owned(), |p| setting.paper[p].to_string());
        let [own, same] = [LOAD * most.rate, common].map(|rate| run(&pair, approach, &evenly(list, rate)));
        let busy: Vec<String> = most.outcome.busy.iter().map(|b| format!("{b:.2}")).collect();
        println!(
            "| {name} | {:.2} | {paper} | {:.1} % | {} | {:.2} s, {:.0} ms | {:.2} s, {:.0} ms |",
            most.rate,
            100.0 * most.rate / perfect,
            busy.join(", "),
            own.ttft,
            own.tbt * 1e3,
            same.ttft,
            same.tbt * 1e3,
        );
    }
    println!();
}

/// Whether it hangs on the requests: the same GPUs with other parts of the trace, whose capacities are simulated.
fn elsewhere(folder: &Path, calibrated: &[Asked]) {
    println!("Of perfect balance (%) with other thousands of the trace: DP, Cronus, ours\n");
    let pairs = SETTINGS.each_ref().map(|s| GpuPair::calibrated(s, calibrated).expect("its parts are known"));
    println!("| | {} |", SETTINGS.map(|s| format!("{} {}", s.model, s.slow)).join(" | "));
    println!("|---|---|---|---|---|");
    let all = lengths(folder, "conv");
    for (place, list) in all.chunks_exact(REQUESTS).enumerate().step_by(3) {
        let cell = |pair: &GpuPair| {
            let [fast, slow] = pair.measured(list);
            let part = |a| 100.0 * run(pair, a, &at_once(list)).rate / perfect_balance(fast, slow);
            let cronus = Approach::Cronus(AverageContext::FirstAndLast);
            [Approach::DataParallel, cronus, Approach::Ready].map(|a| format!("{:.1}", part(a))).join(", ")
        };
        println!("| from {} | {} |", place * REQUESTS, pairs.each_ref().map(cell).join(" | "));
    }
    println!();
}

pub fn print(shared: Option<&Path>) {
    let list = asked(shared);
    let handing = handing(&SETTINGS[0], &list);
    println!(
        "Handing an iteration of the pipeline over, fitted to the paper's first column: {:.0} ms.\n",
        handing.0 * 1e3
    );
    for setting in &SETTINGS {
        column(setting, &list, handing);
    }
    if let Some(folder) = shared {
        elsewhere(folder, &list);
    }
}
