//! Splitwise's pools (§IV-A): machines for prompts, machines for answers, and a mixed pool that either lends to while it
//! overflows.
//!
//! [`PoolMembership`], [`takes_prompt`] and [`has_room`] are the rules: who is where, and who takes more. The paper's simulator keeps them by
//! what one router promised (`coordinator/simulator/src/policy/pools.rs`). [`LivePools`] keeps them by what machines are seen to have,
//! over a plan's ways: it is what nodes do, where several gateways route and none hears of everything.

use super::{
    batching::Seen,
    routing::{Asked, MachineNo, Overflow, Routing, RoutingDecision},
    shares::PhasePair,
};

/// Batches of prompts that wait at a machine before its pool looks elsewhere: of the 8,192 pending tokens of the paper's simulator,
/// with batches of 2,048 tokens at most (§IV-B).
pub const MOST_BATCHES: u32 = 4;
/// Tokens of a batch of prompts where a machine does not say.
pub const BATCH: u32 = 2048;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Computes prompts; on loan, answers too.
    Prompt,
    /// Generates answers; on loan, computes prompts too.
    Answer,
    /// Both, for good.
    Mixed,
}

/// Whether a machine takes a prompt: nothing waits there, or its queue is within bounds with it.
#[must_use]
pub fn takes_prompt(waits: bool, pending: i64, prompt: u32, batch: u32) -> bool {
    !waits || pending.saturating_add(i64::from(prompt)) <= i64::from(batch) * i64::from(MOST_BATCHES)
}

/// Whether a machine that holds so much KV has room for this (tokens).
#[must_use]
pub fn has_room(held: i64, needed: i64, room: i64) -> bool {
    held.saturating_add(needed) <= room
}

/// Machines in their pools, those on loan in the mixed one.
#[derive(Clone, Debug)]
pub struct PoolMembership {
    own: Vec<Pool>,
    prompt: Vec<MachineNo>,
    answer: Vec<MachineNo>,
    mixed: Vec<MachineNo>,
}

impl PoolMembership {
    /// Each machine in its own pool.
    #[must_use]
    pub fn new(own: Vec<Pool>) -> Self {
        let of = |pool: Pool| -> Vec<MachineNo> {
            (0u32..).zip(&own).filter(|(_, own)| **own == pool).map(|(m, _)| MachineNo(m)).collect()
        };
        let (prompt, answer, mixed) = (of(Pool::Prompt), of(Pool::Answer), of(Pool::Mixed));
        Self { own, prompt, answer, mixed }
    }

    /// Those that are in this pool now, in the order in which they came.
    #[must_use]
    pub fn now_in(&self, pool: Pool) -> &[MachineNo] {
        match pool {
            Pool::Prompt => &self.prompt,
            Pool::Answer => &self.answer,
            Pool::Mixed => &self.mixed,
        }
    }

    /// A machine's own pool.
    #[must_use]
    pub fn own(&self, machine: MachineNo) -> Pool {
        self.own.get(machine.0 as usize).copied().unwrap_or(Pool::Mixed)
    }

    /// Whether its own pool has lent it.
    #[must_use]
    pub fn is_lent(&self, machine: MachineNo) -> bool {
        self.own(machine) != Pool::Mixed && self.mixed.contains(&machine)
    }

    /// Machines of a pool, those on loan included.
    #[must_use]
    pub fn size(&self, pool: Pool) -> usize {
        self.own.iter().filter(|p| **p == pool).count()
    }

    /// Machines of a pool that are on loan.
    #[must_use]
    pub fn lent(&self, pool: Pool) -> usize {
        self.mixed.iter().filter(|m| self.is_lent(**m) && self.own(**m) == pool).count()
    }

    /// Takes a machine out of its pool into the mixed one.
    pub fn lend(&mut self, machine: MachineNo) {
        self.prompt.retain(|m| *m != machine);
        self.answer.retain(|m| *m != machine);
        if !self.mixed.contains(&machine) {
            self.mixed.push(machine);
        }
    }

