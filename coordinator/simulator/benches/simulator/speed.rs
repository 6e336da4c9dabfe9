//! Requests and events a second on one core.

use std::sync::Arc;
use std::time::Instant;
use tsnode_coordinator::{replay::machines::Arrival, scheduler::Workload};
use tsnode_simulator::{
    measured_cost::{CostLine, Table},
    splitwise::{Sizes, System, cluster},
    trace::{Arriving, drawn},
};

const RUNS: usize = 9;

/// About what an H100 machine takes for bloom-176b: 0.12 ms a prompt token, 36 ms a token.
fn machine() -> Arc<Table> {
    let line = |knots: &[(f64, f64)]| CostLine::new(knots.to_vec()).expect("there are two");
    Arc::new(Table {
        prompt: line(&[(128.0, 0.048), (2048.0, 0.252), (32768.0, 5.0)]),
        answer: line(&[(1.0, 0.0355), (512.0, 0.0362)]),
    })
}

fn measure(what: &str, machines: usize, system: System, arrivals: &[Arrival], runs: usize) {
    let (table, sizes) = (machine(), Sizes::of("bloom-176b").expect("it is known"));
    let mut times = Vec::new();
    let mut events = 0;
    for _ in 0..runs {
        let simulation = cluster(sizes, &[(&table, machines)], system);
        let started = Instant::now();
        let outcome = simulation.run(arrivals, &|_| false);
        times.push(started.elapsed().as_secs_f64());
        assert!(outcome.traces.iter().all(|t| t.end.is_finite()), "every request ends");
        events = outcome.events;
    }
    times.sort_by(f64::total_cmp);
    let time = times[times.len() / 2];
    println!("| {what} | {} | {:.0} ms | {:.2} M/s |", arrivals.len(), time * 1e3, events as f64 / time / 1e6);
}

pub fn print() {
    let conversation = Workload::named("conversation").expect("it is known");
    let list = |rate: f64, n: usize| drawn(&conversation, rate, n, Arriving::Poisson, 1);
    println!("| what | requests | median of {RUNS} (the last: once) | events |\n|---|---|---|---|");
    measure("40 machines, pools of 25 and 15, 80 requests/s", 40, System::Pooled(25), &list(80.0, 4848), RUNS);
    measure("40 machines, shortest queue, 80 requests/s", 40, System::Baseline, &list(80.0, 4848), RUNS);
    measure(
        "10,000 machines, shortest queue, 20,000 requests/s",
        10_000,
        System::Baseline,
        &list(20_000.0, 1_000_000),
        1,
    );
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = peak.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("").to_owned();
    println!("\nmost memory held: {}", line.trim_start_matches("VmHWM:").trim());
}
