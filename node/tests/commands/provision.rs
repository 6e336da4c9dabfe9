//! `tsnode simulate provision`: what it finds and refuses.
#![expect(clippy::unwrap_used, reason = "a command that cannot be run fails the test")]

use serde_json::Value;
use std::process::{Command, Output};

fn provision(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tsnode")).args(["simulate", "provision"]).args(args).output().unwrap()
}

const KINDS: [&str; 4] = ["--kinds", "4xA40,2xA100", "--seconds", "60"];

fn json(args: &[&str]) -> Value {
    let output = provision(&[&KINDS[..], args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_aims_differ_and_budgets_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("mixes.svg");
    let best = |answer: &Value, what: &str| answer["answer"]["best"][what].as_f64().unwrap();
    let cheapest = json(&["--rate", "6", "--svg", picture.to_str().unwrap()]);
    let lowest = json(&["--rate", "6", "--aim", "power"]);
    assert!(best(&cheapest, "cost") <= best(&lowest, "cost") && best(&lowest, "power") <= best(&cheapest, "power"));
    assert_eq!(cheapest["answer"]["designs"].as_array().unwrap().len(), 6);
    assert!(std::fs::read_to_string(&picture).unwrap().ends_with("</svg>\n"));
    let most = json(&["--budget-cost", "20", "--step", "1"]);
    assert!(best(&most, "cost") <= 20.0 && best(&most, "rate") >= 1.0);
}

#[test]
fn a_table_of_times_is_read_and_what_it_lacks_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.csv");
    let head = "model,hardware,tensor_parallel,prompt_size,batch_size,prompt_time,token_time\n";
    let rows = "llama2-70b,a100-80gb,8,128,1,65,43\nllama2-70b,a100-80gb,8,2048,1,283,45\n";
    std::fs::write(&file, format!("{head}{rows}")).unwrap();
    let args = ["--times", file.to_str().unwrap(), "--model", "llama2-70b", "--slo", "splitwise", "--seconds", "30"];
    let output = provision(&[&args[..], &["--kinds", "8xa100-80gb", "--rate", "4", "--json"]].concat());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["kinds"][0]["power_w"], 3200.0);
    assert!(answer["answer"]["best"]["mix"]["prompts"].as_u64().unwrap() > 0);
    let output = provision(&[&args[..], &["--kinds", "8xh100-80gb", "--rate", "4"]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("it has llama2-70b on 8xa100-80gb"));
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let cases: [(&[&str], &str); 8] = [
        (&["--kinds", "8xB9000"], "no figures are known for GPU \"B9000\"; there are 3090"),
        (&["--kinds", "A100"], "as in 8xA100"),
        (&["--kinds", "1xA40"], "take more devices, as in 2xA40"),
        (&["--kinds", "4xL4"], "the price of 4xL4 is not known: say it, as in --kinds 4xL4:10.5"),
        (&["--aim", "best"], "there are cheapest, power, fewest, throughput"),
        (&["--aim", "throughput"], "give --budget-cost, --budget-power or --budget-machines"),
        (&["--kinds", "4xA40", "--rate", "30", "--budget-cost", "5", "--seconds", "30"], "no mix within 5 $/h keeps"),
        (
            &["--kinds", "4xA40", "--slo", "ttft=1ms", "--seconds", "30"],
            "no number of these machines keeps ttft=0.001s",
        ),
    ];
    for (args, reason) in cases {
        let output = provision(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(reason) && error.trim_end().lines().count() == 1, "{args:?}: {error}");
    }
}
