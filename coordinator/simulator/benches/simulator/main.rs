//! What the simulator's documentation states, measured: `cargo bench -p tsnode-coordinator --bench simulator -- PART`,
//! where PART is one of the names below, or nothing for all of them. Some parts need Azure's traces and a table of times
//! that lie beside the project, and say so where they are absent. Tables go to standard output.
#![expect(clippy::expect_used, reason = "a benchmark that cannot start says why and stops")]

mod appj;
mod better;
mod claims;
mod cronus;
mod placement;
mod provision;
mod sharing;
mod shift;
mod speed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tsnode_coordinator::{policy::routing::Asked, replay::machines::Arrival, rng::Rng};
use tsnode_protocol::Seconds;
use tsnode_simulator::{measured_cost::Table, table, trace};

/// What a part takes.
#[derive(Clone, Copy)]
enum BenchPart {
    /// Nothing.
    Alone(fn()),
    /// What lies beside the project, if it is there.
    May(fn(Option<&Path>)),
    /// What lies beside the project.
    Needs(fn(&Path)),
}

const PARTS: [(&str, BenchPart); 10] = [
    ("speed", BenchPart::Alone(speed::print)),
    ("claims", BenchPart::Needs(claims::print)),
    ("better", BenchPart::Needs(better::print)),
    ("cronus", BenchPart::May(cronus::print)),
    ("sharing", BenchPart::Alone(sharing::print)),
    ("placement", BenchPart::Alone(placement::print)),
    ("replacement", BenchPart::Alone(placement::print_replacement)),
    ("provision", BenchPart::Needs(provision::print)),
    ("shift", BenchPart::May(shift::print)),
    ("appj", BenchPart::Alone(appj::print)),
];

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    for (name, part) in PARTS {
        if !named.is_empty() && !named.iter().any(|n| n == name) {
            continue;
        }
        println!("\n## {name}\n");
        match (part, shared()) {
            (BenchPart::Alone(print), _) => print(),
            (BenchPart::May(print), folder) => print(folder.as_deref()),
            (BenchPart::Needs(print), Some(folder)) => print(&folder),
            (BenchPart::Needs(_), None) => println!("Azure's traces and the table of times are not beside the project"),
        }
    }
}

fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
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
    let (mut rng, mut at) = (Rng::new(seed), 0.0);
    let mut all = Vec::with_capacity((rate * seconds * 1.1) as usize);
    loop {
        at += rng.exponential(1.0 / rate);
        if at > seconds {
            return all;
        }
        let prompt = lengths[rng.below(lengths.len())].prompt;
        let answer = lengths[rng.below(lengths.len())].answer;
        all.push(Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) });
    }
}
