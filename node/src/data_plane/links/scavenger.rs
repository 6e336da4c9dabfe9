//! Weights leave room for KV of other connections: less than best effort, as LEDBAT (RFC 6817) is.
//!
//! QUIC's priorities order what waits on one connection. Weights to one peer and KV to another meet only in the queue of the
//! uplink, which knows no kinds: under Cubic each has half of it, behind all that the other has put there. So while KV leaves
//! by another connection, one that gives weights has no more on its way than lets that queue run empty, but for activations and
//! tokens, which go first there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Full packets that may be on their way whatever waits: acknowledgements of them say when there is room again.
const LEAST: u64 = 4;
/// How fast it goes whatever waits (bytes/s), 1 Mbit/s: so fast, chunks of weights come within their fetcher's patience. Slower ones
/// would be given up, and what was sent of them would be sent again for nothing.
const LEAST_RATE: f64 = 125_000.0;

/// Streams of one kind that are open. Clones are of the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(Arc<AtomicUsize>);

impl Streams {
    fn count(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.clone()
    }

    fn are_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Counts a stream as long as it lives.
#[derive(Debug)]
pub(super) struct CountedStream(Vec<Streams>);

impl Drop for CountedStream {
    fn drop(&mut self) {
        for streams in &self.0 {
            streams.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What leaves by one connection.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    kv: Streams,
    weights: Streams,
    /// KV by any connection of this peer, once the far end has proven itself.
    kv_of_all: OnceLock<Streams>,
    /// Bytes of what goes before KV, as many of them as are not acknowledged yet, about.
    urgent: AtomicU64,
}

impl Leaving {
    /// It is one of this peer's connections, by all of which this KV leaves.
    pub fn beside(&self, kv_of_all: &Streams) {
        // Proven once.
        let _ = self.kv_of_all.set(kv_of_all.clone());
    }

    /// KV leaves by it as long as what is returned lives.
    pub fn kv(&self) -> CountedStream {
        CountedStream([Some(&self.kv), self.kv_of_all.get()].into_iter().flatten().map(Streams::count).collect())
    }

    /// Weights do.
    pub fn weights(&self) -> CountedStream {
        CountedStream(vec![self.weights.count()])
    }

    /// So much is about to leave that goes before KV.
    pub fn hurry(&self, bytes: usize) {
        self.urgent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So much of whatever left was acknowledged: what is urgent left first. A stream that was broken off may have left less than it
    /// was to, which counts until as much else was acknowledged. One connection reads one acknowledgement at a time.
    pub fn acknowledged(&self, bytes: u64) {
        self.urgent.fetch_sub(bytes.min(self.urgent()), Ordering::Relaxed);
    }

    /// Bytes for which there is to be room whatever waits.
    pub fn urgent(&self) -> u64 {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Whether it should leave room for others: its own KV goes before its weights by QUIC's priorities.
    pub fn gives_way(&self) -> bool {
        self.weights.are_open() && !self.kv.are_open() && self.kv_of_all.get().is_some_and(Streams::are_open)
    }
}

/// What may be on its way on a connection that gives way, after so many bytes were acknowledged: twice as much each round trip
/// while the link's queue is empty, and next to nothing once something has waited there.
pub(super) fn room(had: Option<u64>, acknowledged: u64, waited: bool, least: u64) -> u64 {
    match had {
        Some(had) if !waited => had.saturating_add(acknowledged).max(least),
        _ => least,
    }
}

/// What may be on its way whatever waits.
pub(super) fn least(mtu: u16, round_trip: Duration) -> u64 {
    (LEAST * u64::from(mtu)).max((LEAST_RATE * round_trip.as_secs_f64()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_give_way_to_kv_of_other_connections_alone() {
        let (all, [one, other]) = (Streams::default(), [Leaving::default(), Leaving::default()]);
        for leaving in [&one, &other] {
            leaving.beside(&all);
        }
        let weights = one.weights();
        assert!(!one.gives_way(), "nobody needs room");
        let kv = other.kv();
        assert!(one.gives_way() && !other.gives_way());
        let own = one.kv();
        assert!(!one.gives_way(), "its own KV goes first by itself");
        drop(own);
        assert!(one.gives_way());
        drop(kv);
        assert!(!one.gives_way());
        drop(weights);
        let _kv = other.kv();
        assert!(!one.gives_way(), "it gives no weights");
    }

    #[test]
    fn room_doubles_while_the_queue_is_empty_and_goes_when_it_is_not() {
        let first = room(None, 100_000, false, 4000);
        assert_eq!(first, 4000);
        assert_eq!(room(Some(first), first, false, 4000), 8000);
        assert_eq!(room(Some(8000), 8000, true, 4000), 4000);
    }

    #[test]
    fn who_gives_way_for_long_still_gives_chunks_in_time() {
        assert_eq!(least(1000, Duration::from_millis(1)), 4000);
        // A chunk in each of three streams, over a link whose queue never empties.
        let rate = least(1452, Duration::from_millis(200)) as f64 / 0.2;
        assert!(3.0 * tsnode_protocol::weights::CHUNK_BYTES as f64 / rate < 30.0, "{rate}");
    }
}
