//! Machines that services share by orders that know nothing of their lengths ([`tsnode_coordinator::policy::sharing::rounds`]).

use super::{pages::Pages, sharing::Sharing};
use tsnode_coordinator::policy::{
    batching::BatchLimits,
    sharing::rounds::{AsTheyCame, Rounds},
};

/// Services in turn.
pub type RoundRobin = Sharing<Rounds>;

/// First come, first served.
pub type FirstCome = Sharing<AsTheyCame>;

impl Sharing<Rounds> {
    /// An idle machine.
    #[must_use]
    pub fn new(limits: BatchLimits, pages: Pages) -> Self {
        Self::ordered(Rounds::default(), limits, pages)
    }
}

impl Sharing<AsTheyCame> {
    /// An idle machine.
    #[must_use]
    pub fn new(limits: BatchLimits, pages: Pages) -> Self {
        Self::ordered(AsTheyCame, limits, pages)
    }
}
