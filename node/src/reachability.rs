//! Why a peer is not found, not reached, or reached only over another: what is observed, and what follows from it.
//!
//! [`probe`] observes; [`conclude`] knows nothing but observations, and says causes with evidence and remedy, the most fundamental
//! first: what follows from one is not a second one.

pub mod conclude;
pub mod finding;
pub mod observation;
pub mod probe;
pub(crate) mod watch;

pub use conclude::conclude;
pub use finding::{Cause, Finding, Severity};
pub use observation::Observations;
