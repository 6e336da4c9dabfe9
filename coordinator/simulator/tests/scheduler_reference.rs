//! The scheduler's parts against cases made by others: by brute force, by an LP solver, by a script of HexGen's formulas.
//!
//! The cases lie beside the project (`../shared/reference`) and are not part of it.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use crate::shared;
use serde_json::Value;
use tsnode_coordinator::scheduler::{
    cluster::ClusterLink,
    partition::{self, StageSlot},
    route::{self, PathObjective},
    transport::{Solver, TransportProblem},
};
use tsnode_protocol::{BytesPerSecond, Seconds};
use tsnode_simulator::baselines::hexgen;

fn cases(name: &str) -> Value {
    serde_json::from_str(&shared::read(&format!("reference/{name}"))).unwrap()
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn matrix(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(list).collect()
}

fn path(case: &Value) -> ClusterLink {
    let number = |name: &str| case[name].as_f64().unwrap();
    ClusterLink { latency: Seconds(number("alpha_s")), bandwidth: BytesPerSecond(number("beta_bytes_per_s")) }
}

fn close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{what}: {found} instead of {expected}");
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn hexgens_formulas() {
    let all = cases("cost_model_cases.json");
    for case in all["stage"].as_array().unwrap() {
        let number = |name: &str| case[name].as_f64().unwrap();
        let stage = hexgen::HexgenStage {
            layers: number("layers_on_stage"),
            hidden: number("hidden"),
            element: number("bytes_per_elem"),
            tp: number("tp"),
            bandwidth: number("mem_bandwidth"),
            flops: number("flops"),
            inside: path(case),
        };
        let (batch, rows) = (number("batch"), number("batch") * number("seq"));
        let expected = |name: &str| case["expected"][name].as_f64().unwrap();
        close(stage.compute(rows), expected("prefill_compute_s"), "prefill");
        close(stage.compute(batch), expected("decode_compute_per_token_s"), "decode");
        close(stage.communication(rows), expected("tp_comm_prefill_s"), "all-reduces of a prefill");
        close(stage.communication(batch), expected("tp_comm_decode_per_token_s"), "all-reduces of a step");
        close(stage.memory(rows), expected("memory_per_device_bytes"), "memory");
    }
    for case in all["pipeline"].as_array().unwrap() {
        let number = |name: &str| case[name].as_f64().unwrap();
        let time = hexgen::activations(path(case), number("tokens"), number("hidden"), number("bytes_per_elem"));
        close(time, number("expected_s"), "handover");
    }
    for case in all["kv_transfer"].as_array().unwrap() {
        let number = |name: &str| case[name].as_f64().unwrap();
        let rows = number("batch") * number("seq");
        let time = hexgen::kv_transfer(path(case), number("layers"), rows, number("hidden"), number("bytes_per_elem"));
        close(time, number("expected_s"), "KV transfer");
    }
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn layers_are_cut_as_well_as_by_brute_force() {
    let all = cases("layer_partition_cases.json");
    for case in all["cases"].as_array().unwrap() {
        let (speed, most) = (list(&case["stage_speed"]), list(&case["stage_max_layers"]));
        let slots: Vec<StageSlot> = speed
            .iter()
            .zip(&most)
            .map(|(s, m)| StageSlot { per_layer: 1.0 / s, on_top: 0.0, most: *m as u32 })
            .collect();
        let cut = partition::cut(case["layers"].as_u64().unwrap() as u32, &slots).unwrap();
        let slowest = slots.iter().zip(&cut).map(|(s, n)| s.per_layer * f64::from(*n)).fold(0.0, f64::max);
        close(slowest, case["expected"]["best_bottleneck"].as_f64().unwrap(), "slowest stage");
    }
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn routes_are_as_good_as_by_brute_force() {
    let all = cases("pipeline_route_cases.json");
    for case in all["cases"].as_array().unwrap() {
        let (beta, alpha) = (matrix(&case["beta_bytes_per_s"]), matrix(&case["alpha_s"]));
        let bytes = case["message_bytes"].as_f64().unwrap();
        let expected = |name: &str| case["expected"][name].as_f64().unwrap();
        let (order, total) = route::best(beta.len(), PathObjective::Total, |i, j| alpha[i][j] + bytes / beta[i][j]);
        close(total, expected("best_total_time_s"), "total time");
        let mut visited = order;
        visited.sort_unstable();
        assert_eq!(visited, (0..beta.len()).collect::<Vec<_>>());
        let (_, worst) = route::best(beta.len(), PathObjective::Bottleneck, |i, j| 1.0 / beta[i][j]);
        close(1.0 / worst, expected("best_bottleneck_bytes_per_s"), "bottleneck");
    }
}

#[test]
#[ignore = "compares with files of ../shared, which are not part of the project; .ci/run runs it where they are"]
fn transport_is_as_good_as_the_lp_solvers() {
    let all = cases("transportation_cases.json");
    for case in all["cases"].as_array().unwrap() {
        let value = matrix(&case["D"]).concat();
        let (row, column) = (list(&case["prefill_capacity"]), list(&case["decode_capacity"]));
        let arc = vec![1.0; value.len()];
        let mut solver = Solver::default();
        let found = solver.solve(&TransportProblem { value: &value, arc: &arc, row: &row, column: &column });
        let expected = case["expected"]["objective_capacitated"].as_f64().unwrap();
        assert!((found - expected).abs() <= 1e-9, "{}: {found} instead of {expected}", case["id"]);
        let n = column.len();
        for (i, most) in row.iter().enumerate() {
            assert!(solver.flow[i * n..(i + 1) * n].iter().sum::<f64>() <= most + 1e-9);
        }
        for (j, most) in column.iter().enumerate() {
            assert!(solver.flow.iter().skip(j).step_by(n).sum::<f64>() <= most + 1e-9);
        }
        assert!(solver.flow.iter().all(|z| *z >= 0.0) && solver.flow.iter().sum::<f64>() <= 1.0 + 1e-9);
    }
}
