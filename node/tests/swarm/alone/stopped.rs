//! A peer whose process is stopped says nothing, and its connections stay open: what it did goes on elsewhere before QUIC
//! gives them up, whichever part it had.

use super::undisturbed;
use crate::common::turn;
use std::path::PathBuf;
use tsnode_testnet::{
    PeerConfig, Testnet, TestnetConfig,
    chaos::{self, Chaos, ChaosVerdict, Deed, Deeds, PauseLimits, Until},
};

/// Stops, of which the last lasts for five seconds.
const STOPS: usize = 4;
/// What half of the streams that were hit stood still for at most (s), gateways that were stopped aside. QUIC alone notices after
/// four, and then an answer has to be gone on with yet. How long the longest takes is `testnet chaos`'s to say, on a machine that
/// does nothing else: where a processor is full, patience grows with what is known of its lateness.
const MEDIAN: f64 = 3.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_peer_is_missed_before_its_connections_are_given_up() {
    let _turn = turn().await;
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--split", "always", "--kv-codec", "int4", "--layout", "prefill=1,prefill=1,decode=2,decode=2,decode=1"];
    let config = TestnetConfig {
        executable: PathBuf::from(env!("CARGO_BIN_EXE_tsnode")),
        folder: folder.path().to_owned(),
        peers: PeerConfig::alike(7, 1, &[]),
        link_mbit: None,
        link_ms: None,
        http_port: None,
        flags: flags.map(str::to_owned).into(),
    };
    let answers = undisturbed(&config).await;
    let mut net = Testnet::up(&config).await.unwrap();
    let limits = PauseLimits { p99: None, worst: None };
    let (deeds, until) = (Deeds::Only(vec![Deed::Stop]), Until::Faults(STOPS));
    let chaos = Chaos { seed: 3, streams: 8, until, deeds, pairs: 0.0, limits };
    let told = |fault: &chaos::InjectedFault| println!("{:?} {}, {}", fault.deed, fault.peer, fault.role);
    let report = chaos::run(&mut net, chaos, answers, told).await.unwrap();
    let summary = report.summary();
    println!("{summary:?}");
    println!("the longest: {:?}", report.slowest());
    println!("{}", ChaosVerdict::of(&report));
    assert_eq!(report.wrongs(), Vec::<String>::new());
    let median = summary.pauses.map(|pauses| pauses.median);
    assert!(median.is_some_and(|median| median < MEDIAN), "{median:?}");
    net.down().await.unwrap();
}
