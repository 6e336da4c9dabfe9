//! A peer whose compute thread hangs while its heartbeats and connections go on is left by every request within seconds.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, Wish};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tsnode_testnet::{Flaw, Network, Swarm};

/// The peer that clients ask.
const GATEWAY: usize = 3;
/// From the moment a peer hangs to what it owed: the least patience is 5 s, and four times the longest gap of late beside, which on
/// a machine that was busy elsewhere for two seconds are eight more.
const BOUND: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hangs_is_left_though_its_heartbeats_go_on() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1"];
    let net = Net::up_beside(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let long = json!({ "prompt": PROMPT, "max_tokens": 900, "ignore_eos": true, "temperature": 0 });
    let short = json!({ "prompt": PROMPT, "max_tokens": 8, "ignore_eos": true, "temperature": 0 });
    let (undisturbed, _) = net.tokens(GATEWAY, long.clone()).await;

    // The peer that decodes.
    let running = stream(&net, &long).await;
    let decode = position(&net, &running.decode);
    let hung = Instant::now();
    wedge(&net, decode).await;
    let (tokens, moves, pause) = running.rest().await;
    println!("it went on after {pause:.1?}, ended {:.1?} after the peer hung, moves {moves:?}", hung.elapsed());
    assert_eq!(tokens, undisturbed);
    assert!(moves.len() == 1 && moves[0].contains("no progress"), "{moves:?}");
    assert!(pause < BOUND, "{pause:?}");
    // Nobody takes it for dead, and nobody waits for it again, which would be for the least patience.
    let sights = Swarm::of(net.net.peers().into_iter()).look().await;
    assert!(sights.iter().all(|s| s.as_ref().is_some_and(|s| s.peers.len() == 4)), "somebody is missed");
    for _ in 0..4 {
        let asked = Instant::now();
        let (_, answer) = net.tokens(GATEWAY, short.clone()).await;
        assert!(answer["tsnode"]["decode"] != net.peer(decode).id.as_str() && asked.elapsed() < Duration::from_secs(5));
    }

    // The peer that prefills.
    let (_, answer) = net.tokens(GATEWAY, short.clone()).await;
    let prefill = position(&net, answer["tsnode"]["prefill"].as_str().unwrap());
    wedge(&net, prefill).await;
    let asked = Instant::now();
    let words: Vec<u32> = (0..60).map(|n| 300 + n * 7 % 3000).collect();
    let body = json!({ "prompt": words, "max_tokens": 8, "ignore_eos": true, "temperature": 0 });
    let (tokens, answer) = net.tokens(GATEWAY, body.clone()).await;
    println!("a prompt came home after {:.1?}: {}", asked.elapsed(), answer["tsnode"]["reason"]);
    assert!(asked.elapsed() < BOUND, "{:?}", asked.elapsed());

    let peers = net.net.peers();
    Network::of(peers.into_iter()).heal().await.unwrap();
    assert_eq!(net.tokens(GATEWAY, body).await.0, tokens);
    net.down().await;
}

async fn wedge(net: &Net, index: usize) {
    let name = net.peer(index).name;
    Network::of(net.net.peers()).spoil(&name, Flaw::Wedged).await.unwrap();
}

fn position(net: &Net, id: &str) -> usize {
    net.net.peers().iter().position(|p| p.id == id).unwrap()
}

/// A streamed answer of which something has come.
struct Running {
    decode: String,
    response: reqwest::Response,
    text: Vec<u8>,
}

async fn stream(net: &Net, body: &Value) -> Running {
    let mut body = body.clone();
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let url = format!("{}/v1/completions", net.peer(GATEWAY).http);
    let mut response = net.client.post(url).header("x-tsnode-trace", "1").json(&body).send().await.unwrap();
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let text = response.chunk().await.unwrap().unwrap().to_vec();
    Running { decode, response, text }
}

impl Running {
    /// Its tokens, why it moved each time, and the longest time in which nothing came.
    async fn rest(mut self) -> (Vec<u64>, Vec<String>, Duration) {
        let (mut last, mut pause) = (Instant::now(), Duration::ZERO);
        while let Some(part) = self.response.chunk().await.unwrap() {
            self.text.extend_from_slice(&part);
            pause = pause.max(last.elapsed());
            last = Instant::now();
        }
        let text = String::from_utf8(self.text).unwrap();
        assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
        let events: Vec<Value> = text.lines().filter_map(|l| l.strip_prefix("data: ")?.parse().ok()).collect();
        let ids = events.iter().filter_map(|e| e["choices"][0]["token_ids"].as_array()).flatten();
        let moves = events.iter().filter_map(|e| e["tsnode"]["moves"].as_array()).flatten();
        let moves = moves.filter_map(|m| Some(m["reason"].as_str()?.to_owned())).collect();
        (ids.filter_map(Value::as_u64).collect(), moves, pause)
    }
}