    /// One on loan goes back into its pool.
    pub fn give_back(&mut self, machine: MachineNo) {
        if !self.is_lent(machine) {
            return;
        }
        self.mixed.retain(|m| *m != machine);
        match self.own(machine) {
            Pool::Prompt => self.prompt.push(machine),
            Pool::Answer => self.answer.push(machine),
            Pool::Mixed => self.mixed.push(machine),
        }
    }

    /// Changes a machine's own pool, and puts it there.
    pub fn repurpose(&mut self, machine: MachineNo, to: Pool) {
        if let Some(own) = self.own.get_mut(machine.0 as usize) {
            *own = to;
            self.lend(machine);
            self.give_back(machine);
        }
    }
}

/// What others see of machines.
type MachineLookup<'a> = &'a dyn Fn(MachineNo) -> Seen;

/// The shortest of a plan's ways whose queue and memory have room; else both parts of a request on one machine, on loan from the
/// pool that has some.
#[derive(Clone, Debug)]
pub struct LivePools {
    ways: Vec<PhasePair<MachineNo>>,
    members: PoolMembership,
    /// Parts for the other pool that this router sent each machine on loan, and that are not done.
    owed: Vec<u32>,
    overflow: Option<Overflow>,
}

impl LivePools {
    /// Over these ways: who is only ever sent prompts is of the prompt pool, who only answers of the other, and who does both is
    /// mixed for good.
    #[must_use]
    pub fn new(ways: Vec<PhasePair<MachineNo>>) -> Self {
        let machines = ways.iter().map(|way| way.prefill.0.max(way.decode.0) + 1).max().unwrap_or(0);
        let own = |m: u32| {
            let (reads, writes) = (ways.iter().any(|way| way.prefill.0 == m), ways.iter().any(|way| way.decode.0 == m));
            match (reads, writes) {
                (true, false) => Pool::Prompt,
                (false, true) => Pool::Answer,
                _ => Pool::Mixed,
            }
        };
        let members = PoolMembership::new((0..machines).map(own).collect());
        Self { ways, members, owed: vec![0; machines as usize], overflow: None }
    }

    /// The shortest way of which the first machine takes the prompt and the second has room; one of machines that are not on loan
    /// first.
    fn open_way(&self, asked: Asked, seen: MachineLookup<'_>) -> Option<PhasePair<MachineNo>> {
        let lent = |m| u8::from(self.members.is_lent(m));
        let is_open = |way: &&PhasePair<MachineNo>| takes(way.prefill, asked, seen) && fits(way.decode, asked, seen);
        let key = |way: &&PhasePair<MachineNo>| {
            (lent(way.prefill) + lent(way.decode), queue(way.prefill, seen), queue(way.decode, seen))
        };
        self.ways.iter().filter(is_open).min_by_key(key).copied()
    }

    /// Of these the one with the shortest queue that can do both.
    fn for_both(among: impl Iterator<Item = MachineNo>, asked: Asked, seen: MachineLookup<'_>) -> Option<MachineNo> {
        among.filter(|m| takes(*m, asked, seen) && fits(*m, asked, seen)).min_by_key(|m| queue(*m, seen))
    }

    /// A machine for both parts of a request that one pool has no room for: one on loan, or else one that is lent for it now.
    fn overflows(&mut self, full: Overflow, asked: Asked, seen: MachineLookup<'_>) -> Option<MachineNo> {
        let from = match full {
            Overflow::Prompts => Pool::Answer,
            Overflow::Answers => Pool::Prompt,
        };
        let members = &self.members;
        let on_loan = members.now_in(Pool::Mixed).iter().copied().filter(|m| members.is_lent(*m));
        let machine = Self::for_both(on_loan, asked, seen)
            .or_else(|| Self::for_both(members.now_in(from).iter().copied(), asked, seen))?;
        self.members.lend(machine);
        if let Some(owed) = self.owed.get_mut(machine.0 as usize) {
            *owed += 1;
        }
        Some(machine)
    }

