//! KV hand-overs that are broken off leave nothing behind: no page, no open file, no memory.
//!
//! `TSNODE_HANDOVERS=1000 cargo test -p tsnode --test handover -- --nocapture` breaks off a thousand.
#![allow(clippy::unwrap_used)] // A swarm that cannot be had fails the test.

mod common;

use common::{Net, Wish};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tsnode_testnet::{Sight, Swarm};

const LONG: Duration = Duration::from_secs(20);
/// Clients at once.
const CLIENTS: usize = 8;
/// Hand-overs between two deaths of a peer that prefills.
const DEATHS: usize = 200;
/// Hand-overs that are not broken off, before anything is counted.
const WARM: usize = 32;
/// Peers: one that always prefills, one that decodes, one that prefills until it is killed, the gateway.
const STAYS: usize = 0;
const DECODES: usize = 1;
const DIES: usize = 2;
const GATEWAY: usize = 3;

/// A prompt that no other begins like, of so many tokens.
fn prompt(n: usize, tokens: usize) -> Vec<usize> {
    let first = [300 + n % 3000, 300 + n / 3000];
    first.into_iter().chain((0..tokens).map(|k| 300 + (n * 31 + k * 7) % 3000)).collect()
}

/// Numbers that look drawn.
fn drawn(n: usize, below: u64) -> u64 {
    let mut x = (n as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 29;
    (x.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32) % below
}

/// What a process has in use.
#[derive(Clone, Copy, Debug)]
struct Usage {
    bytes: u64,
    files: usize,
}

fn usage(net: &Net, index: usize) -> Usage {
    let files = std::fs::read_dir(format!("/proc/{}/fd", net.peer(index).pid)).unwrap().count();
    Usage { bytes: net.net.usage(index).unwrap().0, files }
}

fn all_pages_free(sights: &[Option<Sight>]) -> Result<(), String> {
    let sight = sights[GATEWAY].as_ref().ok_or("no answer")?;
    let held = sight.peers.iter().find(|p| p.load.running > 0 || p.load.free_pages != p.load.total_pages);
    held.map_or(Ok(()), |p| Err(format!("{} has {} of {} pages free", p.id, p.load.free_pages, p.load.total_pages)))
}

async fn await_free_pages(net: &Net) {
    // Whoever started again listens elsewhere.
    Swarm::of(net.net.peers().into_iter()).await_that(LONG, all_pages_free).await.unwrap();
}

/// How far a request came before its client hung up.
#[derive(Default, Debug)]
struct Tally {
    unrouted: AtomicUsize,
    granted: AtomicUsize,
    refused: AtomicUsize,
}

/// A client that hangs up at a drawn moment: half of them before they are told anything, half during the hand-over.
async fn hang_up(net: &Net, n: usize, tally: &Tally) {
    let body = json!({ "prompt": prompt(n, 150 + drawn(n, 256) as usize), "max_tokens": 40, "stream": true, "ignore_eos": true });
    let url = format!("{}/v1/completions", net.peer(GATEWAY).http);
    let patience = |most: u64| Duration::from_micros(drawn(n + 77, most * 1000));
    let sent = net.client.post(url).json(&body).send();
    if n.is_multiple_of(2) {
        // Dropped half-way, its connection is closed.
        let early = tokio::time::timeout(patience(60), sent).await;
        tally.unrouted.fetch_add(usize::from(early.is_err()), Relaxed);
        return;
    }
    let Ok(response) = sent.await else { return };
    if response.status() != 200 {
        tally.refused.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
        return;
    }
    // Pages are reserved, and over this link the KV takes longer than that.
    tokio::time::sleep(patience(150)).await;
    tally.granted.fetch_add(1, Relaxed);
}

async fn many(net: &Net, range: std::ops::Range<usize>, tally: &Tally) {
    let next = AtomicUsize::new(range.start);
    let client = || async {
        loop {
            let n = next.fetch_add(1, Relaxed);
            if n >= range.end {
                return;
            }
            hang_up(net, n, tally).await;
        }
    };
    futures::future::join_all((0..CLIENTS).map(|_| client())).await;
}

/// Many hand-overs are broken off, some of them by the death of a peer that prefills, which then starts again.
async fn break_off(net: &mut Net, range: std::ops::Range<usize>, tally: &Tally) {
    let death = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        net.net.signal(DIES, "-KILL").unwrap();
    };
    tokio::join!(many(net, range, tally), death);
    net.net.kill(DIES).await.unwrap();
    net.net.restart(DIES).await.unwrap();
    net.net.await_one_mind(4).await.unwrap();
}

