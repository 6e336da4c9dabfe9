//! KV transfers that are broken off leave nothing behind: no page, no open file, no memory.
//!
//! `TSNODE_KV_TRANSFERS=1000 cargo test --workspace --test swarm kv_transfer:: -- --nocapture` breaks off a thousand.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, Wish};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tsnode_testnet::{Sight, Swarm};

const LONG: Duration = Duration::from_secs(20);
/// So many KV transfers are held to the margin: what a link takes on the side no longer matters.
const MANY: usize = 1000;
/// Clients at once.
const CLIENTS: usize = 8;
/// Of so many KV transfers that clients break off one is followed by the death of a peer that prefills.
const DEATHS: usize = 200;
/// Requests served to their end before anything is counted, all at once: together they want more KV than any peer lends,
/// so that all of it has been written to.
const WARM: usize = 12;
/// Peers: one that always prefills, one that decodes, one that prefills until it is killed, the gateway.
const STAYS: usize = 0;
const DECODES: usize = 1;
const DIES: usize = 2;
const GATEWAY: usize = 3;
/// Whose memory and files are counted: all that live on.
const WATCHED: [usize; 3] = [STAYS, DECODES, GATEWAY];

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
struct ProcessUsage {
    bytes: u64,
    files: usize,
}

fn usage(net: &Net, index: usize) -> ProcessUsage {
    let files = std::fs::read_dir(format!("/proc/{}/fd", net.peer(index).pid)).unwrap().count();
    ProcessUsage { bytes: net.net.usage(index).unwrap().0, files }
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

/// A client that hangs up at a drawn moment: half of them before they are told anything, half during the KV transfer.
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

/// KV transfers are broken off under which a peer that prefills dies, and then starts again.
async fn with_a_death(net: &mut Net, range: std::ops::Range<usize>, tally: &Tally) {
    let death = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        net.net.signal(DIES, "-KILL").unwrap();
    };
    tokio::join!(many(net, range, tally), death);
    net.net.kill(DIES).await.unwrap();
    net.net.restart(DIES).await.unwrap();
    net.net.await_one_mind(4).await.unwrap();
}

/// Of so much more or less it is said that it is what it was.
const MARGIN: f64 = 0.05;
/// One connection to dial another back from a new port, so that it learns whether strangers reach it, has a receive buffer of
/// 3 MB, which the allocator keeps when it is closed. Peers ask for it at any time, above all one that started again.
const LINK: f64 = (3 << 20) as f64;
/// How long files stand still that are all there.
const STILL: Duration = Duration::from_secs(2);
/// Peers have sent something over each link within that, as each is probed once a minute.
const ROUND: Duration = Duration::from_secs(70);

/// Whether there are as many files, within a twentieth.
fn as_many_files(before: ProcessUsage, now: ProcessUsage) -> bool {
    now.files.abs_diff(before.files) as f64 <= before.files as f64 * MARGIN
}

/// Whether that is a twentieth more at most; `links` have been opened since, and closed.
fn fits(before: ProcessUsage, now: ProcessUsage, links: usize) -> bool {
    let more = |before: f64, now: f64| now - before * (1.0 + MARGIN);
    more(before.files as f64, now.files as f64) <= 0.0
        && more(before.bytes as f64, now.bytes as f64) <= LINK * links as f64
}

