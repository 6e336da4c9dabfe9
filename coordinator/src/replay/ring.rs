//! A pipeline as a ring: a batch may enter when the first stage is free, and moves on when its stage is done (DistServe's
//! simulator). How many may be on their way at once is the policy's to say.
//!
//! Batches do not overtake each other, so that when one leaves a stage is known when it enters the first: once it has
//! come from the stage before, and the batch before it has left.

use super::iteration_cost::IterationCost;
use crate::policy::batching::Batch;
use std::collections::VecDeque;
use tsnode_protocol::Seconds;

/// The stages of a machine and what is on its way through them.
#[derive(Debug)]
pub(super) struct ReplayRing {
    /// When each stage has done all that has entered, and when the last of it leaves.
    free: Vec<Seconds>,
    last: Seconds,
    under_way: VecDeque<Passing>,
}

/// A batch on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Passing {
    pub batch: Batch,
    pub entered: Seconds,
    /// How long it keeps a stage, on average.
    pub busy: Seconds,
}

/// When a batch leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Passage {
    /// The first stage: the next may enter.
    pub first: Seconds,
    /// The last: it is done.
    pub last: Seconds,
}

impl ReplayRing {
    /// Of a machine of so many stages and as many batches at most, unless it takes one at a time.
    pub(super) fn of(stages: usize, most: usize) -> Option<Self> {
        (stages > 1 && most > 1).then(|| Self::new(stages))
    }

    fn new(stages: usize) -> Self {
        Self { free: vec![Seconds(0.0); stages], last: Seconds(0.0), under_way: VecDeque::new() }
    }

    /// Whether a batch may enter, if so many may be on their way.
    pub(super) fn takes(&self, now: Seconds, most: usize) -> bool {
        self.under_way.len() < most && self.free[0] <= now
    }

    /// Batches on their way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// A batch enters.
    pub(super) fn enter(&mut self, cost: &dyn IterationCost, batch: &Batch, now: Seconds) -> Passage {
        let (mut at, mut busy) = (now, Seconds(0.0));
        for (place, free) in self.free.iter_mut().enumerate() {
            let time = cost.stage(place, batch);
            *free = at.max(*free) + time;
            at = *free + cost.kv_transfer(place, batch);
            busy += time;
        }
        self.under_way.push_back(Passing { batch: *batch, entered: now, busy: busy / self.free.len() as f64 });
        // Prompts are not handed back to the first stage: still they do not overtake what is.
        self.last = self.last.max(at);
        Passage { first: self.free[0], last: self.last }
    }

    /// The oldest batch is done.
    pub(super) fn leave(&mut self) -> Option<Passing> {
        self.under_way.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second of three stages takes twice as long for odd numbers of prompts.
    #[derive(Debug)]
    struct UnevenRing;

    impl IterationCost for UnevenRing {
        fn iteration(&self, _: &Batch) -> Seconds {
            Seconds(f64::NAN)
        }
        fn stages(&self) -> usize {
            3
        }
        fn stage(&self, place: usize, batch: &Batch) -> Seconds {
            Seconds(if place == 1 && batch.prompts % 2 == 1 { 2.0 } else { 1.0 })
        }
        fn kv_transfer(&self, place: usize, _: &Batch) -> Seconds {
            Seconds(if place == 2 { 0.5 } else { 0.0 })
        }
    }

    #[test]
    fn a_batch_waits_for_the_one_before_it_at_every_stage() {
        let mut ring = ReplayRing::new(3);
        let odd = Batch { prompts: 1, ..Batch::default() };
        let even = Batch { prompts: 2, ..Batch::default() };
        // Stages are left at 1, 3, 4; at 2, 5, 6: the second waited from 2 to 3; at 3, 6, 7: the third from 3 to 5.
        let mut enter = |batch: &Batch, at: f64| {
            assert!(ring.takes(Seconds(at), 3));
            ring.enter(&UnevenRing, batch, Seconds(at))
        };
        assert_eq!(enter(&odd, 0.0), Passage { first: Seconds(1.0), last: Seconds(4.5) });
        assert_eq!(enter(&odd, 1.0), Passage { first: Seconds(2.0), last: Seconds(6.5) });
        assert_eq!(enter(&even, 2.0), Passage { first: Seconds(3.0), last: Seconds(7.5) });
        assert!(!ring.takes(Seconds(3.0), 3), "as many as may be on their way");
        assert_eq!(ring.leave().unwrap().busy, Seconds(4.0 / 3.0));
        assert!(ring.takes(Seconds(4.5), 3));
    }
}
