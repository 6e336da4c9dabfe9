//! What touches the world: libp2p and QUIC, HTTP, disk, hardware, and the `tsnode` command line.
//!
//! Decisions are made in `tsnode-coordinator`; this crate carries them out.

#![deny(clippy::allow_attributes_without_reason)]

pub mod cli;
pub mod config;
pub mod control_plane;
pub mod data_plane;
pub mod embedding;
pub mod faults;
pub mod gateway;
pub mod hardware;
pub mod history;
pub mod http;
pub mod hub;
pub mod import;
pub mod limits;
pub mod node;
pub mod plain;
mod platform;
pub mod reachability;
pub mod response_log;
pub mod service;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod text;
pub mod update;
pub mod view;
pub mod weights;
pub mod worker;

/// Random bytes of the operating system.
///
/// # Panics
/// When the system has no randomness to give: without it a peer can have no secrets, and must not run.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
