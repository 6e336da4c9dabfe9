//! One swarm of real processes a test: many streams at once, clients that hang up, bad input, peers that die.
//!
//! One program, since each has to be linked. Tests in [`alone`] measure their machine or use all of it, and have it to themselves
//! ([`common::turn`]); those in [`beside`] mostly wait, and run two at a time ([`common::seat`]). Tests run in the order of their names,
//! and so these two follow each other: none that waits for both seats keeps one of them empty meanwhile.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

mod alone;
mod beside;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/formed.rs"]
mod formed;
#[path = "../common/stranger.rs"]
mod stranger;
#[path = "../common/terminal.rs"]
mod terminal;
#[path = "../../../kernels/tests/widened/mod.rs"]
mod widened;

use common::Net;
use futures::StreamExt;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tsnode_testnet::{Sight, Swarm};

/// What is waited for comes within a second or two: so long only where another swarm, or whatever else this machine does, is in its way.
const LONG: Duration = Duration::from_secs(30);

fn swarm(net: &Net) -> Swarm {
    Swarm::of(net.net.peers().into_iter())
}

fn all_pages_free(sights: &[Option<Sight>]) -> Result<(), String> {
    let sight = sights[0].as_ref().ok_or("no answer")?;
    for peer in &sight.peers {
        let load = peer.load;
        if load.running > 0 || load.free_pages != load.total_pages {
            return Err(format!("{} has {} of {} pages free", peer.id, load.free_pages, load.total_pages));
        }
    }
    Ok(())
}

/// Runs `tsnode` to its end; its output, and what it complained about.
async fn tsnode(arguments: &[&str], folder: &Path) -> (bool, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    let ran = command.args(arguments).arg("--data-dir").arg(folder).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
}

/// A verb that asks a peer, with this on its standard input: exit code, standard output, standard error.
async fn talk(net: &Net, index: usize, words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    command.args(words).args(["--api", &net.peer(index).http]).kill_on_drop(true);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A verb that has ended does not read.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let ended = tokio::time::timeout(LONG, child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// Until what a verb says at a peer is so.
async fn until_said(net: &Net, index: usize, words: &[&str], is_so: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + LONG;
    loop {
        let (code, said, why) = talk(net, index, words, "").await;
        assert_eq!(code, Some(0), "{said}{why}");
        if is_so(&said) {
            return said;
        }
        assert!(Instant::now() < until, "{words:?} says after {LONG:?}: {said}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The words of a stream from its first chunk to its end, which is a proper one.
async fn rest(
    first: &[u8],
    mut stream: impl futures::Stream<Item = reqwest::Result<impl AsRef<[u8]>>> + Unpin,
) -> String {
    let mut text = String::from_utf8_lossy(first).into_owned();
    while let Some(chunk) = stream.next().await {
        text.push_str(&String::from_utf8_lossy(chunk.unwrap().as_ref()));
    }
    let ended = ["length", "stop"].map(|why| text.contains(&format!("\"finish_reason\":\"{why}\"")));
    assert!(ended.contains(&true) && text.trim_end().ends_with("data: [DONE]"), "{text}");
    let events = text.lines().filter_map(|l| l.strip_prefix("data: ")?.parse::<Value>().ok());
    events.filter_map(|e| e["choices"][0]["text"].as_str().map(str::to_owned)).collect()
}
