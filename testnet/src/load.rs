//! Clients that ask a swarm again and again, and hold every answer against the one an undisturbed swarm gives.

use crate::{
    PeerConfig, Testnet, TestnetConfig, TestnetError,
    client::{Reader, Seen, Wrong},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Different requests, every other one greedy.
const KINDS: usize = 8;
/// Tokens of an answer.
const TOKENS: usize = 160;
const PROMPT: &str = "It was a dark and windy night, and the old house";
const LOOK: Duration = Duration::from_millis(20);

fn body(kind: usize) -> Value {
    let prompt = format!("{PROMPT} {}", "and the wind blew ".repeat(kind * 4));
    let temperature = if kind.is_multiple_of(2) { 0.0 } else { 0.9 };
    json!({ "prompt": prompt, "max_tokens": TOKENS, "seed": kind, "ignore_eos": true, "temperature": temperature })
}

/// What undisturbed swarms answer, by what prompts' KV goes through: a request keeps to that wherever it goes.
#[derive(Clone, Debug, Default)]
pub struct Answers(BTreeMap<String, Vec<Vec<u64>>>);

impl Answers {
    /// Asks two small swarms of such peers as `config` has: one peer alone, and two that send each other packed KV.
    ///
    /// # Errors
    /// When one is not up in time, or answers wrongly.
    pub async fn learn(config: &TestnetConfig) -> Result<Self, TestnetError> {
        let flags = |text: &str| text.split(' ').map(str::to_owned).collect();
        let alone = (1, flags("--kv-codec raw"));
        let packed = (2, flags("--kv-codec int4 --split always --layout prefill=1,decode=1"));
        let mut answers = Self::default();
        for (peers, flags) in [alone, packed] {
            let hosts = config.peers.iter().filter(|p| matches!(p, PeerConfig::Host { .. }));
            let peers = hosts.cycle().take(peers).cloned().collect();
            let folder = config.folder.join("undisturbed");
            let net = Testnet::up(&TestnetConfig { peers, flags, folder: folder.clone(), ..config.clone() }).await?;
            let asked = answers.ask(&net.peers()[0].http).await;
            net.down().await?;
            // Logs of a run that ended well are of no use.
            let _ = std::fs::remove_dir_all(folder);
            asked.map_err(TestnetError::Wrong)?;
        }
        Ok(answers)
    }

    async fn ask(&mut self, http: &str) -> Result<(), Wrong> {
        let client = reqwest::Client::new();
        for kind in 0..KINDS {
            let reader = Reader::new(&client, format!("undisturbed {kind}"), body(kind));
            let seen = reader.read(|_| http.to_owned()).await?;
            self.0.entry(seen.codec).or_default().push(seen.tokens);
        }
        Ok(())
    }

    fn check(&self, key: String, kind: usize, seen: Seen) -> Result<Seen, Wrong> {
        let expected = self.0.get(&seen.codec).and_then(|all| all.get(kind)).map_or(&[][..], Vec::as_slice);
        if seen.tokens == expected {
            return Ok(seen);
        }
        let same = seen.tokens.iter().zip(expected).take_while(|(a, b)| a == b).count();
        let (found, expected) = (seen.tokens.len(), expected.len());
        Err(Wrong::Tokens { key, found, same, expected, moves: seen.moves, returns: seen.returns })
    }
}

/// Where clients ask; changes when a gateway starts again elsewhere.
pub(crate) type Gateways = Arc<Mutex<Vec<String>>>;

/// Clients at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<Result<Seen, Wrong>>>>,
}

impl Load {
    /// Each client asks one gateway first, and the next when that is gone. Requests of another `seed` have other keys: a swarm
    /// answers a key that it knows with what it answered before.
    pub fn start(seed: u64, streams: usize, gateways: &Gateways, answers: &Arc<Answers>) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = reqwest::Client::new();
        let one = |n: usize| {
            let (client, gateways, answers) = (client.clone(), gateways.clone(), answers.clone());
            let (stop, served) = (stop.clone(), served.clone());
            tokio::spawn(async move {
                let (mut all, mut kind, mut nth) = (Vec::new(), n, 0);
                while !stop.load(Relaxed) {
                    (kind, nth) = ((kind + 3) % KINDS, nth + 1);
                    let key = format!("seed {seed}, client {n}, request {nth}");
                    let reader = Reader::new(&client, key.clone(), body(kind));
                    let gateway = |asked: usize| {
                        let known = gateways.lock().unwrap_or_else(PoisonError::into_inner);
                        known[(n + asked) % known.len()].clone()
                    };
                    all.push(reader.read(gateway).await.and_then(|seen| answers.check(key, kind, seen)));
                    served.fetch_add(1, Relaxed);
                }
                all
            })
        };
        let clients = (0..streams).map(one).collect();
        Self { stop, served, clients }
    }

    /// Waits until so many more streams have ended; whether they did in time.
    pub async fn await_more(&self, more: usize, patience: Duration) -> bool {
        let (until, deadline) = (self.served.load(Relaxed) + more, Instant::now() + patience);
        while self.served.load(Relaxed) < until {
            if Instant::now() > deadline {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }

    /// Lets the clients finish what they read, and takes what they saw.
    pub async fn end(self) -> Vec<Result<Seen, Wrong>> {
        self.stop.store(true, Relaxed);
        let all = futures::future::join_all(self.clients).await;
        all.into_iter().flat_map(Result::unwrap_or_default).collect()
    }
}
