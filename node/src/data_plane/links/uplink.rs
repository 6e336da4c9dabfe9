//! The owner's limit on uploads: what leaves by this peer's own socket, and what the control plane carries for the data plane,
//! wait in one line. It may change while the peer runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tsnode_protocol::BytesPerSecond;

/// The longest that anything waits for its turn, whatever the rate.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What leaves this host, no faster than its owner allows.
#[derive(Debug)]
pub(super) struct Uplink {
    /// Bits of bytes a second; infinite where nothing is limited. Every datagram asks.
    rate: AtomicU64,
    /// When it has sent what it was given. Held for arithmetic only.
    free: Mutex<Instant>,
}

impl Uplink {
    pub fn new(rate: Option<BytesPerSecond>) -> Self {
        Self { rate: AtomicU64::new(bits(rate)), free: Mutex::new(Instant::now()) }
    }

    /// What it carries, where that is limited.
    pub fn rate(&self) -> Option<BytesPerSecond> {
        Some(BytesPerSecond(f64::from_bits(self.rate.load(Ordering::Relaxed)))).filter(|rate| rate.0.is_finite())
    }

    /// It carries so much from now on. What comes next waits no longer for what was given to it before than that takes by the new rate;
    /// nor than by the old one, by which that leaves: on a slow line a fast one's queue would be a minute in which nothing is sent.
    pub fn set(&self, rate: Option<BytesPerSecond>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, now) = (f64::from_bits(self.rate.swap(bits(rate), Ordering::Relaxed)), Instant::now());
        let ahead = free.saturating_duration_since(now).as_secs_f64();
        // Nothing waits where nothing was limited, and for nothing where nothing is.
        let ahead = rate.filter(|_| before.is_finite()).map_or(0.0, |rate| ahead * (before / rate.0).min(1.0));
        *free = now + within_a_day(ahead);
    }

    /// When what is given to it at `start` begins to leave.
    pub fn turn(&self, start: Instant) -> Instant {
        if self.rate().is_none() { start } else { start.max(*self.free.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Gives it so many bytes at `start`; says when they have left.
    pub fn take(&self, start: Instant, bytes: usize) -> Instant {
        let Some(rate) = self.rate() else { return start };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = start.max(*free) + within_a_day(bytes as f64 / rate.0);
        *free
    }

    /// Resolves when so many bytes more have had the time they take.
    pub async fn send(&self, bytes: usize) {
        if self.rate().is_some() {
            sleep_until(self.take(Instant::now(), bytes)).await;
        }
    }
}

/// A time that may be beyond all that there are.
pub(super) fn within_a_day(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(LONGEST, |time| time.min(LONGEST))
}

fn bits(rate: Option<BytesPerSecond>) -> u64 {
    rate.map_or(f64::INFINITY, |rate| rate.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_waits_by_the_rate_that_holds_now() {
        let uplink = Uplink::new(None);
        let now = Instant::now();
        assert_eq!((uplink.rate(), uplink.take(now, 1 << 30)), (None, now), "nothing is limited");
        uplink.set(Some(BytesPerSecond(1e3)));
        let start = Instant::now();
        assert!(uplink.take(start, 100_000) >= start + Duration::from_secs(100));
        uplink.set(Some(BytesPerSecond(100e3)));
        let (turn, late) = (uplink.turn(start), start + Duration::from_secs(5));
        assert!(turn < late, "a second of the new rate waits, not a hundred of the old: {:?}", turn - start);
        uplink.set(Some(BytesPerSecond(1e3)));
        assert!(
            uplink.turn(start) < late,
            "what waits leaves by the rate that it was given: a slower one stops nothing for minutes"
        );
        uplink.set(Some(BytesPerSecond(f64::MIN_POSITIVE)));
        assert!(uplink.take(start, 1 << 30) > start, "next to nothing is a rate, too");
        uplink.set(None);
        let later = Instant::now();
        assert_eq!((uplink.rate(), uplink.turn(later)), (None, later));
    }
}
