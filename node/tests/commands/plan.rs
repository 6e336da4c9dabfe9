//! `tsnode` without a peer: what `plan --cluster` prints, draws and refuses, and what every verb does with bad words and closed doors.
#![expect(clippy::unwrap_used, reason = "a command that cannot be run fails the test")]

use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn plan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tsnode")).arg("plan").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = plan(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const CLOUD: [&str; 6] = ["--cluster", "cloud32", "--figures", "paper", "--workload", "coding"];

#[test]
fn one_seed_gives_one_plan_and_its_parts_add_up() {
    let (a, b) = (json(&CLOUD), json(&CLOUD));
    assert_eq!(a["plan"], b["plan"]);
    let plan = &a["plan"];
    let sum = |list: &Value, of: &dyn Fn(&Value) -> f64| list.as_array().unwrap().iter().map(of).sum::<f64>();
    let attained = sum(&plan["routes"], &|r| r["share"].as_f64().unwrap() * r["kept"].as_f64().unwrap());
    assert!((attained - plan["attainment"].as_f64().unwrap()).abs() < 1e-9);
    assert!(plan["attainment"].as_f64().unwrap() > 0.85, "{plan}");
    for group in plan["groups"].as_array().unwrap() {
        let layers = &group["stages"].as_array().unwrap();
        assert_eq!(
            (&layers[0]["layers"]["start"], &layers[layers.len() - 1]["layers"]["end"]),
            (&0.into(), &60.into())
        );
    }
}

#[test]
fn a_plan_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.svg");
    let output = plan(&[&CLOUD[..], &["--svg", file.to_str().unwrap(), "--why"]].concat());
    assert!(String::from_utf8_lossy(&output.stdout).contains("runner-up 1"));
    let picture = std::fs::read_to_string(file).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert!(picture.contains("A40") && picture.contains("<path"));
}

#[test]
fn services_share_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plans.svg");
    let services = ["--service", "LLaMA-30B:coding:1", "--service", "LLaMA-13B:conversation:3:e2e=4x"];
    let answer = json(&[&["--cluster", "cloud32", "--svg", file.to_str().unwrap()], &services[..]].concat());
    let plans: Vec<&Value> = answer["services"].as_array().unwrap().iter().map(|s| &s["plan"]).collect();
    assert_eq!((&plans[0]["model"], &plans[1]["slo"]), (&"LLaMA-30B".into(), &"e2e=4x".into()));
    let both: f64 = plans.iter().map(|p| p["attainment"].as_f64().unwrap() * p["rate"].as_f64().unwrap()).sum();
    assert!((both / 4.0 - answer["attainment"].as_f64().unwrap()).abs() < 1e-9);
    assert!(both / 4.0 > 0.95, "{both}");
    // cloud32 has 32 devices: no more are used by both together.
    let count = |name: &Value| name.as_str().unwrap().split('×').next().unwrap().parse::<u32>().unwrap();
    let groups = plans.iter().flat_map(|p| p["groups"].as_array().unwrap());
    let devices: u32 = groups.flat_map(|g| g["devices"].as_array().unwrap()).map(count).sum();
    assert!((8..=32).contains(&devices), "{devices}");
    let picture = std::fs::read_to_string(file).unwrap();
    assert!(picture.contains("LLaMA-30B on cloud32") && picture.contains("LLaMA-13B on cloud32"));
}

#[test]
fn a_loss_is_answered_by_flips_and_by_a_new_plan() {
    let answer = json(&[&CLOUD[..], &["--lose", "a6000-1"]].concat());
    let number = |name: &str| answer[name].as_f64().unwrap();
    assert!(number("attainment_flipped") >= number("attainment_unchanged"));
    let full = answer["full"]["plan"]["groups"].to_string();
    assert!(!full.contains("a6000-1") && full.contains("a6000-0"));
}