/// Waits until a process has no more than it had, and says what it has.
async fn settled(net: &Net, index: usize, before: ProcessUsage, links: usize, patience: Duration) -> ProcessUsage {
    let deadline = Instant::now() + patience;
    loop {
        let now = usage(net, index);
        if fits(before, now, links) && (links > 0 || as_many_files(before, now)) || Instant::now() > deadline {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Everything is given back, and says so; `links` may have been opened to peers and closed. Where none have, those that are
/// there are waited for until they are used again, and no file may be missing either.
async fn all_is_given_back(net: &Net, before: &[ProcessUsage; 3], links: usize) {
    await_free_pages(net).await;
    let patience = if links == 0 { ROUND } else { LONG };
    for (index, before) in WATCHED.into_iter().zip(*before) {
        let after = settled(net, index, before, links, patience).await;
        let (name, mb) = (net.peer(index).name, |u: ProcessUsage| u.bytes as f64 / 1e6);
        println!(
            "{name}: {:.1} MB and {} files before, {:.1} MB and {} files after",
            mb(before),
            before.files,
            mb(after),
            after.files
        );
        assert!(fits(before, after, links), "{name} has more in use: {before:?}, {after:?}");
        assert!(links > 0 || as_many_files(before, after), "{name} has other files: {before:?}, {after:?}");
    }
}

fn all_links_measured(sights: &[Option<Sight>]) -> Result<(), String> {
    let sight = sights[GATEWAY].as_ref().ok_or("no answer")?;
    let alone = sight.peers.iter().find(|p| p.advert.links.len() + 1 < sights.len());
    alone.map_or(Ok(()), |p| Err(format!("{} knows {} links", p.id, p.advert.links.len())))
}

/// Waits until everybody is connected with everybody, and says how many files that takes.
async fn files_at_rest(net: &Net) -> [usize; 3] {
    Swarm::of(net.net.peers().into_iter()).await_that(LONG, all_links_measured).await.unwrap();
    let files = || WATCHED.map(|p| usage(net, p).files);
    let (mut last, mut since) = (files(), Instant::now());
    let deadline = since + LONG;
    while since.elapsed() < STILL {
        assert!(Instant::now() < deadline, "files do not stand still: {last:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = files();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// All pages are written to and connections, buffers and caches grow to their sizes before anything is counted.
async fn warm_up(net: &mut Net, broken: usize) {
    with_a_death(net, 1_000_000..1_000_000 + broken, &Tally::default()).await;
    let full = |n: usize| json!({ "prompt": prompt((2 << 20) + n, 800), "max_tokens": 200, "ignore_eos": true });
    futures::future::join_all((0..WARM).map(|n| net.tokens(GATEWAY, full(n)))).await;
    // Whoever started again has by now found who it serves with.
    many(net, 2_000_000..2_000_000 + broken, &Tally::default()).await;
    await_free_pages(net).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kv_transfers_that_are_broken_off_leave_nothing_behind() {
    let count = std::env::var("TSNODE_KV_TRANSFERS").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,prefill=1", "--shape-mbit", "32"];
    let few = ["--kv-memory", "12MiB"];
    let mut net = Net::up(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &few }).await;
    let whole = json!({ "prompt": prompt(1 << 20, 150), "max_tokens": 24, "temperature": 0, "ignore_eos": true });
    let (expected, _) = net.tokens(GATEWAY, whole.clone()).await;
    let files = files_at_rest(&net).await;
    warm_up(&mut net, (count / 4).max(5 * CLIENTS)).await;

    // Files are those from before anything was broken off.
    let in_use = |net: &Net| [0, 1, 2].map(|k| ProcessUsage { files: files[k], ..usage(net, WATCHED[k]) });
    let before = in_use(&net);
    let (began, tally) = (Instant::now(), Tally::default());
    many(&net, 0..count, &tally).await;
    println!("{count} KV transfers broken off by clients in {:.1?}: {tally:?}", began.elapsed());
    all_is_given_back(&net, &before, usize::from(count < MANY)).await;

    let (before, tally) = (in_use(&net), Tally::default());
    let deaths = count.div_ceil(DEATHS);
    for death in 0..deaths {
        let first = count + death * 5 * CLIENTS;
        with_a_death(&mut net, first..first + 5 * CLIENTS, &tally).await;
    }
    println!("under {deaths} deaths: {tally:?}");
    all_is_given_back(&net, &before, 2).await;

    let (again, answer) = net.tokens(GATEWAY, whole).await;
    assert_eq!(again, expected, "{answer}");
    net.down().await;
}
