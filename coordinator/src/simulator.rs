//! What cannot be run is simulated, by the policies that run: requests on machines and links, event by event.
//!
//! | question | where |
//! |---|---|
//! | what happens when | [`agenda`] |
//! | how long does an iteration take | [`cost`] |
//! | machines, KV between them, requests | [`machines`], driving [`crate::policy`] |
//! | a pipeline with several batches on their way | `ring`; a plan's group as one: [`pipeline`] |
//! | which requests come | [`trace`]: read, or drawn from a workload; [`generator`]: from fitted distributions |
//! | what came of it | [`summary`], [`percentile`], [`memory`] |
//! | what machines did when | [`timeline`], drawn by [`picture`] |
//! | measured times from a file | [`table`] |
//! | the clusters of Splitwise's evaluation | [`splitwise`] |
//! | GPUs as fast as measured; Cronus's evaluation | [`capacity`], [`cronus`] |
//! | how a plan's machines batch | [`orders`] |
//! | how does a plan do | [`replay`]: the last candidates of a search |

pub mod agenda;
pub mod capacity;
pub mod cost;
pub mod cronus;
pub mod generator;
pub mod machines;
pub mod memory;
pub mod orders;
pub mod percentile;
pub mod picture;
pub mod pipeline;
mod replay;
mod ring;
pub mod splitwise;
pub mod summary;
pub mod table;
pub mod timeline;
pub mod trace;

pub use crate::policy::choice::{Batches, Dispatch};
pub use replay::{Parts, Replay, Report, replay, replay_by};
