//! Memory for weights that are laid out anew, in huge pages where the system has them: products read it from end to end, and
//! with pages of 4 KiB looking up where they lie takes a part of that time, another one in every process.
//!
//! A huge page is 2 MiB, and a small model's matrices are less: so many share a piece.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A huge page, on most systems.
const HUGE: usize = 2 << 20;
/// What is asked of the system at once. What is never written of it takes no memory.
const PIECE: usize = 32 << 20;
/// Where what is handed out begins: a cache line.
const ALIGN: usize = 64;

/// Bytes, zero at first.
pub(crate) struct Memory {
    piece: Arc<Allocation>,
    from: usize,
    len: usize,
}

impl Memory {
    /// So many, for themselves.
    pub fn zeroed(len: usize) -> Self {
        let piece = Arc::new(Allocation::new(len));
        Self { piece, from: 0, len }
    }
}

/// Hands out memory one after the other. A piece goes back to the system when nothing that lies in it is left.
#[derive(Default)]
pub(crate) struct Arena {
    piece: Option<Arc<Allocation>>,
    used: usize,
}

impl Arena {
    /// So many bytes, zero.
    pub fn zeroed(&mut self, len: usize) -> Memory {
        if len > PIECE / 2 {
            return Memory::zeroed(len);
        }
        let fits = |piece: &&Arc<Allocation>| len <= piece.len - self.used;
        let piece = match self.piece.as_ref().filter(fits) {
            Some(piece) => piece.clone(),
            None => {
                self.used = 0;
                self.piece.insert(Arc::new(Allocation::new(PIECE))).clone()
            }
        };
        let from = self.used;
        self.used = (from + len).next_multiple_of(ALIGN).min(piece.len);
        Memory { piece, from, len }
    }
}

/// Gives back to the system what its allocator keeps though nobody uses it: of a large vocabulary's tokenizer, read and built
/// before, tens of megabytes.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "each block says why it is sound")]
    {
        unsafe extern "C" {
            fn malloc_trim(kept: usize) -> std::ffi::c_int;
        }
        // SAFETY: glibc's, declared as it is there; it may be called at any time by any thread, and touches only what is free.
        // What it answers is whether it found anything.
        let _ = unsafe { malloc_trim(0) };
    }
}

/// Blocks of more than this (bytes) glibc has from the system, each for itself, and gives back when they are freed, whatever it
/// has learnt of smaller ones: those it keeps for others, in every thread's own heap, where [`trim`] does not find all of them.
const OWN: usize = 33 << 20;
/// Blocks up to here are not worth it (bytes).
const KEPT: usize = 256 << 10;

/// The capacity to ask for so that what is soon freed goes back to the system at once. What is never written takes no memory.
#[must_use]
pub fn room(bytes: usize) -> usize {
    if bytes > KEPT { bytes.max(OWN) } else { bytes }
}

/// What the system gave.
struct Allocation {
    start: *mut u8,
    len: usize,
    _given: Given,
}

/// Held until the last [`Memory`] of it is dropped, and not looked at: [`Allocation::start`] points into it.
enum Given {
    Mapped {
        _map: MmapMut,
    },
    /// Where the system maps none.
    Plain {
        _bytes: Vec<u8>,
    },
}

#[expect(unsafe_code, reason = "the line below says why it is sound")]
// SAFETY: a piece's bytes are reached through `Memory` alone, and no two of these share any; nothing else changes.
unsafe impl Send for Allocation {}
#[expect(unsafe_code, reason = "the line below says why it is sound")]
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn new(len: usize) -> Self {
        // Huge pages begin where their size divides the address.
        let Some(Ok(mut map)) = len.checked_add(HUGE).map(MmapMut::map_anon) else {
            let mut bytes = vec![0; len];
            return Self { start: bytes.as_mut_ptr(), len, _given: Given::Plain { _bytes: bytes } };
        };
        // Without huge pages it is as good as other memory, so an error changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skipped = map.as_ptr().align_offset(HUGE).min(HUGE);
        let start = map[skipped..][..len].as_mut_ptr();
        Self { start, len, _given: Given::Mapped { _map: map } }
    }
}

impl Deref for Memory {
    type Target = [u8];

    #[expect(unsafe_code, reason = "each block says why it is sound")]
    fn deref(&self) -> &[u8] {
        // SAFETY: inside the piece, which lives as long as this does; nobody else has these bytes.
        unsafe { std::slice::from_raw_parts(self.piece.start.add(self.from), self.len) }
    }
}

impl DerefMut for Memory {
    #[expect(unsafe_code, reason = "each block says why it is sound")]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.piece.start.add(self.from), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_is_zero_aligned_and_shared_with_nobody() {
        let mut arena = Arena::default();
        let sizes = [1, 63, 64, 65, 0, 1 << 20, PIECE / 2, PIECE / 2 + 1, PIECE / 2, 3 * PIECE, 5];
        let mut all: Vec<Memory> = sizes.iter().map(|len| arena.zeroed(*len)).collect();
        for (n, memory) in all.iter_mut().enumerate() {
            assert!(memory.len() == sizes[n] && memory.as_ptr().addr() % ALIGN == 0);
            assert!(memory.iter().all(|byte| *byte == 0), "{n}");
            memory.fill(n as u8 + 1);
        }
        let whole = |(n, memory): (usize, &Memory)| memory.iter().all(|byte| *byte == n as u8 + 1);
        assert!(all.iter().enumerate().all(whole));
        let pieces = all.iter().map(|memory| memory.piece.start.addr()).collect::<std::collections::BTreeSet<_>>();
        // Two of the arena's, as two halves and a little more do not fit one; and one each for the two large ones.
        assert_eq!(pieces.len(), 4);
    }

    #[test]
    fn a_piece_lives_as_long_as_anything_in_it() {
        let mut arena = Arena::default();
        let [first, second] = [(); 2].map(|()| arena.zeroed(100));
        let piece = Arc::downgrade(&first.piece);
        drop((arena, first));
        assert!(piece.strong_count() == 1 && second.iter().all(|byte| *byte == 0));
        drop(second);
        assert_eq!(piece.strong_count(), 0);
    }
}
