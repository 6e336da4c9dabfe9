//! A sequence's page table: what it owns, shares with others and leaves behind.

use super::{PAGE_BYTES, Page, PageLayout, PagePool, PageUse, PagesError, Side, StateLayout, StateUnit};
use crate::cpu::{Cut, Matrix};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use std::ops::Range;
use tsnode_protocol::KvDtype;

/// A sequence's page table on one stage, and how many of its tokens are there.
#[derive(Debug)]
pub struct SequenceKv {
    layout: PageLayout,
    /// Pages by layer of the stage.
    layers: Vec<Vec<Page>>,
    /// Pages of what layers keep beside, and how that lies in them. It is that behind the last token present.
    state: Vec<Page>,
    state_layout: StateLayout,
    /// Another one whenever `layers` is.
    stamp: u64,
    len: usize,
    room: usize,
    page_use: PageUse,
}

impl SequenceKv {
    /// Takes all pages that `room` tokens in `layers` layers need.
    ///
    /// # Errors
    /// When the pool has too few; then none is taken.
    pub fn reserve(pool: &mut PagePool, layout: PageLayout, layers: usize, room: usize) -> Result<Self, PagesError> {
        Self::reserve_as(PageUse::Running, pool, (layout, StateLayout::default()), layers, room)
    }

    /// The same, for a sequence that may have to give way, and with pages for a state.
    pub(crate) fn reserve_as(
        page_use: PageUse,
        pool: &mut PagePool,
        (layout, state_layout): (PageLayout, StateLayout),
        layers: usize,
        room: usize,
    ) -> Result<Self, PagesError> {
        let each = layout.pages(room);
        pool.check(each * layers + state_layout.pages())?;
        let layers = (0..layers).map(|_| pool.take(each, page_use)).collect();
        let state = pool.take(state_layout.pages(), page_use);
        Ok(Self { layout, layers, state, state_layout, stamp: pool.stamp(), len: 0, room, page_use })
    }

    /// Pages it has.
    pub(crate) fn pages(&self) -> usize {
        self.layers.iter().map(Vec::len).sum::<usize>() + self.state.len()
    }

    /// Pages that a sequence takes from the pool which begins with this one's first `tokens` tokens.
    #[must_use]
    pub fn fork_pages(&self, tokens: usize, room: usize) -> usize {
        (self.layout.pages(room) - tokens / self.layout.tokens) * self.layers.len() + self.state.len()
    }

    /// Whether another sequence can begin with its first `tokens` tokens: a state is only there behind the last one.
    pub(crate) fn may_fork(&self, tokens: usize) -> bool {
        tokens == self.len || (tokens < self.len && self.state.is_empty())
    }

    /// A sequence that begins with this one's first `tokens` tokens, with room for `room`: full pages are shared, one that
    /// is not is copied, since the two go on differently from there (copy on write, done when it is known to be needed). A state
    /// is copied too.
    ///
    /// # Errors
    /// When the pool has too few pages for the rest; then none is taken.
    ///
    /// # Panics
    /// When fewer tokens are present, or fewer fit, or a state is behind others.
    pub fn fork(&self, pool: &mut PagePool, tokens: usize, room: usize) -> Result<Self, PagesError> {
        assert!(self.may_fork(tokens) && tokens <= room, "{tokens} of {} tokens, room for {room}", self.len);
        let (whole, each) = (tokens / self.layout.tokens, self.layout.pages(room));
        pool.check(self.fork_pages(tokens, room))?;
        let fork = |from: &Vec<Page>| {
            let mut pages = from[..whole].to_vec();
            pages.iter().for_each(|page| pool.add(*page, PageUse::Running));
            let fresh = pool.take(each - whole, PageUse::Running);
            if !tokens.is_multiple_of(self.layout.tokens) {
                pool.copy(from[whole], fresh[0]);
            }
            pages.extend(fresh);
            pages
        };
        let layers = self.layers.iter().map(fork).collect();
        let state = pool.take(self.state.len(), PageUse::Running);
        self.state.iter().zip(&state).for_each(|(from, to)| pool.copy(*from, *to));
        let (layout, state_layout, page_use) = (self.layout, self.state_layout, PageUse::Running);
        Ok(Self { layout, layers, state, state_layout, stamp: pool.stamp(), len: tokens, room, page_use })
    }

    /// Pages that more room takes from the pool.
    #[must_use]
    pub fn grow_pages(&self, room: usize) -> usize {
        self.layout.pages(room).saturating_sub(self.layout.pages(self.room)) * self.layers.len()
    }

