//! Splitwise's pools (§IV-A) as the paper's simulator runs them: one router for all requests, which keeps account of what it promised.
//! Who takes more, who is lent and who returns are the rules that nodes follow too ([`tsnode_coordinator::policy::pools`]).

use super::shortest_queue::PendingTokens;
use tsnode_coordinator::policy::{
    batching::Seen,
    pools::{BATCH, Pool, PoolMembership, has_room, takes_prompt},
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};

/// The pools and what was promised to their machines.
#[derive(Clone, Debug)]
pub struct Pools {
    members: PoolMembership,
    pending: PendingTokens,
    /// KV promised (tokens).
    reserved: Vec<i64>,
    capacity: Vec<i64>,
}

impl Pools {
    /// The first machines for prompts, the others for answers; `capacity` says how many tokens of KV each has room for.
    #[must_use]
    pub fn new(prompts: usize, capacity: &[u64]) -> Self {
        let own = (0..capacity.len()).map(|m| if m < prompts { Pool::Prompt } else { Pool::Answer });
        Self {
            members: PoolMembership::new(own.collect()),
            pending: PendingTokens::new(capacity.len()),
            reserved: vec![0; capacity.len()],
            capacity: capacity.iter().map(|c| *c as i64).collect(),
        }
    }

    fn now_in(&self, pool: Pool) -> impl Iterator<Item = MachineNo> + '_ {
        self.members.now_in(pool).iter().copied()
    }

    fn for_prompt(&self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<MachineNo> {
        let takes = |m: &MachineNo| takes_prompt(seen(*m).waiting > 0, self.pending.of(*m), asked.prompt, BATCH);
        let best = |pool| self.pending.least(self.now_in(pool)).filter(takes);
        best(Pool::Prompt).or_else(|| best(Pool::Mixed))
    }

    fn for_answer(&self, asked: Asked) -> Option<MachineNo> {
        let need = (asked.prompt_memory() + asked.answer_memory()) as i64;
        // The paper's simulator wants less than the room, which there is no whole number of tokens: here it is the tokens
        // that fit, and all of them may be promised.
        let fits = |m: &MachineNo| has_room(self.reserved_at(*m), need, self.capacity[m.0 as usize]);
        let best = |pool| self.now_in(pool).min_by_key(|m| self.reserved_at(*m)).filter(fits);
        best(Pool::Answer).or_else(|| best(Pool::Mixed))
    }

    fn reserved_at(&self, machine: MachineNo) -> i64 {
        self.reserved[machine.0 as usize]
    }

    /// Takes a machine out of its pool into the mixed one.
    fn lend(&mut self, machine: Option<MachineNo>) -> Option<MachineNo> {
        machine.inspect(|machine| self.members.lend(*machine))
    }

    /// Machines of a pool, those on loan included.
    pub(super) fn size(&self, pool: Pool) -> usize {
        self.members.size(pool)
    }

    /// Machines of a pool that are on loan.
    pub(super) fn lent(&self, pool: Pool) -> usize {
        self.members.lent(pool)
    }

    /// A machine of a pool changes sides at once: one on loan, or else the one with the least to do. The last one stays.
    pub(super) fn repurpose(&mut self, from: Pool) {
        let lent = self.now_in(Pool::Mixed).find(|m| self.members.own(*m) == from);
        let Some(machine) = lent.or_else(|| self.pending.least(self.now_in(from))) else { return };
        if self.size(from) < 2 {
            return;
        }
        let to = if from == Pool::Prompt { Pool::Answer } else { Pool::Prompt };
        self.members.repurpose(machine, to);
    }

    fn everywhere(&self) -> impl Iterator<Item = MachineNo> + '_ {
        [Pool::Prompt, Pool::Mixed, Pool::Answer].into_iter().flat_map(move |pool| self.now_in(pool))
    }
}

impl Routing for Pools {
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let (mut prompt, mut answer) = (self.for_prompt(asked, seen), self.for_answer(asked));
        if prompt.is_none() {
            prompt = self.lend(self.pending.least(self.now_in(Pool::Answer)));
        }
        if answer.is_none() {
            answer = self.lend(self.now_in(Pool::Prompt).min_by_key(|m| self.reserved_at(*m)));
        }
        let route = match (prompt, answer) {
            (Some(prompt), Some(answer)) => RoutingDecision::whole(prompt, answer),
            _ => {
                let least = self.pending.least(self.everywhere())?;
                RoutingDecision::whole(least, least)
            }
        };
        let (first, rest) = (asked.prompt_memory() as i64, asked.answer_memory() as i64);
        if route.prompt != route.answer {
            self.reserved[route.prompt.0 as usize] += first;
        }
        self.reserved[route.answer.0 as usize] += first + rest;
        self.pending.add(route.prompt, i64::from(asked.prompt));
        self.pending.add(route.answer, 1);
        Some(route)
    }

    fn prompt_done(&mut self, machine: MachineNo, asked: Asked) {
        self.pending.add(machine, -i64::from(asked.prompt));
    }

    fn answer_done(&mut self, machine: MachineNo, _: Asked) {
        self.pending.add(machine, -1);
    }

    fn freed(&mut self, machine: MachineNo, memory: u64) {
        self.reserved[machine.0 as usize] -= memory as i64;
    }

    fn idle(&mut self, machine: MachineNo) {
        self.members.give_back(machine);
    }
}
