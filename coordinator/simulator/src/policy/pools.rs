//! Splitwise's pools (§IV-A): machines for prompts, machines for answers, and a mixed pool that either lends to when it
//! overflows and that they return from when they have nothing left to do.

use super::shortest_queue::Pending;
use tsnode_coordinator::policy::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};

/// Pending tokens above which a prompt machine that has a queue takes no more.
const MOST_PENDING: i64 = 8192;

/// A machine's own pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    Prompt,
    Answer,
}

/// The pools and what was promised to their machines.
#[derive(Clone, Debug)]
pub struct Pools {
    own: Vec<Pool>,
    prompt: Vec<MachineNo>,
    answer: Vec<MachineNo>,
    mixed: Vec<MachineNo>,
    pending: Pending,
    /// KV promised (tokens).
    reserved: Vec<i64>,
    capacity: Vec<i64>,
}

impl Pools {
    /// The first machines for prompts, the others for answers; `capacity` says how many tokens of KV each has room for.
    #[must_use]
    pub fn new(prompts: usize, capacity: &[u64]) -> Self {
        let all = (0..capacity.len()).map(|m| MachineNo(m as u32));
        let own = (0..capacity.len()).map(|m| if m < prompts { Pool::Prompt } else { Pool::Answer });
        Self {
            own: own.collect(),
            prompt: all.clone().take(prompts).collect(),
            answer: all.skip(prompts).collect(),
            mixed: Vec::new(),
            pending: Pending::new(capacity.len()),
            reserved: vec![0; capacity.len()],
            capacity: capacity.iter().map(|c| *c as i64).collect(),
        }
    }

    fn for_prompt(&self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<MachineNo> {
        let takes =
            |m: &MachineNo| seen(*m).waiting == 0 || self.pending.of(*m) + i64::from(asked.prompt) <= MOST_PENDING;
        let best = |pool: &[MachineNo]| self.pending.least(pool.iter().copied()).filter(takes);
        best(&self.prompt).or_else(|| best(&self.mixed))
    }

    fn for_answer(&self, asked: Asked) -> Option<MachineNo> {
        let need = (asked.prompt_memory() + asked.answer_memory()) as i64;
        // The paper's simulator wants less than the room, which there is no whole number of tokens: here it is the tokens
        // that fit, and all of them may be promised.
        let fits = |m: &MachineNo| self.reserved_at(*m) + need <= self.capacity[m.0 as usize];
        let best = |pool: &[MachineNo]| pool.iter().copied().min_by_key(|m| self.reserved_at(*m)).filter(fits);
        best(&self.answer).or_else(|| best(&self.mixed))
    }

    fn reserved_at(&self, machine: MachineNo) -> i64 {
        self.reserved[machine.0 as usize]
    }

    /// Takes a machine out of its pool into the mixed one.
    fn lend(&mut self, machine: Option<MachineNo>) -> Option<MachineNo> {
        let machine = machine?;
        self.prompt.retain(|m| *m != machine);
        self.answer.retain(|m| *m != machine);
        self.mixed.push(machine);
        Some(machine)
    }

    /// Machines of a pool, those on loan included.
    pub(super) fn size(&self, pool: Pool) -> usize {
        self.own.iter().filter(|p| **p == pool).count()
    }

    /// Machines of a pool that are on loan.
    pub(super) fn lent(&self, pool: Pool) -> usize {
        self.mixed.iter().filter(|m| self.own[m.0 as usize] == pool).count()
    }

    /// A machine of a pool changes sides at once: one on loan, or else the one with the least to do. The last one stays.
    pub(super) fn repurpose(&mut self, from: Pool) {
        let lent = self.mixed.iter().copied().find(|m| self.own[m.0 as usize] == from);
        let pool = if from == Pool::Prompt { &self.prompt } else { &self.answer };
        let Some(machine) = lent.or_else(|| self.pending.least(pool.iter().copied())) else { return };
        if self.size(from) < 2 {
            return;
        }
        let to = if from == Pool::Prompt { Pool::Answer } else { Pool::Prompt };
        self.own[machine.0 as usize] = to;
        if lent.is_none() {
            self.lend(Some(machine));
        }
        self.idle(machine);
    }

    fn everywhere(&self) -> impl Iterator<Item = MachineNo> + '_ {
        self.prompt.iter().chain(&self.mixed).chain(&self.answer).copied()
    }
}

impl Routing for Pools {
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let (mut prompt, mut answer) = (self.for_prompt(asked, seen), self.for_answer(asked));
        if prompt.is_none() {
            prompt = self.lend(self.pending.least(self.answer.iter().copied()));
        }
        if answer.is_none() {
            answer = self.lend(self.prompt.iter().copied().min_by_key(|m| self.reserved_at(*m)));
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
        let lent = self.mixed.iter().position(|m| *m == machine);
        let Some(place) = lent else { return };
        self.mixed.remove(place);
        match self.own[machine.0 as usize] {
            Pool::Prompt => self.prompt.push(machine),
            Pool::Answer => self.answer.push(machine),
        }
    }
}
