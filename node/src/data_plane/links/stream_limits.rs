//! How many streams of each kind a peer may open: far more than an honest one needs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;
use tsnode_coordinator::rate_limit::{RateLimit, TokenBucket};
use tsnode_protocol::{PeerId, limits, stream::Opening};

/// Requests, their KV and their response logs: a large gateway's at their busiest.
const WORK: RateLimit = RateLimit { per_second: 200.0, burst: 2000.0 };
/// A ring is built anew a few times a second while one of its stages is loading, for minutes, and two peers may be next to each other in
/// dozens of groups: of as many models, on as many devices. One whose stage is not here costs a look.
const RINGS: RateLimit = WORK;
/// A KV transfer may come in several.
const KV: RateLimit = RateLimit {
    per_second: WORK.per_second * limits::KV_STREAMS as f64,
    burst: WORK.burst * limits::KV_STREAMS as f64,
};
/// A text is encoded in milliseconds, and who finds a lender busy asks again; what is taken on is bounded by the lender's queue.
const ENCODE: RateLimit = RateLimit { per_second: 4000.0, burst: 20_000.0 };
/// Files are fetched once, links probed rarely.
const RARE: RateLimit = RateLimit { per_second: 20.0, burst: 200.0 };
/// Each may bring 32 MiB: a probe a minute, and a transfer of eight times that now and then.
const PROBES: RateLimit = RateLimit { per_second: 0.25, burst: 40.0 };
/// Each makes this peer send packets to addresses that another names.
const MEETINGS: RateLimit = RateLimit { per_second: 0.2, burst: 5.0 };
/// Peers remembered; those with full token buckets are forgotten first.
const PEERS: usize = 4096;

/// What peers have left.
#[derive(Debug)]
pub(super) struct Rates {
    started: Instant,
    /// By peer and kind of stream. Held for map operations only.
    buckets: Mutex<BTreeMap<(PeerId, u8), TokenBucket>>,
}

impl Rates {
    pub fn new() -> Self {
        Self { started: Instant::now(), buckets: Mutex::default() }
    }

    /// Whether a peer may open this now.
    pub fn allow(&self, peer: PeerId, opening: &Opening) -> bool {
        let (now, (kind, rate_limit)) = (self.started.elapsed(), kind(opening));
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= PEERS {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        if buckets.len() >= PEERS && !buckets.contains_key(&(peer, kind)) {
            return false;
        }
        buckets.entry((peer, kind)).or_insert_with(|| TokenBucket::new(rate_limit, now)).take(now).is_ok()
    }
}

fn kind(opening: &Opening) -> (u8, RateLimit) {
    match opening {
        Opening::Decode(_) => (0, WORK),
        Opening::Prefill(_) => (1, WORK),
        Opening::Kv(_) => (2, KV),
        Opening::ResponseLog(_) => (3, WORK),
        Opening::Recall(_) => (4, WORK),
        Opening::Ring(_) => (5, RINGS),
        Opening::File { .. } => (6, RARE),
        Opening::Probe { .. } => (7, PROBES),
        Opening::Prove(..) => (8, RARE),
        Opening::Where => (9, RARE),
        Opening::Meet(_) => (10, MEETINGS),
        Opening::Heartbeats(_) => (11, RARE),
        Opening::Encode(_) => (12, ENCODE),
        Opening::Weights(_) => (13, RARE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{GroupId, ModelId, RingId, ring::RingHello};

    /// Of thirty groups, as after a restart of the peer that has their second stages: three times a second for ten seconds.
    #[test]
    fn rings_of_many_groups_that_wait_for_a_stage_are_no_flood() {
        let (rates, leader) = (Rates::new(), PeerId([1; 32]));
        let ring = Opening::Ring(RingHello {
            group: GroupId([1; 8]),
            ring: RingId([2; 8]),
            model: ModelId([3; 16]),
            stages: Vec::new(),
            position: 1,
        });
        assert!((0..900).all(|_| rates.allow(leader, &ring)));
        assert!((0..900).any(|_| !rates.allow(leader, &Opening::Where)), "as before");
    }
}
