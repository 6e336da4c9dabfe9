//! A peer's device with several models on it, by that peer's plan and measured profiles: what a live one is held against.

use crate::{
    cost::{Several, alone},
    live_plan::Resident,
    policy::{shortest_queue::ShortestQueue, turns::Turns},
};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{routing::Asked, sharing::TurnOrder},
    replay::machines::{Alike, Arrival, Machine, Outcome, Simulation},
};
use tsnode_protocol::{Seconds, SecondsPerToken};

/// A device and the models that take turns on it.
#[derive(Debug)]
pub struct SharedPeer {
    residents: Vec<Resident>,
    cost: Arc<Several>,
}

impl SharedPeer {
    /// Models in the order of their numbers; `None` of none.
    #[must_use]
    pub fn new(residents: Vec<Resident>) -> Option<Self> {
        let cost = Several::new(residents.iter().map(|resident| resident.cost.clone()).collect())?;
        Some(Self { residents, cost: Arc::new(cost) })
    }

    /// What a request takes with nobody else there.
    #[must_use]
    pub fn alone(&self, asked: Asked) -> Seconds {
        alone(&*self.cost, asked)
    }

    /// Runs requests to their ends, steps of the models in this order: by the arbiter and the policies that peers have.
    #[must_use]
    pub fn run(&self, order: TurnOrder, arrivals: &[Arrival]) -> Outcome {
        let models = self.residents.iter().map(|resident| resident.batches.batching(resident.room)).collect();
        let machine = Machine { batching: Box::new(Turns::new(order.arbiter(), models)), cost: self.cost.clone() };
        let links = Alike { per_token: SecondsPerToken(0.0) };
        Simulation::new(vec![machine], Box::new(ShortestQueue::new(1)), Box::new(links)).run(arrivals, &|_| false)
    }
}
