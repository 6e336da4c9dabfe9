//! Numbers of this peer's signed messages: each above the last, whatever happens to the clock and to the process.
//!
//! Others refuse a message whose number is not above the last one's. Numbers begin at the clock's time, so that a peer whose
//! files are lost goes on above what it said before; and above all numbers that the store says may have been used, so that a
//! peer whose clock was set back is heard at once.

use crate::store::Store;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers written down as used before the first of them is: one write a day at the rate peers speak, and about a second
/// of the clock (µs), which is lost by a peer that starts again.
const BLOCK: u64 = 1 << 20;

/// The numbers of one run.
pub struct Sequence {
    next: AtomicU64,
    /// Those below may be used. Held while the store writes.
    reserved: Mutex<u64>,
    store: Store,
}

impl Sequence {
    /// Goes on above what was used before, and at the clock's time.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self::at(store, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros())
    }

    fn at(store: Store, unix_micros: u128) -> Self {
        let start = u64::try_from(unix_micros).unwrap_or(0).max(store.sequence());
        Self { next: AtomicU64::new(start), reserved: Mutex::new(start), store }
    }

    /// The next number. Once in a block it is written down that the block is used.
    #[must_use]
    pub fn draw(&self) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if number >= *reserved {
            *reserved = number.saturating_add(BLOCK);
            self.store.set_sequence(*reserved);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOUR: u128 = 3_600_000_000;
    const NOW: u128 = 1_700_000_000_000_000;

    #[test]
    fn numbers_grow_whatever_the_clock_does_between_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mut last = 0;
        for clock in [NOW, NOW + 1, NOW - HOUR, NOW + HOUR, NOW, NOW, 0, NOW] {
            let sequence = Sequence::at(Store::open(folder.path()).unwrap(), clock);
            for _ in 0..3 {
                let number = sequence.draw();
                assert!(number > last, "{number} after {last} with the clock at {clock}");
                last = number;
            }
        }
        // Files lost, clock right: still above, if no clock was ever ahead of it.
        let elsewhere = tempfile::tempdir().unwrap();
        assert!(Sequence::at(Store::open(elsewhere.path()).unwrap(), NOW + HOUR + 9_000_000).draw() > last);
    }

    #[test]
    fn a_block_is_written_down_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let sequence = Sequence::at(store.clone(), NOW);
        for n in 0..2 * BLOCK + 2 {
            let number = sequence.draw();
            assert!(n % BLOCK > 1 || number < store.sequence());
        }
    }
}
