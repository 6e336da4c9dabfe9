//! The simulator against Splitwise's own: every request's times in small cases, percentiles and verdicts in large ones.
//! The cases and the table of times lie beside the project and are not part of it.
#![expect(clippy::unwrap_used, reason = "a case that cannot be read fails the test")]

use crate::shared;
use serde_json::Value;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::routing::{Asked, MachineNo},
    replay::machines::{Arrival, Outcome, ReplayTrace, Simulation},
};
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    measured_cost::Table,
    percentile::Sorted,
    splitwise::{self, SHARES, Sizes, System},
    table,
};

fn table(model: &str, hardware: &str) -> Arc<Table> {
    let text = shared::read("data/splitwise_sim/perf_model.csv");
    Arc::new(table::read(&text, model, hardware, 8).unwrap())
}

/// A case's machines, A100 first; with pools, HA prompts on the H100, which come first then.
fn simulation(case: &Value) -> Simulation {
    let model = case["model"].as_str().unwrap();
    let number = |name: &str| case[name].as_u64().unwrap() as usize;
    let name = case["system"].as_str().unwrap();
    let (a100, h100) = (table(model, "a100-80gb"), table(model, "h100-80gb"));
    let (old, new) = ((&a100, number("a100")), (&h100, number("h100")));
    let machines = if name == "Splitwise-HA" { [new, old] } else { [old, new] };
    let pooled = name.starts_with("Splitwise");
    let system = if pooled { System::Pooled(number("prompt_machines")) } else { System::Baseline };
    splitwise::cluster(Sizes::of(model).unwrap(), &machines, system)
}

/// A machine's place in the cases' order: A100 machines come first there, whatever they do.
fn place(case: &Value, machine: MachineNo) -> usize {
    let (ours, h100) = (machine.0 as usize, case["h100"].as_u64().unwrap() as usize);
    let a100 = case["a100"].as_u64().unwrap() as usize;
    match case["system"].as_str().unwrap() {
        "Splitwise-HA" if ours < h100 => a100 + ours,
        "Splitwise-HA" => ours - h100,
        _ => ours,
    }
}

/// As many iterations, a run of several being one.
fn as_many_iterations(case: &Value, outcome: &Outcome, expected: &Value) {
    assert_eq!(outcome.runs, expected["iterations"].as_u64().unwrap(), "{}: iterations", case["id"]);
}

fn arrival((at, prompt, answer): (f64, u32, u32)) -> Arrival {
    Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) }
}

fn cases(file: &str) -> Vec<Value> {
    serde_json::from_str::<Value>(&shared::read(&format!("reference/{file}"))).unwrap()["cases"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn every_time_of_small_cases_is_splitwises() {
    for case in cases("splitwise_micro.json") {
        let whole = |r: &Value, name: &str| r[name].as_u64().unwrap() as u32;
        let request = |r: &Value| {
            arrival((r["arrival_s"].as_f64().unwrap(), whole(r, "prompt_tokens"), whole(r, "output_tokens")))
        };
        let list: Vec<Arrival> = case["requests"].as_array().unwrap().iter().map(request).collect();
        let outcome = simulation(&case).run(&list, &|_| false);
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
            let route = trace.route.unwrap();
            for (kind, machine) in [("PROMPT", route.prompt), ("TOKEN", route.answer)] {
                let found = nodes.iter().find(|n| n["kind"] == kind).and_then(|n| n["machine"].as_str()).unwrap();
                let number = found.rsplit_once('_').unwrap().1.parse::<usize>().unwrap();
                assert_eq!(place(&case, machine), number, "{}, request {}: {kind}", case["id"], expected["id"]);
            }
        }
        as_many_iterations(&case, &outcome, &case);
        for (n, busy) in outcome.busy.iter().enumerate() {
            let theirs = case["utilization"][place(&case, MachineNo(n as u32))].as_f64().unwrap();
            assert!((busy - theirs).abs() < 1e-8, "{}: machine {n} was busy for {busy}, not {theirs}", case["id"]);
        }
        println!("{}: {} requests alike", case["id"], outcome.traces.len());
    }
}

const PLACES: [&str; 3] = ["p50", "p90", "p99"];

fn read_list(name: &str) -> Vec<Arrival> {
    let text = shared::read(&format!("reference/{name}"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        arrival((cells[0].parse().unwrap(), cells[1].parse().unwrap(), cells[2].parse().unwrap()))
    };
    text.lines().skip(1).map(row).collect()
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn percentiles_and_verdicts_of_large_cases_are_splitwises() {
    for case in cases("splitwise_cases.json") {
        let list = read_list(case["trace"].as_str().unwrap());
        let outcome = simulation(&case).run(&list, &|_| false);
        let of = |f: &dyn Fn(&ReplayTrace) -> f64| Sorted::new(outcome.traces.iter().map(f));
        let expected = &case["expected"];
        let close = |ours: f64, theirs: &Value, within: f64, what: &str| {
            let theirs = theirs.as_f64().unwrap();
            assert!((ours - theirs).abs() <= within, "{} {what}: {ours} instead of {theirs}", case["id"]);
        };
        let times = [
            ("ttft_s", of(&|t| (t.first - t.arrival.at).0)),
            ("tbt_s", of(&splitwise::tbt)),
            ("e2e_s", of(&|t| (t.end - t.arrival.at).0)),
            ("queue_s", of(&|t| (t.prompt_start - t.arrival.at).0)),
            ("second_token_gap_s", of(&|t| (t.answer_start - t.first).0)),
        ];
        for (name, sorted) in &times {
            for (place, share) in PLACES.iter().zip(SHARES) {
                close(sorted.at(share), &expected[name][place], 1e-6, name);
            }
            close(sorted.mean(), &expected[name]["mean"], 1e-6, name);
        }
        let alone = table(case["model"].as_str().unwrap(), "a100-80gb");
        let slowdowns = splitwise::slowdowns(&outcome.traces, &alone);
        for (name, sorted) in ["ttft", "tbt", "e2e"].iter().zip(&slowdowns) {
            for (place, share) in PLACES.iter().zip(SHARES) {
                close(sorted.at(share), &expected["slowdown"][name][place], 1e-4, name);
            }
        }
        let met = expected["table_vi_met"].as_bool().unwrap();
        assert_eq!(splitwise::keeps_table_vi(&slowdowns), met, "{}", case["id"]);
        close(outcome.end.0, &expected["last_completion_s"], 1e-3, "end");
        as_many_iterations(&case, &outcome, expected);
        println!("{}: {} requests, {} events", case["id"].as_str().unwrap(), list.len(), outcome.events);
    }
}
