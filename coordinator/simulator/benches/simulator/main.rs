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
enum Part {
    /// Nothing.
    Alone(fn()),
    /// What lies beside the project, if it is there.
    May(fn(Option<&Path>)),
    /// What lies beside the project.
    Needs(fn(&Path)),
}

const PARTS: [(&str, Part); 10] = [
    ("speed", Part::Alone(speed::print)),
    ("claims", Part::Needs(claims::print)),
    ("better", Part::Needs(better::print)),
    ("cronus", Part::May(cronus::print)),
    ("sharing", Part::Alone(sharing::print)),
    ("placement", Part::Alone(placement::print)),
    ("replacement", Part::Alone(placement::print_replacement)),
    ("provision", Part::Needs(provision::print)),
    ("shift", Part::May(shift::print)),
    ("appj", Part::Alone(appj::print)),
];

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    for (name, part) in PARTS {
        if !named.is_empty() && !named.iter().any(|n| n == name) {
            continue;
        }
        println!("\n## {name}\n");
        match (part, shared()) {
            (Part::Alone(print), _) => print(),
            (Part::May(print), folder) => print(folder.as_deref()),
            (Part::Needs(print), Some(folder)) => print(&folder),
            (Part::Needs(_), None) => println!("Azure's traces and the table of times are not beside the project"),
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