#[test]
fn what_cannot_be_planned_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.toml");
    let host = "[[host]]\nname='a'\ngpu='A5000'\ncount=2\nzone='z'\ninside={latency=1e-5,bandwidth=1e10}\n";
    std::fs::write(&small, format!("name='small'\n{host}")).unwrap();
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, "ContextTokens,GeneratedTokens\n10,x\n").unwrap();
    let (small, trace) = (small.to_str().unwrap(), trace.to_str().unwrap());
    let cases: [(&[&str], &str); 11] = [
        (&["--cluster", small], "enough would be 2 more A5000"),
        (&["--cluster", "nowhere.toml"], "and no file either; there are cloud32"),
        (&["--cluster", "cloud32", "--rate", "0"], "must be a positive number"),
        (&["--cluster", "cloud32", "--rate", "nan"], "must be a positive number"),
        (&["--cluster", "cloud32", "--slo", "e2e=5"], "as in ttft=2x,e2e=10s"),
        (&["--cluster", "cloud32", "--model", "GPT"], "known are LLaMA-7B"),
        (&["--cluster", "cloud32", "--workload", trace], "line 2: \"x\" is no number of tokens"),
        (&["--cluster", "cloud32", "--lose", "b"], "there are a6000-0"),
        (&["--cluster", "cloud32", "--service", "a:b:c:d:e"], "as in LLaMA-13B:coding:2:e2e=5x"),
        (&["--cluster", "a100x8", "--service", "OPT-175B", "--service", "BLOOM-176B"], "OPT-175B and BLOOM-176B needs"),
        (&["--cluster", "cloud32", "--links", "wet"], "it has default, high, low"),
    ];
    for (args, reason) in cases {
        let output = plan(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(reason) && error.trim_end().lines().count() == 1, "{args:?}: {error}");
    }
}

#[test]
fn targets_that_nothing_meets_get_a_best_effort() {
    let output = plan(&["--cluster", "cloud32", "--slo", "e2e=1ms"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("best effort"), "{text}");
}

/// A verb on a machine where nothing of tsnode is.
fn tsnode(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tsnode"));
    let folders = ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"];
    command.args(args).envs(folders.map(|name| (name, home))).stdin(Stdio::null());
    command
}

/// Every verb that prints without a peer.
const PRINTING: [&[&str]; 12] = [
    &["--help"],
    &["help", "join"],
    &["version"],
    &["version", "--json"],
    &["completions", "bash"],
    &["config", "show"],
    &["config", "show", "--json"],
    &["doctor", "--no-model"],
    &["doctor", "--no-model", "--json"],
    &["plan", "--cluster", "cloud32", "--figures", "paper", "--budget", "300"],
    &["simulate", "--cluster", "cloud32", "--figures", "paper", "--requests", "50", "--budget", "300"],
    &["simulate", "control", "--seed", "7", "--peers", "3"],
];

#[test]
fn no_verb_minds_that_nobody_reads() {
    let home = tempfile::tempdir().unwrap();
    for verb in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = tsnode(home.path(), verb).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{verb:?}: {}, {said}", output.status);
        // Nor that its complaints are not read.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let both = tsnode(home.path(), &[verb, &["--nonsense"]].concat()).stderr(writer).stdout(Stdio::null()).status();
        assert!(both.unwrap().code().is_some_and(|code| code == 2 || code == 0), "{verb:?}");
    }
}

/// What a machine lacks that would lend: room for a model, and whether others come to it, beside what it has.
#[test]
fn a_doctor_looks_at_the_disk_and_at_who_reaches_the_machine() {
    let home = tempfile::tempdir().unwrap();
    // Ports that others have are failures, and none of this.
    let output = tsnode(home.path(), &["doctor", "--no-model"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let found = |name: &str| said.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
    let free = found("disk").unwrap_or_else(|| panic!("{said}"));
    assert!(free.contains("free for") && free.contains(home.path().to_str().unwrap()), "{said}");
    assert!(found("reach").is_some() && found("lifelines").is_some(), "{said}");
}

#[test]
fn a_full_disk_is_said() {
    let home = tempfile::tempdir().unwrap();
    let Ok(full) = File::options().write(true).open("/dev/full") else { return println!("skipped: no /dev/full") };
    let output = tsnode(home.path(), &["config", "show"]).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.trim()), (Some(1), "tsnode: standard output: the disk is full"));
}

