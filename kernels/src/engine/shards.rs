//! A sequence's KV over the ranks of its stage: each has pages for its own heads, and all have the same tokens.

use crate::pages::{PageLayout, PagePool, PageUse, PagesError, SequenceKv, StateLayout};
use std::ops::Range;

/// A sequence's page tables, one for each rank.
#[derive(Debug)]
pub(crate) struct Shards(Vec<SequenceKv>);

impl Shards {
    /// Takes all pages that `room` tokens in `layers` layers need, and a state if there is one.
    ///
    /// # Errors
    /// When a rank's pool has too few; then none is taken anywhere.
    pub(super) fn reserve(
        pools: &mut [PagePool],
        layouts: impl Iterator<Item = (PageLayout, StateLayout)>,
        layers: usize,
        room: usize,
        page_use: PageUse,
    ) -> Result<Self, PagesError> {
        Self::collect(pools, layouts, |pool, layout| SequenceKv::reserve_as(page_use, pool, layout, layers, room))
    }

    /// A sequence that begins with this one's first `tokens` tokens: [`SequenceKv::fork`].
    ///
    /// # Errors
    /// When a rank's pool has too few pages; then none is taken anywhere.
    pub(super) fn fork(&self, pools: &mut [PagePool], tokens: usize, room: usize) -> Result<Self, PagesError> {
        Self::collect(pools, self.0.iter(), |pool, kv| kv.fork(pool, tokens, room))
    }

    fn collect<T>(
        pools: &mut [PagePool],
        from: impl Iterator<Item = T>,
        take: impl Fn(&mut PagePool, T) -> Result<SequenceKv, PagesError>,
    ) -> Result<Self, PagesError> {
        let mut taken = Self(Vec::with_capacity(pools.len()));
        for (rank, from) in from.enumerate() {
            match take(&mut pools[rank], from) {
                Ok(kv) => taken.0.push(kv),
                Err(full) => {
                    taken.release(pools);
                    return Err(full);
                }
            }
        }
        Ok(taken)
    }

    /// Pages it has on a rank.
    pub(super) fn pages(&self, rank: usize) -> usize {
        self.0[rank].pages()
    }

    /// Pages that [`Self::fork`] takes on a rank.
    pub(super) fn fork_pages(&self, rank: usize, tokens: usize, room: usize) -> usize {
        self.0[rank].fork_pages(tokens, room)
    }

    /// Pages that more room takes on a rank.
    pub(super) fn grow_pages(&self, rank: usize, room: usize) -> usize {
        self.0[rank].grow_pages(room)
    }

    /// Makes room for `room` tokens in all.
    ///
    /// # Errors
    /// When a rank's pool has too few pages; then none is taken anywhere.
    pub(super) fn grow(&mut self, pools: &mut [PagePool], room: usize) -> Result<(), PagesError> {
        self.0.iter().zip(&*pools).try_for_each(|(kv, pool)| pool.check(kv.grow_pages(room)))?;
        self.0.iter_mut().zip(pools).try_for_each(|(kv, pool)| kv.grow(pool, room))
    }

    /// Forgets all tokens but the first `len`; whether nobody else has the pages they are in, on any rank, and there is no state
    /// that would be behind others.
    pub(super) fn truncate(&mut self, pools: &[PagePool], len: usize) -> bool {
        let alone = !self.has_state() && self.is_alone(pools, len..usize::MAX);
        if alone {
            self.set_len(self.len().min(len));
        }
        alone
    }

    /// Whether another sequence can begin with its first `tokens` tokens.
    pub(super) fn may_fork(&self, tokens: usize) -> bool {
        self.0.iter().all(|kv| kv.may_fork(tokens))
    }

    /// Whether some layers keep a state of it: then it cannot be cut.
    pub(super) fn has_state(&self) -> bool {
        self.0.iter().any(SequenceKv::has_state)
    }

    /// Whether nobody else has the pages that `tokens` lie in, on any rank.
    pub(super) fn is_alone(&self, pools: &[PagePool], tokens: Range<usize>) -> bool {
        self.0.iter().zip(pools).all(|(kv, pool)| kv.is_alone(pool, tokens.clone()))
    }

    /// The first `tokens` tokens as something that is kept: [`SequenceKv::keep`].
    pub(super) fn keep(self, pools: &mut [PagePool], tokens: usize) -> Self {
        Self(self.0.into_iter().zip(pools).map(|(kv, pool)| kv.keep(pool, tokens)).collect())
    }

    /// Gives the pages back.
    pub(super) fn release(self, pools: &mut [PagePool]) {
        self.0.into_iter().zip(pools).for_each(|(kv, pool)| kv.release(pool));
    }

    /// Tokens present.
    pub(super) fn len(&self) -> usize {
        self.0.first().map_or(0, SequenceKv::len)
    }

    /// Tokens reserved for.
    pub(super) fn room(&self) -> usize {
        self.0.first().map_or(0, SequenceKv::room)
    }

    /// Says that `len` tokens are present now.
    pub(super) fn set_len(&mut self, len: usize) {
        self.0.iter_mut().for_each(|kv| kv.set_len(len));
    }

    /// A rank's part.
    pub(super) fn of(&self, rank: usize) -> &SequenceKv {
        &self.0[rank]
    }
}