    /// Makes room for `room` tokens in all.
    ///
    /// # Errors
    /// When the pool has too few pages; then none is taken.
    pub fn grow(&mut self, pool: &mut PagePool, room: usize) -> Result<(), PagesError> {
        pool.check(self.grow_pages(room))?;
        let more = self.layout.pages(room).saturating_sub(self.layout.pages(self.room));
        let page_use = self.page_use;
        self.room = self.room.max(room);
        if more > 0 {
            self.layers.iter_mut().for_each(|pages| pages.extend(pool.take(more, page_use)));
            self.stamp = pool.stamp();
        }
        Ok(())
    }

    /// Whether nobody else has the pages that `tokens` lie in.
    #[must_use]
    pub fn is_alone(&self, pool: &PagePool, tokens: Range<usize>) -> bool {
        let (first, end) = (tokens.start / self.layout.tokens, self.layout.pages(tokens.end));
        self.layers.iter().all(|pages| pages.iter().take(end).skip(first).all(|page| pool.has_one_user(*page)))
    }

    /// The first `tokens` tokens as something that is kept until somebody needs the memory; all other pages go back. Of a
    /// sequence with a state, these are all.
    #[must_use]
    pub fn keep(mut self, pool: &mut PagePool, tokens: usize) -> Self {
        self.len = self.len.min(tokens);
        self.room = self.len;
        let pages = self.layout.pages(self.len);
        for layer in &mut self.layers {
            layer.drain(pages..).for_each(|page| pool.remove(page, PageUse::Running));
        }
        for page in self.layers.iter().flatten().chain(&self.state) {
            // In this order: a page that somebody owns is never free.
            pool.add(*page, PageUse::Cached);
            pool.remove(*page, PageUse::Running);
        }
        Self { page_use: PageUse::Cached, stamp: pool.stamp(), ..self }
    }

    /// Gives the pages back.
    pub fn release(self, pool: &mut PagePool) {
        let pages = self.layers.into_iter().flatten().chain(self.state);
        pages.for_each(|page| pool.remove(page, self.page_use));
    }

    /// Whether some layers keep a state of it beside keys and values.
    pub(crate) fn has_state(&self) -> bool {
        !self.state.is_empty()
    }

    /// How its state lies in pages.
    pub(crate) fn state_layout(&self) -> StateLayout {
        self.state_layout
    }

