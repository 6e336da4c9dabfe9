//! What cannot be run is simulated, by the policies that run: requests on machines and links, event by event.
//!
//! | question | where |
//! |---|---|
//! | what happens when | [`agenda`] |
//! | how long does an iteration take | [`cost`] |
//! | machines, KV between them, requests | [`machines`], driving [`crate::policy`] |
//! | how does a plan do | [`replay`]: the last candidates of a search |

pub mod agenda;
pub mod cost;
pub mod machines;
pub mod percentile;
mod replay;

pub use replay::{Replay, Report, replay};
