//! Streams outlive the peers that serve them and the gateways that pass them on: kills and stops at random moments under
//! load, and every token is the one that an undisturbed run gives.
//!
//! `TSNODE_FAULTS=200 TSNODE_SEED=11 cargo test --workspace --test swarm recovery:: -- --nocapture` kills two hundred times.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::turn;
use std::fs;
use std::path::{Path, PathBuf};
use tsnode_testnet::{
    Answers, PeerConfig, Testnet, TestnetConfig,
    chaos::{self, Chaos, ChaosVerdict, Deed, Deeds, PauseLimits, Until},
};

/// What peers do that are killed, whatever the seed. Whom it names may be the coordinator or a member of a group when it is its turn, or
/// may not: the seed names peers, and the swarm gives them their parts.
const ROLES: [&str; 3] = ["decode leader", "gateway", "prefill leader"];
/// Faults that are drawn, after those that kill.
const DRAWN: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_outlive_the_peers_that_serve_them() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let _turn = turn().await;
    let (kills, seed) = (setting("TSNODE_FAULTS").unwrap_or(12) as usize, setting("TSNODE_SEED").unwrap_or(1));
    let flags =
        ["--split", "always", "--kv-codec", "int4", "--layout", "prefill=1,prefill=1,decode=1,decode=2,decode=1"];
    let folder = tempfile::tempdir().unwrap();
    let config = TestnetConfig {
        executable: PathBuf::from(env!("CARGO_BIN_EXE_tsnode")),
        folder: folder.path().to_owned(),
        peers: PeerConfig::alike(8, 2, &[]),
        link_mbit: None,
        link_ms: None,
        http_port: None,
        flags: flags.map(str::to_owned).into(),
    };
    let answers = Answers::learn(&config).await.unwrap();
    let mut net = Testnet::up(&config).await.unwrap();
    for (deeds, faults) in [(Deeds::Only(vec![Deed::Kill]), kills), (Deeds::Drawn, DRAWN)] {
        // Requests have other names in the second part.
        let is_drawn = deeds == Deeds::Drawn;
        let seed = seed + u64::from(is_drawn);
        let (until, limits) = (Until::Faults(faults), PauseLimits::default());
        let chaos = Chaos { seed, streams: 16, until, deeds, pairs: 0.0, limits };
        let told = |fault: &chaos::Fault| println!("{:?} {}, {}", fault.deed, fault.peer, fault.role);
        let report = chaos::run(&mut net, chaos, answers.clone(), told).await.unwrap();
        println!("{} streams; {:?}", report.streams.len(), report.summary());
        println!("the longest: {:?}", report.slowest());
        println!("{}", ChaosVerdict::of(&report));
        assert_eq!(report.wrongs(), Vec::<String>::new());
        if !is_drawn {
            assert!(report.pauses().is_some(), "nobody was hit");
            let hits = report.hits();
            assert!(ROLES.iter().all(|role| hits.contains_key(role)), "each role was hit: {hits:?}");
        }
    }
    net.down().await.unwrap();
}

/// A mixture of experts instead of the model inside the program: whoever dies, tokens are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixture_of_experts_outlives_them_too() {
    let _turn = turn().await;
    let folder = tempfile::tempdir().unwrap();
    let model = longer("qwen3moe-dense-between", &folder.path().join("mixture"));
    let flags = ["--split", "always", "--kv-codec", "int4", "--layout", "prefill=1,decode=2,decode=1"];
    let config = TestnetConfig {
        executable: PathBuf::from(env!("CARGO_BIN_EXE_tsnode")),
        folder: folder.path().join("net"),
        peers: PeerConfig::alike(5, 2, &["--model".to_owned(), model]),
        link_mbit: None,
        link_ms: None,
        http_port: None,
        flags: flags.map(str::to_owned).into(),
    };
    let answers = Answers::learn(&config).await.unwrap();
    let mut net = Testnet::up(&config).await.unwrap();
    let (until, limits) = (Until::Faults(12), PauseLimits::default());
    let chaos = Chaos { seed: 1, streams: 8, until, deeds: Deeds::Only(vec![Deed::Kill]), pairs: 0.0, limits };
    let told = |fault: &chaos::Fault| println!("{:?} {}, {}", fault.deed, fault.peer, fault.role);
    let report = chaos::run(&mut net, chaos, answers, told).await.unwrap();
    println!("{} streams; {:?}", report.streams.len(), report.summary());
    assert_eq!(report.wrongs(), Vec::<String>::new());
    let hits = report.hits();
    assert!(ROLES.iter().all(|role| hits.contains_key(role)), "each role was hit: {hits:?}");
    net.down().await.unwrap();
}

/// A copy of a reference model with room for what is asked of it.
fn longer(name: &str, to: &Path) -> String {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/reference").join(name);
    fs::create_dir(to).unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let key = "\"max_position_embeddings\": ";
    fs::write(to.join("config.json"), config.replace(&format!("{key}512"), &format!("{key}2048"))).unwrap();
    to.to_str().unwrap().to_owned()
}
