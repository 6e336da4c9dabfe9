//! Streams outlive the peers that serve them and the gateways that pass them on: kills and stops at random moments under
//! load, and every token is the one that an undisturbed run gives.
#![allow(clippy::unwrap_used)] // A swarm that cannot be had fails the test.

use std::path::PathBuf;
use tsnode_testnet::{
    Answers, PeerConfig, Testnet, TestnetConfig,
    chaos::{self, Chaos, Deeds, Until},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_outlive_the_peers_that_serve_them() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (faults, seed) = (setting("TSNODE_FAULTS").unwrap_or(20) as usize, setting("TSNODE_SEED").unwrap_or(1));
    let flags =
        ["--split", "always", "--kv-codec", "int4", "--layout", "prefill=1,prefill=1,decode=1,decode=2,decode=1"];
    let folder = tempfile::tempdir().unwrap();
    let config = TestnetConfig {
        executable: PathBuf::from(env!("CARGO_BIN_EXE_tsnode")),
        folder: folder.path().to_owned(),
        peers: PeerConfig::alike(8, 2, &[]),
        link_mbit: None,
        link_ms: None,
        flags: flags.map(str::to_owned).into(),
    };
    let answers = Answers::learn(&config).await.unwrap();
    let mut net = Testnet::up(&config).await.unwrap();
    let chaos = Chaos { seed, streams: 16, until: Until::Faults(faults), deeds: Deeds::Drawn };
    let told = |fault: &chaos::Fault| println!("{:?} {}, {}", fault.deed, fault.peer, fault.role);
    let report = chaos::run(&mut net, chaos, answers, told).await.unwrap();
    println!("{} streams; pauses (median, longest, how many): {:?}", report.streams.len(), report.pauses());
    println!("the longest: {:?}", report.slowest());
    assert_eq!(report.violations, Vec::<String>::new());
    assert!(report.pauses().is_some(), "nobody was hit");
    net.down().await.unwrap();
}
