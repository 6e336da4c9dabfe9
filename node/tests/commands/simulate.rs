//! `tsnode simulate`: what it prints and refuses.
#![expect(clippy::unwrap_used, reason = "a command that cannot be run fails the test")]

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
    let names = [
        "live",
        "shares",
        "shortest",
        "random",
        "live+chunked",
        "live+mixed",
        "shortest+mixed",
        "live+first-come",
        "live+feedback",
        "live+doubling",
        "pools+chunked",
        "live+chunked-mixed",
        "live+prefill-first",
    ];
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
        ("0,1000000,10\n", "line 2, request 1: 1000000 prompt and 10 answer tokens; the largest group"),
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
    assert!(text.contains("queues grew at groups "), "{text}");
}

/// Each group's times and memory are there, and what they add up to is what the whole says.
#[test]
fn groups_tokens_and_memory_are_told() {
    let answer = json(&CLOUD);
    let summary = &answer["runs"][0]["summary"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    // Of gaps and of requests' means: most tokens come in steady iterations, the longest gap is somebody's second token.
    assert!(number(&summary["tbt"]["p50"]) > 0.0 && number(&summary["tbt"]["p99"]) <= number(&summary["longest_gap"]));
    let (gap, mean) = (number(&summary["tbt"]["mean"]), number(&summary["tpot"]["mean"]));
    assert!((gap / mean - 1.0).abs() < 0.2, "{gap} between tokens, {mean} per token");
    let (groups, machines) = (answer["plan"]["groups"].as_array().unwrap(), summary["machines"].as_array().unwrap());
    assert_eq!(groups.len(), machines.len());
    for (group, machine) in groups.iter().zip(machines).filter(|(_, m)| number(&m["answers"]) > 0.0) {
        assert!(number(&machine["e2e"]["p99"]) >= number(&machine["tpot"]["p50"]));
        let (most, mean) = (number(&machine["most_kv_bytes"]), number(&machine["mean_kv_bytes"]));
        assert!(mean > 0.0 && mean <= most && number(&machine["most_kv_pages"]) * 65_536.0 >= most, "{group}");
    }
}

#[test]
fn a_printed_plan_is_simulated_as_it_was_searched() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let path = file.to_str().unwrap();
    let cluster = ["--cluster", "cloud32", "--workload", "conversation"];
    let printed = Command::new(env!("CARGO_BIN_EXE_tsnode")).arg("plan").args(cluster).arg("--json").output().unwrap();
    std::fs::write(&file, &printed.stdout).unwrap();
    let given = json(&[&CLOUD[..], &["--plan", path]].concat());
    let searched = json(&[&CLOUD[..], &["--plan", "auto"]].concat());
    assert_eq!(given["runs"][0]["summary"], searched["runs"][0]["summary"]);
    let stages = |answer: &Value| {
        let groups = answer["plan"]["groups"].as_array().unwrap();
        groups.iter().map(|g| (g["phase"].clone(), g["stages"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(stages(&given), stages(&searched));

    let groups = r#"{"groups": [{"phase": "prefill", "stages": [{"host": "a40-0", "tp": 2, "layers": 60}]},
        {"phase": "decode", "stages": [{"host": "a6000-0", "tp": 4, "layers": 60}]}]"#;
    let small = format!("{groups}, \"routes\": [{{\"prefill\": 0, \"decode\": 1, \"share\": 1.0}}]}}");
    std::fs::write(&file, &small).unwrap();
    let answer = json(&[&CLOUD[..], &["--plan", path, "--rate", "0.3"]].concat());
    assert_eq!(answer["runs"][0]["summary"]["ended"], 1500);
    let cases = [
        (small.replace("\"tp\": 4", "\"tp\": 2, \"gpu\": \"A40\""), "group 2: stage 1: no A40 on a host \"a6000-0\""),
        (small.replace("60}]},", "59}]},"), "group 1: its stages have 59 of LLaMA-30B's 60 layers"),
        (small.replace("1.0", "1.1"), "route 1: a share of 1.1"),
        (small.replace("\"tp\": 2", "\"tp\": 1"), "do not fit 1×A40 of a40-0"),
        (small.replace("\"host\"", "\"hosts\""), "plan.json: missing field `host` at line 1"),
        (groups.to_owned(), "plan.json: EOF"),
    ];
    for (text, reason) in cases {
        std::fs::write(&file, text).unwrap();
        let output = simulate(&["--cluster", "cloud32", "--plan", path]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason) && error.trim_end().lines().count() == 1, "{error}");
    }
}

#[test]
fn pictures_are_drawn_and_stay_small() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("picture.svg");
    let path = file.to_str().unwrap();
    let drawn = |args: &[&str]| {
        let output = simulate(&[args, &["--svg", path]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(&file).unwrap()
    };
    let timeline = drawn(&["--cluster", "cloud32", "--rate", "6", "--requests", "20000", "--budget", "200"]);
    assert!(timeline.contains("KV sent") && timeline.contains("wait") && timeline.len() < 1_000_000);
    let rates = ["--rates", "1,4", "--compare", "live,random", "--metric", "ttft", "--budget", "200"];
    let plot = drawn(&[&CLOUD[..], &rates].concat());
    assert!(plot.contains("\nrandom\n</text>") && plot.contains("\nrequests/s\n</text>"));
    assert_eq!(plot.matches("stroke-width=\"2\" points=").count(), 2, "lines of values are wider than axes");
    let answer = json(&[&CLOUD[..], &rates].concat());
    let rows = answer["rates"].as_array().unwrap();
    let p99 = |row: &Value| row["runs"][1]["summary"]["ttft"]["p99"].as_f64().unwrap();
    assert!(rows.len() == 2 && p99(&rows[0]) < p99(&rows[1]), "more requests wait longer");
}

#[test]
fn what_cannot_be_simulated_is_refused_in_a_line() {
    let cases: [(&[&str], &str); 10] = [
        (&["--metric", "tbt"], "--metric: nothing is run over rates"),
        (&["--plan", "nowhere.json", "--budget", "200"], "--budget: the plan is that of nowhere.json"),
        (&["--requests", "0"], "--requests \"0\""),
        (&["--requests", "99999999999"], "--requests"),
        (&["--rate", "1e-307"], "never come"),
        (&["--rate", "-1"], "must be a positive number"),
        (&["--rates", "1,x"], "--rates \"1,x\""),
        (&["--metric", "speed"], "there are in-time, ttft, tbt, e2e"),
        (&["--plan", "nowhere.json"], "nowhere.json"),
        (&["--svg", "/nowhere/at/all.svg"], "there is no folder /nowhere/at"),
    ];
    for (args, reason) in cases {
        let flags: Vec<String> = args.chunks(2).map(|pair| format!("{}={}", pair[0], pair[1])).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let output = simulate(&[&["--cluster", "cloud32"], &flags[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(reason), "{args:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    // Requests of a file are drawn by nothing.
    for drawn in ["--requests", "--bursty"] {
        let output = simulate(&["--cluster", "cloud32", "--trace", "nowhere.csv", drawn, "4"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(drawn), "{error}");
    }
}
