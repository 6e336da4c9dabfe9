//! Placement of several services: how good, how fast, and what following the traffic gains.

use std::time::Instant;
use tsnode_coordinator::{
    replay::machines::Arrival,
    rng::Rng,
    scheduler::{Cluster, Problem, Slo, Space, Workload, cluster_file, figures::Column, public_models, slo::Reference},
};
use tsnode_protocol::{BytesPerSecond, Seconds, Tokens};
use tsnode_simulator::{
    placement::{
        MOST_SHARING, Placement, Services, baselines,
        judge::{Judge, Judged, PastRequests},
        replacement::{Rule, Worth},
        search::{self, PlacementEffort},
        serving::{self, ServingOptions},
    },
    trace::{Arriving, beside, drawn},
};

const SEED: u64 = 1;
/// Past that placements are made for (s), and as much that they are judged on.
const PAST: f64 = 300.0;
/// Fresh lists.
const FRESH: u64 = 3;
/// Whole time, in times of an A100 with nothing else to do (SeaLLM §6.1).
const SLO: f64 = 5.0;
/// Popularity of the n-th service: n to the minus this.
const SKEW: f64 = 1.0;
/// Squared variation of the gaps between a service's requests.
const BURSTS: f64 = 4.0;
/// Models of services, in turn: half small, a few large.
const MODELS: [&str; 8] =
    ["LLaMA-7B", "LLaMA-13B", "LLaMA-7B", "LLaMA-30B", "LLaMA-7B", "LLaMA-13B", "LLaMA-7B", "LLaMA-13B"];
const WORKLOADS: [&str; 3] = ["conversation", "coding", "conversation"];

/// Hosts of four A100-80GB, 100 Gbit/s between them.
fn a100s(hosts: usize) -> Cluster {
    let inside = "inside = { latency = 10e-6, bandwidth = 240e9 }";
    let host = |h| format!("[[host]]\nname = \"h{h}\"\ngpu = \"A100-80G\"\ncount = 4\nzone = \"z\"\n{inside}\n");
    let hosts: String = (0..hosts).map(host).collect();
    let link = "[[link]]\nfrom = \"z\"\nto = \"z\"\nlatency = 100e-6\nbandwidth = 11e9\n";
    cluster_file::read(&format!("name = \"a100s\"\n{hosts}{link}"), Column::Vendor, None).expect("it is a cluster")
}

/// Shares of requests by a power law, services in an order drawn by the seed.
fn popularity(services: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(seed);
    let mut ranks: Vec<usize> = (1..=services).collect();
    for i in (1..services).rev() {
        ranks.swap(i, rng.below(i + 1));
    }
    let weights: Vec<f64> = ranks.iter().map(|r| (*r as f64).powf(-SKEW)).collect();
    let all: f64 = weights.iter().sum();
    weights.iter().map(|w| w / all).collect()
}

fn services(cluster: &Cluster, rates: &[f64]) -> Services {
    let problem = |(s, rate): (usize, &f64)| {
        let model = public_models::by_name(MODELS[s % MODELS.len()]).expect("it is known");
        let workload = Workload::named(WORKLOADS[s % WORKLOADS.len()]).expect("it is known");
        let workload = workload.within(Tokens(f64::from(model.shape.context)));
        let reference = Reference::a100(&model, Column::Vendor).expect("there are figures");
        let slo = Slo::e2e(SLO);
        Problem::new(cluster.clone(), model, workload, *rate, slo, reference, Space::default()).expect("it fits")
    };
    Services::new(rates.iter().enumerate().map(problem).collect(), MOST_SHARING).expect("there are some")
}

/// Requests of all services for so many seconds.
fn requests(services: &Services, seconds: f64, seed: u64) -> Vec<Arrival> {
    let list = |s| {
        let problem: &Problem = services.problem(s);
        let count = (problem.rate * seconds * 3.0) as usize + 50;
        let seed = seed * 1000 + u64::from(s.0);
        let all = drawn(&problem.workload, problem.rate, count, Arriving::Bursty(BURSTS), seed);
        all.into_iter().filter(|a| a.at.0 < seconds).collect()
    };
    beside(services.ids().map(list).collect())
}

/// Mean share in time and mean latency.
fn cells(all: &[Judged]) -> String {
    let mean = |of: fn(&Judged) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    format!("{:.1} %, {:.2}", 100.0 * mean(Judged::attainment), mean(Judged::normalised))
}

/// Time that this process has had a core for (s): what a search takes where nothing else runs.
fn on_core() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

