//! KV pages: one pool for every model on a device, in pages of one size whatever the model (SeaLLM §4.4).
//!
//! A page holds one layer's keys and values of a block of tokens: keys `[kv_head][token][channel]`, then values in the
//! same order. How many tokens fit follows from the model ([`PageLayout`]). A page may have several users: sequences that
//! begin alike, and what is kept of sequences that ended. Shared pages are full or were copied, and never written.

mod memory;
mod state;
mod table;

pub use state::StateLayout;
pub(crate) use state::{PAGE_NUMBERS, StatePlaces, StateUnit};
pub use table::SequenceKv;

use crate::cpu::{Cut, Dtype};
use memory::PoolMemory;
use tsnode_protocol::{KvDtype, ModelShape};

/// Bytes of a page: 16 tokens of Llama-3-8B, 128 of the embedded model.
pub const PAGE_BYTES: usize = 64 * 1024;

/// Why no pages were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// The pool has too few free pages.
    #[error("{wanted} KV pages wanted, {free} of {total} free")]
    Full {
        /// Needed.
        wanted: usize,
        /// Free.
        free: usize,
        /// In all.
        total: usize,
    },
    /// One token's KV is larger than a page.
    #[error("one token's KV of {bytes} bytes does not fit a page of {PAGE_BYTES}")]
    TokenTooLarge {
        /// Bytes of a token's keys and values in one layer.
        bytes: usize,
    },
}

/// How a model's KV lies in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// KV heads.
    pub heads: usize,
    /// Channels of a head.
    pub dim: usize,
    /// Elements.
    pub dtype: KvDtype,
    /// Tokens in a page.
    pub tokens: usize,
}

impl PageLayout {
    /// For a model's shape.
    ///
    /// # Errors
    /// When not even one token fits a page.
    pub fn new(shape: &ModelShape, dtype: KvDtype) -> Result<Self, PagesError> {
        let bytes = shape.kv_elements_per_token_layer() as usize * dtype.bytes();
        match PAGE_BYTES / bytes.max(1) {
            0 => Err(PagesError::TokenTooLarge { bytes }),
            tokens => Ok(Self { heads: shape.kv_heads as usize, dim: shape.head_dim as usize, dtype, tokens }),
        }
    }

    /// Pages for `tokens` tokens in one layer.
    #[must_use]
    pub fn pages(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.tokens)
    }

    pub(crate) fn stored(&self) -> Dtype {
        match self.dtype {
            KvDtype::F16 => Dtype::F16,
            KvDtype::Bf16 => Dtype::Bf16,
            KvDtype::F32 => Dtype::F32,
        }
    }

    pub(crate) fn row(&self) -> usize {
        self.dim * self.dtype.bytes()
    }

    /// First byte of a head's keys or values in a page.
    fn head(&self, side: Side, head: usize) -> usize {
        let side = match side {
            Side::Keys => 0,
            Side::Values => self.heads,
        };
        (side + head) * self.tokens * self.row()
    }
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys, after rotary embedding.
    Keys,
    /// Values.
    Values,
}

/// A page's place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page(u32);

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageUse {
    /// A sequence that runs.
    Running,
    /// The prefix cache, until somebody needs the memory: it is of a sequence that ended, or of one that gives way.
    Cached,
}

/// How many use a page.
#[derive(Clone, Copy, Debug, Default)]
struct PageUsers {
    running: u32,
    cached: u32,
}

/// Pages free and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCount {
    /// Free, or kept only until somebody needs them.
    pub free: usize,
    /// In all.
    pub total: usize,
}

/// Pages whose memory is had of the system before anybody needs them (32 MiB): having it takes several milliseconds of the
/// prompt of a small model otherwise.
const READY: usize = (32 << 20) / PAGE_BYTES;
/// What the system commits at once, at least.
const COMMITTED: usize = 4096;

/// All KV memory of a device. The system commits a page's memory when it is first written.
pub struct PagePool {
    /// Empty where pages lie on a GPU.
    memory: PoolMemory,
    /// Pages to be copied on the GPU before anything is written there; none of a pool whose memory is here.
    copies: Option<Vec<(u32, u32)>>,
    free: Vec<Page>,
    users: Vec<PageUsers>,
    /// Pages that no running sequence uses and that are not free.
    spare: usize,
    /// Pages from this one on have never been taken: those before it are free again, or in use.
    fresh: usize,
    /// Pages from this one on have never been written.
    unwritten: usize,
    /// How often a sequence got or gave pages.
    stamps: u64,
}

