//! A pool's memory.

use std::ops::{Deref, DerefMut};

/// A page of the system (bytes), or a part of one.
const SYSTEM_PAGE: usize = 4096;

/// Bytes that begin where a page of the system does: rows that are whole cache lines then lie in no others.
#[derive(Default)]
pub(super) struct PoolMemory {
    /// A page more than there is to be; it never grows, so that it stays where it is.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl PoolMemory {
    /// Zeros, which the system has no memory for until they are written.
    pub fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + SYSTEM_PAGE];
        let start = bytes.as_ptr().addr().wrapping_neg() % SYSTEM_PAGE;
        Self { bytes, start, len }
    }
}

impl Deref for PoolMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for PoolMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_with_a_page_of_the_system_and_is_all_there() {
        for len in [0, 1, SYSTEM_PAGE, 3 * SYSTEM_PAGE + 5] {
            let mut memory = PoolMemory::zeroed(len);
            assert!(memory.as_ptr().addr().is_multiple_of(SYSTEM_PAGE) && memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
            assert_eq!(memory.len(), len);
        }
        assert!(PoolMemory::default().is_empty());
    }
}
