//! Swarms of two peers, each in a folder that goes with it.

use crate::cli::exit::{Exit, ExitKind};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tsnode_testnet::{PeerConfig, Testnet, TestnetConfig, TestnetError};

/// How long a gateway may take to know its links.
const LINKS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// Starts swarms.
pub(super) struct Swarms {
    executable: PathBuf,
    /// What every peer is started with.
    flags: Vec<String>,
}

/// How a peer computes.
pub(super) struct HostedPeer {
    pub threads: usize,
    /// Where it may run, if not anywhere.
    pub cores: Option<String>,
}

impl HostedPeer {
    fn flags(&self) -> Vec<String> {
        let threads = ["--threads".to_owned(), self.threads.to_string()].into_iter();
        let cores = self.cores.iter().flat_map(|cores| ["--cores".to_owned(), cores.clone()]);
        threads.chain(cores).collect()
    }
}

/// A swarm that runs.
pub(super) struct KeptSwarm {
    net: Testnet,
}

impl Swarms {
    pub fn new(flags: &[String]) -> Result<Self, Exit> {
        let executable = std::env::current_exe().map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
        Ok(Self { executable, flags: flags.to_vec() })
    }

    /// Two peers: the first prefills and the second decodes, unless a request says otherwise.
    pub async fn up(&self, name: &str, peers: [HostedPeer; 2], link_mbit: Option<f64>) -> Result<KeptSwarm, Exit> {
        let folder = std::env::temp_dir().join(format!("tsnode-kv-transfer-{}-{name}", std::process::id()));
        let host = |peer: &HostedPeer| PeerConfig::Host {
            flags: peer.flags().into_iter().chain(self.flags.iter().cloned()).collect(),
        };
        // A check computes a prompt on the peer that is not asked: beside what is measured, or before it.
        let all = ["--layout", "prefill=1,decode=1", "--speculative-decoding", "never", "--spot-check", "never"];
        let config = TestnetConfig {
            executable: self.executable.clone(),
            folder,
            peers: peers.iter().map(host).collect(),
            link_mbit,
            link_ms: None,
            http_port: None,
            flags: all.map(str::to_owned).to_vec(),
        };
        Ok(KeptSwarm { net: Testnet::up(&config).await.map_err(exit)? })
    }
}

impl KeptSwarm {
    /// Where the peer that decodes listens: a request to it crosses no other peer.
    pub fn http(&self) -> String {
        self.net.peers().last().map(|p| p.http.clone()).unwrap_or_default()
    }

    /// Waits until the peer that decodes has heard what the link to it carries.
    pub async fn await_links(&self, client: &reqwest::Client) -> Result<(), Exit> {
        let asked = Instant::now();
        loop {
            let view: serde_json::Value = match client.get(format!("{}/api/swarm", self.http())).send().await {
                Ok(answer) => answer.json().await.unwrap_or_default(),
                Err(_) => serde_json::Value::Null,
            };
            let measured = |p: &serde_json::Value| p["advert"]["links"].as_array().is_some_and(|l| !l.is_empty());
            if view["peers"].as_array().is_some_and(|peers| peers.iter().all(measured)) {
                return Ok(());
            }
            if asked.elapsed() > LINKS {
                return Err(Exit::new(ExitKind::Other, format!("links are not measured after {} s", LINKS.as_secs())));
            }
            sleep(LOOK).await;
        }
    }

    pub async fn down(self) -> Result<(), Exit> {
        let folder = self.net.folder().to_owned();
        self.net.down().await.map_err(exit)?;
        std::fs::remove_dir_all(&folder).map_err(|e| Exit::file(ExitKind::Other, &folder, &e))
    }
}

fn exit(error: TestnetError) -> Exit {
    Exit::new(ExitKind::Other, error.to_string())
}
