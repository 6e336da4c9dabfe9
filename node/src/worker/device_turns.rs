//! Turns on a device that computes several models: each has a thread with an engine of its own, and they compute one after the
//! other. Whose turn it is, and whether the device is kept for its last user for a moment, a queue says by an arbiter, the same that
//! the simulator drives ([`tsnode_coordinator::policy::sharing`]); here it meets threads and the clock. A turn is over with its job,
//! and waits for nothing beyond this device, so that no ring waits for another for ever.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tsnode_coordinator::{
    policy::{
        batching::ServiceNo,
        sharing::{
            TurnOrder,
            arbiter::DeviceWork,
            device_use::ServiceUse,
            turn_queue::{Next, TurnQueue},
        },
    },
    time::Time,
};
use tsnode_protocol::{RequestId, Seconds};

/// Shared by the threads of a device.
#[derive(Clone)]
pub struct Turns(Arc<Shared>);

struct Shared {
    table: Mutex<TurnTable>,
    /// It may be somebody else's turn, or nobody's any more.
    changed: Condvar,
    began: Instant,
}

struct TurnTable {
    queue: TurnQueue<RequestId>,
    /// For whoever comes next.
    next: u16,
}

/// A thread's place at a device.
#[derive(Clone)]
pub(super) struct TurnSeat {
    turns: Turns,
    service: ServiceNo,
}

/// A turn; over when it is dropped.
pub(super) struct Turn<'s> {
    seat: &'s TurnSeat,
    since: Instant,
}

impl Turns {
    /// A device whose models take turns in this order.
    #[must_use]
    pub fn new(order: TurnOrder) -> Self {
        Self::of(TurnQueue::new(order.arbiter()))
    }

    fn of(queue: TurnQueue<RequestId>) -> Self {
        let table = Mutex::new(TurnTable { queue, next: 0 });
        Self(Arc::new(Shared { table, changed: Condvar::new(), began: Instant::now() }))
    }

    /// A place for one more model.
    pub(super) fn join(&self) -> TurnSeat {
        let mut table = self.table();
        let service = ServiceNo(table.next);
        table.next = table.next.saturating_add(1);
        drop(table);
        TurnSeat { turns: self.clone(), service }
    }

    fn table(&self) -> MutexGuard<'_, TurnTable> {
        // The table is whole whenever the lock is free.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        self.0.began.elapsed()
    }
}

impl TurnSeat {
    /// A request comes that has so many prompt tokens to compute.
    pub fn enters(&self, request: RequestId, prompt: u32) {
        self.turns.table().queue.enters(self.service, request, prompt);
    }

    /// A request is gone.
    pub fn leaves(&self, request: RequestId) {
        let mut table = self.turns.table();
        table.queue.leaves(self.service, request);
        let is_free = table.queue.is_free();
        drop(table);
        if is_free {
            // Others may wait for a step of it.
            self.turns.0.changed.notify_all();
        }
    }

    /// What its model has had of the device.
    pub fn used(&self) -> ServiceUse {
        self.turns.table().queue.used(self.service)
    }

    /// Waits for a turn.
    pub fn take(&self, work: DeviceWork<RequestId>) -> Turn<'_> {
        let changed = &self.turns.0.changed;
        let mut table = self.turns.table();
        table.queue.asks(self.turns.now(), self.service, work);
        loop {
            let (now, was_free) = (self.turns.now(), table.queue.is_free());
            let next = table.queue.next(now);
            table = match next {
                Next::Turn(service) if service == self.service => return Turn { seat: self, since: Instant::now() },
                Next::Kept(until) => {
                    let left = until.saturating_sub(now);
                    changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Turn(_) | Next::Nobody => {
                    if was_free {
                        // Whose turn it is since now sleeps.
                        changed.notify_all();
                    }
                    changed.wait(table).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (took, turns) = (self.since.elapsed(), &self.seat.turns);
        let mut table = turns.table();
        let now = turns.now();
        table.queue.over(now, Seconds(took.as_secs_f64()));
        // Given before the others wake, so that only one of them goes on.
        table.queue.next(now);
        drop(table);
        turns.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};
    use tsnode_coordinator::policy::sharing::{
        arbiter::{Arbiter, StepShare},
        order::Lead,
        rounds::AsTheyCame,
    };

    /// Three threads that have so much work, all there before the first turn is over, and their requests, the earliest first: who
    /// has had which turn.
    fn turns_of(turns: &Turns, each: usize) -> Vec<usize> {
        let had = Arc::new(Mutex::new(Vec::new()));
        let beside = turns.join();
        let first = beside.take(DeviceWork::Errand);
        let work = |who: usize| {
            let (seat, had, request) = (turns.join(), had.clone(), RequestId([who as u8; 16]));
            seat.enters(request, 0);
            thread::spawn(move || {
                for _ in 0..each {
                    let turn = seat.take(DeviceWork::Step(vec![StepShare { request, prompt_tokens: 0 }]));
                    had.lock().unwrap().push(who);
                    // The others ask again meanwhile.
                    thread::sleep(Duration::from_micros(200));
                    drop(turn);
                }
                seat.leaves(request);
            })
        };
        let threads = [0, 1, 2].map(work);
        while turns.table().queue.waiting() < 3 {
            thread::yield_now();
        }
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        Arc::into_inner(had).unwrap().into_inner().unwrap()
    }

    #[test]
    fn each_turn_is_ones_alone_and_none_is_lost() {
        const EACH: usize = 50;
        for (name, order) in TurnOrder::ALL {
            let had = turns_of(&Turns::new(order), EACH);
            assert_eq!([0, 1, 2].map(|who| had.iter().filter(|had| **had == who).count()), [EACH; 3], "{name}");
        }
        let had = turns_of(&Turns::new(TurnOrder::RoundRobin), EACH);
        let twice = had.windows(2).take(2 * EACH).filter(|pair| pair[0] == pair[1]).count();
        assert!(twice <= EACH / 5, "one goes again before others who wait: {twice} of {}", 2 * EACH);
    }

    /// Of those who wait and the one that asks again, the order's first; whoever waited for one that leaves hears of it.
    #[test]
    fn who_has_computed_is_chosen_from_as_well() {
        const EACH: usize = 20;
        let kept = Duration::from_secs(60);
        let order = Arbiter::new(AsTheyCame, Lead::First).patient(Seconds(f64::INFINITY));
        let since = Instant::now();
        let had = turns_of(&Turns::of(TurnQueue::new(Box::new(order)).keeping(kept)), EACH);
        assert_eq!(had, [[0; EACH], [1; EACH], [2; EACH]].concat());
        assert!(since.elapsed() < kept, "a device was kept for one that had left");
    }
}
