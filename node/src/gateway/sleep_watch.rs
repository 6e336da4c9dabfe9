//! Prompt flow 8: whether this process was not run for a while: it was stopped, or its host slept.
//!
//! The clock that waits go by stands still on many systems while their host sleeps, and the time of day goes on; while a process
//! is stopped both do. A time of day that was set forward looks the same, and does no harm.

use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How often the loop turns while requests are open, whatever else happens.
pub(super) const TURN: Duration = Duration::from_millis(500);
/// Turns are never so far apart while this process is run; connections are given up after longer.
const ASLEEP: Duration = Duration::from_millis(2000);

/// Watches how far apart a loop's turns are.
#[derive(Debug)]
pub(super) struct SleepWatch {
    last: (Instant, SystemTime),
}

impl SleepWatch {
    /// From now on.
    pub fn new(now: Instant, day: SystemTime) -> Self {
        Self { last: (now, day) }
    }

    /// The loop turns. Whether it has not for so long that its process was not run.
    pub fn turn(&mut self, now: Instant, day: SystemTime) -> bool {
        let (last, last_day) = std::mem::replace(&mut self.last, (now, day));
        // A time of day that was set back says nothing.
        let by_day = day.duration_since(last_day).unwrap_or_default();
        now.saturating_duration_since(last).max(by_day) > ASLEEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_and_a_host_that_slept_are_told_from_turns_and_clocks_that_are_set_back() {
        let (now, day) = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        let after = |since: u64, of_day: u64| {
            let mut watch = SleepWatch::new(now, day);
            let [since, of_day] = [since, of_day].map(Duration::from_secs);
            let told = watch.turn(now + since, day + of_day);
            (told, watch.turn(now + since + TURN, day + of_day + TURN))
        };
        assert_eq!(after(1, 1), (false, false));
        assert_eq!(after(20, 20), (true, false), "stopped");
        assert_eq!(after(0, 3600), (true, false), "its host slept");
        let mut watch = SleepWatch::new(now, day);
        assert!(!watch.turn(now + TURN, day - Duration::from_secs(3600)), "set back");
        assert!(!watch.turn(now + 2 * TURN, day - Duration::from_secs(3600) + TURN));
    }
}