/// Either end of a pair may open a connection, and who starts again is found anew: so many more than before are no leak.
const CONNECTIONS: usize = 2;
/// What one takes: two files, and memory for what is on its way.
const OF_ONE: Usage = Usage { bytes: 2 << 20, files: 2 };

/// Whether that is a twentieth more at most, but for connections.
fn fits(before: Usage, now: Usage) -> bool {
    let most = |before: f64, of_one: f64| before * 1.05 + of_one * CONNECTIONS as f64;
    now.bytes as f64 <= most(before.bytes as f64, OF_ONE.bytes as f64)
        && now.files as f64 <= most(before.files as f64, OF_ONE.files as f64)
}

/// Waits until a process has no more than it had, and says what it has.
async fn settled(net: &Net, index: usize, before: Usage) -> Usage {
    let deadline = Instant::now() + LONG;
    loop {
        let now = usage(net, index);
        if fits(before, now) || Instant::now() > deadline {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_that_are_broken_off_leave_nothing_behind() {
    let count = std::env::var("TSNODE_HANDOVERS").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,prefill=1", "--shape-mbit", "32"];
    // Few pages, so that all of them have been written to before anything is counted.
    let few = ["--kv-memory", "12MiB"];
    let mut net = Net::up(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &few }).await;
    let whole = json!({ "prompt": prompt(1 << 20, 150), "max_tokens": 24, "temperature": 0, "ignore_eos": true });
    let (expected, _) = net.tokens(GATEWAY, whole.clone()).await;
    let full = |n: usize| json!({ "prompt": prompt((2 << 20) + n, 420), "max_tokens": 2, "ignore_eos": true });
    for n in (0..WARM).step_by(CLIENTS) {
        futures::future::join_all((n..n + CLIENTS).map(|n| net.tokens(GATEWAY, full(n)))).await;
    }
    // Buffers, caches and connections grow to their sizes before anything is counted.
    for from in [1_000_000, 2_000_000] {
        break_off(&mut net, from..from + (count / 4).max(5 * CLIENTS), &Tally::default()).await;
    }
    await_free_pages(&net).await;
    let before = [STAYS, DECODES, GATEWAY].map(|p| usage(&net, p));
    let (began, tally) = (Instant::now(), Tally::default());
    for done in (0..count).step_by(DEATHS) {
        break_off(&mut net, done..(done + DEATHS).min(count), &tally).await;
        let now = [STAYS, DECODES, GATEWAY].map(|p| usage(&net, p).bytes as f64 / 1e6);
        println!("after {}: {now:.1?} MB", (done + DEATHS).min(count));
    }
    println!("{count} hand-overs broken off in {:.1?}: {tally:?}", began.elapsed());
    await_free_pages(&net).await;
    for (index, before) in [STAYS, DECODES, GATEWAY].into_iter().zip(before) {
        let after = settled(&net, index, before).await;
        let name = net.peer(index).name;
        println!(
            "{name}: {:.1} MB and {} files before, {:.1} MB and {} files after",
            before.bytes as f64 / 1e6,
            before.files,
            after.bytes as f64 / 1e6,
            after.files
        );
        assert!(fits(before, after), "{name} has more in use: {before:?}, {after:?}");
    }
    let (again, answer) = net.tokens(GATEWAY, whole).await;
    assert_eq!(again, expected, "{answer}");
    net.down().await;
}
