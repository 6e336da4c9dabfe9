//! What docs/research/workload.md states: how well the generators fit, false alarms of the shift detector and its delays.

use std::path::Path;
use std::time::Duration;
use tsnode_coordinator::{
    profiler::{Event, Profiler, ProfilerConfig, Shift},
    replay::machines::Arrival,
    rng::Rng,
};
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    generator::{Lengths, ServiceTraffic, drawn},
    percentile::Sorted,
    trace::{self, Arriving},
};

const BEFORE: usize = 5000;
const SEEDS: u64 = 100;
/// Requests watched for false alarms.
const WATCHED: usize = 10_000_000;
/// Of them at once.
const PART: usize = 1_000_000;

/// A change: its name, and a stream of requests that changes after [`BEFORE`].
type WorkloadChange<'a> = (&'a str, Box<dyn Fn(u64) -> Vec<Arrival>>);

pub fn print(shared: Option<&Path>) {
    false_alarms();
    delays();
    match shared {
        Some(folder) => traces(folder),
        None => println!("\nAzure's traces are not beside the project: nothing was compared with them"),
    }
}

fn stream(name: &str, rate: f64, arriving: Arriving, requests: usize, seed: u64) -> Vec<Arrival> {
    let lengths = Lengths::named(name).expect("it is known");
    drawn(&[ServiceTraffic { lengths, rate, arriving }], requests, seed)
}

fn watch(profiler: &mut Profiler, arrivals: &[Arrival]) -> Vec<(usize, Shift)> {
    let mut shifts = Vec::new();
    for (n, arrival) in arrivals.iter().enumerate() {
        let now = Duration::from_secs_f64(arrival.at.0);
        let shift = profiler.on_event(now, Event::Arrived { prompt: arrival.asked.prompt });
        let other = profiler.on_event(now, Event::Answered { answer: arrival.asked.answer });
        shifts.extend(shift.or(other).map(|s| (n + 1, s)));
    }
    shifts
}

fn false_alarms() {
    let stated = WATCHED as f64 * ProfilerConfig::default().false_alarms;
    println!("| nothing changes, {WATCHED} requests | false alarms | stated: at most |\n|---|---|---|");
    let poisson = |name: &'static str, arriving| move |seed| stream(name, 3.0, arriving, PART, seed);
    let flocks = |size: f64| {
        move |seed| {
            let mut all = stream("conversation", 3.0, Arriving::Poisson, PART, seed);
            let (mut rng, mut at) = (Rng::new(seed), Seconds(0.0));
            for arrival in &mut all {
                let gap = if rng.unit() < 1.0 / size { size / 3.0 } else { 0.01 };
                at += Seconds(rng.exponential(gap));
                arrival.at = at;
            }
            all
        }
    };
    let cases: [WorkloadChange<'_>; 6] = [
        ("coding, Poisson", Box::new(poisson("coding", Arriving::Poisson))),
        ("conversation, Poisson", Box::new(poisson("conversation", Arriving::Poisson))),
        ("conversation, bursty (c² = 4)", Box::new(poisson("conversation", Arriving::Bursty(4.0)))),
        ("conversation, bursty (c² = 16)", Box::new(poisson("conversation", Arriving::Bursty(16.0)))),
        ("conversation, in flocks of 10", Box::new(flocks(10.0))),
        ("conversation, in flocks of 20", Box::new(flocks(20.0))),
    ];
    for (name, make) in cases {
        let (mut alarms, mut end) = (0, Seconds(0.0));
        let mut profiler = Profiler::new(ProfilerConfig::default());
        for seed in 0..(WATCHED / PART) as u64 {
            let mut all = make(seed);
            all.iter_mut().for_each(|a| a.at += end);
            end = all.last().expect("it is long").at;
            alarms += watch(&mut profiler, &all).len();
        }
        println!("| {name} | {alarms} | {stated} |");
    }
}

