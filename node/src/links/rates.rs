//! How many streams of each kind a peer may open: far more than an honest one needs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;
use tsnode_coordinator::allowance::{Allowance, Purse};
use tsnode_protocol::{PeerId, limits, stream::Opening};

/// Requests, their KV and their journals: a large gateway's at their busiest.
const WORK: Allowance = Allowance { per_second: 200.0, burst: 2000.0 };
/// A hand-over may come in several.
const KV: Allowance =
    Allowance { per_second: WORK.per_second * limits::LANES as f64, burst: WORK.burst * limits::LANES as f64 };
/// Rings are built anew a few times a second while a stage is loading, files fetched once, links probed rarely.
const RARE: Allowance = Allowance { per_second: 20.0, burst: 200.0 };
/// Each may bring 32 MiB: a probe a minute, and a transfer of eight times that now and then.
const PROBES: Allowance = Allowance { per_second: 0.25, burst: 40.0 };
/// Each makes this peer send packets to addresses that another names.
const MEETINGS: Allowance = Allowance { per_second: 0.2, burst: 5.0 };
/// Peers remembered; those with full purses are forgotten first.
const PEERS: usize = 4096;

/// What peers have left.
#[derive(Debug)]
pub(super) struct Rates {
    started: Instant,
    /// By peer and kind of stream. Held for map operations only.
    purses: Mutex<BTreeMap<(PeerId, u8), Purse>>,
}

impl Rates {
    pub fn new() -> Self {
        Self { started: Instant::now(), purses: Mutex::default() }
    }

    /// Whether a peer may open this now.
    pub fn allow(&self, peer: PeerId, opening: &Opening) -> bool {
        let (now, (kind, allowance)) = (self.started.elapsed(), kind(opening));
        let mut purses = self.purses.lock().unwrap_or_else(PoisonError::into_inner);
        if purses.len() >= PEERS {
            purses.retain(|_, purse| !purse.is_full(now));
        }
        if purses.len() >= PEERS && !purses.contains_key(&(peer, kind)) {
            return false;
        }
        purses.entry((peer, kind)).or_insert_with(|| Purse::new(allowance, now)).take(now).is_ok()
    }
}

fn kind(opening: &Opening) -> (u8, Allowance) {
    match opening {
        Opening::Decode(_) => (0, WORK),
        Opening::Prefill(_) => (1, WORK),
        Opening::Kv(_) => (2, KV),
        Opening::Journal(_) => (3, WORK),
        Opening::Recall(_) => (4, WORK),
        Opening::Ring(_) => (5, RARE),
        Opening::File { .. } => (6, RARE),
        Opening::Probe { .. } => (7, PROBES),
        Opening::Prove(..) => (8, RARE),
        Opening::Where => (9, RARE),
        Opening::Meet(_) => (10, MEETINGS),
        Opening::Pulse(_) => (11, RARE),
    }
}