fn compare(name: &str, cluster: &Cluster, rates: &[f64]) {
    for rate in rates {
        let shares: Vec<f64> = popularity(16, SEED).iter().map(|p| p * rate).collect();
        let services = services(cluster, &shares);
        let past = PastRequests::new(&services, requests(&services, PAST, SEED));
        // Placements are judged on requests that they were not made for.
        let fresh: Vec<PastRequests> =
            (1..=FRESH).map(|s| PastRequests::new(&services, requests(&services, PAST, SEED + s))).collect();
        let of = |p: &Placement| {
            let judged: Vec<Judged> = fresh.iter().map(|h| Judge::new(&services, h).judge(p)).collect();
            cells(&judged)
        };
        let plain = PlacementEffort { margin: 1.0, ..PlacementEffort::default() };
        let plain = search::search(&services, &past, None, plain, SEED, &|| false).expect("it fits");
        let (started, before) = (Instant::now(), on_core());
        let found =
            search::search(&services, &past, None, PlacementEffort::default(), SEED, &|| false).expect("it fits");
        let (took, core) = (started.elapsed().as_secs_f64(), on_core() - before);
        // Baselines have the partition that is best for them on the past.
        let best = |all: Vec<Placement>| {
            let mut judge = Judge::new(&services, &past);
            let rated = all.into_iter().map(|p| (judge.judge(&p), p));
            rated.min_by(|a, b| a.0.order(&b.0)).map_or("none".to_owned(), |(_, p)| of(&p))
        };
        let (own, turn) = (best(baselines::dedicated(&services)), best(baselines::in_turn(&services)));
        println!(
            "| {name} | {rate} | {} | {} | {} | {own} | {turn} | {} | {core:.1} s ({took:.1} s) |",
            cells(&[found.judged]),
            of(&found.placement),
            of(&plain.placement),
            found.simulated,
        );
    }
}

pub fn print() {
    println!(
        "Share of requests in time, and normalised latency (SLO {SLO} times an A100 alone; mean of {FRESH} fresh lists).\n"
    );
    println!(
        "| 16 services on | requests/s | its own past | fresh requests | without margin | GPUs of their own | dealt in turn | simulated | search on a core (as it ran) |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    compare("8 hosts of 4 A100", &a100s(8), &[10.0, 20.0, 30.0]);
    let (_, text) = cluster_file::SHIPPED[0];
    let cloud = cluster_file::read(text, Column::Vendor, None).expect("it ships");
    compare("cloud32", &cloud, &[2.0, 4.0]);
}

/// Popularity is drawn anew every so often, between these (s).
const SHIFTS: (f64, f64) = (240.0, 720.0);
const TRACE: f64 = 2400.0;
const RATE: f64 = 15.0;

/// A trace on which services become popular and are forgotten.
fn shifting(cluster: &Cluster, count: usize, seed: u64) -> Vec<Arrival> {
    let (mut rng, mut from, mut all) = (Rng::new(seed), 0.0, Vec::new());
    let mut part = 0;
    while from < TRACE {
        let length = (SHIFTS.0 + rng.unit() * (SHIFTS.1 - SHIFTS.0)).min(TRACE - from);
        let rates: Vec<f64> = popularity(count, seed * 100 + part).iter().map(|p| p * RATE).collect();
        let list = requests(&services(cluster, &rates), length, seed * 100 + part);
        all.extend(list.into_iter().map(|a| Arrival { at: a.at + Seconds(from), ..a }));
        (from, part) = (from + length, part + 1);
    }
    all
}

pub fn print_replacement() {
    let cluster = a100s(4);
    let effort = PlacementEffort { guide: 250, changes: 30, ..PlacementEffort::default() };
    let fixed = |seconds: f64, worth| {
        let interval = Seconds(seconds);
        Some(Rule { start: interval, least: interval, most: interval, worth, look: None, ..Rule::default() })
    };
    let eq_8 = |start: f64| Rule { start: Seconds(start), look: None, ..Rule::default() };
    let strategies = [
        ("never", None),
        ("every 30 s", fixed(30.0, Worth::Always)),
        ("every 120 s", fixed(120.0, Worth::Always)),
        ("every 300 s", fixed(300.0, Worth::Always)),
        ("every 900 s", fixed(900.0, Worth::Always)),
        ("every 30 s, if better", fixed(30.0, Worth::Better)),
        ("every 120 s, if better", fixed(120.0, Worth::Better)),
        ("Equation 8 from 300 s", Some(Rule { worth: Worth::Always, ..eq_8(300.0) })),
        ("Equation 8 from 120 s", Some(Rule { worth: Worth::Always, ..eq_8(120.0) })),
        ("Equation 8 from 120 s, if better", Some(eq_8(120.0))),
        ("Equation 8 from 120 s, if better, looking every 30 s", Some(Rule::default())),
        ("the same, least 60 s", Some(Rule { least: Seconds(60.0), ..Rule::default() })),
    ];
    println!(
        "8 services on 4 hosts of 4 A100, {RATE} requests/s for {TRACE} s, popularity drawn anew every {} to {} s.\n",
        SHIFTS.0, SHIFTS.1
    );
    println!(
        "| seed | placed anew | in time | normalised latency | intervals | replacements | weights loaded | on a core |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for seed in [1, 2] {
        let trace = shifting(&cluster, 8, seed);
        let rates: Vec<f64> = popularity(8, seed * 100).iter().map(|p| p * RATE).collect();
        let services = services(&cluster, &rates);
        let past = PastRequests::new(&services, requests(&services, 120.0, seed + 77));
        let all = PastRequests::new(&services, trace);
        for (name, rule) in strategies {
            let how = ServingOptions { rule, effort, seed, loading: BytesPerSecond(10e9) };
            let before = on_core();
            let served = serving::serve(&services, &past, &all, how).expect("it fits");
            println!(
                "| {seed} | {name} | {:.1} % | {:.2} | {} | {} | {:.0} GB | {:.1} s |",
                100.0 * served.judged.attainment(),
                served.judged.normalised(),
                served.intervals,
                served.replacements,
                served.loaded.0 / 1e9,
                on_core() - before
            );
        }
    }
}