/// Bad words of every kind, each with a part of the line that says what to do.
const BAD: [(&[&str], &str); 40] = [
    (&["join", "--invite", ""], "--invite \"\": nothing is said"),
    (&["join", ""], "nothing is said"),
    (&["submit", ""], "prompt: nothing is said"),
    (&["submit", "a", "--model", ""], "--model \"\": nothing is said"),
    (&["status", "--api", ""], "api: nothing is said"),
    (&["join", "--memory", "8"], "did you mean 8GiB?"),
    (&["join", "--threads", "0"], "--threads 0: write a whole number from 1 to 1024"),
    (&["join", "--tensor-parallel", "0"], "from 1 to 1024"),
    (&["join", "--http", "attic"], "write an address and a port, as 127.0.0.1:7448"),
    (&["join", "--listen", "99999"], "ports go from 0 to 65535"),
    (&["join", "--wall", "nat"], "--faults"),
    (&["join", "--upload-mbit", "fast"], "write a number above 0"),
    (&["join", "--log", "loud"], "write a level"),
    (&["join", "--log", "tsnode=loud"], "write a level"),
    (&["join", "--log-format", "xml"], "choose text or json"),
    (&["join", "ts1abc"], "copy all of what `tsnode invite` prints"),
    (&["status", "--api", "ftp://x"], "as http://127.0.0.1:7448"),
    (&["status", "--api", "https://127.0.0.1:1"], "without TLS"),
    (&["status", "--api", "127.0.0.1:1"], "nobody answers there; start a peer with: tsnode join"),
    (&["status", "--api", "localhost:1"], "http://127.0.0.1:1: nobody answers there"),
    (&["submit", "a", "--max-tokens", "x"], "write a whole number from 1 to"),
    (&["submit", "a", "--temperature", "-1"], "write a number from 0 to 2"),
    (&["submit", "--file", "/nowhere"], "/nowhere: there is no such file"),
    (&["submit", "--file", "/"], "/: that is a folder"),
    (&["submit", "a", "--file", "/etc/hostname"], "cannot be used with"),
    (&["invite"], "start a peer with: tsnode join"),
    (&["invite", "--expires", "5"], "as 30m, 12h or 7d"),
    (&["invite", "--uses", "0"], "write a whole number from 1 to 4096"),
    (&["invite", "revoke", "x"], "tsnode invite list shows all"),
    (&["keys", "add", "a", "--data-dir", "/dev/null"], "/dev/null: "),
    (&["join", "--data-dir", "/dev/null"], "--data-dir names a folder"),
    (&["join", "--data-dir", "/dev/null/below"], "--data-dir names a folder"),
    (&["config", "show", "--config", "/nowhere"], "/nowhere: there is no such file or folder; name another"),
    (&["testnet", "up", "--peers", "x"], "write a whole number from 1 to 64"),
    (&["testnet", "up", "--link-mbit", "0"], "write a number above 0"),
    (&["testnet", "chaos", "--minutes", "nan"], "write a number from 0 to"),
    (&["testnet", "chaos", "--minutes", "1", "--faults", "1"], "cannot be used with"),
    (&["testnet", "down"], "start one with: tsnode testnet up --detach"),
    (&["plan", "--cluster", "nonsense"], "there are"),
    (&["bench", "engine", "--threads", "0"], "write a whole number from 1 to 1024"),
];

#[test]
fn bad_words_are_refused_in_ours() {
    const LIBRARIES: [&str; 9] = [
        "os error",
        "invalid digit",
        "invalid float",
        "invalid socket",
        "non-zero",
        "builder",
        "UTF-8",
        "panicked",
        "InviteId",
    ];
    let home = tempfile::tempdir().unwrap();
    for (words, what_to_do) in BAD {
        let output = tsnode(home.path(), words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(what_to_do), "{words:?}: {said}");
        assert!(LIBRARIES.iter().all(|words| !said.contains(words)), "{words:?}: {said}");
    }
}

/// Invites and keys where they do not belong: what is said of them does not say them.
#[test]
fn no_error_repeats_a_secret() {
    let home = tempfile::tempdir().unwrap();
    let (invite, key) = (format!("ts1{}", "abcdefg2".repeat(20)), format!("tsk-{}", "k7m2".repeat(13)));
    let attached = format!("--invit={invite}");
    for words in [
        &[invite.as_str()][..],
        &["join", &invite],
        &["join", "--invite", &invite],
        &["join", &invite, &invite],
        &["join", &attached],
        &["join", "--invite", &invite, &invite],
        &["join", "--invite", &key],
        &["join", "--name", &invite, "--memory", &key],
        &["status", &key],
        &["status", "--api", &key],
        &["status", "--api-key", &key],
        &["keys", "remove", &key],
        &["keys", "remove", &key, &key],
        &["invite", "revoke", &invite],
        &["invite", &invite],
        &["submit", "a", "--max-tokens", &key],
        &["plan", "--cluster", &invite],
    ] {
        let output = tsnode(home.path(), words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && !said.is_empty(), "{words:?}: {said}");
        // Of an invite that cannot be read its beginning is said, which is the same of all.
        assert!(!said.contains(&invite[..16]) && !said.contains(&key[..12]), "{words:?}: {said}");
    }
}

#[test]
fn an_unknown_variable_is_named_with_the_one_that_was_meant() {
    let home = tempfile::tempdir().unwrap();
    let output = tsnode(home.path(), &["config", "show"]).env("TSNODE_MEMROY", "8GiB").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().ends_with("did you mean TSNODE_MEMORY?"), "{said}");
    let empty = tsnode(home.path(), &["config", "show"]).env("TSNODE_INVITE", "").output().unwrap();
    let said = String::from_utf8_lossy(&empty.stderr);
    assert!(empty.status.code() == Some(3) && said.contains("TSNODE_INVITE=\"\": nothing is said"), "{said}");
}
