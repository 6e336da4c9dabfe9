//! The simulator by DistServe's rules and fits against DistServe's own simulator. The cases lie beside the project; without
//! them these tests say so and pass.
#![expect(clippy::unwrap_used, reason = "a case that cannot be read fails the test")]

use crate::shared;
use serde_json::Value;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        routing::{Asked, MachineNo},
        shares::{PhasePair, Shares},
    },
    replay::machines::{Alike, Arrival, Machine, ReplayTrace, Simulation},
    scheduler::cost::{Decode, Prefill},
};
use tsnode_protocol::{Seconds, SecondsPerToken};
use tsnode_simulator::{measured_cost::FittedTimes, percentile::Sorted, policy::greedy::Greedy};

/// Context tokens that a decode iteration takes, a number in the simulator's source.
const CONTEXT: u64 = 50_000;
/// What times may differ by (ms).
const CLOSE: f64 = 1e-5;

fn fit(model: &Value, case: &Value, devices: &Value, stages: u16) -> FittedTimes {
    let backend = case["backend"].as_str().unwrap();
    let name = case["model"].as_str().unwrap();
    let fit = &model["coefficients"][backend][name][devices.to_string()];
    let ms = |list: &str, place: usize| Seconds(fit[list][place].as_f64().unwrap() / 1e3);
    let decode =
        |list: &str| Decode { fixed: ms(list, 0), per_context: ms(list, 1).per_token(), per_sequence: ms(list, 2) };
    FittedTimes {
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
type TraceTime<'a> = (&'a str, &'a dyn Fn(&ReplayTrace) -> f64);

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
        let ttft = |t: &ReplayTrace| (t.first - t.arrival.at).0 * 1e3;
        let tpot = |t: &ReplayTrace| (t.end - t.first).0 * 1e3 / (f64::from(t.arrival.asked.answer) - 1.0);
        let total = |t: &ReplayTrace| (t.end - t.arrival.at).0 * 1e3;
        let close = |ours: f64, theirs: &Value, what: &str| {
            let theirs = theirs.as_f64().unwrap();
            assert!((ours - theirs).abs() <= CLOSE, "{} {what}: {ours} instead of {theirs}", case["id"]);
        };
        for (trace, expected) in outcome.traces.iter().zip(case["per_request"].as_array().into_iter().flatten()) {
            close(ttft(trace), &expected["ttft_ms"], "ttft of a request");
            close(tpot(trace), &expected["tpot_ms"], "tpot of a request");
            close(total(trace), &expected["total_ms"], "total of a request");
        }
        let times: [TraceTime<'_>; 3] = [("ttft_ms", &ttft), ("tpot_ms", &tpot), ("total_ms", &total)];
        for (name, of) in times {
            let sorted = Sorted::new(outcome.traces.iter().map(of));
            for (place, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
                close(sorted.at(share), &case[name][place], name);
            }
            close(sorted.mean(), &case[name]["mean"], name);
        }
        let (first, later) = (case["ttft_target_ms"].as_f64().unwrap(), case["tpot_target_ms"].as_f64().unwrap());
        let share = |kept: &dyn Fn(&ReplayTrace) -> bool| {
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

/// Colocated pipelines, as DistServe's own simulator has them at the commit that the cases name: devices side by side, stages,
/// and of first tokens, tokens and whole answers P50, P90, P99 and mean (ms).
type Colocated = (&'static str, u16, u16, [[f64; 4]; 3]);

const COLOCATED: [Colocated; 6] = [
    (
        "ds_conv_2rps_n300_s1.csv",
        1,
        2,
        [
            [192.89108, 322.301438, 447.09043, 198.569906],
            [55.987936, 64.920425, 73.8365, 55.654147],
            [7634.476553, 23644.677452, 31184.692323, 11428.271288],
        ],
    ),
    (
        "ds_conv_2rps_n300_s1.csv",
        1,
        4,
        [
            [198.125885, 320.410534, 351.491687, 193.232257],
            [54.055416, 61.219821, 69.480723, 53.353008],
            [7417.725897, 22692.487439, 29979.887924, 10992.124959],
        ],
    ),
    (
        "ds_conv_2rps_n300_s1.csv",
        2,
        2,
        [
            [146.282791, 234.744746, 291.021291, 145.328459],
            [41.171596, 45.757535, 52.18646, 41.163486],
            [5841.272723, 17174.392722, 22573.920422, 8507.013726],
        ],
    ),
    (
        "ds_conv_4rps_n300_s1.csv",
        1,
        4,
        [
            [205.643202, 327.853308, 434.437294, 212.327053],
            [91.691332, 103.988291, 110.007035, 87.035627],
            [12217.592014, 37649.390532, 49942.683254, 17249.91835],
        ],
    ),
    (
        "ds_conv_4rps_n300_s1.csv",
        2,
        2,
        [
            [149.83774, 247.473508, 414.811715, 161.990751],
            [66.526766, 74.407642, 84.248411, 64.538164],
            [8657.242191, 27300.961033, 35947.086628, 13047.344302],
        ],
    ),
    (
        "ds_code_2rps_n300_s1.csv",
        1,
        4,
        [
            [291.654588, 323.939346, 373.147178, 235.259653],
            [41.092881, 68.34161, 100.398476, 44.826317],
            [900.634365, 3169.042144, 11874.604101, 1584.457],
        ],
    ),
];

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn stages_of_a_colocated_pipeline_choose_for_themselves() {
    let all: Value = serde_json::from_str(&shared::read("reference/distserve_cases.json")).unwrap();
    for (trace, devices, stages, expected) in COLOCATED {
        let case = serde_json::json!({
            "backend": "vllm", "model": "facebook/opt-13b", "tp_prefill": devices, "pp_prefill": stages, "tp_decode": null,
        });
        let list = arrivals(&format!("traces/{trace}"));
        let outcome = simulation(&all["time_model"], &case).run(&list, &|_| false);
        let times: [&dyn Fn(&ReplayTrace) -> f64; 3] = [
            &|t| (t.first - t.arrival.at).0 * 1e3,
            &|t| (t.end - t.first).0 * 1e3 / (f64::from(t.arrival.asked.answer) - 1.0),
            &|t| (t.end - t.arrival.at).0 * 1e3,
        ];
        for (of, [p50, p90, p99, mean]) in times.iter().zip(expected) {
            let sorted = Sorted::new(outcome.traces.iter().map(of));
            for (ours, theirs) in [(0.5, p50), (0.9, p90), (0.99, p99)].map(|(share, v)| (sorted.at(share), v)) {
                assert!((ours - theirs).abs() <= CLOSE, "{trace} {devices}x{stages}: {ours} instead of {theirs}");
            }
            assert!((sorted.mean() - mean).abs() <= CLOSE, "{trace} {devices}x{stages}: {} on average", sorted.mean());
        }
    }
}
