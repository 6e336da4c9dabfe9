//! Closed forms against events (ThunderServe App. J): attainment on cloud32 from light load to past saturation.

use std::io::Write;
use tsnode_coordinator::{
    policy::choice::Batches,
    replay::{Replay, replay_by},
    scheduler::{
        Evaluator, Problem, Slo, Space, Workload, cluster_file,
        figures::Column,
        moves::Grouping,
        public_models,
        search::{self, Effort, search},
        slo::Reference,
    },
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
const SCALES: [f64; 4] = [2.0, 3.0, 5.0, 10.0];

fn problem(workload: &str, rate: f64, scale: f64, batches: Batches) -> Problem {
    let text = cluster_file::SHIPPED.iter().find(|(n, _)| *n == "cloud32").expect("it ships").1;
    let cluster = cluster_file::read(text, Column::Paper, Some("default")).expect("it can be read");
    let model = public_models::by_name("LLaMA-30B").expect("it is known");
    let reference = Reference::a100(&model, Column::Paper).expect("it is known");
    let workload = Workload::named(workload).expect("it is known");
    let problem = Problem::new(cluster, model, workload, rate, Slo::e2e(scale), reference, Space::default());
    let mut problem = problem.expect("it fits");
    problem.prompts = batches.into();
    problem
}

fn planned(problem: &Problem) -> Grouping {
    let effort = Effort { steps: 100, neighbours: 10, memory: 5, walks: 2, threads: 1 };
    search(problem, 0, effort, NEVER).grouping
}

/// Attainment by closed forms and by events, and how loaded groups are that prefill and that decode.
fn compare(problem: &Problem, grouping: &Grouping, batches: Batches) -> [f64; 4] {
    let mut evaluator = Evaluator::new(problem);
    let groups = search::shelved(&mut evaluator, grouping).expect("it was planned");
    let plan = evaluator.evaluate(&groups);
    let one = |seed| replay_by(&mut evaluator, &groups, &plan, batches, Replay { seed, requests: REQUESTS }).attainment;
    let events = SEEDS.map(one).iter().sum::<f64>() / SEEDS.len() as f64;
    [plan.attainment, events, plan.loads.0, plan.loads.1]
}

#[derive(Default)]
struct Differences(Vec<f64>);

impl Differences {
    fn row(&mut self, start: &str, [closed, events, prefill, decode]: [f64; 4]) {
        let [closed, events, prefill, decode] = [closed, events, prefill, decode].map(|part| 100.0 * part);
        self.0.push((closed - events).abs());
        println!("{start} {prefill:.0} / {decode:.0} % | {closed:.1} % | {events:.1} % | {:+.1} |", closed - events);
        std::io::stdout().flush().expect("standard output is there");
    }

    fn sum_up(&self) {
        let n = self.0.len();
        let (mean, most) = (self.0.iter().sum::<f64>() / n as f64, self.0.iter().copied().fold(0.0, f64::max));
        let beyond = self.0.iter().filter(|d| **d > 10.0).count();
        println!("\nmean {mean:.1}, largest {most:.1}, more than 10 in {beyond} of {n}");
    }
}

const HEAD: &str = "| workload | SLO | requests/s | load (prefill / decode) | closed forms | events | difference |\n|---|---|---|---|---|---|---|";

pub fn print() {
    println!("Differences are closed forms less events, in % of all requests.");
    for (batches, what) in
        [(Batches::PrefillFirst, "whole prompts, one batch at a time"), (Batches::default(), "what nodes do")]
    {
        for stands in [false, true] {
            let plan = if stands { "one plan for each workload and SLO" } else { "a plan for each rate" };
            println!("\n### {what}; {plan}\n\n{HEAD}");
            table(batches, stands).sum_up();
        }
    }
}

fn table(batches: Batches, stands: bool) -> Differences {
    let mut differences = Differences::default();
    for (workload, rates, usual) in LOADS {
        for scale in SCALES {
            let standing = stands.then(|| planned(&problem(workload, usual, scale, batches)));
            for rate in rates {
                let problem = problem(workload, rate, scale, batches);
                let grouping = standing.clone().unwrap_or_else(|| planned(&problem));
                differences.row(&format!("| {workload} | {scale}x | {rate} |"), compare(&problem, &grouping, batches));
            }
        }
    }
    differences
}
