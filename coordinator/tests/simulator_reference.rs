//! The simulator against Splitwise's own: every request's times in small cases, percentiles and verdicts in large ones.
//! The cases and the table of times lie beside the project; without them these tests say so and pass.
#![allow(clippy::unwrap_used)] // A case that cannot be read fails the test.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        ageing::Ageing,
        batching::Limits,
        pools::Pools,
        routing::{Asked, Routing, ShortestQueue},
    },
    simulator::{
        cost::{Line, Table},
        machines::{Alike, Arrival, Machine, Simulation, Trace},
        percentile::Sorted,
    },
};
use tsnode_protocol::{Seconds, SecondsPerToken};

fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let there = folder.join("reference").is_dir() && folder.join("data/splitwise_sim/perf_model.csv").is_file();
    if !there {
        eprintln!("no reference cases beside the project: nothing is compared");
    }
    there.then_some(folder)
}

/// The table's lines: the median over all rows of one number of tokens, x = prompt · batch.
fn table(shared: &Path, model: &str, hardware: &str) -> Table {
    let text = std::fs::read_to_string(shared.join("data/splitwise_sim/perf_model.csv")).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| header.iter().position(|c| *c == name).unwrap();
    let [m, h, p, b, prompt, token, tp] =
        ["model", "hardware", "prompt_size", "batch_size", "prompt_time", "token_time", "tensor_parallel"].map(column);
    let (mut prompts, mut tokens) = (Times::new(), Times::new());
    for row in lines.map(|l| l.split(',').collect::<Vec<_>>()) {
        if row[m] == model && row[h] == hardware && row[tp] == "8" {
            let number = |place: usize| row[place].parse::<f64>().unwrap();
            let x = (number(p) * number(b)) as u64;
            prompts.entry(x).or_default().push(number(prompt) / 1e3);
            tokens.entry(x).or_default().push(number(token) / 1e3);
        }
    }
    let line = |times: Times| Line::new(times.into_iter().map(|(x, t)| (x as f64, median(t))).collect()).unwrap();
    Table { prompt: line(prompts), answer: line(tokens) }
}

/// Seconds by number of tokens.
type Times = BTreeMap<u64, Vec<f64>>;

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let n = all.len();
    0.5 * (all[(n - 1) / 2] + all[n / 2])
}

/// KV bytes of a token, and the weights, as Splitwise's simulator counts them.
fn sizes(model: &str) -> (f64, f64) {
    match model {
        "llama2-70b" => (2.0 * 8192.0 * 80.0 * 2.0, 135e9),
        _ => (2.0 * 14336.0 * 70.0 * 2.0, 329e9),
    }
}

const MEMORY: f64 = 8.0 * 80.0 * (1u64 << 30) as f64;
const LINK: f64 = 200.0 * (1u64 << 30) as f64;
const LIMITS: Limits = Limits { tasks: 512, tokens: 2048 };

/// A case's machines, A100 first; with pools, HA prompts on the H100.
fn simulation(shared: &Path, case: &Value) -> Simulation {
    let model = case["model"].as_str().unwrap();
    let (kv, weights) = sizes(model);
    let capacity = ((MEMORY - weights) / kv) as u64;
    let number = |name: &str| case[name].as_u64().unwrap() as usize;
    let system = case["system"].as_str().unwrap();
    let of = |hardware: &str| Arc::new(table(shared, model, hardware));
    let (a100, h100) = (of("a100-80gb"), of("h100-80gb"));
    let machine = |cost: &Arc<Table>| Machine { batching: Box::new(Ageing::new(LIMITS, capacity)), cost: cost.clone() };
    let old = (0..number("a100")).map(|_| machine(&a100));
    let new = (0..number("h100")).map(|_| machine(&h100));
    // Pools take the first machines for prompts: with HA those are the H100.
    let machines: Vec<Machine> =
        if system == "Splitwise-HA" { new.chain(old).collect() } else { old.chain(new).collect() };
    let routing: Box<dyn Routing> = if system.starts_with("Splitwise") {
        Box::new(Pools::new(number("prompt_machines"), &vec![capacity; machines.len()]))
    } else {
        Box::new(ShortestQueue::new(machines.len()))
    };
    Simulation::new(machines, routing, Box::new(Alike { per_token: SecondsPerToken(kv / LINK) }))
}

fn arrivals(requests: impl Iterator<Item = (f64, u32, u32)>) -> Vec<Arrival> {
    requests.map(|(at, prompt, answer)| Arrival { at: Seconds(at), asked: Asked { prompt, answer } }).collect()
}

fn cases(shared: &Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(shared.join("reference").join(file)).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["cases"].as_array().unwrap().clone()
}

