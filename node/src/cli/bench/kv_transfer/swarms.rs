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

/// A swarm that runs.
pub(super) struct KeptSwarm {
    net: Testnet,
}

impl Swarms {
    pub fn new(flags: &[String]) -> Result<Self, Exit> {
        let executable = std::env::current_exe().map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
        Ok(Self { executable, flags: flags.to_vec() })
    }

    /// Two peers with so many threads each: the first prefills and the second decodes, unless a request says otherwise.
    pub async fn up(&self, name: &str, threads: [usize; 2], link_mbit: Option<f64>) -> Result<KeptSwarm, Exit> {
        let folder = std::env::temp_dir().join(format!("tsnode-kv-transfer-{}-{name}", std::process::id()));
        let host = |threads: &usize| {
            let flags = ["--threads".to_owned(), threads.to_string()].into_iter();
            PeerConfig::Host { flags: flags.chain(self.flags.iter().cloned()).collect() }
        };
        // A check computes a prompt on the peer that is not asked: beside what is measured, or before it.
        let all = ["--layout", "prefill=1,decode=1", "--speculative-decoding", "never", "--spot-check", "never"];
        let config = TestnetConfig {
            executable: self.executable.clone(),
            folder,
            peers: threads.iter().map(host).collect(),
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
