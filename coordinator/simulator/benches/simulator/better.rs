//! Requests a second that keep all nine targets of Splitwise's Table VI: its policies, ours, and what each of our rules is
//! worth.

use crate::{drawn, lengths, times};
use std::path::Path;
use std::sync::Arc;
use tsnode_coordinator::policy::routing::Asked;
use tsnode_simulator::{
    measured_cost::Table,
    policy::{
        packing::{AnswerPacking, Length, PackingRules, PromptPacking},
        piggybacked::Piggybacking,
    },
    splitwise::{Sizes, System, cluster, keeps_table_vi, slowdowns},
};

const SECONDS: f64 = 120.0;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;
/// What an answer is taken for where nothing predicts it (tokens).
const TYPICAL: u32 = 128;

struct Bench {
    sizes: Sizes,
    a100: Arc<Table>,
}

/// A cluster, the paper's pools on it and the grid on which rates are tried.
struct ClusterCase {
    name: &'static str,
    machines: Vec<(Arc<Table>, usize)>,
    pools: &'static [usize],
    step: f64,
}

impl Bench {
    fn keeps(&self, on: &ClusterCase, system: System, list: &[Asked], rate: f64, seed: u64) -> bool {
        let machines: Vec<(&Arc<Table>, usize)> = on.machines.iter().map(|(t, n)| (t, *n)).collect();
        let outcome = cluster(self.sizes, &machines, system).run(&drawn(list, rate, SECONDS, seed), &|_| false);
        keeps_table_vi(&slowdowns(&outcome.traces, &self.a100))
    }

    /// The highest rate on the grid that is kept, with all of the ten steps below it.
    fn sustains(&self, on: &ClusterCase, system: System, list: &[Asked], seed: u64) -> f64 {
        let keeps = |steps: u32| self.keeps(on, system, list, f64::from(steps) * on.step, seed);
        let (mut low, mut high) = (0, 128);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if keeps(middle) { low = middle } else { high = middle }
        }
        let checked = low.saturating_sub(10)..low;
        let missed = checked.clone().filter(|s| *s > 0).find(|s| !keeps(*s));
        f64::from(missed.map_or(low, |s| s - 1)) * on.step
    }

    fn row(&self, on: &ClusterCase, system: System, list: &[Asked]) -> String {
        let all: Vec<String> = SEEDS.map(|seed| format!("{}", self.sustains(on, system, list, seed))).collect();
        all.join(" ")
    }
}

pub fn print(shared: &Path) {
    let (a100, h100) = (times(shared, "a100-80gb"), times(shared, "h100-80gb"));
    let bench = Bench { sizes: Sizes::of("bloom-176b").expect("it is known"), a100: a100.clone() };
    let traces = [("conversation", lengths(shared, "conv")), ("coding", lengths(shared, "code"))];
    let alike = |name, table: &Arc<Table>, n, pools, step| ClusterCase {
        name,
        machines: vec![(table.clone(), n)],
        pools,
        step,
    };
    let large = [alike("40 H100", &h100, 40, &[25, 35], 2.0), alike("70 A100", &a100, 70, &[45, 55], 2.0)];
    let small = [alike("4 H100", &h100, 4, &[3], 1.0), alike("7 A100", &a100, 7, &[4, 6], 1.0)];
    let uneven = ClusterCase {
        name: "25 H100 and 26 A100",
        machines: vec![(h100.clone(), 25), (a100.clone(), 26)],
        pools: &[25],
        step: 2.0,
    };
    println!("Requests a second kept, seeds 1 to 5\n");
    println!("| bloom-176b, {SECONDS} s | mixed | pools | ours |\n|---|---|---|---|");
    for on in large.iter().chain(&small).chain([&uneven]) {
        for (trace, list) in &traces {
            let pools: Vec<String> =
                on.pools.iter().map(|p| format!("{} ({p}P)", bench.row(on, System::Pooled(*p), list))).collect();
            let (mixed, ours) =
                (bench.row(on, System::Baseline, list), bench.row(on, packed(PackingRules::default()), list));
            println!("| {}, {trace} | {mixed} | {} | {ours} |", on.name, pools.join("; "));
        }
    }
    println!("\n| ours, with one rule changed | {} |", names(&large, &small, &traces).join(" | "));
    println!("|---|{}", "---|".repeat(8));
    for (what, rules) in changed() {
        let cells: Vec<String> = large
            .iter()
            .chain(&small)
            .flat_map(|on| traces.iter().map(move |(_, list)| (on, list)))
            .map(|(on, list)| bench.row(on, packed(rules), list))
            .collect();
        println!("| {what} | {} |", cells.join(" | "));
    }
}

fn packed(rules: PackingRules) -> System {
    System::Packed(rules)
}

fn changed() -> [(&'static str, PackingRules); 5] {
    let ours = PackingRules::default();
    [
        ("answers spread, not packed", PackingRules { answers: AnswerPacking::Spread, ..ours }),
        ("prompts where they are done first", PackingRules { prompts: PromptPacking::Soonest, ..ours }),
        ("answers never beside prompts", PackingRules { beside: Piggybacking::Never, ..ours }),
        (
            "none of the three",
            PackingRules {
                answers: AnswerPacking::Spread,
                prompts: PromptPacking::Soonest,
                beside: Piggybacking::Never,
                length: Length::Asked,
            },
        ),
        ("lengths of answers unknown, taken for 128", PackingRules { length: Length::Typical(TYPICAL), ..ours }),
    ]
}

fn names(large: &[ClusterCase], small: &[ClusterCase], traces: &[(&str, Vec<Asked>)]) -> Vec<String> {
    let each = |on: &ClusterCase| traces.iter().map(|(t, _)| format!("{}, {t}", on.name)).collect::<Vec<_>>();
    large.iter().chain(small).flat_map(each).collect()
}
