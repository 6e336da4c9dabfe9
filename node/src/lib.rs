//! What touches the world: libp2p and QUIC, HTTP, disk, hardware, and the `tsnode` command line.
//!
//! Decisions are made in `tsnode-coordinator`; this crate carries them out.

pub mod cli;
pub mod gateway;
pub mod models;
pub mod view;