    /// Takes back those that have nothing left to do for the other pool: of this router's, or of anybody's.
    fn take_back(&mut self, seen: MachineLookup<'_>) {
        let is_drained = |m: &MachineNo| {
            let Seen { running, waiting, pending_tokens, .. } = seen(*m);
            let has_none = match self.members.own(*m) {
                Pool::Answer => pending_tokens == 0,
                Pool::Prompt => running == 0 && waiting == 0,
                Pool::Mixed => false,
            };
            self.members.is_lent(*m) && (has_none || self.owed.get(m.0 as usize).is_none_or(|owed| *owed == 0))
        };
        let drained: Vec<MachineNo> = self.members.now_in(Pool::Mixed).iter().copied().filter(is_drained).collect();
        drained.into_iter().for_each(|m| self.give_back(m));
    }

    fn give_back(&mut self, machine: MachineNo) {
        self.members.give_back(machine);
        if let Some(owed) = self.owed.get_mut(machine.0 as usize) {
            *owed = 0;
        }
    }

    /// A machine on loan from this pool has done a part for the other.
    fn done(&mut self, machine: MachineNo, from: Pool) {
        if !self.members.is_lent(machine) || self.members.own(machine) != from {
            return;
        }
        let Some(owed) = self.owed.get_mut(machine.0 as usize) else { return };
        *owed = owed.saturating_sub(1);
        if *owed == 0 {
            self.give_back(machine);
        }
    }
}

impl Routing for LivePools {
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        self.overflow = None;
        self.take_back(seen);
        if let Some(way) = self.open_way(asked, seen) {
            return Some(RoutingDecision::whole(way.prefill, way.decode));
        }
        let takes_any = self.ways.iter().any(|way| takes(way.prefill, asked, seen));
        let full = if takes_any { Overflow::Answers } else { Overflow::Prompts };
        if let Some(machine) = self.overflows(full, asked, seen) {
            self.overflow = Some(full);
            return Some(RoutingDecision::whole(machine, machine));
        }
        // Nobody has room: it waits where that is least.
        let shortest = self.ways.iter().min_by_key(|way| (queue(way.prefill, seen), queue(way.decode, seen)))?;
        Some(RoutingDecision::whole(shortest.prefill, shortest.decode))
    }

    fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }

    fn prompt_done(&mut self, machine: MachineNo, _: Asked) {
        self.done(machine, Pool::Answer);
    }

    fn answer_done(&mut self, machine: MachineNo, _: Asked) {
        self.done(machine, Pool::Prompt);
    }
}

/// Tokens to compute: of prompts, and one of each answer.
fn queue(machine: MachineNo, seen: MachineLookup<'_>) -> i64 {
    let Seen { running, waiting, pending_tokens, .. } = seen(machine);
    i64::from(pending_tokens) + i64::from(running) + i64::from(waiting)
}

/// Whether a machine takes a prompt. What is pending beyond one batch waits.
fn takes(machine: MachineNo, asked: Asked, seen: MachineLookup<'_>) -> bool {
    let Seen { pending_tokens, step, .. } = seen(machine);
    let batch = if step == 0 { BATCH } else { step };
    takes_prompt(pending_tokens > batch, i64::from(pending_tokens), asked.prompt, batch)
}