fn delays() {
    println!(
        "\n| after {BEFORE} requests, {SEEDS} seeds | median delay | P90 | worst | not found in 20,000 | false alarms before |"
    );
    println!("|---|---|---|---|---|---|");
    let service = |from: &'static str, to: &'static str, rate: f64, times: f64, arriving| {
        Box::new(move |seed: u64| {
            let mut all = stream(from, rate, arriving, BEFORE, seed);
            let end = all.last().expect("it is long").at;
            let after = stream(to, rate * times, arriving, 20_000, seed + 10_000);
            all.extend(after.into_iter().map(|a| Arrival { at: a.at + end, ..a }));
            all
        })
    };
    let longer = |times: f64, over: f64| {
        Box::new(move |seed: u64| {
            let mut all = stream("conversation", 3.0, Arriving::Poisson, BEFORE + 20_000, seed);
            for (n, arrival) in all.iter_mut().enumerate().skip(BEFORE) {
                let part = ((n - BEFORE) as f64 / over).min(1.0);
                arrival.asked.answer = (f64::from(arrival.asked.answer) * (1.0 + (times - 1.0) * part)).round() as u32;
            }
            all
        })
    };
    let poisson = Arriving::Poisson;
    let cases: [WorkloadChange<'_>; 13] = [
        ("coding → conversation, 0.5 requests/s", service("coding", "conversation", 0.5, 1.0, poisson)),
        ("coding → conversation, 3 requests/s", service("coding", "conversation", 3.0, 1.0, poisson)),
        ("coding → conversation, 20 requests/s", service("coding", "conversation", 20.0, 1.0, poisson)),
        ("conversation → coding, 3 requests/s", service("conversation", "coding", 3.0, 1.0, poisson)),
        ("rate × 2", service("coding", "coding", 3.0, 2.0, poisson)),
        ("rate × 0.5", service("coding", "coding", 3.0, 0.5, poisson)),
        ("rate × 1.25", service("coding", "coding", 3.0, 1.25, poisson)),
        ("rate × 2, bursty (c² = 4)", service("coding", "coding", 3.0, 2.0, Arriving::Bursty(4.0))),
        ("rate × 2, bursty (c² = 16)", service("coding", "coding", 3.0, 2.0, Arriving::Bursty(16.0))),
        ("answers × 1.25 at once", longer(1.25, 1.0)),
        ("answers × 1.1 at once", longer(1.1, 1.0)),
        ("answers × 2 over 4,000 requests", longer(2.0, 4000.0)),
        ("answers × 2 over 20,000 requests", longer(2.0, 20_000.0)),
    ];
    for (name, make) in cases {
        let (mut found, mut missed, mut early) = (Vec::new(), 0, 0);
        for seed in 0..SEEDS {
            let shifts = watch(&mut Profiler::new(ProfilerConfig::default()), &make(seed));
            early += shifts.iter().filter(|(at, _)| *at <= BEFORE).count();
            match shifts.iter().find(|(at, _)| *at > BEFORE) {
                Some((at, _)) => found.push((at - BEFORE) as f64),
                None => missed += 1,
            }
        }
        let found = Sorted::new(found.into_iter());
        let [median, most, worst] = [0.5, 0.9, 1.0].map(|share| found.at(share));
        println!("| {name} | {median:.0} | {most:.0} | {worst:.0} | {missed} | {early} |");
    }
}

fn traces(shared: &Path) {
    println!("\n| trace | prompts: mean, KS distance | answers: mean, KS distance | shifts (request, what, times) |");
    println!("|---|---|---|---|");
    for (name, file) in [("coding", "code"), ("conversation", "conv")] {
        let text = std::fs::read_to_string(shared.join(format!("azure_llm_2023_{file}.csv"))).expect("it is there");
        let all = trace::read(&text).expect("it is a trace");
        let lengths = Lengths::named(name).expect("it is known");
        let mut rng = Rng::new(1);
        let asked: Vec<_> = (0..200_000).map(|_| lengths.draw(&mut rng)).collect();
        let fit = |real: Vec<u32>, drawn: Vec<u32>| {
            let mean = |v: &[u32]| v.iter().map(|n| f64::from(*n)).sum::<f64>() / v.len() as f64;
            format!("{:.0} of {:.0}, {:.3}", mean(&drawn), mean(&real), distance(&real, &drawn))
        };
        let prompts = fit(all.iter().map(|a| a.asked.prompt).collect(), asked.iter().map(|a| a.prompt).collect());
        let answers = fit(all.iter().map(|a| a.asked.answer).collect(), asked.iter().map(|a| a.answer).collect());
        let shifts = watch(&mut Profiler::new(ProfilerConfig::default()), &all);
        let shift = |(at, s): &(usize, Shift)| format!("{at}: {:?} × {:.2}", s.changed, s.times);
        let shifts: Vec<String> = shifts.iter().map(shift).collect();
        println!(
            "| {name} | {prompts} | {answers} | {} |",
            if shifts.is_empty() { "none".into() } else { shifts.join("; ") }
        );
    }
}

/// Kolmogorov and Smirnov's.
fn distance(a: &[u32], b: &[u32]) -> f64 {
    let sorted = |all: &[u32]| {
        let mut all = all.to_vec();
        all.sort_unstable();
        all
    };
    let (a, b) = (sorted(a), sorted(b));
    let below = |all: &[u32], n: u32| all.partition_point(|x| *x <= n) as f64 / all.len() as f64;
    a.iter().map(|&n| (below(&a, n) - below(&b, n)).abs()).fold(0.0, f64::max)
}
