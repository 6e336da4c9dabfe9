//! The ways to one peer: what is known of each, which one is in use, and when the direct one is tried again.

use crate::{Time, links::Estimate};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::{Link, PathKind, PeerId};

/// How long the direct way is tried alone: a handshake over it takes two round trips, and an answer waits meanwhile.
pub const HEAD_START: Duration = Duration::from_secs(1);
/// Before the direct way is tried again after it has failed; doubled by every failure, up to the most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// Ways remembered beside the one in use: relays come and go.
const REMEMBERED: usize = 3;

/// How long to leave the direct way alone after so many failures in a row; the first try is made at once.
#[must_use]
pub fn retry_after(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None => Duration::ZERO,
        Some(doubled) => AGAIN.0.saturating_mul(1 << doubled.min(10)).min(AGAIN.1),
    }
}

/// What is known of the ways to one peer. Each is measured by itself: what a relay carries says nothing of the direct way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths {
    path: PathKind,
    known: BTreeMap<PathKind, Estimate>,
}

impl Paths {
    /// What new streams take from now on; says whether that is another way than before.
    pub fn take(&mut self, path: PathKind) -> bool {
        std::mem::replace(&mut self.path, path) != path
    }

    /// The way in use.
    #[must_use]
    pub fn path(&self) -> PathKind {
        self.path
    }

    /// What is known of one of them.
    #[must_use]
    pub fn known(&self, path: PathKind) -> Option<&Estimate> {
        self.known.get(&path)
    }

    /// The same, to be learnt more of.
    pub fn learn(&mut self, path: PathKind) -> &mut Estimate {
        if self.known.len() > REMEMBERED && !self.known.contains_key(&path) {
            let used = self.path;
            self.known.retain(|way, _| *way == used || *way == PathKind::Direct);
        }
        self.known.entry(path).or_default()
    }

    /// The link as an advert states it: the way in use, once its numbers are known.
    #[must_use]
    pub fn link(&self, to: PeerId) -> Option<Link> {
        self.known(self.path)?.link(to, self.path)
    }

    /// Since the bandwidth of the way in use was last shown.
    #[must_use]
    pub fn age(&self, now: Time) -> Option<Duration> {
        self.known(self.path).map(|known| known.age(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Evidence;
    use tsnode_protocol::{BytesPerSecond, Seconds};

    fn over(relay: u8) -> PathKind {
        PathKind::Relayed { via: PeerId([relay; 32]) }
    }

    #[test]
    fn each_way_has_numbers_of_its_own_and_the_one_in_use_is_stated() {
        let (mut ways, to) = (Paths::default(), PeerId([9; 32]));
        for (path, rate) in [(over(1), 1e6), (PathKind::Direct, 1e8)] {
            ways.learn(path).note(Duration::ZERO, Evidence::Probed(BytesPerSecond(rate)));
            ways.learn(path).round_trip(Seconds(0.01));
        }
        let stated = |ways: &Paths| ways.link(to).map(|link| (link.path, link.bandwidth.0.round()));
        assert_eq!(stated(&ways), Some((PathKind::Direct, 1e8)));
        assert!(ways.take(over(1)) && !ways.take(over(1)));
        assert_eq!(stated(&ways), Some((over(1), 1e6)));
        assert!(ways.take(over(2)));
        assert_eq!(stated(&ways), None, "nothing is known of another relay");
    }

    #[test]
    fn relays_that_came_and_went_are_forgotten() {
        let mut ways = Paths::default();
        (0..200).for_each(|relay| {
            ways.take(over(relay));
            ways.learn(over(relay)).round_trip(Seconds(0.01));
        });
        assert!(ways.known.len() <= REMEMBERED + 1 && ways.known(over(199)).is_some());
    }

    #[test]
    fn the_direct_way_is_tried_at_once_and_then_ever_more_rarely() {
        let waits: Vec<u64> = (0..9).map(|failures| retry_after(failures).as_secs()).collect();
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(retry_after(u32::MAX), AGAIN.1);
    }
}
