//! Streams outlive the peers that serve them and the gateways that pass them on: kills and stops at random moments under
//! load, and every token is the one that an undisturbed run gives.
//!
//! `TSNODE_FAULTS=200 TSNODE_SEED=11 cargo test --workspace --test swarm recovery:: -- --nocapture` kills two hundred times.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use super::undisturbed;
use crate::common::turn;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tsnode_testnet::{
    Answers, PeerConfig, Testnet, TestnetConfig,
    chaos::{self, Chaos, ChaosVerdict, Deed, Deeds, PauseLimits, Until},
};

/// What peers do that are killed, whatever the seed. Whom it names may be the coordinator or a member of a group when it is its turn, or
/// may not: the seed names peers, and the swarm gives them their parts.
const ROLES: [&str; 3] = ["decode leader", "gateway", "prefill leader"];
/// Kills, and more of them for as long as one of these was not hit: so many times at most.
const KILLS: usize = 7;
const MORE_KILLS: usize = 3;
const TIMES: u64 = 3;
/// From the usual seed so many on, a slow peer, a stopped one and a stopped gateway are drawn first.
const DRAWN_AFTER: u64 = 151;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_outlive_the_peers_that_serve_them() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let _turn = turn().await;
    let kills = setting("TSNODE_FAULTS").map_or(KILLS, |kills| kills as usize);
    let seed = setting("TSNODE_SEED").unwrap_or(1);
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
    let answers = undisturbed(&config).await;
    let mut net = Testnet::up(&config).await.unwrap();
    killed_in_every_role(&mut net, &answers, seed, kills, 16).await;
    // Requests have other names in each part.
    let (seed, until) = (seed + DRAWN_AFTER, Until::Faults(kills.div_ceil(3)));
    let limits = PauseLimits::default();
    broken(&mut net, &answers, Chaos { seed, streams: 16, until, deeds: Deeds::Drawn, pairs: 0.0, limits }).await;
    net.down().await.unwrap();
}

/// Kills so many, and then a few more until each role was hit.
async fn killed_in_every_role(net: &mut Testnet, answers: &Answers, seed: u64, kills: usize, streams: usize) {
    let mut hit = BTreeSet::new();
    for time in 0..TIMES {
        let until = Until::Faults(if time == 0 { kills } else { MORE_KILLS });
        let (seed, deeds, limits) = (seed + time, Deeds::Only(vec![Deed::Kill]), PauseLimits::default());
        hit.extend(broken(net, answers, Chaos { seed, streams, until, deeds, pairs: 0.0, limits }).await);
        if ROLES.iter().all(|role| hit.contains(*role)) {
            return;
        }
    }
    panic!("not each role was hit: {hit:?}");
}

/// Breaks a swarm, and holds what came of it against what must hold; the roles that were hit.
async fn broken(net: &mut Testnet, answers: &Answers, chaos: Chaos) -> BTreeSet<String> {
    let told = |fault: &chaos::InjectedFault| println!("{:?} {}, {}", fault.deed, fault.peer, fault.role);
    let kills = chaos.deeds != Deeds::Drawn;
    let report = chaos::run(net, chaos, answers.clone(), told).await.unwrap();
    println!("{} streams; {:?}", report.streams.len(), report.summary());
    println!("the longest: {:?}", report.slowest());
    println!("{}", ChaosVerdict::of(&report));
    assert_eq!(report.wrongs(), Vec::<String>::new());
    assert!(!kills || report.pauses().is_some(), "nobody was hit");
    report.hits().into_keys().map(str::to_owned).collect()
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
    killed_in_every_role(&mut net, &answers, 1, 4, 8).await;
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