#[test]
fn every_time_of_small_cases_is_splitwises() {
    let Some(shared) = shared() else { return };
    for case in cases(&shared, "splitwise_micro.json") {
        let requests = case["requests"].as_array().unwrap();
        let whole = |r: &Value, name: &str| r[name].as_u64().unwrap() as u32;
        let list = requests
            .iter()
            .map(|r| (r["arrival_s"].as_f64().unwrap(), whole(r, "prompt_tokens"), whole(r, "output_tokens")));
        let outcome = simulation(&shared, &case).run(&arrivals(list), &|_| false);
        for (trace, expected) in outcome.traces.iter().zip(case["expected"].as_array().unwrap()) {
            let nodes = expected["nodes"].as_array().unwrap();
            let node = |kind: &str, what: &str| {
                nodes.iter().find(|n| n["kind"] == kind).map(|n| n[what].as_f64().unwrap()).unwrap()
            };
            let times = [
                (trace.prompt_start, node("PROMPT", "start_s")),
                (trace.first, node("PROMPT", "end_s")),
                (trace.answer_start, node("TOKEN", "start_s")),
                (trace.end, node("TOKEN", "end_s")),
            ];
            for (ours, theirs) in times {
                assert!((ours.0 - theirs).abs() < 1e-9, "{}, request {}: {times:?}", case["id"], expected["id"]);
            }
        }
        println!("{}: {} requests alike", case["id"], outcome.traces.len());
    }
}

/// What Splitwise's Table VI allows, as multiples of an A100 machine's times alone: at P50, P90 and P99.
const TABLE_VI: [(&str, [f64; 3]); 3] =
    [("ttft", [2.0, 3.0, 6.0]), ("tbt", [1.25, 1.5, 5.0]), ("e2e", [1.25, 1.5, 5.0])];
const SHARES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

fn read_trace(path: &Path) -> Vec<Arrival> {
    let text = std::fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        (cells[0].parse().unwrap(), cells[1].parse().unwrap(), cells[2].parse().unwrap())
    };
    arrivals(text.lines().skip(1).map(row))
}

#[test]
fn percentiles_and_verdicts_of_large_cases_are_splitwises() {
    let Some(shared) = shared() else { return };
    for case in cases(&shared, "splitwise_cases.json") {
        let list = read_trace(&shared.join("reference").join(case["trace"].as_str().unwrap()));
        let started = std::time::Instant::now();
        let outcome = simulation(&shared, &case).run(&list, &|_| false);
        let took = started.elapsed();
        let alone = table(&shared, case["model"].as_str().unwrap(), "a100-80gb");
        let of = |f: &dyn Fn(&Trace) -> f64| Sorted::new(outcome.traces.iter().map(f));
        let ttft = |t: &Trace| (t.first - t.arrival.at).0;
        let e2e = |t: &Trace| (t.end - t.arrival.at).0;
        let answer = |t: &Trace| f64::from(t.arrival.asked.answer);
        let tbt = |t: &Trace| (e2e(t) - ttft(t)) / answer(t);
        let prompt_alone = |t: &Trace| alone.prompt.at(f64::from(t.arrival.asked.prompt));
        let token_alone = |t: &Trace| alone.answer.at(f64::from(t.arrival.asked.prompt));
        let expected = &case["expected"];
        let mut worst = 0.0f64;
        let mut close = |ours: f64, theirs: &Value, within: f64, what: &str| {
            let theirs = theirs.as_f64().unwrap();
            worst = worst.max((ours - theirs).abs() / theirs.abs().max(1e-3));
            assert!((ours - theirs).abs() <= within, "{} {what}: {ours} instead of {theirs}", case["id"]);
        };
        let times = [
            ("ttft_s", of(&ttft)),
            ("tbt_s", of(&tbt)),
            ("e2e_s", of(&e2e)),
            ("queue_s", of(&|t| (t.prompt_start - t.arrival.at).0)),
            ("second_token_gap_s", of(&|t| (t.answer_start - t.first).0)),
        ];
        for (name, sorted) in &times {
            for (place, share) in SHARES {
                close(sorted.at(share), &expected[name][place], 1e-6, name);
            }
            close(sorted.mean(), &expected[name]["mean"], 1e-6, name);
        }
        let slowdowns = [
            of(&|t| ttft(t) / prompt_alone(t)),
            of(&|t| tbt(t) / token_alone(t)),
            of(&|t| e2e(t) / (prompt_alone(t) + token_alone(t) * (answer(t) - 1.0))),
        ];
        let mut met = true;
        for ((name, most), sorted) in TABLE_VI.iter().zip(&slowdowns) {
            for ((place, share), most) in SHARES.iter().zip(most) {
                close(sorted.at(*share), &expected["slowdown"][name][place], 1e-4, name);
                met &= sorted.at(*share) < *most;
            }
        }
        assert_eq!(met, expected["table_vi_met"].as_bool().unwrap(), "{}", case["id"]);
        close(outcome.end.0, &expected["last_completion_s"], 1e-3, "end");
        println!(
            "{}: {} requests, worst difference {worst:.1e}, {} events in {:.1} ms",
            case["id"].as_str().unwrap(),
            list.len(),
            outcome.events,
            took.as_secs_f64() * 1e3
        );
    }
}
