//! Other systems' plans under the same evaluator, replayed: the E2E deadline that 90 % of requests keep, as a multiple
//! of an A100's time, over a range of rates.

use crate::{NEVER, WORKLOADS, plan, problem, shipped, usual};
use tsnode_coordinator::{
    replay::{Replay, replay},
    scheduler::{
        Evaluation, Evaluator, Problem, Slo,
        figures::Column,
        moves::Grouping,
        search::{Effort, search, shelved},
    },
};
use tsnode_simulator::{
    baselines,
    plot::{Plot, Scale},
};

const REQUESTS: usize = 3000;
/// Targets plans are searched for; the best replay counts, for every system alike.
const SCALES: [f64; 4] = [2.5, 4.0, 6.0, 10.0];

/// A system's plan, and who sends to whom if it says so itself.
type BaselinePlan = Option<(Grouping, Option<Evaluation>)>;

/// The least deadline over the targets a system may plan for.
fn deadline(problem: &Problem, plan_for: &dyn Fn(&Problem) -> BaselinePlan) -> f64 {
    let one = |scale: f64| {
        let problem = problem.under(Slo::e2e(scale));
        let (grouping, evaluation) = plan_for(&problem)?;
        let mut evaluator = Evaluator::new(&problem);
        let groups = shelved(&mut evaluator, &grouping)?;
        let evaluation = evaluation.unwrap_or_else(|| evaluator.evaluate(&groups));
        Some(replay(&mut evaluator, &groups, &evaluation, Replay { seed: 7, requests: REQUESTS }).scale_at(0.9))
    };
    SCALES.into_iter().filter_map(one).fold(f64::INFINITY, f64::min)
}

fn ours(problem: &Problem) -> BaselinePlan {
    Some((plan(problem, 0, usual()).grouping, None))
}

fn at_random(problem: &Problem) -> BaselinePlan {
    let found = search(problem, 0, usual(), NEVER);
    let mut evaluator = Evaluator::new(problem);
    let groups = shelved(&mut evaluator, &found.grouping)?;
    let random = baselines::dispatched_at_random(&mut evaluator, &groups, &found.evaluation);
    Some((found.grouping, Some(random)))
}

fn cell(x: f64) -> String {
    if x.is_finite() { format!("{x:.1}x") } else { "—".into() }
}

pub fn print() {
    if std::env::args().any(|a| a == "throughput") {
        return throughput();
    }
    for column in [Column::Paper, Column::Vendor] {
        println!("GPU figures: {column:?}\n");
        println!(
            "| workload | requests/s | tsnode | HexGen-like | a replica per host | dispatched at random | DistServe-like, 8×A100 | HexGen-like / tsnode |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for workload in WORKLOADS {
            table(workload, column);
        }
        println!();
    }
    throughput();
}

/// The most requests a second, in steps of a half, of which 90 % keep ten times an A100's time.
fn most(column: Column, cluster: &str, workload: &str, plan_for: &dyn Fn(&Problem) -> BaselinePlan) -> f64 {
    let keeps = |rate: f64| {
        let problem = problem(shipped(cluster, column, "default"), column, workload, rate, Slo::e2e(5.0));
        deadline(&problem, plan_for) <= 10.0
    };
    (1..60).map(|n| 0.5 * f64::from(n)).take_while(|rate| keeps(*rate)).last().unwrap_or(0.0)
}

fn throughput() {
    println!("| figures | workload | cloud32 | DistServe-like, 8×A100 | ratio |\n|---|---|---|---|---|");
    for column in [Column::Paper, Column::Vendor] {
        for workload in WORKLOADS {
            let us = most(column, "cloud32", workload, &ours);
            let them = most(column, "a100x8", workload, &|p| Some((baselines::uniform(p).grouping, None)));
            println!("| {column:?} | {workload} | {us} | {them} | {:.2} |", us / them);
        }
    }
}

fn table(workload: &str, column: Column) {
    let rates: [f64; 8] = if workload == "coding" {
        [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0]
    } else {
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    };
    let effort = Effort { steps: 400, threads: 2, ..Effort::default() };
    let (mut hexgen, mut random) = (Vec::new(), Vec::new());
    let names = ["tsnode", "HexGen-like", "a replica per host", "at random", "DistServe, 8×A100"];
    let mut series = names.map(|name| (name.to_owned(), Vec::new()));
    for rate in rates {
        let cloud = problem(shipped("cloud32", column, "default"), column, workload, rate, Slo::e2e(5.0));
        let house = problem(shipped("a100x8", column, "default"), column, workload, rate, Slo::e2e(5.0));
        let us = deadline(&cloud, &ours);
        let uneven = deadline(&cloud, &|p| Some((baselines::without_phases(p, 0, effort).grouping, None)));
        let hosts = deadline(&cloud, &|p| Some((baselines::replica_per_host(p), None)));
        let rng = deadline(&cloud, &at_random);
        let a100 = deadline(&house, &|p| Some((baselines::uniform(p).grouping, None)));
        series.iter_mut().zip([us, uneven, hosts, rng, a100]).for_each(|(s, x)| s.1.push(x));
        if us.is_finite() && uneven.is_finite() {
            hexgen.push(uneven / us);
        }
        if us.is_finite() && rng.is_finite() {
            random.push(rng / us);
        }
        println!(
            "| {workload} | {rate} | {} | {} | {} | {} | {} | {} |",
            cell(us),
            cell(uneven),
            cell(hosts),
            cell(rng),
            cell(a100),
            cell(uneven / us)
        );
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    println!(
        "| {workload} | mean | | {:.2} times ours ({} rates) | | {:.2} times ours ({} rates) | | |",
        mean(&hexgen),
        hexgen.len(),
        mean(&random),
        random.len()
    );
    let figures = format!("{column:?}").to_lowercase();
    let title = format!("{workload}, {figures}'s figures");
    let (across, up) = ("requests/s", "E2E deadline that 90 % keep (× an A100)");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plots");
    let file = format!("{folder}/{workload}-{figures}.svg");
    let plot = Plot { title: &title, across, up, rates: &rates, scale: Scale::Multiples, series: &series };
    std::fs::write(&file, plot.svg()).expect("docs/plots is there");
}
