//! Streams outlive the peers that serve them: kills at random moments under load, and every token is the one that an
//! undisturbed run gives.
#![allow(clippy::unwrap_used)] // A swarm that cannot be had fails the test.

mod common;

use common::{Net, PROMPT, Wish};
use futures::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tsnode_testnet::{Sight, Swarm};

/// Streams at once.
const STREAMS: usize = 16;
/// Different requests.
const KINDS: usize = 8;
const TOKENS: usize = 160;
const LONG: Duration = Duration::from_secs(30);
/// Pauses that are looked into.
const SLOW: Duration = Duration::from_millis(1500);

fn body(kind: usize) -> Value {
    let prompt = format!("{PROMPT} {}", "and the wind blew ".repeat(kind * 4));
    let sampling = if kind.is_multiple_of(2) { json!({ "temperature": 0 }) } else { json!({ "temperature": 0.9 }) };
    let mut body = json!({ "prompt": prompt, "max_tokens": TOKENS, "seed": kind, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
    body
}

/// What a client saw of one stream.
struct Seen {
    tokens: Vec<u64>,
    /// What its prompt's KV went through.
    codec: String,
    /// The longest time between two tokens.
    pause: Duration,
    /// Why it went on elsewhere, each time.
    moves: Vec<String>,
}

/// One streamed request, from its first token on; `None` if nobody took it.
async fn stream(client: &reqwest::Client, http: &str, mut body: Value) -> Option<Seen> {
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let response =
        client.post(format!("{http}/v1/completions")).header("x-tsnode-trace", "1").json(&body).send().await.unwrap();
    if response.status() == 503 {
        return None;
    }
    assert_eq!(response.status(), 200);
    let (mut parts, mut text, mut tokens) = (response.bytes_stream(), Vec::new(), Vec::new());
    let (mut last, mut pause, mut done) = (None::<Instant>, Duration::ZERO, false);
    let (mut codec, mut moves) = (String::new(), Vec::new());
    while let Some(part) = parts.next().await {
        text.extend_from_slice(&part.unwrap());
        while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            let Some(data) = std::str::from_utf8(&event).unwrap().trim().strip_prefix("data: ").map(str::to_owned)
            else {
                continue;
            };
            if data == "[DONE]" {
                done = true;
                continue;
            }
            let event: Value = serde_json::from_str(&data).unwrap();
            assert!(event.get("error").is_none(), "after {} tokens: {event}", tokens.len());
            if let Some(trace) = event.get("tsnode") {
                codec = trace["codec"].as_str().unwrap().to_owned();
                let all = trace["moves"].as_array().unwrap().iter();
                moves.extend(all.map(|m| m["reason"].as_str().unwrap().to_owned()));
                continue;
            }
            let ids = event["choices"][0]["token_ids"].as_array().unwrap();
            tokens.extend(ids.iter().map(|t| t.as_u64().unwrap()));
            pause = pause.max(last.map_or(Duration::ZERO, |at| at.elapsed()));
            last = Some(Instant::now());
        }
    }
    assert!(done, "the stream was cut after {} tokens", tokens.len());
    Some(Seen { tokens, codec, pause, moves })
}

/// Clients that ask again and again, and hold every answer against the undisturbed one.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Vec<Seen>>>,
}

impl Load {
    fn start(net: &Net, gateway: usize, expected: &Arc<Answers>) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let one = |n: usize| {
            let (client, http) = (net.client.clone(), net.peer(gateway).http);
            let (stop, served, expected) = (stop.clone(), served.clone(), expected.clone());
            tokio::spawn(async move {
                let (mut all, mut kind) = (Vec::new(), n);
                while !stop.load(Relaxed) {
                    kind = (kind + 3) % KINDS;
                    match stream(&client, &http, body(kind)).await {
                        Some(seen) => {
                            assert_eq!(seen.tokens, expected[&seen.codec][kind], "request {kind}, {:?}", seen.moves);
                            all.push(seen);
                            served.fetch_add(1, Relaxed);
                        }
                        None => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                }
                all
            })
        };
        let clients = (0..STREAMS).map(one).collect();
        Self { stop, served, clients }
    }

