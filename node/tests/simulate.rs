//! `tsnode simulate`: what it prints and refuses.
#![allow(clippy::unwrap_used)] // A command that cannot be run fails the test.

use serde_json::Value;
use std::process::{Command, Output};

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tsnode")).arg("simulate").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = simulate(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const CLOUD: [&str; 6] = ["--cluster", "cloud32", "--workload", "conversation", "--requests", "1500"];

#[test]
fn every_request_is_accounted_for_and_policies_differ() {
    let names = ["live", "shares", "shortest", "random", "live+chunked", "live+mixed", "shortest+mixed"];
    let compare = names.join(",");
    let answer = json(&[&CLOUD[..], &["--compare", &compare]].concat());
    let runs = answer["runs"].as_array().unwrap();
    let number = |run: &Value, name: &str| run["summary"][name].as_f64().unwrap();
    for (run, name) in runs.iter().zip(names) {
        assert_eq!(run["policy"], name);
        assert_eq!(number(run, "requests"), number(run, "ended") + number(run, "turned_away"), "{name}");
        let machines = run["summary"]["machines"].as_array().unwrap();
        let sum = |what: &str| machines.iter().map(|m| m[what].as_f64().unwrap()).sum::<f64>();
        assert_eq!(sum("prompts"), number(run, "ended"), "{name}");
        assert!(machines.iter().all(|m| (0.0..=1.0).contains(&m["busy"].as_f64().unwrap())));
        let spread = |time: &str| &run["summary"][time];
        let at = |time: &str, place: &str| spread(time)[place].as_f64().unwrap();
        assert!(at("ttft", "p50") <= at("ttft", "p90") && at("ttft", "p99") <= at("e2e", "p99"), "{name}");
    }
    // By the plan's own shares, closed forms and events agree (ThunderServe App. J: within 10 %).
    let planned = answer["plan"]["attainment"].as_f64().unwrap();
    assert!((number(&runs[1], "attainment") - planned).abs() < 0.1, "{planned}");
    assert!(number(&runs[0], "attainment") >= number(&runs[3], "attainment"), "queues know better than chance");
    assert_eq!(json(&[&CLOUD[..], &["--policy", "random"]].concat())["runs"][0]["summary"], runs[3]["summary"]);
}

#[test]
fn a_trace_is_run_at_its_times_and_refused_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    let path = file.to_str().unwrap();
    let head = "arrival_s,prompt_tokens,output_tokens\n";
    std::fs::write(&file, format!("{head}0,100,10\n50,200,20\n")).unwrap();
    let answer = json(&["--cluster", "cloud32", "--trace", path]);
    let summary = &answer["runs"][0]["summary"];
    assert_eq!((&summary["requests"], &summary["ended"]), (&2.into(), &2.into()));
    assert_eq!(answer["runs"][0]["saturated"], false, "the last request is always unserved when it comes");
    assert!(summary["took"].as_f64().unwrap() > 50.0);
    let cases = [
        ("1,100,10\n0,5,5\n", "line 3: a request that comes before the one above it"),
        ("0,100,0\n", "line 2: \"0\" is no number of tokens"),
        ("0,1000000,10\n", "request 1: 1000000 prompt and 10 answer tokens; the largest group"),
    ];
    for (rows, reason) in cases {
        std::fs::write(&file, format!("{head}{rows}")).unwrap();
        let output = simulate(&["--cluster", "cloud32", "--trace", path]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason) && error.trim_end().lines().count() == 1, "{error}");
    }
    for (args, reason) in [(["--policy", "best"], "there are live, shares"), (["--bursty", "0.5"], "at least 1")] {
        let output = simulate(&[&["--cluster", "cloud32"], &args[..]].concat());
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason));
    }
}

#[test]
fn a_rate_that_nothing_carries_ends_and_says_so() {
    let output = simulate(&["--cluster", "cloud32", "--rate", "40", "--requests", "1500", "--policy", "random"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("saturated"), "{text}");
}