/// Whether a machine has room for what an answer begins with: its KV grows as it is written. Of a machine that does not say it is
/// taken to be so.
fn fits(machine: MachineNo, asked: Asked, seen: MachineLookup<'_>) -> bool {
    let Seen { held, room, .. } = seen(machine);
    let tokens = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    room == 0 || has_room(tokens(held), tokens(asked.prompt_memory()), tokens(room))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const P: [MachineNo; 2] = [MachineNo(0), MachineNo(1)];
    const A: [MachineNo; 2] = [MachineNo(2), MachineNo(3)];

    /// Two machines for prompts, two for answers, and a way from each to each; batches of 256 tokens, room for 4,000.
    struct Scenario {
        pools: LivePools,
        machines: BTreeMap<MachineNo, Seen>,
    }

    impl Scenario {
        fn new() -> Self {
            let way = |prefill, decode| PhasePair { prefill, decode, share: 0.25 };
            let ways = P.into_iter().flat_map(|p| A.map(|a| way(p, a))).collect();
            let idle = Seen { step: 256, room: 4000, ..Seen::default() };
            Self { pools: LivePools::new(ways), machines: P.into_iter().chain(A).map(|m| (m, idle)).collect() }
        }

        fn pending(mut self, tokens: [u32; 4]) -> Self {
            self.set(tokens);
            self
        }

        fn set(&mut self, tokens: [u32; 4]) {
            self.machines.values_mut().zip(tokens).for_each(|(seen, tokens)| seen.pending_tokens = tokens);
        }

        fn held(mut self, tokens: [u64; 4]) -> Self {
            self.machines.values_mut().zip(tokens).for_each(|(seen, tokens)| seen.held = tokens);
            self
        }

        /// Where a prompt of 300 tokens goes, and which pool was full.
        fn ask(&mut self) -> (MachineNo, MachineNo, Option<Overflow>) {
            let route = self.pools.route(asked(), &|m| self.machines[&m]).unwrap();
            (route.prompt, route.answer, self.pools.overflow())
        }
    }

    fn asked() -> Asked {
        Asked::new(300, 50)
    }

    #[test]
    fn each_part_joins_the_shortest_queue_of_its_pool() {
        let mut scenario = Scenario::new().pending([500, 100, 0, 0]);
        scenario.machines.get_mut(&A[0]).unwrap().running = 3;
        assert_eq!(scenario.ask(), (P[1], A[1], None));
        scenario.set([50, 100, 0, 0]);
        scenario.machines.get_mut(&A[1]).unwrap().running = 9;
        assert_eq!(scenario.ask(), (P[0], A[0], None));
    }

    #[test]
    fn above_four_batches_prompts_overflow_and_below_they_do_not() {
        // 1,024 tokens with this one.
        assert_eq!(Scenario::new().pending([724, 3000, 0, 0]).ask(), (P[0], A[0], None));
        let mut scenario = Scenario::new().pending([725, 3000, 90, 0]);
        assert_eq!(scenario.ask(), (A[1], A[1], Some(Overflow::Prompts)));
        // Whoever is on loan comes before others are lent.
        scenario.set([725, 3000, 0, 300]);
        assert_eq!(scenario.ask(), (A[1], A[1], Some(Overflow::Prompts)));
        assert_eq!(scenario.pools.members.lent(Pool::Answer), 1);
        // One prompt that is longer than all that may wait is taken where nothing does.
        let long = Asked::new(5000, 2);
        let mut idle = Scenario::new();
        idle.machines.values_mut().for_each(|seen| seen.room = 0);
        let route = idle.pools.route(long, &|m| idle.machines[&m]).unwrap();
        assert_eq!((route.prompt, route.answer, idle.pools.overflow()), (P[0], A[0], None));
    }

    #[test]
    fn who_is_on_loan_gets_answers_last_and_goes_back_when_its_prompts_are_done() {
        let mut scenario = Scenario::new().pending([2000, 2000, 0, 0]);
        assert_eq!(scenario.ask(), (A[0], A[0], Some(Overflow::Prompts)));
        scenario.set([0, 0, 300, 0]);
        scenario.machines.get_mut(&A[1]).unwrap().running = 400;
        assert_eq!(scenario.ask(), (P[0], A[1], None), "A1 is in its pool, though it has more to do");
        // Seen idle again, or this router's own prompt done: either ends a loan.
        let mut seen_idle = Scenario { pools: scenario.pools.clone(), machines: scenario.machines.clone() };
        seen_idle.set([0; 4]);
        assert_eq!(seen_idle.ask(), (P[0], A[0], None));
        scenario.pools.answer_done(A[0], asked());
        assert_eq!(scenario.pools.members.lent(Pool::Answer), 1, "its answers are its own work");
        scenario.pools.prompt_done(A[0], asked());
        assert_eq!(scenario.pools.members.lent(Pool::Answer), 0);
        scenario.set([0, 0, 30, 0]);
        assert_eq!(scenario.ask(), (P[0], A[0], None), "it is one of its pool again");
    }

    #[test]
    fn where_no_memory_is_left_answers_overflow_and_the_machine_returns_with_the_last() {
        let mut scenario = Scenario::new().held([0, 0, 3700, 3900]);
        assert_eq!(scenario.ask(), (P[0], P[0], Some(Overflow::Answers)), "301 tokens have no room in 300");
        scenario.machines.get_mut(&P[0]).unwrap().running = 1;
        scenario.pools.prompt_done(P[0], asked());
        assert_eq!(scenario.pools.members.lent(Pool::Prompt), 1, "prompts are its own work");
        assert_eq!(scenario.ask().0, P[0], "on loan already");
        scenario.machines.get_mut(&A[0]).unwrap().held = 3000;
        scenario.machines.get_mut(&P[1]).unwrap().pending_tokens = 100;
        assert_eq!(scenario.ask(), (P[1], A[0], None), "there is room again, and P0 is on loan still");
        scenario.pools.answer_done(P[0], asked());
        assert_eq!(scenario.pools.members.lent(Pool::Prompt), 1, "one of two");
        scenario.pools.answer_done(P[0], asked());
        assert_eq!(scenario.pools.members.lent(Pool::Prompt), 0);
    }

    #[test]
    fn where_nobody_has_room_it_waits_in_the_shortest_queue() {
        let mut scenario = Scenario::new().pending([4000, 3000, 2000, 2000]).held([4000; 4]);
        assert_eq!(scenario.ask(), (P[1], A[0], None));
        assert_eq!(scenario.pools.members.now_in(Pool::Mixed), []);
    }

    #[test]
    fn one_machine_of_each_kind_lends_and_still_answers_for_the_other() {
        let way = PhasePair { prefill: MachineNo(0), decode: MachineNo(1), share: 1.0 };
        let mut pools = LivePools::new(vec![way]);
        let queues = |prompts, answers| {
            move |m: MachineNo| Seen { step: 256, pending_tokens: [prompts, answers][m.0 as usize], ..Seen::default() }
        };
        let mut to =
            |prompts, answers| pools.route(asked(), &queues(prompts, answers)).map(|r| (r.prompt.0, r.answer.0));
        assert_eq!(to(1000, 0), Some((1, 1)));
        assert_eq!(to(100, 300), Some((0, 1)), "it is on loan, and there is no other for answers");
        assert_eq!(to(3000, 2000), Some((0, 1)), "neither takes more: as the plan has it");
    }

    /// Shares pair groups; ways beside them lead past one that is full (`planner/spare_routes.rs`).
    #[test]
    fn a_full_group_for_answers_is_passed_by_where_there_is_a_way_to_another() {
        let mut all = Scenario::new().pending([0, 3000, 0, 0]).held([0, 0, 3900, 0]);
        let pair = |prefill, decode| PhasePair { prefill, decode, share: 0.5 };
        let pools = LivePools::new(vec![pair(P[0], A[0]), pair(P[1], A[1])]);
        let mut paired = Scenario { pools, machines: all.machines.clone() };
        assert_eq!(paired.ask(), (P[0], P[0], Some(Overflow::Answers)), "A1 has room, and P1 alone leads there");
        assert_eq!(all.ask(), (P[0], A[1], None));
    }

    #[test]
    fn a_group_that_does_both_is_a_way_of_its_own_and_never_on_loan() {
        let way = |m| PhasePair { prefill: MachineNo(m), decode: MachineNo(m), share: 0.5 };
        let mut pools = LivePools::new(vec![way(0), way(1)]);
        let queues = |m: MachineNo| Seen { pending_tokens: [9000, 8500][m.0 as usize], ..Seen::default() };
        let route = pools.route(asked(), &queues).unwrap();
        assert_eq!((route.prompt.0, route.answer.0, pools.overflow()), (1, 1, None));
        assert_eq!(pools.members.lent(Pool::Mixed), 0);
        assert_eq!(LivePools::new(Vec::new()).route(asked(), &queues), None);
    }
}
