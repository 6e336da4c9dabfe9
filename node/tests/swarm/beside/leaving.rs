//! Whoever has a stage of a group may go: `tsnode leave`, SIGTERM and a pause move what runs on it, wherever in its group it
//! is, and the peer that leaves is gone soon.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, Wish};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tsnode_testnet::{Sight, Swarm};

/// A peer that comes back has at most so long to wait for the plan, and mostly a second.
const LONG: Duration = Duration::from_secs(40);
/// From the wish to the end of the process: a plan without it, a move, and clients' last bytes.
const GONE: Duration = Duration::from_secs(10);
/// The peer that clients ask.
const GATEWAY: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Departure {
    Pause,
    Leave,
    Term,
}

/// Two groups of two stages and a spare peer: whoever goes, one group stands and the other is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_stage_of_a_group_may_go_and_no_stream_notices() {
    // Seven milliseconds a token, so that 900 take over six seconds: answers that are still running when the plan has
    // changed, on any machine. With one it was 2.3 s, which a plan on a busy machine outlasts.
    let flags = ["--layout", "mixed=2,mixed=2", "--shape-ms", "7"];
    let mut net = Net::up_beside(Wish { peers: 5, gateways: 1, flags: &flags, model_flags: &[] }).await;
    await_both_groups(&net).await;
    let undisturbed = stream(&net).await.rest().await.0;
    for (position, wanted) in [
        (1, Departure::Pause),
        (1, Departure::Leave),
        (1, Departure::Term),
        (0, Departure::Leave),
        (0, Departure::Term),
        (0, Departure::Pause),
    ] {
        let running = stream(&net).await;
        let victim = whose(&net, &running.decode, position).await;
        let asked = Instant::now();
        ask(&net, victim, wanted).await;
        let (text, moves) = running.rest().await;
        println!("stage {position}, {wanted:?}: the stream ended after {:.1?}, moves {moves:?}", asked.elapsed());
        assert_eq!(text, undisturbed, "stage {position}, {wanted:?}");
        assert!(moves.iter().all(|why| why.contains("lends no longer")), "{moves:?}");
        assert!(moves.len() == 1, "it was to move once: {moves:?}");
        undo(&mut net, victim, wanted, asked).await;
        await_both_groups(&net).await;
    }
    net.down().await;
}

/// The peer has gone, and comes back.
async fn undo(net: &mut Net, victim: usize, wanted: Departure, asked: Instant) {
    if wanted == Departure::Pause {
        let id = net.peer(victim).id;
        let is_idle = |sights: &[Option<Sight>]| match sights[GATEWAY].as_ref().and_then(|s| s.plan.as_ref()) {
            Some(plan) if !plan.groups.iter().flat_map(|g| &g.stages).any(|s| s.peer == id) => Ok(()),
            _ => Err("the plan still has it".to_owned()),
        };
        swarm(net).await_that(LONG, is_idle).await.unwrap();
        assert_eq!(net.post(victim, "/api/resume", json!({})).await.0, 202);
        return;
    }
    while net.peer(victim).is_alive() {
        assert!(asked.elapsed() < GONE, "it is still there {:?} after {wanted:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("the process was gone {:.1?} after the wish", asked.elapsed());
    net.net.restart(victim).await.unwrap();
}

async fn ask(net: &Net, victim: usize, wanted: Departure) {
    match wanted {
        Departure::Pause => assert_eq!(net.post(victim, "/api/pause", json!({})).await.0, 202),
        Departure::Leave => assert_eq!(net.post(victim, "/api/leave", json!({})).await.0, 202),
        Departure::Term => net.net.signal(victim, "-TERM").unwrap(),
    }
}

fn swarm(net: &Net) -> Swarm {
    Swarm::of(net.net.peers().into_iter())
}

async fn await_both_groups(net: &Net) {
    let both = |sights: &[Option<Sight>]| {
        let sight = sights[GATEWAY].as_ref().ok_or("no answer")?;
        let up = sight.ready_groups.len();
        if (up, sight.peers.len()) == (2, 6) {
            Ok(())
        } else {
            Err(format!("{up} groups, {} peers", sight.peers.len()))
        }
    };
    swarm(net).await_that(LONG, both).await.unwrap();
    swarm(net).await_one_mind(6, LONG).await.unwrap();
}

/// The place among the processes of a stage of the group that this peer leads.
async fn whose(net: &Net, leader: &str, position: usize) -> usize {
    let sights = swarm(net).look().await;
    let plan = sights[GATEWAY].as_ref().unwrap().plan.clone().unwrap();
    let group = plan.groups.iter().find(|g| g.stages[0].peer == leader).unwrap();
    let peer = &group.stages[position].peer;
    sights.iter().position(|s| s.as_ref().is_some_and(|s| s.me == *peer)).unwrap()
}

/// A streamed answer of which something has come.
struct Running {
    decode: String,
    response: reqwest::Response,
    text: Vec<u8>,
}

async fn stream(net: &Net) -> Running {
    let body = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true, "temperature": 0 });
    let url = format!("{}/v1/completions", net.peer(GATEWAY).http);
    let mut response = net.client.post(url).header("x-tsnode-trace", "1").json(&body).send().await.unwrap();
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let text = response.chunk().await.unwrap().unwrap().to_vec();
    Running { decode, response, text }
}

impl Running {
    /// Its words, and why it moved each time.
    async fn rest(mut self) -> (String, Vec<String>) {
        while let Some(part) = self.response.chunk().await.unwrap() {
            self.text.extend_from_slice(&part);
        }
        let text = String::from_utf8(self.text).unwrap();
        assert!(text.contains("\"finish_reason\":\"length\"") && text.trim_end().ends_with("data: [DONE]"), "{text}");
        let events: Vec<Value> = text.lines().filter_map(|l| l.strip_prefix("data: ")?.parse().ok()).collect();
        let words = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        let moves = events.iter().filter_map(|e| e["tsnode"]["moves"].as_array()).flatten();
        (words, moves.filter_map(|m| Some(m["reason"].as_str()?.to_owned())).collect())
    }
}
