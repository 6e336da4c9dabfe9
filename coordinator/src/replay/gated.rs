//! The cost gate in a replay: of prompts that their way has computed elsewhere those are computed where they are answered for which that
//! is predicted to be sooner, by what gateways ask for each request ([`crate::gate`]).

use crate::{
    gate::{Codec, GateCase, GateSide, GroupCost, KvChoice, weigh},
    policy::{
        batching::Seen,
        routing::{Asked, MachineNo, Overflow, Routing, RoutingDecision},
    },
};
use std::collections::BTreeMap;
use tsnode_protocol::{BytesPerSecond, ModelShape, Seconds};

/// What the gate knows of machines.
#[derive(Clone, Debug)]
pub struct ReplayGate {
    /// The model's sizes.
    pub shape: ModelShape,
    /// Bytes of an element of its KV.
    pub element_bytes: u64,
    /// What prompts take on each machine, alone.
    pub costs: Vec<GroupCost>,
    /// Latency and bandwidth from one to another.
    pub links: BTreeMap<(MachineNo, MachineNo), (Seconds, BytesPerSecond)>,
}

impl ReplayGate {
    /// Whether a prompt is computed where its way has it.
    fn splits(&self, asked: Asked, way: RoutingDecision, seen: &dyn Fn(MachineNo) -> Seen) -> bool {
        let link = self.links.get(&(way.prompt, way.answer));
        let costs = |machine: MachineNo| self.costs.get(machine.0 as usize).copied();
        let (Some(&(latency, bandwidth)), Some(remote), Some(local)) = (link, costs(way.prompt), costs(way.answer))
        else {
            return true;
        };
        let side = |machine: MachineNo, cost: GroupCost| {
            let Seen { pending_tokens, running, .. } = seen(machine);
            GateSide { cost, pending_tokens, running }
        };
        let case = GateCase {
            shape: self.shape,
            tokens: asked.prompt,
            remote: side(way.prompt, remote),
            remote_has: 0,
            local: side(way.answer, local),
            local_has: 0,
            answered: 0,
            latency,
            bandwidth,
            element_bytes: self.element_bytes,
            packed: Codec::default(),
            raw: Codec::default(),
            pace: None,
        };
        weigh(&case, KvChoice::Auto).splits()
    }
}

/// A policy behind which the gate stands.
#[derive(Debug)]
pub(super) struct GatedRouting {
    ways: Box<dyn Routing>,
    gate: ReplayGate,
}

impl GatedRouting {
    pub(super) fn new(ways: Box<dyn Routing>, gate: ReplayGate) -> Self {
        Self { ways, gate }
    }
}

impl Routing for GatedRouting {
    fn at(&mut self, now: Seconds) {
        self.ways.at(now);
    }

    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let way = self.ways.route(asked, seen)?;
        let stays = way.prompt == way.answer || way.split.is_some() || self.gate.splits(asked, way, seen);
        Some(if stays { way } else { RoutingDecision::whole(way.answer, way.answer) })
    }

    fn holds(&self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> bool {
        self.ways.holds(asked, seen)
    }

    fn overflow(&self) -> Option<Overflow> {
        self.ways.overflow()
    }

    fn prompt_done(&mut self, machine: MachineNo, asked: Asked) {
        self.ways.prompt_done(machine, asked);
    }

    fn answer_done(&mut self, machine: MachineNo, asked: Asked) {
        self.ways.answer_done(machine, asked);
    }

    fn freed(&mut self, machine: MachineNo, memory: u64) {
        self.ways.freed(machine, memory);
    }

    fn idle(&mut self, machine: MachineNo) {
        self.ways.idle(machine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gate::PromptCost,
        policy::shares::{PhasePair, Shares},
        sample,
    };

    const READS: MachineNo = MachineNo(0);
    const WRITES: MachineNo = MachineNo(1);

    /// Where a prompt of 500 tokens at a millisecond each is computed, by what both machines have to do.
    fn computed(at_reader: u32, answers: u32) -> MachineNo {
        let cost = PromptCost { fixed: 0.0, token: 1e-3, square: 0.0 };
        let links = BTreeMap::from([((READS, WRITES), (Seconds(1e-3), BytesPerSecond(1e9)))]);
        let gate = ReplayGate { shape: sample::card().shape, element_bytes: 2, costs: vec![cost.into(); 2], links };
        let way = PhasePair { prefill: READS, decode: WRITES, share: 1.0 };
        let mut gated = GatedRouting::new(Box::new(Shares::new(vec![way], true)), gate);
        let reader = Seen { pending_tokens: at_reader, ..Seen::default() };
        let writer = Seen { running: answers, ..Seen::default() };
        let seen = |machine: MachineNo| if machine == READS { reader } else { writer };
        let decision = gated.route(Asked::new(500, 9), &seen).unwrap();
        assert_eq!((decision.answer, decision.split), (WRITES, None));
        decision.prompt
    }

    #[test]
    fn prompts_are_computed_where_that_is_sooner() {
        assert_eq!(computed(0, 0), WRITES, "nothing is held up there, and no KV has to come");
        assert_eq!(computed(0, 4), READS, "four answers would wait");
        assert_eq!(computed(5000, 4), WRITES, "so would this prompt, and for longer");
    }
}
