//! How requests are routed on a plan: as nodes do it, and as it is compared with.

use tsnode_coordinator::{
    policy::{
        batching::Seen,
        choice,
        routing::{Asked, MachineNo, Routing, RoutingDecision},
        shares::PhasePair,
    },
    rng::Rng,
};

/// How requests are routed on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedDispatch {
    /// By the plan's shares alone.
    Shares,
    /// By the shares, corrected by live queues: what nodes do.
    Live,
    /// Any way as likely as any other.
    Random,
    /// To the prefill group with the fewest pending tokens, and from there where the fewest sequences are.
    Shortest,
    /// To the shortest queues of two pools that lend each other groups.
    Pools,
}

impl ComparedDispatch {
    /// The policy, over these ways.
    #[must_use]
    pub fn routing(self, ways: Vec<PhasePair<MachineNo>>, seed: u64) -> Box<dyn Routing> {
        match self {
            Self::Shares => choice::Dispatch::Shares.routing(ways, 0.0),
            Self::Live => choice::Dispatch::Live.routing(ways, 0.0),
            Self::Random => Box::new(Anywhere::new(ways, seed)),
            Self::Shortest => choice::Dispatch::Shortest.routing(ways, 0.0),
            Self::Pools => choice::Dispatch::Pools.routing(ways, 0.0),
        }
    }
}

/// Any way as likely as any other: the baseline.
#[derive(Clone, Debug)]
pub struct Anywhere {
    ways: Vec<PhasePair<MachineNo>>,
    rng: Rng,
}

impl Anywhere {
    /// Over these ways.
    #[must_use]
    pub fn new(ways: Vec<PhasePair<MachineNo>>, seed: u64) -> Self {
        Self { ways, rng: Rng::new(seed) }
    }
}

impl Routing for Anywhere {
    fn route(&mut self, _: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let way = self.ways.get(self.rng.below(self.ways.len()))?;
        Some(RoutingDecision::whole(way.prefill, way.decode))
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}
