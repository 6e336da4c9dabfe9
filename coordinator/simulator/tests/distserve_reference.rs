//! The simulator by DistServe's rules and fits against DistServe's own simulator. The cases lie beside the project; without
//! them these tests say so and pass.
#![expect(clippy::unwrap_used, reason = "a case that cannot be read fails the test")]

mod shared;

use serde_json::Value;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        routing::{Asked, MachineNo},
        shares::{PhasePair, Shares},
    },
    replay::machines::{Alike, Arrival, Machine, Simulation, Trace},
    scheduler::cost::{Decode, Prefill},
};
use tsnode_protocol::{Seconds, SecondsPerToken};
use tsnode_simulator::{cost::Fit, percentile::Sorted, policy::greedy::Greedy};

/// Context tokens that a decode iteration takes, a number in the simulator's source.
const CONTEXT: u64 = 50_000;
/// What times may differ by (ms).
const CLOSE: f64 = 1e-5;

fn fit(model: &Value, case: &Value, devices: &Value, stages: u16) -> Fit {
    let backend = case["backend"].as_str().unwrap();
    let name = case["model"].as_str().unwrap();
    let fit = &model["coefficients"][backend][name][devices.to_string()];
    let ms = |list: &str, place: usize| Seconds(fit[list][place].as_f64().unwrap() / 1e3);
    let decode =
        |list: &str| Decode { fixed: ms(list, 0), per_context: ms(list, 1).per_token(), per_sequence: ms(list, 2) };
    Fit {
        prefill: Prefill {
            fixed: ms("prefill", 0),
            per_token: ms("prefill", 1).per_token(),
            per_square: ms("prefill", 2).per_token().per_token(),
        },
        few: decode("decoding_smallbs"),
        lots: decode("decoding_largebs"),
        many: fit["decoding_large_small_bs_threshold"].as_u64().unwrap() as u32,
        stages,
        handing_prompts: Seconds(1e-3 * f64::from(stages)),
        handing: Seconds(2e-3),
        handing_token: SecondsPerToken(1e-7),
    }
}

/// One machine that does both, or one for each phase.
fn simulation(model: &Value, case: &Value) -> Simulation {
    let machine = |devices: &Value, stages: &Value| {
        let name = format!("{},{devices},{stages}", case["model"].as_str().unwrap());
        let capacity = model["kv_capacity_tokens"][&name].as_u64().unwrap();
        let cost = fit(model, case, devices, stages.as_u64().unwrap() as u16);
        Machine { batching: Box::new(Greedy::new(capacity, CONTEXT)), cost: Arc::new(cost) }
    };
    let mut machines = vec![machine(&case["tp_prefill"], &case["pp_prefill"])];
    if !case["tp_decode"].is_null() {
        machines.push(machine(&case["tp_decode"], &case["pp_decode"]));
    }
    let decode = MachineNo(machines.len() as u32 - 1);
    let routing = Shares::new(vec![PhasePair { prefill: MachineNo(0), decode, share: 1.0 }], false);
    Simulation::new(machines, Box::new(routing), Box::new(Alike { per_token: SecondsPerToken(0.0) }))
}

fn arrivals(name: &str) -> Vec<Arrival> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        // As many decode steps as output tokens follow the prefill.
        let answer = cells[2].parse::<u32>().unwrap() + 1;
        Arrival { at: Seconds(cells[0].parse().unwrap()), asked: Asked::new(cells[1].parse().unwrap(), answer) }
    };
    shared::read(&format!("reference/{name}")).lines().skip(1).map(row).collect()
}

/// A time of a request, by name.
type Time<'a> = (&'a str, &'a dyn Fn(&Trace) -> f64);

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn machines_take_distserves_times() {
    let text = shared::read("reference/distserve_cases.json");
    let all: Value = serde_json::from_str(&text).unwrap();
    let cases = all["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 9, "all nine of them");
    for case in cases {
        let list = arrivals(case["trace"].as_str().unwrap());
        let outcome = simulation(&all["time_model"], case).run(&list, &|_| false);
        let ttft = |t: &Trace| (t.first - t.arrival.at).0 * 1e3;
        let tpot = |t: &Trace| (t.end - t.first).0 * 1e3 / (f64::from(t.arrival.asked.answer) - 1.0);
        let total = |t: &Trace| (t.end - t.arrival.at).0 * 1e3;
        let close = |ours: f64, theirs: &Value, what: &str| {
            let theirs = theirs.as_f64().unwrap();
            assert!((ours - theirs).abs() <= CLOSE, "{} {what}: {ours} instead of {theirs}", case["id"]);
        };
        for (trace, expected) in outcome.traces.iter().zip(case["per_request"].as_array().into_iter().flatten()) {
            close(ttft(trace), &expected["ttft_ms"], "ttft of a request");
            close(tpot(trace), &expected["tpot_ms"], "tpot of a request");
            close(total(trace), &expected["total_ms"], "total of a request");
        }
        let times: [Time<'_>; 3] = [("ttft_ms", &ttft), ("tpot_ms", &tpot), ("total_ms", &total)];
        for (name, of) in times {
            let sorted = Sorted::new(outcome.traces.iter().map(of));
            for (place, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
                close(sorted.at(share), &case[name][place], name);
            }
            close(sorted.mean(), &case[name]["mean"], name);
        }
        let (first, later) = (case["ttft_target_ms"].as_f64().unwrap(), case["tpot_target_ms"].as_f64().unwrap());
        let share = |kept: &dyn Fn(&Trace) -> bool| {
            100.0 * outcome.traces.iter().filter(|t| kept(t)).count() as f64 / list.len() as f64
        };
        for (name, ours) in [
            ("prefill", share(&|t| ttft(t) <= first)),
            ("decode", share(&|t| tpot(t) <= later)),
            ("both", share(&|t| ttft(t) <= first && tpot(t) <= later)),
        ] {
            let theirs = case["attainment_pct"][name].as_f64().unwrap();
            assert!((ours - theirs).abs() < 1e-3, "{} {name}: {ours} instead of {theirs}", case["id"]);
        }
        println!("{}: {} requests alike", case["id"], list.len());
    }
}
