//! Who is connected and does not hear what is published here, and is to be connected anew for that.
//!
//! A peer tells its topics on the first connection with another, and not again while one lasts. One over QUIC outlives the process at
//! its far end by some seconds: who is started again meanwhile is never told, and would be deaf to its swarm for as long as it runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_protocol::PeerId;

/// Topics are told with a connection's first packets; over a slow relay those take a second or two.
const PATIENCE: Duration = Duration::from_secs(10);

/// Since when.
#[derive(Debug, Default)]
pub(super) struct NotHearing(BTreeMap<PeerId, Instant>);

impl NotHearing {
    /// A connection with a peer that has not said yet that it hears us.
    pub(super) fn came(&mut self, peer: PeerId, now: Instant) {
        self.0.entry(peer).or_insert(now);
    }

    /// It hears us, or is not connected any more.
    pub(super) fn settled(&mut self, peer: PeerId) {
        self.0.remove(&peer);
    }

    /// Those that have been connected for long enough to have said so; each again after as long.
    pub(super) fn due(&mut self, now: Instant) -> Vec<PeerId> {
        let mut due = Vec::new();
        for (peer, since) in &mut self.0 {
            if now >= *since + PATIENCE {
                *since = now;
                due.push(*peer);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_hear_us_is_connected_anew_again_and_again_and_who_does_never() {
        let (deaf, hears, start) = (PeerId([1; 32]), PeerId([2; 32]), Instant::now());
        let mut not_hearing = NotHearing::default();
        not_hearing.came(deaf, start);
        not_hearing.came(hears, start);
        not_hearing.settled(hears);
        // Further connections change nothing.
        not_hearing.came(deaf, start + PATIENCE / 2);
        assert_eq!(not_hearing.due(start + PATIENCE / 2), []);
        for n in 1..4 {
            assert_eq!(not_hearing.due(start + PATIENCE * n), [deaf]);
            assert_eq!(not_hearing.due(start + PATIENCE * n), []);
        }
        not_hearing.settled(deaf);
        assert_eq!(not_hearing.due(start + PATIENCE * 9), []);
    }
}
