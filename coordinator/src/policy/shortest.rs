//! Join the shortest queue, counted in pending tokens (Splitwise §IV-A's cluster-level scheduling), over a plan's ways.

use super::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
    shares::PhasePair,
};

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
    fn route(&mut self, _: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let sequences = |m: MachineNo| seen(m).running.saturating_add(seen(m).waiting);
        let queue = |w: &&PhasePair<MachineNo>| (seen(w.prefill).pending_tokens, sequences(w.decode));
        let way = self.ways.iter().min_by_key(queue)?;
        Some(RoutingDecision::whole(way.prefill, way.decode))
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}
