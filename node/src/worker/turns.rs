//! Turns on a device that computes several models: each has a thread with an engine of its own, and they compute one after the
//! other. Whose turn it is an arbiter says, the same that the simulator drives ([`tsnode_coordinator::policy::sharing`]); here it
//! meets threads and the clock. A turn is over with its job, and waits for nothing beyond this device, so that no ring waits for
//! another for ever.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tsnode_coordinator::policy::{
    batching::ServiceNo,
    sharing::{
        TurnOrder,
        arbiter::{Arbitration, Work},
    },
};
use tsnode_protocol::{RequestId, Seconds};

/// Shared by the threads of a device.
#[derive(Clone)]
pub struct Turns(Arc<(Mutex<Table>, Condvar)>);

struct Table {
    arbiter: Box<dyn Arbitration<RequestId>>,
    /// Whose turn it is.
    now: Option<ServiceNo>,
    /// For whoever comes next.
    next: u16,
}

/// A thread's place at a device.
#[derive(Clone)]
pub(super) struct Seat {
    turns: Turns,
    service: ServiceNo,
}

/// A turn; over when it is dropped.
pub(super) struct Turn<'s> {
    seat: &'s Seat,
    since: Instant,
}

impl Turns {
    /// A device whose models take turns in this order.
    #[must_use]
    pub fn new(order: TurnOrder) -> Self {
        Self(Arc::new((Mutex::new(Table { arbiter: order.arbiter(), now: None, next: 0 }), Condvar::new())))
    }

    /// A place for one more model.
    pub(super) fn join(&self) -> Seat {
        let mut table = self.table();
        let service = ServiceNo(table.next);
        table.next = table.next.saturating_add(1);
        drop(table);
        Seat { turns: self.clone(), service }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is whole whenever the lock is free.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// A request comes that has so many prompt tokens to compute.
    pub fn enters(&self, request: RequestId, prompt: u32) {
        self.turns.table().arbiter.enters(self.service, request, prompt);
    }

    /// A request is gone.
    pub fn leaves(&self, request: RequestId) {
        self.turns.table().arbiter.leaves(self.service, request);
    }

    /// Waits for a turn.
    pub fn take(&self, work: Work<RequestId>) -> Turn<'_> {
        let mut table = self.turns.table();
        table.arbiter.asks(self.service, work);
        loop {
            if table.now.is_none() {
                table.now = table.arbiter.next();
                if table.now != Some(self.service) {
                    // Whose turn it is may have slept through the end of the last one.
                    self.turns.0.1.notify_all();
                }
            }
            if table.now == Some(self.service) {
                return Turn { seat: self, since: Instant::now() };
            }
            table = self.turns.0.1.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        let mut table = self.seat.turns.table();
        table.arbiter.over(Seconds(took.as_secs_f64()));
        table.now = table.arbiter.next();
        drop(table);
        self.seat.turns.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};
    use tsnode_coordinator::policy::sharing::arbiter::Share;

    /// Three threads that always have work, all there before the first turn is over: who has had which turn.
    fn turns_of(order: TurnOrder, each: usize) -> Vec<usize> {
        let (turns, had) = (Turns::new(order), Arc::new(Mutex::new(Vec::new())));
        let beside = turns.join();
        let first = beside.take(Work::Errand);
        let work = |who: usize| {
            let (seat, had, request) = (turns.join(), had.clone(), RequestId([who as u8; 16]));
            seat.enters(request, 0);
            thread::spawn(move || {
                for _ in 0..each {
                    let turn = seat.take(Work::Step(vec![Share { request, prompt_tokens: 0 }]));
                    had.lock().unwrap().push(who);
                    // The others ask again meanwhile.
                    thread::sleep(Duration::from_micros(200));
                    drop(turn);
                }
            })
        };
        let threads = [0, 1, 2].map(work);
        while turns.table().arbiter.waiting() < 3 {
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
            let had = turns_of(order, EACH);
            assert_eq!([0, 1, 2].map(|who| had.iter().filter(|had| **had == who).count()), [EACH; 3], "{name}");
        }
        let had = turns_of(TurnOrder::RoundRobin, EACH);
        let twice = had.windows(2).take(2 * EACH).filter(|pair| pair[0] == pair[1]).count();
        assert!(twice <= EACH / 5, "one goes again before others who wait: {twice} of {}", 2 * EACH);
    }
}
