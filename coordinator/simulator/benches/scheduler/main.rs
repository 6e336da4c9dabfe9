//! What the scheduler's documentation states, measured: `cargo bench -p tsnode-coordinator --bench scheduler -- PART`,
//! where PART is speed, seeds, gap, small, shapes, baselines, or nothing for all of them. Tables go to
//! standard output, plots of the baselines to `docs/plots`.

mod baselines;
mod quality;
mod shapes;
mod speed;

use tsnode_coordinator::scheduler::{
    Cluster, Problem, Slo, Space, Workload, cluster_file,
    figures::Column,
    public_models,
    search::{Effort, Found, search},
    slo::Reference,
};

/// Never told to stop.
const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;
const WORKLOADS: [&str; 2] = ["coding", "conversation"];
const LINKS: [&str; 3] = ["default", "high", "low"];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let parts: [(&str, fn()); 6] = [
        ("speed", speed::print),
        ("seeds", quality::seeds),
        ("gap", quality::gap),
        ("small", quality::small),
        ("shapes", shapes::print),
        ("baselines", baselines::print),
    ];
    for (name, print) in parts {
        if asked.is_empty() || asked.iter().any(|a| a == name) {
            println!("\n## {name}\n");
            print();
        }
    }
}

/// A cluster that ships with the project.
fn shipped(name: &str, column: Column, links: &str) -> Cluster {
    let text = cluster_file::SHIPPED.iter().find(|(n, _)| *n == name).expect("it ships").1;
    cluster_file::read(text, column, Some(links)).expect("it can be read")
}

/// LLaMA-30B on a cluster.
fn problem(cluster: Cluster, column: Column, workload: &str, rate: f64, slo: Slo) -> Problem {
    problem_of(cluster, column, workload, rate, slo).expect("it fits")
}

fn problem_of(cluster: Cluster, column: Column, workload: &str, rate: f64, slo: Slo) -> Option<Problem> {
    let model = public_models::by_name("LLaMA-30B").expect("it is known");
    let reference = Reference::a100(&model, column).expect("it is known");
    let workload = Workload::named(workload).expect("it is known");
    Problem::new(cluster, model, workload, rate, slo, reference, Space::default()).ok()
}

/// The paper's 1,000 evaluations on two threads.
fn thousand() -> Effort {
    Effort { threads: 2, ..Effort::default() }
}

/// Four times as many: what `tsnode plan` does.
fn usual() -> Effort {
    Effort { steps: 400, threads: 2, ..Effort::default() }
}

fn plan(problem: &Problem, seed: u64, effort: Effort) -> Found {
    search(problem, seed, effort, NEVER)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
