//! How fast the simulator is, and whether Splitwise's claims follow from it.
//!
//! `cargo bench -p tsnode-coordinator --bench simulator -- [speed|claims|better]`; without a name, all. `claims` and `better`
//! need Azure's traces and the table of times that lie beside the project, and say so where they are absent.
#![allow(clippy::expect_used)] // A benchmark that cannot start says why and stops.

mod better;
mod claims;
mod speed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::routing::Asked,
    scheduler::dice::Dice,
    simulator::{cost::Table, machines::Arrival, table, trace},
};
use tsnode_protocol::Seconds;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |name: &str| named.is_empty() || named.iter().any(|n| n == name);
    if is_wanted("speed") {
        println!("\n## speed\n");
        speed::print();
    }
    for (name, print) in [("claims", claims::print as fn(&Path)), ("better", better::print)] {
        if !is_wanted(name) {
            continue;
        }
        println!("\n## {name}\n");
        match shared() {
            Some(folder) => print(&folder),
            None => println!("Azure's traces and the table of times are not beside the project: nothing was simulated"),
        }
    }
}

fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    folder.join("splitwise_sim/perf_model.csv").is_file().then_some(folder)
}

fn times(shared: &Path, hardware: &str) -> Arc<Table> {
    let text = std::fs::read_to_string(shared.join("splitwise_sim/perf_model.csv")).expect("it is there");
    Arc::new(table::read(&text, "bloom-176b", hardware, 8).expect("it is a table"))
}

/// Lengths of a service's prompts and answers.
fn lengths(shared: &Path, service: &str) -> Vec<Asked> {
    let text = std::fs::read_to_string(shared.join(format!("azure_llm_2023_{service}.csv"))).expect("it is there");
    trace::read(&text).expect("it is a trace").into_iter().map(|a| a.asked).collect()
}

/// Requests of a service, Poisson; prompts and answers drawn independently, as Splitwise's simulator does.
fn drawn(lengths: &[Asked], rate: f64, seconds: f64, seed: u64) -> Vec<Arrival> {
    let (mut dice, mut at) = (Dice::new(seed), 0.0);
    let mut all = Vec::with_capacity((rate * seconds * 1.1) as usize);
    loop {
        at += dice.exponential(1.0 / rate);
        if at > seconds {
            return all;
        }
        let prompt = lengths[dice.below(lengths.len())].prompt;
        let answer = lengths[dice.below(lengths.len())].answer;
        all.push(Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) });
    }
}
