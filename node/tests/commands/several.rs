//! `tsnode simulate sharing` and `simulate placement`: what they print, draw and refuse.
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

fn refused(args: &[&str]) -> String {
    let output = simulate(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

const HEAD: &str = "arrival_s,prompt_tokens,output_tokens\n";

#[test]
fn models_share_a_gpu_in_orders_over_loads_and_at_a_traces_times() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("sharing.svg");
    let drawn = ["sharing", "--requests", "200", "--loads", "0.3,1.2", "--svg", svg.to_str().unwrap()];
    let answer = json(&drawn);
    let runs = answer["runs"].as_array().unwrap();
    assert_eq!((runs.len(), answer["services"].as_array().unwrap().len()), (14, 2));
    let of = |order: &str, load: f64| {
        let run = runs.iter().find(|run| run["order"] == order && run["load"] == load).unwrap();
        run["normalised"]["mean"].as_f64().unwrap()
    };
    assert!(of("doubling", 1.2) < of("first-come", 1.2) && of("doubling", 0.3) < of("doubling", 1.2), "{answer}");
    assert!(of("peers-doubling", 1.2) < of("peers-round-robin", 1.2), "{answer}");
    // Lines of values are wider than axes.
    assert_eq!(std::fs::read_to_string(svg).unwrap().matches("stroke-width=\"2\" points=").count(), 7);
    // One of each at once: whoever is second waits.
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, format!("{HEAD}0,100,10\n")).unwrap();
    let traces = format!("{0},{0}", trace.display());
    let answer = json(&["sharing", "--orders", "first-come", "--trace", &traces]);
    assert_eq!((&answer["runs"][0]["requests"], &answer["runs"][0]["load"]), (&2.into(), &Value::Null));
    let too_large = ["sharing", "--service", "LLaMA-30B:coding", "--service", "LLaMA-13B:coding"];
    let cases: [(&[&str], &str); 6] = [
        (&["sharing", "--gpu", "A801"], "no GPU is called \"A801\"; there are"),
        (&too_large, "LLaMA-30B, LLaMA-13B take"),
        (&["sharing", "--loads", "0"], "--loads \"0\": up to 32 numbers"),
        (&["sharing", "--orders", "fair"], "no order is called \"fair\"; there are doubling, first-come"),
        (&["sharing", "--loads", "0.6", "--svg", "x.svg"], "give two --loads or more"),
        (&["sharing", "--trace", trace.to_str().unwrap()], "--trace names 1 files, and there are 2 services"),
    ];
    for (args, why) in cases {
        let said = refused(args);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn models_are_placed_on_a_cluster_by_requests_that_came() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("placement.svg");
    let two = ["--service", "LLaMA-7B:coding:2", "--service", "LLaMA-13B:conversation:0.5"];
    let drawn = ["placement", "--cluster", "a100x8", "--requests", "60", "--svg", svg.to_str().unwrap()];
    let answer = json(&[&drawn[..], &two].concat());
    let groups = answer["groups"].as_array().unwrap();
    let held = |service: u64| {
        let holds = |group: &&Value| group["services"].as_array().unwrap().contains(&service.into());
        groups.iter().filter(holds).count()
    };
    assert!(held(0) > 0 && held(1) > 0, "{answer}");
    let names: Vec<&str> =
        answer["later"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["placed", "devices of their own", "dealt in turn"]);
    assert!((0.0..=1.0).contains(&answer["later"][0]["attainment"].as_f64().unwrap()), "{answer}");
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.contains("LLaMA-13B") && picture.contains("A100"), "{picture}");
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, format!("{HEAD}0,100,10\n")).unwrap();
    let traces = format!("{0},{0}", trace.display());
    let at_once = ["placement", "--cluster", "a100x8", "--trace", &traces];
    let none = ["placement", "--cluster", "a100x8", "--sharing", "0"];
    for (args, why) in [(&at_once, "its requests all come at once"), (&none, "at most 0 services on a group")] {
        let said = refused(&[&args[..], &two].concat());
        assert!(said.contains(why), "{said}");
    }
}
