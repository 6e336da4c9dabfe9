//! What touches the world: libp2p and QUIC, HTTP, disk, hardware, and the `tsnode` command line.
//!
//! Decisions are made in `tsnode-coordinator`; this crate carries them out.

pub mod carrier;
pub mod cli;
pub mod config;
pub mod cores;
pub mod disk;
pub mod doors;
pub mod driver;
pub mod embedding;
pub mod exit;
pub mod faults;
pub mod gateway;
pub mod hardware;
pub mod heartbeats;
pub mod http;
pub mod hub;
pub mod identity;
pub mod import;
pub mod invites;
pub mod keys;
pub mod ledger;
pub mod library;
pub mod links;
pub mod listening;
pub mod local;
pub mod measure;
pub mod memory;
pub mod models;
pub mod node;
pub mod offences;
pub mod owner;
pub mod plain;
pub mod planner_thread;
mod prober;
pub mod response_log;
pub mod roster;
pub mod sealed;
pub mod serving;
pub mod sites;
pub mod store;
pub mod swarm;
pub mod telemetry;
pub mod text;
mod twins;
pub mod view;

/// Random bytes of the operating system.
///
/// # Panics
/// When the system has no randomness to give: without it a peer can have no secrets, and must not run.
#[must_use]
#[allow(clippy::expect_used)]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
