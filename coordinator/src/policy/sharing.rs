//! Several models on one device: orders of their requests, an arbiter that says by them whose step is computed next (SeaLLM §4.2),
//! and quotas of the KV pages that they share (§4.4).

pub mod arbiter;
pub mod budgets;
pub mod device_use;
pub mod measured;
pub mod order;
pub mod quotas;
pub mod rounds;
pub mod turn_queue;

use arbiter::{Arbiter, Arbitration};
use measured::MeasuredBudgets;
use order::Lead;
use rounds::{AsTheyCame, Rounds};

/// By which order models on one device take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnOrder {
    /// By doubling budgets, of what their requests are measured to take.
    #[default]
    Doubling,
    /// One model after the other.
    RoundRobin,
    /// As their requests came.
    FirstCome,
}

impl TurnOrder {
    /// All of them, by name.
    pub const ALL: [(&str, Self); 3] =
        [("doubling", Self::Doubling), ("round-robin", Self::RoundRobin), ("first-come", Self::FirstCome)];

    /// The arbiter of an idle device.
    #[must_use]
    pub fn arbiter<R: Copy + Ord + std::fmt::Debug + Send + 'static>(self) -> Box<dyn Arbitration<R>> {
        match self {
            Self::Doubling => Box::new(Arbiter::new(MeasuredBudgets::default(), Lead::Together)),
            Self::RoundRobin => Box::new(Arbiter::new(Rounds::default(), Lead::First)),
            Self::FirstCome => Box::new(Arbiter::new(AsTheyCame, Lead::First)),
        }
    }
}
