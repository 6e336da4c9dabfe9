//! Peers that are killed, stopped, paused or leave while they serve: the same tokens, by others.

use crate::common::{Net, PROMPT, Wish};
use crate::{LONG, formed, rest, swarm};
use futures::StreamExt;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tsnode_testnet::Sight;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swarm_outlives_its_peers() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1"];
    let mut net = Net::up_beside(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
    // peer3 has no group: killing it changes nothing.
    let url = format!("{}/v1/completions", net.peer(4).http);
    let long = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true, "temperature": 0 });
    let mut stream = net.client.post(&url).json(&long).send().await.unwrap().bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    net.net.kill(3).await.unwrap();
    let undisturbed = rest(&first, stream).await;

    // The peer that decodes dies: the stream goes on elsewhere, with the same words, and the swarm serves on.
    let response = net.client.post(&url).json(&long).send().await.unwrap();
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let ids = swarm(&net).look().await;
    let victim = ids.iter().position(|s| s.as_ref().is_some_and(|s| s.me == decode)).unwrap();
    let mut stream = response.bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    let killed = Instant::now();
    net.net.kill(victim).await.unwrap();
    assert_eq!(rest(&first, stream).await, undisturbed);
    println!("the stream has ended {:.1?} after the kill", killed.elapsed());
    let again = async {
        loop {
            let (status, answer) = net.complete(4, json!({ "prompt": PROMPT, "max_tokens": 4 })).await;
            if status == 200 && answer["tsnode"]["decode"] != decode.as_str() {
                return killed.elapsed();
            }
            assert!(status == 200 || status == 503 || status == 502, "{answer}");
        }
    };
    let after = tokio::time::timeout(LONG, again).await.unwrap();
    net.net.await_one_mind(3).await.unwrap();
    println!("served again {after:.1?} after the kill, of one mind after {:.1?}", killed.elapsed());
    net.net.restart(victim).await.unwrap();
    formed::outlive_their_decoders(&mut net, 4).await;
    net.down().await;
}

/// An owner who pauses a peer that decodes has it back, and one who leaves is gone; no stream says anything else for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_have_their_machines_back_and_no_stream_notices() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1"];
    let net = Net::up_beside(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let url = format!("{}/v1/completions", net.peer(3).http);
    let long = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true, "temperature": 0 });
    let undisturbed = rest(b"", net.client.post(&url).json(&long).send().await.unwrap().bytes_stream()).await;

    let response = net.client.post(&url).json(&long).send().await.unwrap();
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let sights = swarm(&net).look().await;
    let owned = sights.iter().position(|s| s.as_ref().is_some_and(|s| s.me == decode)).unwrap();
    let mut stream = response.bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    let asked = Instant::now();
    assert_eq!(net.post(owned, "/api/pause", json!({})).await.0, 202);
    assert_eq!(rest(&first, stream).await, undisturbed);
    let has_work = |sights: &[Option<Sight>]| {
        let plan = sights[3].as_ref().and_then(|s| s.plan.as_ref());
        plan.is_some_and(|p| p.groups.iter().flat_map(|g| &g.stages).any(|s| s.peer == decode))
    };
    let idle =
        |sights: &[Option<Sight>]| if has_work(sights) { Err("the plan still has it".to_owned()) } else { Ok(()) };
    swarm(&net).await_that(LONG, idle).await.unwrap();
    println!("a paused peer is out of the plan, its stream ended elsewhere, {:.1?} after the wish", asked.elapsed());
    assert_eq!(net.post(owned, "/api/resume", json!({})).await.0, 202);
    let busy = |sights: &[Option<Sight>]| if has_work(sights) { Ok(()) } else { Err("it is not used".to_owned()) };
    swarm(&net).await_that(LONG, busy).await.unwrap();
    swarm(&net).await_one_mind(4, LONG).await.unwrap();

    let folder = net.peer(owned).data_dir;
    let mut leave = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    let left = leave.args(["leave", "--data-dir"]).arg(&folder).output().await.unwrap();
    assert!(left.status.success(), "{left:?}");
    let gone = |sights: &[Option<Sight>]| match &sights[3] {
        Some(sight) if sight.peers.len() == 3 => Ok(()),
        _ => Err("it is still seen".to_owned()),
    };
    swarm(&net).await_that(LONG, gone).await.unwrap();
    net.down().await;
}

/// Over slow links a prompt's KV takes seconds: time to stop the peer that sends it, then to kill one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_outlives_the_peer_that_prefills_it() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,prefill=1", "--shape-mbit", "8"];
    let net = Net::up_beside(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let words: Vec<u32> = (0..800).map(|n| 300 + n * 7 % 3000).collect();
    let body = json!({ "prompt": words, "max_tokens": 24, "temperature": 0, "ignore_eos": true });
    let expected = until_split(&net, &body).await;
    for signal in ["-STOP", "-KILL"] {
        let prefill = begin(&net, &body).await;
        let sights = swarm(&net).look().await;
        let victim = sights.iter().position(|s| s.as_ref().is_some_and(|s| s.me == prefill.peer)).unwrap();
        net.net.signal(victim, signal).unwrap();
        assert_eq!(prefill.tokens().await, expected, "after {signal}");
    }
    net.down().await;
}

/// The answer, once a plan sends KV for it, which takes its time.
async fn until_split(net: &Net, body: &Value) -> Vec<u64> {
    let asked = Instant::now();
    loop {
        let (tokens, answer) = net.tokens(3, body.clone()).await;
        if answer["tsnode"]["parts"]["wire"].as_f64().is_some_and(|wire| wire > 0.8) {
            return tokens;
        }
        println!("without KV that takes long: {}", answer["tsnode"]);
        assert!(asked.elapsed() < Duration::from_secs(20), "the KV takes its time: {answer}");
    }
}

/// A streamed request whose first token has come.
struct StartedStream {
    peer: String,
    response: reqwest::Response,
    text: String,
}

async fn begin(net: &Net, body: &Value) -> StartedStream {
    let url = format!("{}/v1/completions", net.peer(3).http);
    let mut body = body.clone();
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let asked = Instant::now();
    loop {
        assert!(asked.elapsed() < Duration::from_secs(30), "no plan that splits phases");
        let mut response = net.client.post(&url).json(&body).send().await.unwrap();
        // The plan that follows a peer's end may be on its way; until then one group may do both.
        if response.status() == 503 {
            continue;
        }
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let (peer, decode) = (header("x-tsnode-prefill"), header("x-tsnode-decode"));
        if peer == decode {
            continue;
        }
        let text = String::from_utf8(response.chunk().await.unwrap().unwrap().to_vec()).unwrap();
        return StartedStream { peer, response, text };
    }
}

impl StartedStream {
    /// All tokens, when they have come.
    async fn tokens(self) -> Vec<u64> {
        let text = self.text + &self.response.text().await.unwrap();
        let events = text.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|e| *e != "[DONE]");
        let parts = events.map(|e| serde_json::from_str::<Value>(e).unwrap());
        parts
            .flat_map(|p| p["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("{p}")).clone())
            .map(|t| t.as_u64().unwrap())
            .collect()
    }
}
