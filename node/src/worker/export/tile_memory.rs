//! Memory of tiles that have left, for those that are packed next. Had of the system and given back for every tile it would be found
//! and cleared page by page each time, on the thread that computes, and taken from under it by those that send.

use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tsnode_protocol::limits;

/// Tiles whose memory is kept: as many are on their way, about, where a link keeps up.
const KEPT: usize = 4;

/// One sequence's. Held for a push or a pop only.
#[derive(Clone, Default)]
pub(super) struct TileMemory(Arc<Mutex<Vec<Vec<u8>>>>);

impl TileMemory {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // A push and a pop leave it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the next tile: with what another one left in it, if one has left.
    pub fn take(&self) -> Vec<u8> {
        self.lock().pop().unwrap_or_default()
    }

    /// A packed tile, whose memory comes back once nobody has any of it.
    pub fn lend(&self, payload: Vec<u8>) -> Bytes {
        Bytes::from_owner(LentPayload { payload, to: self.clone() })
    }
}

struct LentPayload {
    payload: Vec<u8>,
    to: TileMemory,
}

impl AsRef<[u8]> for LentPayload {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for LentPayload {
    fn drop(&mut self) {
        let payload = std::mem::take(&mut self.payload);
        let mut kept = self.to.lock();
        // A GPU's packer may put all tiles of a step into one payload: of those that are large the system is asked anew.
        let there: usize = kept.iter().map(Vec::capacity).sum();
        if kept.len() < KEPT && (there + payload.capacity()) as u64 <= limits::KV_CREDIT {
            kept.push(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiles_memory_is_the_next_ones_once_all_of_it_has_left() {
        let memory = TileMemory::default();
        let tile = memory.lend(vec![7; 1000]);
        let (at, part) = (tile.as_ptr(), tile.slice(10..20));
        drop(tile);
        assert!(memory.take().is_empty(), "somebody has a part of it");
        drop(part);
        let again = memory.take();
        assert_eq!((again.as_ptr(), again.len()), (at, 1000));
    }

    #[test]
    fn no_more_is_kept_than_a_link_that_keeps_up_needs() {
        let memory = TileMemory::default();
        let all: Vec<Bytes> = (0..10).map(|_| memory.lend(vec![7; 100])).collect();
        drop(all);
        assert_eq!(std::iter::from_fn(|| Some(memory.take()).filter(|payload| !payload.is_empty())).count(), KEPT);
    }
}