impl PagePool {
    /// A pool of as many pages as fit `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let pages = (bytes / PAGE_BYTES).min(u32::MAX as usize);
        // Taken from the end: a pool used little touches little memory.
        let free = (0..pages as u32).rev().map(Page).collect();
        Self {
            memory: PoolMemory::zeroed(pages * PAGE_BYTES),
            copies: None,
            free,
            users: vec![PageUsers::default(); pages],
            spare: 0,
            fresh: 0,
            unwritten: 0,
            stamps: 0,
        }
    }

    /// A pool that keeps the books of pages which lie on a GPU. Their bytes cannot be had here.
    pub(crate) fn elsewhere(bytes: usize) -> Self {
        let pages = (bytes / PAGE_BYTES).min(u32::MAX as usize);
        let free = (0..pages as u32).rev().map(Page).collect();
        let users = vec![PageUsers::default(); pages];
        let memory = PoolMemory::default();
        Self { memory, copies: Some(Vec::new()), free, users, spare: 0, fresh: 0, unwritten: 0, stamps: 0 }
    }

    /// A number that no page table of this pool has had.
    fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// Copies that are still to be made on the GPU, in their order.
    pub(crate) fn take_copies(&mut self) -> Vec<(u32, u32)> {
        self.copies.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Free and total.
    #[must_use]
    pub fn count(&self) -> PageCount {
        PageCount { free: self.free.len() + self.spare, total: self.users.len() }
    }

    /// Bytes of pages whose memory the system has committed here.
    pub(crate) fn committed(&self) -> u64 {
        if self.memory.is_empty() { 0 } else { (self.unwritten * PAGE_BYTES) as u64 }
    }

    /// Whether so many pages can be had without taking any from what is kept.
    #[must_use]
    pub fn has(&self, pages: usize) -> bool {
        self.free.len() >= pages
    }

    /// Refuses what the free pages are too few for.
    pub(crate) fn check(&self, wanted: usize) -> Result<(), PagesError> {
        let PageCount { free, total } = self.count();
        if self.has(wanted) { Ok(()) } else { Err(PagesError::Full { wanted, free, total }) }
    }

    /// As many pages for a sequence; the caller has checked that there are.
    fn take(&mut self, pages: usize, page_use: PageUse) -> Vec<Page> {
        let taken = self.free.split_off(self.free.len() - pages);
        for page in &taken {
            let at = page.0 as usize;
            self.users[at] = match page_use {
                PageUse::Running => PageUsers { running: 1, cached: 0 },
                PageUse::Cached => PageUsers { running: 0, cached: 1 },
            };
            self.fresh = self.fresh.max(at + 1);
        }
        self.unwritten = self.unwritten.max(self.fresh);
        if page_use == PageUse::Cached {
            self.spare += pages;
        }
        taken
    }

    /// Has the memory of one more page committed, while few are at hand; says whether there may be more to do.
    pub(crate) fn make_ready(&mut self) -> bool {
        let again = self.free.len() - (self.users.len() - self.fresh);
        let at_hand = again + self.unwritten - self.fresh;
        if self.memory.is_empty() || at_hand >= READY || self.unwritten == self.users.len() {
            return false;
        }
        let page = self.page_mut(Page(self.unwritten as u32));
        page.iter_mut().step_by(COMMITTED).for_each(|byte| *byte = 0);
        self.unwritten += 1;
        true
    }

    fn has_one_user(&self, page: Page) -> bool {
        let PageUsers { running, cached } = self.users[page.0 as usize];
        running + cached == 1
    }

    fn add(&mut self, page: Page, page_use: PageUse) {
        let users = &mut self.users[page.0 as usize];
        match page_use {
            PageUse::Running if users.running == 0 => {
                self.spare -= 1;
                users.running = 1;
            }
            PageUse::Running => users.running += 1,
            PageUse::Cached => users.cached += 1,
        }
    }

    fn remove(&mut self, page: Page, page_use: PageUse) {
        let users = &mut self.users[page.0 as usize];
        match page_use {
            PageUse::Running => users.running -= 1,
            PageUse::Cached => users.cached -= 1,
        }
        match (page_use, *users) {
            (PageUse::Running, PageUsers { running: 0, cached: 0 }) => self.free.push(page),
            (PageUse::Running, PageUsers { running: 0, .. }) => self.spare += 1,
            (PageUse::Cached, PageUsers { running: 0, cached: 0 }) => {
                self.spare -= 1;
                self.free.push(page);
            }
            _ => {}
        }
    }

    fn page(&self, page: Page) -> &[u8] {
        &self.memory[page.0 as usize * PAGE_BYTES..][..PAGE_BYTES]
    }

    fn page_mut(&mut self, page: Page) -> &mut [u8] {
        &mut self.memory[page.0 as usize * PAGE_BYTES..][..PAGE_BYTES]
    }

    /// All memory, to be written by threads side by side.
    pub(crate) fn cut(&mut self) -> Cut<'_, u8> {
        Cut::new(&mut self.memory, PAGE_BYTES)
    }

    fn copy(&mut self, from: Page, to: Page) {
        if let Some(copies) = &mut self.copies {
            copies.push((from.0, to.0));
            return;
        }
        let from = from.0 as usize * PAGE_BYTES;
        self.memory.copy_within(from..from + PAGE_BYTES, to.0 as usize * PAGE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn layout() -> PageLayout {
        PageLayout { heads: 2, dim: 4, dtype: KvDtype::F16, tokens: PAGE_BYTES / (2 * 2 * 4 * 2) }
    }

    #[test]
    fn pages_are_taken_whole_or_not_at_all_and_come_back() {
        let mut pool = PagePool::new(4 * PAGE_BYTES);
        let tokens = layout().tokens;
        let one = SequenceKv::reserve(&mut pool, layout(), 3, tokens).unwrap();
        assert_eq!(pool.count(), PageCount { free: 1, total: 4 });
        let full = SequenceKv::reserve(&mut pool, layout(), 1, tokens + 1).unwrap_err();
        assert_eq!(full, PagesError::Full { wanted: 2, free: 1, total: 4 });
        one.release(&mut pool);
        assert_eq!(pool.count(), PageCount { free: 4, total: 4 });
    }

    #[test]
    fn some_pages_are_at_hand_and_what_is_in_use_is_left_alone() {
        let mut pool = PagePool::new(2 * READY * PAGE_BYTES);
        let ready = |pool: &mut PagePool| std::iter::from_fn(|| pool.make_ready().then_some(())).count();
        assert_eq!((ready(&mut pool), ready(&mut pool)), (READY, 0));
        assert_eq!(pool.committed(), (READY * PAGE_BYTES) as u64);
        let taken = pool.take(READY + 10, PageUse::Running);
        taken.iter().for_each(|page| pool.page_mut(*page).fill(7));
        assert_eq!(ready(&mut pool), READY - 10, "as many as there are");
        assert!(taken.iter().all(|page| pool.page(*page).iter().all(|byte| *byte == 7)));
        taken.into_iter().for_each(|page| pool.remove(page, PageUse::Running));
        assert_eq!((ready(&mut pool), pool.take(2 * READY, PageUse::Running).len()), (0, 2 * READY));
        assert_eq!(ready(&mut PagePool::elsewhere(READY * PAGE_BYTES)), 0);
    }

    #[test]
    fn what_is_written_is_read_across_pages() {
        let mut pool = PagePool::new(8 * PAGE_BYTES);
        let room = layout().tokens + 3;
        let kv = SequenceKv::reserve(&mut pool, layout(), 2, room).unwrap();
        for token in 0..room {
            for head in 0..2 {
                let value = (token * 2 + head) as f32 / 16.0;
                kv.write(&mut pool, 1, Side::Values, head, token, &[value; 4]);
            }
        }
        let mut row = [0.0; 4];
        for first in [0, 5, room - 4, room - 2] {
            let mut token = first;
            for block in kv.blocks(&pool, 1, Side::Values, 1, first..room) {
                for r in 0..block.rows() {
                    block.widen_row(r, &mut row);
                    assert_eq!(row, [f16::from_f32((token * 2 + 1) as f32 / 16.0).to_f32(); 4]);
                    token += 1;
                }
            }
            assert_eq!(token, room);
        }
    }
}
