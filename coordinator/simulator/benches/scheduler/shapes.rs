//! The shapes ThunderServe reports, with its own figures.

use crate::{WORKLOADS, median, plan, problem, shipped, usual};
use tsnode_coordinator::scheduler::{
    Evaluator, InstanceId, Problem, Slo, Space, Workload, cluster_file,
    figures::Column,
    moves::Grouping,
    public_models,
    rescheduling::{self, StandingGroup},
    slo::Reference,
};
use tsnode_protocol::{Phase, Tokens};
use tsnode_simulator::baselines;

const SEEDS: u64 = 10;

fn count(grouping: &Grouping, phase: Phase) -> usize {
    grouping.parts.iter().filter(|p| p.phase == phase).count()
}

/// Share of a kind's devices in groups that prefill, of those in groups of one phase.
fn prefilling(problem: &Problem, grouping: &Grouping, kind: &str) -> f64 {
    let of = |phase: Phase| {
        let members = grouping.parts.iter().filter(|p| p.phase == phase).flat_map(|p| &p.members);
        members.filter(|m| problem.cluster.figures(m.0).name == kind).map(|m| f64::from(m.1)).sum::<f64>()
    };
    of(Phase::Prefill) / (of(Phase::Prefill) + of(Phase::Decode)).max(1.0)
}

pub fn print() {
    table3();
    two_hosts();
    against_the_paper();
    loss();
}

/// From light loads to those that leave a tenth of the requests late, which is where the paper compares (§5.1).
const LOADS: [(&str, f64, f64); 10] = [
    ("coding", 2.0, 5.0),
    ("coding", 3.0, 5.0),
    ("coding", 4.0, 8.0),
    ("coding", 5.0, 8.0),
    ("coding", 6.0, 10.0),
    ("conversation", 2.0, 5.0),
    ("conversation", 3.0, 5.0),
    ("conversation", 4.0, 5.0),
    ("conversation", 6.0, 8.0),
    ("conversation", 7.0, 8.0),
];

/// §5.3: more groups prefill for coding, more decode for conversation; A40 prefill.
fn table3() {
    println!(
        "| workload | requests/s | SLO | links | in time (median) | seeds with more prefill | more decode | A40 that prefill |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (workload, rate, scale) in LOADS {
        for links in ["default", "high"] {
            let problem =
                problem(shipped("cloud32", Column::Paper, links), Column::Paper, workload, rate, Slo::e2e(scale));
            let (mut more_prefill, mut more_decode, mut a40) = (0, 0, 0.0);
            let mut kept = Vec::new();
            for seed in 0..SEEDS {
                let found = plan(&problem, seed, usual());
                let (p, d) = (count(&found.grouping, Phase::Prefill), count(&found.grouping, Phase::Decode));
                kept.push(found.evaluation.attainment * 100.0);
                more_prefill += usize::from(p > d);
                more_decode += usize::from(d > p);
                a40 += prefilling(&problem, &found.grouping, "A40");
            }
            println!(
                "| {workload} | {rate} | {scale}x | {links} | {:.1} % | {more_prefill} of {SEEDS} | {more_decode} of {SEEDS} | {:.0} % |",
                median(kept),
                10.0 * a40
            );
        }
    }
}

/// App. H: 4×A40 and 4×3090Ti, prompts of 1,024 tokens; at 40 Gbit/s phases split by host, at 5 groups span both. The
/// paper's groups serve one phase each. Its answers' length is not said: 64 tokens here.
fn two_hosts() {
    println!("\n| link | requests/s | SLO | in time | groups (seed 0) |\n|---|---|---|---|---|");
    for (name, latency, bandwidth) in [("40 Gbit/s", 200e-6, 4.5e9), ("5 Gbit/s", 1e-3, 0.5625e9)] {
        for (rate, scale) in [(0.5, 5.0), (1.0, 5.0), (1.5, 8.0), (2.0, 8.0), (2.5, 10.0)] {
            let host = |name: &str, zone: &str| {
                format!(
                    "[[host]]\nname = \"{name}\"\ngpu = \"{name}\"\ncount = 4\nzone = \"{zone}\"\n\
                     inside = {{ latency = 10e-6, bandwidth = 25.6e9 }}\n"
                )
            };
            let link = |a: &str, b: &str| {
                format!("[[link]]\nfrom = \"{a}\"\nto = \"{b}\"\nlatency = {latency}\nbandwidth = {bandwidth}\n")
            };
            let hosts = host("A40", "a") + &host("3090Ti", "b");
            let text = format!("name = \"two\"\n{hosts}{}{}", link("a", "b"), link("b", "a"));
            let cluster = cluster_file::read(&text, Column::Paper, None).expect("it is one");
            let model = public_models::by_name("LLaMA-30B").expect("it is known");
            let reference = Reference::a100(&model, Column::Paper).expect("it is known");
            let space = Space { mixed: false, ..Space::default() };
            let workload = Workload::uniform(Tokens(1024.0), Tokens(64.0));
            let problem = Problem::new(cluster, model, workload, rate, Slo::e2e(scale), reference, space);
            let problem = problem.expect("it fits");
            let found = plan(&problem, 0, usual());
            let kept = found.evaluation.attainment * 100.0;
            println!("| {name} | {rate} | {scale}x | {kept:.1} % | {} |", words(&problem, &found.grouping));
        }
    }
}

