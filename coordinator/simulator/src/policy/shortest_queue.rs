//! Joins the shortest queue: Splitwise's baseline.

use tsnode_coordinator::policy::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};

/// Tokens that each machine has still to compute, of what was sent there.
#[derive(Clone, Debug)]
pub(super) struct PendingTokens(Vec<i64>);

impl PendingTokens {
    pub(super) fn new(machines: usize) -> Self {
        Self(vec![0; machines])
    }

    pub(super) fn of(&self, machine: MachineNo) -> i64 {
        self.0[machine.0 as usize]
    }

    pub(super) fn add(&mut self, machine: MachineNo, tokens: i64) {
        self.0[machine.0 as usize] += tokens;
    }

    /// The machine with the least, the first of equals.
    pub(super) fn least(&self, among: impl Iterator<Item = MachineNo>) -> Option<MachineNo> {
        among.min_by_key(|m| self.of(*m))
    }
}

/// Joins the shortest queue, counted in tokens; both parts on one machine (Splitwise's baseline).
#[derive(Clone, Debug)]
pub struct ShortestQueue {
    machines: u32,
    pending: PendingTokens,
}

impl ShortestQueue {
    /// For so many machines.
    #[must_use]
    pub fn new(machines: usize) -> Self {
        Self { machines: machines as u32, pending: PendingTokens::new(machines) }
    }
}

impl Routing for ShortestQueue {
    fn route(&mut self, asked: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let least = self.pending.least((0..self.machines).map(MachineNo))?;
        self.pending.add(least, i64::from(asked.prompt) + 1);
        Some(RoutingDecision::whole(least, least))
    }

    fn prompt_done(&mut self, machine: MachineNo, asked: Asked) {
        self.pending.add(machine, -i64::from(asked.prompt));
    }

    fn answer_done(&mut self, machine: MachineNo, _: Asked) {
        self.pending.add(machine, -1);
    }
}
