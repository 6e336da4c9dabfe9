//! Coarse repurposing of pools (Splitwise §IV-A): where one pool keeps lending machines to the other, load is not what the
//! pools were cut for, and a machine changes sides for good.
//!
//! The paper says that machines move "if the load distribution deviates considerably" and not when. Here: looked at once a
//! window, where machines of one pool were on loan for half a machine's time and more, and for twice as long as those of
//! the other, one in [`PART`] of what was on loan on average changes sides, at least one. No pool gives its last machine.

use super::pools::Pools;
use tsnode_coordinator::policy::{
    batching::Seen,
    pools::Pool,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};
use tsnode_protocol::Seconds;

/// Machines on loan, on average, below which nothing changes.
const LENT: f64 = 0.5;
/// Of two pools that lend to each other, how much more the one must lend.
const MORE: f64 = 2.0;
/// Of the machines on loan so many at once: loads also swing.
const PART: f64 = 2.0;

/// Pools whose machines change sides.
#[derive(Clone, Debug)]
pub struct Repurposing {
    pools: Pools,
    window: Seconds,
    /// Since when, and up to when time is counted.
    since: Seconds,
    now: Seconds,
    /// Machine-seconds that the prompt pool and the answer pool lent in this window.
    lent: [f64; 2],
}

impl Repurposing {
    /// These pools, looked at once in such a window.
    #[must_use]
    pub fn new(pools: Pools, window: Seconds) -> Self {
        Self { pools, window, since: Seconds(0.0), now: Seconds(0.0), lent: [0.0; 2] }
    }

    /// Machines of the prompt pool, those on loan included.
    #[must_use]
    pub fn prompts(&self) -> usize {
        self.pools.size(Pool::Prompt)
    }

    fn look(&mut self) {
        let time = (self.now - self.since).0;
        let [prompt, answer] = self.lent.map(|lent| lent / time);
        (self.since, self.lent) = (self.now, [0.0; 2]);
        let (most, least, gives) =
            if prompt > answer { (prompt, answer, Pool::Prompt) } else { (answer, prompt, Pool::Answer) };
        if most < LENT || most < MORE * least {
            return;
        }
        for _ in 0..((most / PART).round() as usize).max(1) {
            self.pools.repurpose(gives);
        }
    }
}

impl Routing for Repurposing {
    fn at(&mut self, now: Seconds) {
        let passed = (now - self.now).0.max(0.0);
        for (lent, pool) in self.lent.iter_mut().zip([Pool::Prompt, Pool::Answer]) {
            *lent += passed * self.pools.lent(pool) as f64;
        }
        self.now = self.now.max(now);
        if self.now - self.since >= self.window {
            self.look();
        }
    }

    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        self.pools.route(asked, seen)
    }

    fn prompt_done(&mut self, machine: MachineNo, asked: Asked) {
        self.pools.prompt_done(machine, asked);
    }

    fn answer_done(&mut self, machine: MachineNo, asked: Asked) {
        self.pools.answer_done(machine, asked);
    }

    fn freed(&mut self, machine: MachineNo, memory: u64) {
        self.pools.freed(machine, memory);
    }

    fn idle(&mut self, machine: MachineNo) {
        self.pools.idle(machine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts that queue: the answer pool lends a machine for each.
    fn overload(pools: &mut Repurposing, prompts: usize) {
        for _ in 0..prompts {
            pools.route(Asked::new(9000, 2), &|_| Seen { waiting: 1, ..Seen::default() });
        }
    }

    #[test]
    fn a_pool_that_keeps_lending_gives() {
        let mut pools = Repurposing::new(Pools::new(2, &[1_000_000; 8]), Seconds(60.0));
        overload(&mut pools, 4);
        pools.at(Seconds(59.0));
        assert_eq!(pools.prompts(), 2, "a window is not over");
        pools.at(Seconds(60.0));
        assert_eq!(pools.prompts(), 4, "half of the four on loan");
        pools.at(Seconds(120.0));
        assert_eq!(pools.prompts(), 5, "half of the two that are on loan still");
    }

    #[test]
    fn a_loan_now_and_then_changes_nothing_and_the_last_machine_stays() {
        let mut pools = Repurposing::new(Pools::new(2, &[1_000_000; 3]), Seconds(60.0));
        pools.at(Seconds(50.0));
        overload(&mut pools, 1);
        pools.at(Seconds(60.0));
        assert_eq!(pools.prompts(), 2, "a sixth of a machine's time");
        pools.at(Seconds(600.0));
        assert_eq!(pools.prompts(), 2, "it is the last");
    }
}
