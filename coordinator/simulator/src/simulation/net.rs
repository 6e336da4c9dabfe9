//! When messages arrive, if they do.

use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_coordinator::rng::Rng;

/// The network between the peers.
#[derive(Clone, Debug)]
pub struct SimulatedNetwork {
    /// Part of the messages that are lost on the way to one peer.
    pub lost: f64,
    /// Part that comes twice.
    pub repeated: f64,
    /// How long a message takes at most; most take a fifth of that.
    pub delay: Duration,
    /// Peers cut off from those with another number; all others have 0.
    pub sides: BTreeMap<usize, u8>,
    /// How much longer everything takes that these peers say.
    pub lags: BTreeMap<usize, Duration>,
}

impl Default for SimulatedNetwork {
    fn default() -> Self {
        Self {
            lost: 0.0,
            repeated: 0.0,
            delay: Duration::from_millis(40),
            sides: BTreeMap::new(),
            lags: BTreeMap::new(),
        }
    }
}

impl SimulatedNetwork {
    /// Whether nothing that one says reaches the other.
    #[must_use]
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        !self.sides.is_empty() && self.side(from) != self.side(to)
    }

    /// Which side a peer is on.
    #[must_use]
    pub fn side(&self, peer: usize) -> u8 {
        self.sides.get(&peer).copied().unwrap_or(0)
    }

    /// How long a message takes from one peer to another, each time it arrives.
    pub(super) fn deliveries(&self, from: usize, to: usize, rng: &mut Rng) -> [Option<Duration>; 2] {
        if self.is_cut(from, to) || (self.lost > 0.0 && rng.unit() < self.lost) {
            return [None, None];
        }
        let lag = self.lags.get(&from).copied().unwrap_or_default();
        let late = |rng: &mut Rng| {
            let (a, b) = (rng.unit(), rng.unit());
            Duration::from_millis(1) + lag + self.delay.mul_f64(a * b * b)
        };
        let first = late(rng);
        let again = self.repeated > 0.0 && rng.unit() < self.repeated;
        [Some(first), again.then(|| late(rng) * 2)]
    }
}
