//! Weights leave room for KV of other connections: less than best effort, as LEDBAT (RFC 6817) is.
//!
//! QUIC's priorities order what waits on one connection. Weights to one peer and KV to another meet only in the queue of the
//! uplink, which knows no kinds: under Cubic each has half of it, behind all that the other has put there. So while KV leaves
//! by another connection, one that gives weights has no more on its way than lets that queue run empty.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Full packets that may be on their way whatever waits: acknowledgements of them say when there is room again.
const LEAST: u64 = 4;

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
pub(super) struct Counted(Vec<Streams>);

impl Drop for Counted {
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
}

impl Leaving {
    /// It is one of this peer's connections, by all of which this KV leaves.
    pub fn beside(&self, kv_of_all: &Streams) {
        // Proven once.
        let _ = self.kv_of_all.set(kv_of_all.clone());
    }

    /// KV leaves by it as long as what is returned lives.
    pub fn kv(&self) -> Counted {
        Counted([Some(&self.kv), self.kv_of_all.get()].into_iter().flatten().map(Streams::count).collect())
    }

    /// Weights do.
    pub fn weights(&self) -> Counted {
        Counted(vec![self.weights.count()])
    }

    /// Whether it should leave room for others: its own KV goes before its weights by QUIC's priorities.
    pub fn gives_way(&self) -> bool {
        self.weights.are_open() && !self.kv.are_open() && self.kv_of_all.get().is_some_and(Streams::are_open)
    }
}

/// What may be on its way on a connection that gives way, after so many bytes were acknowledged: twice as much each round trip
/// while the link's queue is empty, and next to nothing once something has waited there.
pub(super) fn room(had: Option<u64>, acknowledged: u64, waited: bool, mtu: u16) -> u64 {
    let least = LEAST * u64::from(mtu);
    match had {
        Some(had) if !waited => had.saturating_add(acknowledged).max(least),
        _ => least,
    }
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
        let first = room(None, 100_000, false, 1000);
        assert_eq!(first, 4000);
        assert_eq!(room(Some(first), first, false, 1000), 8000);
        assert_eq!(room(Some(8000), 8000, true, 1000), 4000);
    }
}
