//! Who left the door before it had proven anything, or was silent there: most of them are members that come in another way.
//!
//! A peer that dials several addresses at once hangs up on all but the first to answer, one that is ending hangs up on all.
//! Only who does not come in soon afterwards, and has never been heard in this swarm, was kept out.

use super::admission::Rejection;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_protocol::PeerId;

/// How long it may take to come in another way: a dial that failed is tried again after seconds.
const GRACE: Duration = Duration::from_secs(5);
/// Peers waited for; those above it are counted at once, as they may be a flood.
const WAITED_FOR: usize = 256;

/// Those who may still come in.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    since: BTreeMap<PeerId, (Instant, Rejection)>,
}

impl Unproven {
    /// Waits for a peer; gives the rejection back where too many are waited for.
    pub(super) fn wait(&mut self, now: Instant, peer: PeerId, rejection: Rejection) -> Option<Rejection> {
        if self.since.len() >= WAITED_FOR && !self.since.contains_key(&peer) {
            return Some(rejection);
        }
        self.since.entry(peer).or_insert((now, rejection));
        None
    }

    /// It has come in.
    pub(super) fn came(&mut self, peer: PeerId) {
        self.since.remove(&peer);
    }

    /// Those who have not come in in time.
    pub(super) fn stayed_out(&mut self, now: Instant) -> Vec<Rejection> {
        let waiting = std::mem::take(&mut self.since);
        let (over, waiting) = waiting.into_iter().partition(|(_, (since, _))| now >= *since + GRACE);
        self.since = waiting;
        let over: BTreeMap<_, _> = over;
        over.into_values().map(|(_, rejection)| rejection).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::swarm::exchange::Verdict;

    fn left(n: u8) -> (PeerId, Rejection) {
        let peer = PeerId([n; 32]);
        (peer, Rejection { peer: Some(peer), reason: "left".into(), verdict: Verdict::Unproven, version: None })
    }

    #[test]
    fn only_who_stays_out_was_kept_out_and_once() {
        let (mut unproven, start) = (Unproven::default(), Instant::now());
        for n in [1, 2, 1, 1] {
            let (peer, rejection) = left(n);
            assert_eq!(unproven.wait(start, peer, rejection), None);
        }
        unproven.came(left(2).0);
        assert_eq!(unproven.stayed_out(start + GRACE / 2), []);
        assert_eq!(unproven.stayed_out(start + GRACE), [left(1).1]);
        assert_eq!(unproven.stayed_out(start + 2 * GRACE), []);
    }

    #[test]
    fn a_flood_is_counted_at_once() {
        let (mut unproven, now) = (Unproven::default(), Instant::now());
        let peer = |n: usize| PeerId([[n as u8; 16], [(n >> 8) as u8; 16]].concat().try_into().unwrap());
        let given_back = (0..2 * WAITED_FOR).filter_map(|n| unproven.wait(now, peer(n), left(0).1)).count();
        assert_eq!((given_back, unproven.since.len()), (WAITED_FOR, WAITED_FOR));
    }
}
