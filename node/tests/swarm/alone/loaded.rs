//! A swarm that has all it can do and nothing wrong: nobody is cut off, and no log asks anybody to do something.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, Wish};
use serde_json::json;
use std::time::{Duration, Instant};
use tsnode_testnet::{PeerInfo, Swarm};

const LENDERS: usize = 4;
/// The peer that clients ask.
const GATEWAY: usize = 4;
/// As many as left each lender with one answer or two at a time: with more, all lenders are slow alike.
const CLIENTS: usize = 6;
const LOAD: Duration = Duration::from_secs(15);
/// Answers that each client waits for at least, however long a slow machine takes: with fewer nobody would be known to anybody.
const ANSWERS: usize = 2 * LENDERS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_honest_is_cut_off_under_load_and_no_log_warns() {
    let net = Net::up(Wish { peers: LENDERS, gateways: 1, flags: &["--split", "auto"], model_flags: &[] }).await;
    let until = Instant::now() + LOAD;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let url = format!("{}/v1/completions", net.peer(GATEWAY).http);
            tsnode::tasks::spawn("test", ask_without_pause(net.client.clone(), url, client, until))
        })
        .collect();
    let mut answers = 0;
    for client in clients {
        answers += client.await.unwrap();
    }
    println!("{answers} answers");
    let peers = net.net.peers();
    for sight in Swarm::of(peers.iter().cloned()).look().await {
        let sight = sight.unwrap();
        assert!(sight.cut_off.is_empty(), "{} has cut off {:?}", sight.me, sight.cut_off);
    }
    let warnings: Vec<String> = peers.iter().flat_map(|peer| warnings(peer)).collect();
    assert!(warnings.is_empty(), "{} warnings:\n{}", warnings.len(), warnings.join("\n"));
    net.down().await;
}

/// Prompts of some 25 tokens, no two alike, and answers of 40; how many.
async fn ask_without_pause(client: reqwest::Client, url: String, number: usize, until: Instant) -> usize {
    let mut answers = 0;
    while answers < ANSWERS || Instant::now() < until {
        let prompt = format!(
            "It was {number} {answers} a dark night and all of the people of the town had gone to the old house on the hill"
        );
        let body = json!({ "prompt": prompt, "max_tokens": 40, "ignore_eos": true });
        let response = client.post(&url).json(&body).send().await.unwrap();
        let status = response.status();
        let answer = response.text().await.unwrap();
        assert!(status.is_success(), "{answer}");
        answers += 1;
    }
    answers
}

/// Lines of a peer's log that somebody should act on.
fn warnings(peer: &PeerInfo) -> Vec<String> {
    let log = std::fs::read_to_string(&peer.log).unwrap();
    let urgent = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
    log.lines().filter(urgent).map(|line| format!("{}: {line}", peer.name)).collect()
}
