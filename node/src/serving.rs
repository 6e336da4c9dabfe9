//! Plan flow 6: loads the stages a plan gives this peer, and serves them.
//!
//! One task ([`host`]) owns the set of groups, another ([`loader`]) loads stages for it. A group has a task of its own: a [`leader`] where this peer has the
//! first stage, a [`member`] elsewhere; both run a [`stage`] worker, which talks to the [`compute`] thread. Where
//! a draft model is lent a leader has a [`speculator`] beside it.

mod checks;
pub mod client;
pub mod compute;
mod devices;
mod export;
mod kv_receiver;
mod leader;
mod loader;
mod member;
mod speculator;
mod stage;
pub mod worker;
