//! KV pages: one pool for every model on a device, in pages of one size whatever the model (SeaLLM §4.4).
//!
//! A page holds one layer's keys and values of a block of tokens: keys `[kv_head][token][channel]`, then values in the
//! same order. How many tokens fit follows from the model ([`Layout`]).

use crate::cpu::{Dtype, Matrix};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use std::ops::Range;
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
pub struct Layout {
    /// KV heads.
    pub heads: usize,
    /// Channels of a head.
    pub dim: usize,
    /// Elements.
    pub dtype: KvDtype,
    /// Tokens in a page.
    pub tokens: usize,
}

impl Layout {
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

    fn stored(&self) -> Dtype {
        match self.dtype {
            KvDtype::F16 => Dtype::F16,
            KvDtype::Bf16 => Dtype::Bf16,
            KvDtype::F32 => Dtype::F32,
        }
    }

    fn row(&self) -> usize {
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

/// Pages free and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCount {
    /// Free.
    pub free: usize,
    /// In all.
    pub total: usize,
}

/// All KV memory of a device. The system commits a page's memory when it is first written.
pub struct PagePool {
    memory: Vec<u8>,
    free: Vec<Page>,
}

impl PagePool {
    /// A pool of as many pages as fit `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let pages = (bytes / PAGE_BYTES).min(u32::MAX as usize);
        // Taken from the end: a pool used little touches little memory.
        let free = (0..pages as u32).rev().map(Page).collect();
        Self { memory: vec![0; pages * PAGE_BYTES], free }
    }

    /// Free and total.
    #[must_use]
    pub fn count(&self) -> PageCount {
        PageCount { free: self.free.len(), total: self.memory.len() / PAGE_BYTES }
    }

    fn page(&self, page: Page) -> &[u8] {
        &self.memory[page.0 as usize * PAGE_BYTES..][..PAGE_BYTES]
    }

    fn page_mut(&mut self, page: Page) -> &mut [u8] {
        &mut self.memory[page.0 as usize * PAGE_BYTES..][..PAGE_BYTES]
    }
}

/// A sequence's page table on one stage, and how many of its tokens are there.
#[derive(Debug)]
pub struct SequenceKv {
    layout: Layout,
    /// Pages by layer of the stage.
    layers: Vec<Vec<Page>>,
    len: usize,
    room: usize,
}

impl SequenceKv {
    /// Takes all pages that `room` tokens in `layers` layers need.
    ///
    /// # Errors
    /// When the pool has too few; then none is taken.
    pub fn reserve(pool: &mut PagePool, layout: Layout, layers: usize, room: usize) -> Result<Self, PagesError> {
        let each = layout.pages(room);
        let count = pool.count();
        if each * layers > count.free {
            return Err(PagesError::Full { wanted: each * layers, free: count.free, total: count.total });
        }
        let mut take = || pool.free.split_off(pool.free.len() - each);
        let layers = (0..layers).map(|_| take()).collect();
        Ok(Self { layout, layers, len: 0, room })
    }

    /// Gives the pages back.
    pub fn release(self, pool: &mut PagePool) {
        pool.free.extend(self.layers.into_iter().flatten());
    }

    /// Tokens present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens reserved for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room
    }

    /// How it lies in pages.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Says that `len` tokens are present now.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.room);
    }

    /// Stores one head's channels of one token, narrowed to the pages' elements.
    pub fn write(&self, pool: &mut PagePool, layer: usize, side: Side, head: usize, token: usize, values: &[f32]) {
        let bytes = self.element_mut(pool, layer, side, head, token);
        match self.layout.dtype {
            KvDtype::F32 => narrow(bytes, values, f32::to_le_bytes),
            KvDtype::F16 => match bytemuck::try_cast_slice_mut::<u8, f16>(bytes) {
                Ok(out) => out.convert_from_f32_slice(values),
                Err(_) => narrow(bytes, values, |v| f16::from_f32(v).to_le_bytes()),
            },
            KvDtype::Bf16 => narrow(bytes, values, |v| bf16::from_f32(v).to_le_bytes()),
        }
    }

    /// One head's channels of one token as they lie in the page, to be written.
    pub fn element_mut<'p>(
        &self,
        pool: &'p mut PagePool,
        layer: usize,
        side: Side,
        head: usize,
        token: usize,
    ) -> &'p mut [u8] {
        let l = &self.layout;
        let at = l.head(side, head) + (token % l.tokens) * l.row();
        &mut pool.page_mut(self.layers[layer][token / l.tokens])[at..at + l.row()]
    }

    /// One head's channels of one token as they lie in the page.
    #[must_use]
    pub fn element<'p>(&self, pool: &'p PagePool, layer: usize, side: Side, head: usize, token: usize) -> &'p [u8] {
        let l = &self.layout;
        let at = l.head(side, head) + (token % l.tokens) * l.row();
        &pool.page(self.layers[layer][token / l.tokens])[at..at + l.row()]
    }

    /// Widens one head's channels of consecutive tokens from `first` on, `[token][channel]`.
    pub fn widen(&self, pool: &PagePool, layer: usize, side: Side, head: usize, first: usize, out: &mut [f32]) {
        let dtype = self.layout.stored();
        for (i, out) in out.chunks_exact_mut(self.layout.dim).enumerate() {
            let bytes = self.element(pool, layer, side, head, first + i);
            Matrix::new(bytes, dtype, 1, self.layout.dim).widen_row(0, out);
        }
    }

    /// One head's `tokens`, page by page, each as a matrix `[token][channel]`.
    pub fn blocks<'p>(
        &'p self,
        pool: &'p PagePool,
        layer: usize,
        side: Side,
        head: usize,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = Matrix<'p>> {
        let l = self.layout;
        let dtype = l.stored();
        let pages = self.layers[layer].iter().enumerate().take(l.pages(tokens.end)).skip(tokens.start / l.tokens);
        pages.map(move |(i, page)| {
            let before = i * l.tokens;
            let (from, to) = (tokens.start.saturating_sub(before), (tokens.end - before).min(l.tokens));
            let at = l.head(side, head);
            Matrix::new(&pool.page(*page)[at + from * l.row()..at + to * l.row()], dtype, to - from, l.dim)
        })
    }
}

fn narrow<const N: usize>(bytes: &mut [u8], values: &[f32], store: impl Fn(f32) -> [u8; N]) {
    for (out, v) in bytes.chunks_exact_mut(N).zip(values) {
        out.copy_from_slice(&store(*v));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout { heads: 2, dim: 4, dtype: KvDtype::F16, tokens: PAGE_BYTES / (2 * 2 * 4 * 2) }
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
