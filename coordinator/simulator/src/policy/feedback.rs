//! Queues with feedback that requests join by their prompts: skip-join MLFQ (FastServe, Wu et al. 2023, §4.1), which SeaLLM
//! compares itself with. The first queue is served first; who has been executed for its queue's quantum goes on in the next,
//! where the quantum is twice as long. A request joins the first queue whose quantum its prompt does not exceed: it would
//! only fall through those before.

use super::{
    pages::Pages,
    sharing::{
        Sharing,
        order::{Order, OrderRank},
    },
};
use tsnode_coordinator::policy::batching::{BatchLimits, ServiceNo};
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// Queues, and what decides which one a request joins.
#[derive(Clone, Debug, PartialEq)]
pub struct Queues {
    /// The first queue's quantum: about an iteration.
    pub quantum: Seconds,
    /// How many there are; in the last, requests stay.
    pub levels: u32,
    /// What a prompt takes, by service.
    pub prompt: Vec<SecondsPerToken>,
    /// Busy time of the machine after which a request goes first; infinite if never.
    pub patience: Seconds,
}

/// A request's queue, counted from 0, and what is left of its quantum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueLevel {
    level: u32,
    left: Seconds,
}

/// The policy; in a queue, requests are served as they came.
pub type Feedback = Sharing<Queues>;

impl Sharing<Queues> {
    /// An idle machine.
    #[must_use]
    pub fn new(queues: Queues, limits: BatchLimits, pages: Pages) -> Self {
        Self::ordered(queues, limits, pages)
    }
}

impl Queues {
    fn quantum(&self, level: u32) -> Seconds {
        self.quantum * f64::from(level).exp2()
    }

    fn last(&self) -> u32 {
        self.levels.saturating_sub(1)
    }
}

impl Order for Queues {
    type Standing = QueueLevel;

    fn enters(&self, service: ServiceNo, prompt: u32) -> QueueLevel {
        let per_token = self.prompt.get(usize::from(service.0)).copied().unwrap_or_default();
        let takes = per_token * Tokens(f64::from(prompt));
        let level = (0..self.last()).find(|l| takes <= self.quantum(*l)).unwrap_or(self.last());
        QueueLevel { level, left: self.quantum(level) }
    }

    fn rank(&self, _: ServiceNo, standing: &QueueLevel) -> OrderRank {
        OrderRank(f64::from(standing.level))
    }

    fn executed(&self, _: ServiceNo, standing: &mut QueueLevel, time: Seconds) {
        standing.left -= time;
        while standing.left <= Seconds(0.0) && standing.level < self.last() {
            standing.level += 1;
            standing.left += self.quantum(standing.level);
        }
    }

    fn patience(&self, _: ServiceNo) -> Seconds {
        self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_join_by_prompt_and_fall_when_their_quantum_is_used_up() {
        let queues = Queues {
            quantum: Seconds(1.0),
            levels: 4,
            prompt: vec![SecondsPerToken(1.0 / 128.0)],
            patience: Seconds(f64::INFINITY),
        };
        let service = ServiceNo(0);
        let joins = |prompt| queues.enters(service, prompt).level;
        assert_eq!([1, 128, 129, 512, 513, 100_000].map(joins), [0, 0, 1, 2, 3, 3]);
        let mut standing = queues.enters(service, 192);
        let mut after = |time| {
            queues.executed(service, &mut standing, Seconds(time));
            queues.rank(service, &standing)
        };
        assert_eq!([1.5, 0.25, 0.25, 3.75, 0.25, 1e9].map(&mut after), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0].map(OrderRank));
    }
}