fn words(problem: &Problem, grouping: &Grouping) -> String {
    let name = |i: InstanceId| problem.cluster.instance(i).name.as_str();
    let part = |p: &tsnode_coordinator::scheduler::moves::DeviceGroup| {
        let members: Vec<String> = p.members.iter().map(|&(i, n)| format!("{n}×{}", name(i))).collect();
        format!("{}: {}", p.phase, members.join("+"))
    };
    grouping.parts.iter().map(part).collect::<Vec<_>>().join("; ")
}

/// Table 3's own plans in this evaluator.
fn against_the_paper() {
    println!("\n| workload | requests/s | SLO | the paper's plan keeps | ours |\n|---|---|---|---|---|");
    for workload in WORKLOADS {
        for (rate, scale) in [(1.0, 5.0), (2.0, 5.0), (3.0, 8.0)] {
            let problem =
                problem(shipped("cloud32", Column::Paper, "high"), Column::Paper, workload, rate, Slo::e2e(scale));
            let mut evaluator = Evaluator::new(&problem);
            let groups = baselines::thunderserve(&mut evaluator, workload).expect("cloud32 has its hosts");
            let theirs = evaluator.evaluate(&groups).attainment;
            let ours = plan(&problem, 0, usual()).evaluation.attainment;
            println!("| {workload} | {rate} | {scale}x | {:.1} % | {:.1} % |", theirs * 100.0, ours * 100.0);
        }
    }
}

/// App. G: the paper's plan loses the 4×A6000 that decode; a prefill group should flip.
fn loss() {
    println!("\n| workload | as it stands | flipped | what flips |\n|---|---|---|---|");
    for workload in WORKLOADS {
        let rate = if workload == "coding" { 1.5 } else { 1.0 };
        let problem = problem(shipped("cloud32", Column::Paper, "high"), Column::Paper, workload, rate, Slo::e2e(8.0));
        let mut evaluator = Evaluator::new(&problem);
        let groups = baselines::thunderserve(&mut evaluator, workload).expect("cloud32 has its hosts");
        let lost = |i: &InstanceId| problem.cluster.instance(*i).name == "a6000-1";
        let standing: Vec<StandingGroup> = groups
            .iter()
            .map(|g| evaluator.shelved(*g))
            .filter(|s| !s.members.iter().any(|m| lost(&m.0)))
            .map(|s| StandingGroup { members: s.members.clone(), config: s.rated.config.clone(), phase: s.rated.phase })
            .collect();
        // The paper's groups serve one phase each.
        let only = problem.within(Space { mixed: false, ..problem.space });
        let flipped = rescheduling::reschedule(&only, &standing);
        let flips: Vec<String> = standing
            .iter()
            .zip(&flipped.phases)
            .filter(|(s, p)| s.phase != **p)
            .map(|(s, p)| {
                let part = tsnode_coordinator::scheduler::moves::DeviceGroup { members: s.members.clone(), phase: *p };
                words(&problem, &Grouping::new(vec![part]))
            })
            .collect();
        println!(
            "| {workload} | {:.1} % | {:.1} % | {} |",
            flipped.before.attainment * 100.0,
            flipped.evaluation.attainment * 100.0,
            if flips.is_empty() { "nothing".into() } else { flips.join("; ") }
        );
    }
}
