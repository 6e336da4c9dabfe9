//! What a person sees of a peer at a terminal, and of a testnet that runs without one.

use crate::common;
use crate::terminal::{self, Terminal};
use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// All that could come near a prompt, as loud as it gets.
const LOUD: &str = "info,tsnode=trace,tsnode_coordinator=trace,tsnode_kernels=trace,axum=trace,hyper=trace";

/// `tsnode join` and `chat` at a terminal: who one is, what one does and one line that changes, in 80 columns, and no log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_at_a_terminal_sees_what_matters() {
    let _turn = common::seat().await;
    let home = tempfile::tempdir().unwrap();
    let command = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
        command.args(words).arg("--data-dir").arg(home.path());
        command
    };
    let join =
        ["join", "--private", "--mdns=false", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--threads", "1"];
    let attic = ["--device", "cpu", "--memory", "64MiB", "--name", "attic", "--log", LOUD];
    let peer = Terminal::run(command(&[&join[..], &attic].concat()));
    peer.until("role     ");
    peer.until("ready: ");
    // The port beside one that was free may be somebody else's: that is said, and is not what this is about.
    let lines: Vec<String> = peer.lines().into_iter().filter(|line| !line.starts_with(" WARN no lifelines")).collect();
    for label in [
        "name     attic",
        "page     http://",
        "invite   tsnode invite",
        "lends    cpu",
        "model    gutenberg-tiny",
        "role     ",
        "probe    ",
        "ready    ",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(label)), "no {label:?}: {lines:#?}");
    }
    // What is to be copied is whole, however long a folder's name is.
    let copied = |line: &&String| line.starts_with("page ") || line.starts_with("invite ");
    let long: Vec<&String> = lines.iter().filter(|l| !copied(l) && l.chars().count() > terminal::COLUMNS).collect();
    assert!(long.is_empty() && !lines.iter().any(|line| line.contains(" INFO ")), "{lines:#?}");
    // Colour says whether all is well, and nothing else: green for one word.
    let raw = peer.raw();
    let green: BTreeSet<&str> =
        raw.split("\u{1b}[32m").skip(1).filter_map(|rest| rest.split('\u{1b}').next()).collect();
    assert_eq!(green.into_iter().collect::<Vec<_>>(), ["ready"], "{raw}");
    assert!(fs::read_to_string(home.path().join("join.log")).unwrap().contains(" INFO "));

    // Whatever ends it, the window is given back: the other screen, the cursor, and what keys do.
    for ends in ["q", "\u{3}"] {
        let mut top = Terminal::run(command(&["top"]));
        top.until("GROUPS");
        top.type_in("?");
        top.until("Ctrl-C");
        top.type_in(ends);
        assert_eq!(top.ended(), Some(0), "{ends:?}");
        let raw = top.raw();
        assert!(raw.contains("\u{1b}[?1049h") && raw.contains("\u{1b}[?1049l"), "{raw}");
        assert!(raw.rfind("\u{1b}[?25h") > raw.rfind("\u{1b}[?25l"), "the cursor is to be seen: {raw}");
        assert!(top.has_lines(), "keys are lines again");
    }

    let mut chat = Terminal::run(command(&["chat", "--max-tokens", "4"]));
    chat.until("gutenberg-tiny, 1 peer; /help says how to talk");
    chat.type_in("/help\r");
    chat.until("/reset");
    chat.type_in("Good day\r");
    chat.until("first after ");
    chat.type_in("/exit\r");
    assert_eq!(chat.ended(), Some(0));
    // However loud the log is, up to the end of the answer, not a word of what was said.
    let log = || fs::read_to_string(home.path().join("join.log")).unwrap();
    let begun = Instant::now();
    while !log().contains("pages given back") {
        assert!(begun.elapsed() < Duration::from_secs(20), "the log is not loud: {}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("Good day")).collect();
    assert!(told.is_empty(), "{told:#?}");
}

/// A detached swarm is found by who asks elsewhere, its dead are shown, and its end is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_swarm_is_found_and_its_end_is_told() {
    let _turn = common::seat().await;
    let home = tempfile::tempdir().unwrap();
    let run = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
        for folder in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env(folder, home.path());
        }
        let ran = command.args(arguments).stdin(Stdio::null()).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (ok, said, error) = run(&["testnet", "up", "--peers", "1", "--detach", "--http-port", &port]).await;
    assert!(ok && said.contains(&format!("tsnode submit --api http://127.0.0.1:{port} ")), "{said} {error}");

    // A peer of this folder was killed: what is left of it leads nowhere, and the line that would find another is said.
    fs::create_dir_all(home.path().join("tsnode")).unwrap();
    fs::write(home.path().join("tsnode/http.addr"), "127.0.0.1:1\n").unwrap();
    let (ok, _, error) = run(&["submit", "It was", "--max-tokens", "2"]).await;
    let (_, api) = error.split_once("which is asked with: --api ").unwrap_or_else(|| panic!("{error}"));
    assert!(!ok && api == format!("http://127.0.0.1:{port}"), "{error}");
    let (ok, answer, error) = run(&["submit", "It was", "--max-tokens", "2", "--api", api]).await;
    assert!(ok && !answer.is_empty(), "{error}");

    let (ok, _, error) = run(&["testnet", "kill", "peer0"]).await;
    assert!(ok, "{error}");
    let (ok, status, error) = run(&["testnet", "status"]).await;
    assert!(ok && status.contains("0 of 1 peers run"), "{status} {error}");
    assert!(
        status.contains("peer0") && status.contains("has ended; start it again with: tsnode testnet restart peer0"),
        "{status}"
    );
    let (ok, down, error) = run(&["testnet", "down"]).await;
    assert!(
        ok && down.contains("0 of 1 peers have left, peer0 had ended before") && down.ends_with("is removed"),
        "{down} {error}"
    );
}
