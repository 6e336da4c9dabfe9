//! Plan flow 2: when a peer says what it is: quickly while somebody is new, and in a swarm of any size so seldom that what is
//! heard of all adverts does not grow. Each is heard by all, with all its links: that is much to hear where many come together.

use crate::Time;
use std::time::Duration;

/// Between adverts when nobody is new: whoever missed them all hears them at last.
const EVERY: Duration = Duration::from_secs(60);
/// Of the time, what one peer's adverts take up while they are repeated: twenty-five adverts a second from all.
const SHARE: Duration = Duration::from_millis(40);
/// But no newcomer is to know the others later than this, as long as that takes no more than a hundred a second.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
const LEAST_SHARE: Duration = Duration::from_millis(10);
/// The same where nobody is new: two adverts a second from all.
const REST_SHARE: Duration = Duration::from_millis(500);
/// After somebody new has come.
const SOON: Duration = Duration::from_millis(200);

/// When adverts are due.
#[derive(Debug)]
pub(super) struct AdvertSchedule {
    next: Option<Time>,
    /// They are repeated quickly until then: newcomers may miss the first.
    quickly_until: Time,
}

impl AdvertSchedule {
    pub fn new(now: Time) -> Self {
        Self { next: None, quickly_until: now }
    }

    /// When the next is due.
    pub fn deadline(&self) -> Option<Time> {
        self.next
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.next.is_some_and(|at| at <= now)
    }

    /// What it says is new.
    pub fn changed(&mut self, now: Time) {
        self.next = Some(now);
    }

    /// Somebody new is among so many.
    pub fn newcomer(&mut self, now: Time, peers: usize) {
        self.quickly_until = now + Duration::from_secs(4).max(spacing(peers) * 2);
        self.within(SOON, now, peers);
    }

    /// It is to be said within this time, or as soon as so many peers let it.
    pub fn within(&mut self, span: Duration, now: Time, peers: usize) {
        let soon = now + span.max(spacing(peers));
        self.next = Some(self.next.map_or(soon, |at| at.min(soon)));
    }

    /// It is said.
    pub fn said(&mut self, now: Time, peers: usize) {
        let again = now + Duration::from_secs(1).max(spacing(peers));
        let rest = EVERY.max(REST_SHARE * many(peers));
        self.next = Some(if again <= self.quickly_until { again } else { now + rest });
    }
}

/// Between two adverts of one peer: everybody hears everybody's, at a rate that does not grow with the swarm.
fn spacing(peers: usize) -> Duration {
    (SHARE * many(peers)).min(KNOWN_WITHIN).max(LEAST_SHARE * many(peers))
}

fn many(peers: usize) -> u32 {
    u32::try_from(peers).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When adverts are said within so many seconds after somebody new has come, among so many (ms).
    fn said(seconds: u64, peers: usize) -> Vec<u128> {
        let mut adverts = AdvertSchedule::new(Time::ZERO);
        adverts.newcomer(Time::ZERO, peers);
        let mut said = Vec::new();
        while let Some(at) = adverts.deadline().filter(|at| *at <= Time::from_secs(seconds)) {
            assert!(adverts.is_due(at));
            adverts.said(at, peers);
            said.push(at.as_millis());
        }
        said
    }

    #[test]
    fn newcomers_hear_adverts_a_few_times_and_then_seldom() {
        assert_eq!(said(120, 3), [200, 1200, 2200, 3200, 63200]);
    }

    #[test]
    fn in_a_large_swarm_they_are_said_seldomer() {
        assert_eq!(said(60, 50), [2000, 4000]);
        assert_eq!(said(60, 1000), [10_000, 20_000]);
        assert_eq!(said(600, 1000), [10_000, 20_000, 520_000]);
    }
}
