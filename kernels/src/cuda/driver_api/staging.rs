//! Memory of the host that a GPU copies from and to by itself: pinned, taken once.
#![expect(unsafe_code, reason = "calls of a library of others; each block says why it is sound")]

use super::{GpuError, failed, nccl::memory_or_group};
use cudarc::driver::result;

/// Bytes that are copied at a time.
pub(super) const PIECE: usize = 8 << 20;
/// Pieces that may be under way to the GPU.
const PIECES: usize = 4;
/// Pieces that may land: one does while the one before it is copied out.
pub(super) const LANDINGS: usize = 2;

/// Pinned memory: a ring for what goes to the GPU, and places where what comes lands.
#[derive(Debug)]
pub(super) struct Staging {
    memory: *mut u8,
    used: usize,
}

impl Staging {
    pub fn new() -> Result<Self, GpuError> {
        let _turn = memory_or_group();
        // SAFETY: a size, and no flags.
        let memory =
            unsafe { result::malloc_host((PIECES + LANDINGS) * PIECE, 0) }.map_err(failed("pinning memory"))?;
        Ok(Self { memory: memory.cast(), used: 0 })
    }

    pub fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= PIECES * PIECE
    }

    /// All that was staged has been copied.
    pub fn begin_again(&mut self) {
        self.used = 0;
    }

    /// Stages a piece that there is room for.
    pub fn put(&mut self, piece: &[u8]) -> &[u8] {
        assert!(self.has_room(piece.len()), "a piece of {} bytes behind {}", piece.len(), self.used);
        // SAFETY: inside the memory, as was just seen; nobody else has that part until `begin_again`.
        let place = unsafe { std::slice::from_raw_parts_mut(self.memory.add(self.used), piece.len()) };
        place.copy_from_slice(piece);
        self.used = (self.used + piece.len()).next_multiple_of(64);
        place
    }

    /// Where a piece lands, by its number: places take turns.
    pub fn landing(&mut self, number: usize, bytes: usize) -> &mut [u8] {
        assert!(bytes <= PIECE, "a piece of {bytes} bytes");
        let place = PIECES + number % LANDINGS;
        // SAFETY: one of the last pieces of the memory, which the ring does not use.
        unsafe { std::slice::from_raw_parts_mut(self.memory.add(place * PIECE), bytes) }
    }

    /// Gives the memory back; nothing uses it any more.
    pub fn give_back(&mut self) {
        if !self.memory.is_null() {
            let _turn = memory_or_group();
            // SAFETY: taken in `new`, given back once.
            let _ = unsafe { result::free_host(self.memory.cast()) };
            self.memory = std::ptr::null_mut();
        }
    }
}
