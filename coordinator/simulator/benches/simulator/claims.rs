//! Splitwise's claims (§VI) from our own runs: requests a second that keep all nine targets of Table VI.

use crate::{drawn, lengths, times};
use std::path::Path;
use std::sync::Arc;
use tsnode_coordinator::policy::routing::Asked;
use tsnode_simulator::{
    measured_cost::Table,
    splitwise::{Sizes, System, cluster, keeps_table_vi, slowdowns},
};

const SEED: u64 = 1;
/// Steps in which rates are tried.
const STEP: f64 = 2.0;

struct Bench {
    a100: Arc<Table>,
    h100: Arc<Table>,
    sizes: Sizes,
}

impl Bench {
    fn keeps(&self, machines: (usize, usize), system: System, list: &[Asked], rate: f64, seconds: f64) -> bool {
        let (old, new) = ((&self.a100, machines.0), (&self.h100, machines.1));
        // With pools the H100 compute prompts.
        let order = if matches!(system, System::Pooled(_)) { [new, old] } else { [old, new] };
        let arrivals = drawn(list, rate, seconds, SEED);
        let outcome = cluster(self.sizes, &order, system).run(&arrivals, &|_| false);
        keeps_table_vi(&slowdowns(&outcome.traces, &self.a100))
    }

    /// The highest rate kept, on a grid; every rate below it is kept too.
    fn sustains(&self, machines: (usize, usize), system: System, list: &[Asked], seconds: f64) -> f64 {
        let mut rate = 10.0 * STEP;
        while self.keeps(machines, system, list, rate + STEP, seconds) {
            rate += STEP;
        }
        rate
    }
}

pub fn print(shared: &Path) {
    let bench = Bench {
        a100: times(shared, "a100-80gb"),
        h100: times(shared, "h100-80gb"),
        sizes: Sizes::of("bloom-176b").expect("it is known"),
    };
    let (conversation, coding) = (lengths(shared, "conv"), lengths(shared, "code"));
    println!(
        "| bloom-176b, traces of | Baseline-A100 (70) | Baseline-H100 (40) | AA (45P, 25T) | HH (25P, 15T) | HA (25P, 26T) | AA / A100 | HA / H100 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for seconds in [60.0, 120.0] {
        let of = |machines, system| bench.sustains(machines, system, &conversation, seconds);
        let a100 = of((70, 0), System::Baseline);
        let h100 = of((0, 40), System::Baseline);
        let aa = of((70, 0), System::Pooled(45));
        let hh = of((0, 40), System::Pooled(25));
        let ha = of((26, 25), System::Pooled(25));
        println!(
            "| conversation, {seconds} s | {a100} | {h100} | {aa} | {hh} | {ha} | {:.2} | {:.2} |",
            aa / a100,
            ha / h100
        );
    }
    println!("\n| coding at 70 requests/s, 120 s | keeps Table VI |\n|---|---|");
    for (prompts, tokens) in [(25, 3), (26, 3), (27, 3), (28, 3)] {
        let kept = bench.keeps((0, prompts + tokens), System::Pooled(prompts), &coding, 70.0, 120.0);
        println!("| {prompts} prompt and {tokens} token machines (H100) | {} |", if kept { "yes" } else { "no" });
    }
    println!(
        "\n| coding, 120 s, pools cut for conversation | as cut | machines change sides | cut for coding |\n|---|---|---|---|"
    );
    let of = |machines, system| bench.sustains(machines, system, &coding, 120.0);
    for (what, machines, conversation, code) in [("40 H100", (0, 40), 25, 35), ("70 A100", (70, 0), 45, 60)] {
        let [fixed, moved, cut] =
            [System::Pooled(conversation), System::Repurposed(conversation), System::Pooled(code)]
                .map(|s| of(machines, s));
        println!("| {what}, {conversation} for prompts | {fixed} | {moved} | {cut} ({code}) |");
    }
}
