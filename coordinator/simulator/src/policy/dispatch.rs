//! How requests are routed on a plan: as nodes do it, and as it is compared with.

use tsnode_coordinator::{
    policy::{
        batching::Seen,
        choice,
        routing::{Asked, MachineNo, Route, Routing},
        shares::PhasePair,
    },
    rng::Rng,
};

/// How requests are routed on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// By the plan's shares alone.
    Shares,
    /// By the shares, corrected by live queues: what nodes do.
    Live,
    /// Any way as likely as any other.
    Random,
    /// To the prefill group with the fewest pending tokens, and from there where the fewest sequences are.
    Shortest,
}

impl Dispatch {
    /// The policy, over these ways.
    #[must_use]
    pub fn routing(self, ways: Vec<PhasePair<MachineNo>>, seed: u64) -> Box<dyn Routing> {
        match self {
            Self::Shares => choice::Dispatch::Shares.routing(ways, 0.0),
            Self::Live => choice::Dispatch::Live.routing(ways, 0.0),
            Self::Random => Box::new(Anywhere::new(ways, seed)),
            Self::Shortest => Box::new(Shortest::new(ways)),
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
    fn route(&mut self, _: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<Route> {
        let way = self.ways.get(self.rng.below(self.ways.len()))?;
        Some(Route::whole(way.prefill, way.decode))
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}

/// To the prefill group with the fewest pending prompt tokens, and from there where the fewest sequences are; shares say
/// only which ways there are.
#[derive(Clone, Debug)]
pub struct Shortest {
    ways: Vec<PhasePair<MachineNo>>,
}

impl Shortest {
    /// Over these ways.
    #[must_use]
    pub fn new(ways: Vec<PhasePair<MachineNo>>) -> Self {
        Self { ways }
    }
}

impl Routing for Shortest {
    fn route(&mut self, _: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<Route> {
        let sequences = |m: MachineNo| seen(m).running + seen(m).waiting;
        let queue = |w: &&PhasePair<MachineNo>| (seen(w.prefill).pending_tokens, sequences(w.decode));
        let way = self.ways.iter().min_by_key(queue)?;
        Some(Route::whole(way.prefill, way.decode))
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}
