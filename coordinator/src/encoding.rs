//! Which peer encodes texts next: of those that lend the encoder, the one that should have them done first.
//!
//! A gateway knows what it has asked of each lender and has not got, what else waited there when it answered last, how long an
//! input took, and how far it is. Who failed lately is asked only where nobody else is left.

use crate::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{PeerId, Seconds};

/// What an input is taken to take where nothing was measured yet.
const UNKNOWN: Seconds = Seconds(0.02);
/// How long a lender that failed is asked last.
const SHUNNED: Duration = Duration::from_secs(20);
/// How long what was said to wait at a lender is believed.
const BELIEVED: Duration = Duration::from_secs(2);
/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;

/// A peer that lends the encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lender {
    /// The peer that has the encoder loaded.
    pub peer: PeerId,
    /// One way to it; nothing to the gateway's own peer.
    pub latency: Seconds,
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EncodeOutcome {
    /// Encoded, in this time; so many inputs of others wait there now.
    Done {
        /// From asking to the last answer.
        took: Seconds,
        /// Inputs of others.
        waiting: u32,
    },
    /// It had no room: so many wait there.
    Busy {
        /// Inputs of others.
        waiting: u32,
    },
    /// It refused what every lender refuses: nothing is held against it.
    Refused,
    /// It did not answer, or could not.
    Failed,
}

/// What a gateway knows of lenders.
#[derive(Clone, Debug, Default)]
pub struct EncoderRouter {
    known: BTreeMap<PeerId, LenderStanding>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LenderStanding {
    /// Inputs asked for and not answered.
    asked: u32,
    /// Inputs of others, and when that was said.
    waiting: Option<(u32, Time)>,
    /// Of one input.
    takes: Option<Seconds>,
    failed: Option<Time>,
}

impl EncoderRouter {
    /// The lender to ask next, of those that were not tried yet.
    #[must_use]
    pub fn choose(&self, now: Time, lenders: &[Lender], tried: &BTreeSet<PeerId>) -> Option<PeerId> {
        let open = lenders.iter().filter(|lender| !tried.contains(&lender.peer));
        let rank = |lender: &&Lender| {
            let standing = self.known.get(&lender.peer).copied().unwrap_or_default();
            let is_shunned = standing.failed.is_some_and(|at| now < at + SHUNNED);
            (is_shunned, standing.soonest(now).0 + 2.0 * lender.latency.0, lender.peer)
        };
        let first = |a: &&Lender, b: &&Lender| {
            let ((a_shunned, a_time, a_peer), (b_shunned, b_time, b_peer)) = (rank(a), rank(b));
            a_shunned.cmp(&b_shunned).then(a_time.total_cmp(&b_time)).then(a_peer.cmp(&b_peer))
        };
        open.min_by(first).map(|lender| lender.peer)
    }

    /// So many inputs were sent there.
    pub fn asks(&mut self, peer: PeerId, inputs: u32) {
        let standing = self.known.entry(peer).or_default();
        standing.asked = standing.asked.saturating_add(inputs);
    }

    /// What came of them.
    pub fn ended(&mut self, now: Time, peer: PeerId, inputs: u32, outcome: EncodeOutcome) {
        let standing = self.known.entry(peer).or_default();
        let ahead = standing.asked;
        standing.asked = standing.asked.saturating_sub(inputs);
        match outcome {
            EncodeOutcome::Done { took, waiting } => {
                // What was asked before took its time as well.
                let each = took.0 / f64::from(ahead.max(inputs).max(1));
                let before = standing.takes.map_or(each, |takes| takes.0);
                standing.takes = Some(Seconds(before + NEWEST * (each - before)));
                standing.waiting = Some((waiting, now));
                standing.failed = None;
            }
            EncodeOutcome::Busy { waiting } => standing.waiting = Some((waiting, now)),
            EncodeOutcome::Refused => {}
            EncodeOutcome::Failed => standing.failed = Some(now),
        }
    }

    /// Forgets lenders that are gone and owe nothing.
    pub fn keep_only(&mut self, peers: &BTreeSet<PeerId>) {
        self.known.retain(|peer, standing| standing.asked > 0 || peers.contains(peer));
    }
}

impl LenderStanding {
    /// When one more input would be done there.
    fn soonest(&self, now: Time) -> Seconds {
        let others = self.waiting.filter(|(_, at)| now < *at + BELIEVED).map_or(0, |(waiting, _)| waiting);
        let ahead = f64::from(self.asked) + f64::from(others) + 1.0;
        Seconds(ahead * self.takes.unwrap_or(UNKNOWN).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId([1; 32]);
    const B: PeerId = PeerId([2; 32]);
    const NOW: Time = Duration::from_secs(100);

    fn lenders(a: f64, b: f64) -> [Lender; 2] {
        [Lender { peer: A, latency: Seconds(a) }, Lender { peer: B, latency: Seconds(b) }]
    }

    fn none() -> BTreeSet<PeerId> {
        BTreeSet::new()
    }

    #[test]
    fn the_nearest_is_asked_until_it_has_more_to_do() {
        let mut router = EncoderRouter::default();
        let both = lenders(0.001, 0.05);
        assert_eq!(router.choose(NOW, &both, &none()), Some(A));
        router.asks(A, 8);
        assert_eq!(router.choose(NOW, &both, &none()), Some(B), "eight inputs take longer than the way");
        router.ended(NOW, A, 8, EncodeOutcome::Done { took: Seconds(0.08), waiting: 0 });
        assert_eq!(router.choose(NOW, &both, &none()), Some(A));
    }

    #[test]
    fn what_others_ask_of_a_lender_counts_as_long_as_it_is_news() {
        let mut router = EncoderRouter::default();
        let both = lenders(0.001, 0.05);
        router.asks(A, 1);
        router.ended(NOW, A, 1, EncodeOutcome::Busy { waiting: 100 });
        assert_eq!(router.choose(NOW, &both, &none()), Some(B));
        assert_eq!(router.choose(NOW + BELIEVED, &both, &none()), Some(A));
    }

    #[test]
    fn a_slow_lender_gets_less() {
        let mut router = EncoderRouter::default();
        let both = lenders(0.0, 0.0);
        for (peer, took) in [(A, 1.0), (B, 0.1)] {
            router.asks(peer, 10);
            router.ended(NOW, peer, 10, EncodeOutcome::Done { took: Seconds(took), waiting: 0 });
        }
        let mut got = [0, 0];
        for _ in 0..22 {
            let chosen = router.choose(NOW, &both, &none()).unwrap();
            router.asks(chosen, 1);
            got[usize::from(chosen == B)] += 1;
        }
        assert_eq!(got, [2, 20], "one is ten times as fast");
    }

    #[test]
    fn who_failed_is_asked_last_and_nobody_twice() {
        let mut router = EncoderRouter::default();
        let both = lenders(0.0, 0.1);
        router.asks(A, 1);
        router.ended(NOW, A, 1, EncodeOutcome::Failed);
        assert_eq!(router.choose(NOW, &both, &none()), Some(B));
        assert_eq!(router.choose(NOW, &both, &BTreeSet::from([B])), Some(A), "there is no other");
        assert_eq!(router.choose(NOW, &both, &BTreeSet::from([A, B])), None);
        assert_eq!(router.choose(NOW + SHUNNED, &both, &none()), Some(A));
        router.keep_only(&BTreeSet::from([B]));
        assert_eq!(router.choose(NOW, &both, &none()), Some(A), "its failure went with it");
    }
}
