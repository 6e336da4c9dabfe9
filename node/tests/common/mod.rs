//! Swarms of real processes for tests, and what tests ask of them.
#![allow(dead_code, reason = "each test file uses a part")]
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tsnode_testnet::{PeerConfig, PeerInfo, Testnet, TestnetConfig};

pub const PROMPT: &str = "It was a dark and windy night, and the old house";

/// Swarms that mostly wait are up two at a time, and each of these has a seat. Who measures or uses all of its machine has both: another
/// would take the processor away until peers seem dead.
static SEATS: Semaphore = Semaphore::const_new(ALL as usize);
const ALL: u32 = 2;

/// The machine, for a swarm that is not [`Net`]'s and has to be alone.
pub async fn turn() -> SemaphorePermit<'static> {
    SEATS.acquire_many(ALL).await.unwrap()
}

/// A seat for a swarm that is not [`Net`]'s and may have another beside it.
pub async fn seat() -> SemaphorePermit<'static> {
    SEATS.acquire().await.unwrap()
}

pub struct Net {
    pub net: Testnet,
    pub client: reqwest::Client,
    _folder: Folder,
    _turn: SemaphorePermit<'static>,
}

/// Where a swarm's peers keep what they have and write their logs: a test that failed leaves it to be read.
struct Folder(tempfile::TempDir);

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.disable_cleanup(true);
            eprintln!("the peers' logs are kept in {}", self.0.path().display());
        }
    }
}

pub fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|f| (*f).to_owned()).collect()
}

pub struct Wish<'w> {
    pub peers: usize,
    pub gateways: usize,
    pub flags: &'w [&'w str],
    pub model_flags: &'w [&'w str],
}

impl Wish<'_> {
    fn peers(&self) -> Vec<PeerConfig> {
        PeerConfig::alike(self.peers, self.gateways, &owned(self.model_flags))
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tsnode"))
}

impl Net {
    /// A swarm that has the machine to itself.
    pub async fn up(wish: Wish<'_>) -> Self {
        let flags = wish.flags;
        Self::of(wish.peers(), flags).await
    }

    /// One that may have another beside it.
    pub async fn up_beside(wish: Wish<'_>) -> Self {
        let flags = wish.flags;
        Self::of_beside(wish.peers(), flags).await
    }

    /// Of these peers, with the machine to itself.
    pub async fn of(peers: Vec<PeerConfig>, flags: &[&str]) -> Self {
        Self::run_by(turn().await, program(), peers, flags).await
    }

    /// The same, where another may be beside it.
    pub async fn of_beside(peers: Vec<PeerConfig>, flags: &[&str]) -> Self {
        Self::run_by(seat().await, program(), peers, flags).await
    }

    /// The same of any program, by who has a seat or the turn.
    pub async fn run_by(
        turn: SemaphorePermit<'static>,
        executable: PathBuf,
        peers: Vec<PeerConfig>,
        flags: &[&str],
    ) -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        let mut flags = owned(flags);
        if !flags.iter().any(|f| f == "--split") {
            flags.extend(["--split".into(), "always".into()]);
        }
        let config = TestnetConfig {
            executable,
            folder: folder.0.path().to_owned(),
            peers,
            link_mbit: None,
            link_ms: None,
            http_port: None,
            flags,
        };
        let net = match Testnet::up(&config).await {
            Ok(net) => net,
            Err(error) => panic!("{error}"),
        };
        let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        Self { net, client, _folder: folder, _turn: turn }
    }

    /// Stops the swarm; another may begin.
    pub async fn down(self) {
        self.net.down().await.unwrap();
    }

    pub fn peer(&self, index: usize) -> PeerInfo {
        self.net.peers()[index].clone()
    }

    /// A completion's status and body, with its trace.
    pub async fn complete(&self, index: usize, body: Value) -> (u16, Value) {
        self.post(index, "/v1/completions", body).await
    }

    pub async fn post(&self, index: usize, path: &str, body: Value) -> (u16, Value) {
        let url = format!("{}{path}", self.peer(index).http);
        let response = self.client.post(url).header("x-tsnode-trace", "1").json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Token ids of an answer that must be given.
    pub async fn tokens(&self, index: usize, mut body: Value) -> (Vec<u64>, Value) {
        body["return_token_ids"] = json!(true);
        let (status, answer) = self.complete(index, body).await;
        assert_eq!(status, 200, "{answer}");
        let ids = answer["choices"][0]["token_ids"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
        (ids, answer)
    }
}
