//! Streams outlive the peers that serve them: kills at random moments under load, and every token is the one that an
//! undisturbed run gives.
#![allow(clippy::unwrap_used)] // A swarm that cannot be had fails the test.

mod common;

use common::{
    Net, PROMPT, Wish,
    reader::{Reader, Seen},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tsnode_testnet::{Sight, Swarm};

/// Streams at once.
const STREAMS: usize = 16;
/// Peers without a model, which take the clients' requests.
const GATEWAYS: [usize; 2] = [8, 9];
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

/// Where the gateways are now.
type Gateways = Arc<Mutex<Vec<String>>>;

fn gateways(net: &Net) -> Vec<String> {
    GATEWAYS.iter().map(|index| net.peer(*index).http).collect()
}

/// Clients that ask again and again, and hold every answer against the undisturbed one.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Vec<Seen>>>,
}

impl Load {
    /// Every client asks one of two gateways first, and the other when that is gone.
    fn start(net: &Net, gateways: &Gateways, expected: &Arc<Answers>) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let one = |n: usize| {
            let (client, gateways) = (net.client.clone(), gateways.clone());
            let (stop, served, expected) = (stop.clone(), served.clone(), expected.clone());
            tokio::spawn(async move {
                let (mut all, mut kind, mut nth) = (Vec::new(), n, 0);
                while !stop.load(Relaxed) {
                    (kind, nth) = ((kind + 3) % KINDS, nth + 1);
                    let reader = Reader::new(&client, format!("client {n}, request {nth}"), body(kind));
                    let seen =
                        reader.read(|asked| gateways.lock().unwrap()[(n + asked) % GATEWAYS.len()].clone()).await;
                    let right = &expected[&seen.codec][kind];
                    assert_eq!(seen.tokens, *right, "request {kind}, {:?}, {} returns", seen.moves, seen.returns);
                    all.push(seen);
                    served.fetch_add(1, Relaxed);
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

/// Who may be disturbed, and what they do: peers with a part in the plan, its maker, and one gateway.
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
    all.push(("gateway".to_owned(), GATEWAYS[1]));
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
    let returned = seen.iter().filter(|s| s.returns > 0).count();
    println!("{} streams, {} of them moved, {returned} came back elsewhere", seen.len(), times.len());
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
    let mut net = Net::up(Wish { peers: 8, gateways: 2, flags: &flags, model_flags: &[] }).await;
    let packed = undisturbed(&net, 8).await;
    assert_ne!(exact, packed);
    let known = Gateways::new(gateways(&net).into());
    let load = Load::start(&net, &known, &Arc::new([exact, packed].into()));
    for n in 0..kills {
        load.await_more(3).await;
        let all = parts(&net).await;
        let (what, victim) = all[dice.roll(all.len())].clone();
        // A stopped gateway is for its clients to notice.
        let stops = n % 5 == 4 && what != "gateway";
        tokio::time::sleep(Duration::from_millis(dice.roll(300) as u64)).await;
        println!("{} {n}: peer{victim}, {what}", if stops { "stop" } else { "kill" });
        disturb(&mut net, &load, victim, stops).await;
        *known.lock().unwrap() = gateways(&net);
    }
    load.await_more(16).await;
    say(&load.end().await);
    swarm(&net).await_that(LONG, all_pages_free).await.unwrap();
    net.down().await;
}
