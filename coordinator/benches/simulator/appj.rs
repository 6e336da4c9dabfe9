//! Closed forms against events (ThunderServe App. J): attainment on cloud32 from light load to past saturation.

use std::io::Write;
use tsnode_coordinator::{
    scheduler::{
        Evaluator, Problem, Slo, Space, Workload, cluster_file,
        figures::Column,
        models,
        moves::Grouping,
        search::{self, Effort, search},
        slo::Reference,
    },
    simulator::{Batches, Replay, replay_by},
};

const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;
/// The seeds and the length of the replays.
const SEEDS: [u64; 2] = [1, 2];
const REQUESTS: usize = 4000;
/// Rates for each workload, from a tenth of what it carries to beyond (requests/s), and the one that the standing plan is
/// made for.
const LOADS: [(&str, [f64; 8], f64); 2] = [
    ("coding", [0.75, 1.5, 2.25, 3.0, 3.75, 4.5, 6.0, 8.0], 3.0),
    ("conversation", [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0], 6.0),
];
/// What nodes do by default.
const NODES: Batches = Batches::Chunked(512);
const SCALES: [f64; 4] = [2.0, 3.0, 5.0, 10.0];

fn problem(workload: &str, rate: f64, scale: f64) -> Problem {
    let text = cluster_file::SHIPPED.iter().find(|(n, _)| *n == "cloud32").expect("it ships").1;
    let cluster = cluster_file::read(text, Column::Paper, Some("default")).expect("it can be read");
    let model = models::by_name("LLaMA-30B").expect("it is known");
    let reference = Reference::a100(&model, Column::Paper).expect("it is known");
    let workload = Workload::named(workload).expect("it is known");
    Problem::new(cluster, model, workload, rate, Slo::e2e(scale), reference, Space::default()).expect("it fits")
}

fn planned(problem: &Problem) -> Grouping {
    let effort = Effort { steps: 100, neighbours: 10, memory: 5, walks: 2, threads: 1 };
    search(problem, 0, effort, NEVER).grouping
}

/// Attainment by closed forms, by events, by events where groups are rings, and by what nodes do: chunks in rings; how
/// loaded groups are; and the share of requests on groups that do both phases.
fn compare(problem: &Problem, grouping: &Grouping) -> [f64; 7] {
    let mut evaluator = Evaluator::new(problem);
    let groups = search::shelved(&mut evaluator, grouping).expect("it was planned");
    let plan = evaluator.evaluate(&groups);
    let mut by = |batches| {
        let one = |seed| {
            let how = Replay { seed, requests: REQUESTS };
            replay_by(&mut evaluator, &groups, &plan, batches, how).attainment
        };
        SEEDS.map(one).iter().sum::<f64>() / SEEDS.len() as f64
    };
    let mixed = plan.shares.iter().filter(|s| s.prefill == s.decode).fold(0.0, |sum, s| sum + s.share);
    [plan.attainment, by(Batches::Turns), by(Batches::Rings), by(NODES), plan.loads.0, plan.loads.1, mixed]
}

#[derive(Default)]
struct Differences {
    all: Vec<[f64; 3]>,
}

impl Differences {
    fn row(&mut self, start: &str, [closed, events, rings, nodes, prefill, decode, mixed]: [f64; 7]) {
        self.all.push([closed - events, closed - rings, closed - nodes]);
        println!(
            "{start} {:.0} / {:.0} % | {:.0} % | {:.1} % | {:.1} % | {:+.1} | {:.1} % | {:+.1} | {:.1} % | {:+.1} |",
            100.0 * prefill,
            100.0 * decode,
            100.0 * mixed,
            100.0 * closed,
            100.0 * events,
            100.0 * (closed - events),
            100.0 * rings,
            100.0 * (closed - rings),
            100.0 * nodes,
            100.0 * (closed - nodes)
        );
        std::io::stdout().flush().expect("standard output is there");
    }

    fn sum_up(&self) {
        for (place, what) in ["events", "rings", "nodes"].into_iter().enumerate() {
            let sizes = || self.all.iter().map(|d| 100.0 * d[place].abs());
            let (n, most) = (self.all.len(), sizes().fold(0.0, f64::max));
            let beyond = sizes().filter(|d| *d > 10.0).count();
            let mean = sizes().sum::<f64>() / n as f64;
            println!("\nagainst {what}: mean {mean:.1}, largest {most:.1}, more than 10 in {beyond} of {n}");
        }
    }
}

const HEAD: &str = "| workload | SLO | requests/s | load (prefill / decode) | on mixed groups | closed forms | events | difference | rings | difference | nodes | difference |\n|---|---|---|---|---|---|---|---|---|---|---|---|";

pub fn print() {
    println!("Differences are closed forms less events, in % of all requests.");
    for stands in [false, true] {
        let what = if stands { "One plan for each workload and SLO" } else { "A plan for each rate" };
        println!("\n{what}:\n\n{HEAD}");
        let mut differences = Differences::default();
        for (workload, rates, usual) in LOADS {
            for scale in SCALES {
                let standing = stands.then(|| planned(&problem(workload, usual, scale)));
                for rate in rates {
                    let problem = problem(workload, rate, scale);
                    let grouping = standing.clone().unwrap_or_else(|| planned(&problem));
                    let start = format!("| {workload} | {scale}x | {rate} |");
                    differences.row(&start, compare(&problem, &grouping));
                }
            }
        }
        differences.sum_up();
    }
}