    /// Until so many more streams have ended well.
    async fn await_more(&self, more: usize) {
        let until = self.served.load(Relaxed) + more;
        let served = async {
            while self.served.load(Relaxed) < until {
                assert!(self.clients.iter().all(|c| !c.is_finished()), "a client has failed");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, served).await.unwrap();
    }

    async fn end(self) -> Vec<Seen> {
        self.stop.store(true, Relaxed);
        futures::future::join_all(self.clients).await.into_iter().flat_map(|seen| seen.unwrap()).collect()
    }
}

/// What undisturbed runs answer, by what prompts' KV went through: a request keeps to it wherever it goes.
type Answers = BTreeMap<String, Vec<Vec<u64>>>;

async fn undisturbed(net: &Net, peer: usize) -> (String, Vec<Vec<u64>>) {
    let (mut expected, mut codec) = (Vec::new(), String::new());
    for kind in 0..KINDS {
        let (tokens, answer) = net.tokens(peer, body(kind)).await;
        expected.push(tokens);
        codec = answer["tsnode"]["codec"].as_str().unwrap().to_owned();
    }
    (codec, expected)
}

/// Peers with a part in the plan that everybody follows, by what they do.
async fn parts(net: &Net) -> Vec<(String, usize)> {
    let view = net.client.get(format!("{}/api/swarm", net.peer(8).http)).send().await.unwrap();
    let view = view.json::<Value>().await.unwrap();
    let ids: Vec<String> = net.net.peers().iter().map(|p| p.id.clone()).collect();
    let index = |id: &Value| ids.iter().position(|known| id.as_str() == Some(known));
    let mut all = Vec::new();
    for group in view["plan"]["groups"].as_array().unwrap() {
        for (n, stage) in group["stages"].as_array().unwrap().iter().enumerate() {
            let what = if n == 0 { format!("{} leader", group["phase"].as_str().unwrap()) } else { "member".into() };
            all.extend(index(&stage["peer"]).map(|i| (what, i)));
        }
    }
    all.extend(index(&view["coordinator"]).map(|i| ("coordinator".to_owned(), i)));
    all
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn swarm(net: &Net) -> Swarm {
    Swarm::of(net.net.peers().into_iter())
}

fn all_pages_free(sights: &[Option<Sight>]) -> Result<(), String> {
    let sight = sights[8].as_ref().ok_or("no answer")?;
    let held = sight.peers.iter().find(|p| p.load.running > 0 || p.load.free_pages != p.load.total_pages);
    held.map_or(Ok(()), |p| Err(format!("{} has {} of {} pages free", p.id, p.load.free_pages, p.load.total_pages)))
}

/// The pauses that clients of moved streams saw, which are what recovery is about.
fn say(seen: &[Seen]) {
    let moved = seen.iter().filter(|s| !s.moves.is_empty());
    let mut times: Vec<Duration> = moved.clone().map(|s| s.pause).collect();
    for s in moved.filter(|s| s.pause > SLOW) {
        println!("{:.2} s: {:?}", s.pause.as_secs_f64(), s.moves);
    }
    times.sort_unstable();
    println!("{} streams, {} of them moved", seen.len(), times.len());
    if let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) {
        println!("pauses: median {:.2} s, worst {:.2} s", median.as_secs_f64(), worst.as_secs_f64());
    }
}

/// A peer dies, or its process stops and stays connected; later it is back.
async fn disturb(net: &mut Net, load: &Load, victim: usize, stops: bool) {
    if stops {
        net.net.signal(victim, "-STOP").unwrap();
    } else {
        net.net.kill(victim).await.unwrap();
    }
    load.await_more(8).await;
    if stops {
        net.net.signal(victim, "-CONT").unwrap();
    } else {
        net.net.restart(victim).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_outlive_the_peers_that_serve_them() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (kills, mut dice) = (setting("TSNODE_KILLS").unwrap_or(20), Dice(setting("TSNODE_SEED").unwrap_or(1)));
    let one = Net::up(Wish { peers: 1, gateways: 0, flags: &[], model_flags: &[] }).await;
    let exact = undisturbed(&one, 0).await;
    one.down().await;
    let flags = ["--kv-codec", "int4", "--layout", "prefill=1,prefill=1,decode=1,decode=2,decode=1"];
    let mut net = Net::up(Wish { peers: 8, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let packed = undisturbed(&net, 8).await;
    assert_ne!(exact, packed);
    let load = Load::start(&net, 8, &Arc::new([exact, packed].into()));
    for n in 0..kills {
        load.await_more(3).await;
        let all = parts(&net).await;
        let (what, victim) = all[dice.roll(all.len())].clone();
        let stops = n % 5 == 4;
        tokio::time::sleep(Duration::from_millis(dice.roll(300) as u64)).await;
        println!("{} {n}: peer{victim}, {what}", if stops { "stop" } else { "kill" });
        disturb(&mut net, &load, victim, stops).await;
    }
    load.await_more(16).await;
    say(&load.end().await);
    swarm(&net).await_that(LONG, all_pages_free).await.unwrap();
    net.down().await;
}