    /// Numbers of a unit of its state in a layer, as bytes.
    ///
    /// # Safety
    /// Nobody else writes or reads this unit meanwhile; `memory` is the pool's.
    #[expect(unsafe_code, reason = "each block says why it is sound")]
    #[allow(clippy::mut_from_ref)] // What it was cut of was borrowed mutably.
    pub(crate) unsafe fn state_beside<'p>(
        &self,
        memory: &'p Cut<'_, u8>,
        layer: usize,
        unit: StateUnit,
    ) -> &'p mut [u8] {
        let (page, at) = self.state_layout.place(layer, unit);
        let from = self.state[page].0 as usize * PAGE_BYTES;
        // SAFETY: the caller's promise: units of a state lie apart.
        unsafe { memory.range(from + at.start..from + at.end) }
    }

    /// The pages of a layer, by their places in the pool.
    pub(crate) fn pages_of(&self, layer: usize) -> impl ExactSizeIterator<Item = u32> {
        self.layers[layer].iter().map(|page| page.0)
    }

    /// The pages of its state.
    pub(crate) fn state_pages(&self) -> impl ExactSizeIterator<Item = u32> {
        self.state.iter().map(|page| page.0)
    }

    /// What tells this page table from every other of its pool, and from what it was before it got or gave pages: where
    /// stamps are equal, so are pages.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
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
    pub fn layout(&self) -> PageLayout {
        self.layout
    }

    /// Says that `len` tokens are present now.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.room);
    }

    /// Stores one head's channels of one token, narrowed to the pages' elements.
    pub fn write(&self, pool: &mut PagePool, layer: usize, side: Side, head: usize, token: usize, values: &[f32]) {
        store(self.layout.dtype, self.element_mut(pool, layer, side, head, token), values);
    }

    /// The same where threads write different tokens or heads side by side.
    ///
    /// # Safety
    /// Nobody else writes or reads this head's channels of the token meanwhile; `memory` is the pool's.
    #[expect(unsafe_code, reason = "each block says why it is sound")]
    pub(crate) unsafe fn write_beside(
        &self,
        memory: &Cut<'_, u8>,
        layer: usize,
        side: Side,
        (head, token): (usize, usize),
        values: &[f32],
    ) {
        // SAFETY: the caller's promise: elements of a page lie apart.
        let bytes = unsafe { memory.range(self.place(layer, side, head, token)) };
        store(self.layout.dtype, bytes, values);
    }

    /// Makes them zeros.
    ///
    /// # Safety
    /// As for [`Self::write_beside`].
    #[expect(unsafe_code, reason = "each block says why it is sound")]
    pub(crate) unsafe fn clear_beside(
        &self,
        memory: &Cut<'_, u8>,
        layer: usize,
        side: Side,
        (head, token): (usize, usize),
    ) {
        // SAFETY: the caller's promise: elements of a page lie apart.
        unsafe { memory.range(self.place(layer, side, head, token)) }.fill(0);
    }

    /// Where in the pool's memory one head's channels of one token lie.
    fn place(&self, layer: usize, side: Side, head: usize, token: usize) -> Range<usize> {
        let l = &self.layout;
        let page = self.layers[layer][token / l.tokens].0 as usize * PAGE_BYTES;
        let at = page + l.head(side, head) + (token % l.tokens) * l.row();
        at..at + l.row()
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
        &mut pool.memory[self.place(layer, side, head, token)]
    }

    /// One head's channels of one token as they lie in the page.
    #[must_use]
    pub fn element<'p>(&self, pool: &'p PagePool, layer: usize, side: Side, head: usize, token: usize) -> &'p [u8] {
        &pool.memory[self.place(layer, side, head, token)]
    }

    /// Widens one head's channels of consecutive tokens from `first` on, `[token][channel]`.
    pub fn widen(&self, pool: &PagePool, layer: usize, side: Side, head: usize, first: usize, out: &mut [f32]) {
        let dtype = self.layout.stored();
        for (i, out) in out.chunks_exact_mut(self.layout.dim).enumerate() {
            let bytes = self.element(pool, layer, side, head, first + i);
            Matrix::new(bytes, dtype, 1, self.layout.dim).widen_row(0, out);
        }
    }

    /// One head's `tokens` as they lie in pages, page by page.
    pub fn runs<'p>(
        &'p self,
        pool: &'p PagePool,
        layer: usize,
        side: Side,
        head: usize,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = &'p [u8]> {
        self.places(layer, side, head, tokens).map(|(page, at)| &pool.page(page)[at])
    }

    /// The same to be written, one run after the other.
    pub fn runs_mut(
        &self,
        pool: &mut PagePool,
        layer: usize,
        side: Side,
        head: usize,
        tokens: Range<usize>,
        mut write: impl FnMut(&mut [u8]),
    ) {
        self.places(layer, side, head, tokens).for_each(|(page, at)| write(&mut pool.page_mut(page)[at]));
    }

    /// Where one head's `tokens` lie: pages, and bytes in them.
    fn places(
        &self,
        layer: usize,
        side: Side,
        head: usize,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = (Page, Range<usize>)> {
        let l = self.layout;
        let pages = self.layers[layer].iter().enumerate().take(l.pages(tokens.end)).skip(tokens.start / l.tokens);
        pages.map(move |(i, page)| {
            let before = i * l.tokens;
            let (from, to) = (tokens.start.saturating_sub(before), (tokens.end - before).min(l.tokens));
            let at = l.head(side, head);
            (*page, at + from * l.row()..at + to * l.row())
        })
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
        let matrix = move |run: &'p [u8]| Matrix::new(run, l.stored(), run.len() / l.row(), l.dim);
        self.runs(pool, layer, side, head, tokens).map(matrix)
    }
}

/// Writes numbers as `dtype` has them.
fn store(dtype: KvDtype, bytes: &mut [u8], values: &[f32]) {
    match dtype {
        KvDtype::F32 => narrow(bytes, values, f32::to_le_bytes),
        KvDtype::F16 => match bytemuck::try_cast_slice_mut::<u8, f16>(bytes) {
            Ok(out) => out.convert_from_f32_slice(values),
            Err(_) => narrow(bytes, values, |v| f16::from_f32(v).to_le_bytes()),
        },
        KvDtype::Bf16 => narrow(bytes, values, |v| bf16::from_f32(v).to_le_bytes()),
    }
}

fn narrow<const N: usize>(bytes: &mut [u8], values: &[f32], store: impl Fn(f32) -> [u8; N]) {
    for (out, v) in bytes.chunks_exact_mut(N).zip(values) {
        out.copy_from_slice(&store(*v));
    }
}
