//! Whose turn it is on a device that computes several models: each has a thread with an engine of its own, and they compute one
//! after the other, in the order in which they asked. A thread asks anew for each job, so that models with work take turns; a turn
//! is over with its job, and waits for nothing beyond this device, so that no ring waits for another for ever.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Shared by the threads of a device.
#[derive(Clone, Default)]
pub struct Turns(Arc<(Mutex<Numbers>, Condvar)>);

#[derive(Default)]
struct Numbers {
    /// For whoever asks next.
    next: u64,
    /// Whose turn it is.
    now: u64,
}

/// A turn; over when it is dropped.
pub(super) struct Turn<'t>(&'t Turns);

impl Turns {
    /// Waits for its turn.
    pub(super) fn take(&self) -> Turn<'_> {
        let (numbers, over) = &*self.0;
        // Numbers are whole whenever the lock is free.
        let mut numbers = numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = numbers.next;
        numbers.next += 1;
        while numbers.now != own {
            numbers = over.wait(numbers).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (numbers, over) = &*self.0.0;
        numbers.lock().unwrap_or_else(PoisonError::into_inner).now += 1;
        over.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn who_always_has_work_lets_others_go_between() {
        const EACH: usize = 50;
        let (turns, order) = (Turns::default(), Arc::new(Mutex::new(Vec::new())));
        // All are there before the first turn is over.
        let first = turns.take();
        let work = |who: usize| {
            let (turns, order) = (turns.clone(), order.clone());
            thread::spawn(move || {
                for _ in 0..EACH {
                    let turn = turns.take();
                    order.lock().unwrap().push(who);
                    // The others ask again meanwhile.
                    thread::sleep(std::time::Duration::from_micros(200));
                    drop(turn);
                }
            })
        };
        let threads = [0, 1, 2].map(work);
        while turns.0.0.lock().unwrap().next < 4 {
            thread::yield_now();
        }
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let order = order.lock().unwrap();
        assert_eq!(order.len(), 3 * EACH, "each turn was one's alone, and nobody's was lost");
        let twice = order.windows(2).take(2 * EACH).filter(|pair| pair[0] == pair[1]).count();
        assert!(twice <= EACH / 5, "one goes again before others who wait: {twice} of {}", 2 * EACH);
    }
}
