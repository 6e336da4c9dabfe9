//! Memory for large matrices, in huge pages where the system has them: products read it from end to end, and with pages of
//! 4 KiB looking up where they lie takes a part of that time.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};

/// Bytes, zero at first.
pub(super) enum Memory {
    Mapped(MmapMut),
    /// Where the system maps none.
    Plain(Vec<u8>),
}

impl Memory {
    pub fn zeroed(len: usize) -> Self {
        let Ok(map) = MmapMut::map_anon(len.max(1)) else { return Self::Plain(vec![0; len]) };
        // Without huge pages it is as good as other memory, so an error changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Self::Mapped(map)
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Plain(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Plain(bytes) => bytes,
        }
    }
}
