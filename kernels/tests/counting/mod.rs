//! Counts memory, for tests of what files may ask for, and of what steps take.
#![allow(dead_code, reason = "some ask how much, some how often")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory in use, and the most there was.
struct CountingAllocator;
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static TIMES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; only numbers are counted beside it.
#[expect(unsafe_code, reason = "the line below says why it is sound")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        TIMES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Held by the test that allocates: memory is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// The process to oneself, also after another test failed.
pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory taken since it was made.
pub struct MemoryMeter {
    before: usize,
    times: usize,
}

impl MemoryMeter {
    pub fn start() -> Self {
        let before = NOW.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        Self { before, times: TIMES.load(Ordering::Relaxed) }
    }

    /// The most that was taken at once (bytes).
    pub fn most(&self) -> usize {
        MOST.load(Ordering::Relaxed).saturating_sub(self.before)
    }

    /// How often some was taken.
    pub fn times(&self) -> usize {
        TIMES.load(Ordering::Relaxed) - self.times
    }
}
