//! Stages beside the others: their sequences give way to all others' as soon as those need the memory.
//!
//! What a draft model remembers of an answer makes it faster and nothing else, as what is kept of ended sequences does. Its
//! pages count as free. What is kept goes first, which nobody may ever ask for again; and a sequence beside displaces what is
//! kept, but none of its kind, which would take turns at reading the same tokens.

use super::{Engine, EngineError, PrefixKey, StageKey};
use crate::{
    pages::{PageCount, PagePool, PageUse, PagesError},
    source::StageModel,
};
use tsnode_protocol::RequestId;

/// What there is of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSequence {
    /// Tokens present.
    pub present: u32,
    /// Tokens reserved for.
    pub room: u32,
}

impl Engine {
    /// Takes a stage in whose sequences give way: each may be gone after any admission or growth of another.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_beside(&mut self, model: StageModel) -> Result<StageKey, EngineError> {
        let carried = self.carrier().carry(model)?;
        Ok(self.take_beside(carried))
    }

    /// A sequence as it is here, if it is.
    #[must_use]
    pub fn held(&self, stage: StageKey, request: RequestId) -> Option<HeldSequence> {
        let kv = self.sequences.get(&(stage, request))?;
        Some(HeldSequence { present: kv.len() as u32, room: kv.room() as u32 })
    }

    /// Sees to it that each rank has so many pages for a sequence of a stage, as far as others' may go for it.
    ///
    /// # Errors
    /// When the sequence would give way itself, and has to leave what there is to others.
    pub(super) fn make_room(
        &mut self,
        stage: StageKey,
        needs: &[usize],
        spared: Option<PrefixKey>,
    ) -> Result<(), PagesError> {
        let gives_way = self.gives_way(stage);
        let own = |rank| if gives_way { self.beside(rank) + self.sharing.lacking(rank) } else { 0 };
        let out_of_reach = |rank| own(rank) + self.sharing.beside(rank);
        let is_short = |(rank, pool): &(usize, &PagePool)| {
            needs[*rank] > 0 && pool.count().free < needs[*rank] + out_of_reach(*rank)
        };
        if let Some((rank, pool)) = self.pools.iter().enumerate().find(is_short) {
            if gives_way {
                let PageCount { free, total } = pool.count();
                return Err(PagesError::Full { wanted: needs[rank], free, total });
            }
            let would_do = self.pools.iter().zip(needs).all(|(pool, need)| pool.count().free >= *need);
            if would_do {
                // What is out of reach are others' that give way, once it is their turn.
                self.give_way(needs);
                self.sharing.lacks(stage, needs);
            }
            return Ok(());
        }
        self.kept.make_room(&mut self.pools, |rank| needs[rank], spared);
        if !gives_way {
            self.give_way(needs);
            self.sharing.gets(stage, needs);
        }
        Ok(())
    }

    /// Lets sequences go that give way until each rank has so many free pages.
    fn give_way(&mut self, needs: &[usize]) {
        while self.pools.iter().zip(needs).any(|(pool, need)| !pool.has(*need)) && self.release_largest() {}
    }

    /// The same until those have enough who lack what sequences here have that give way.
    pub(super) fn give_way_to_others(&mut self) {
        while self.others_lack() && self.release_largest() {}
    }

    fn others_lack(&self) -> bool {
        self.pools.iter().enumerate().any(|(rank, pool)| {
            let lacking = self.sharing.lacking(rank);
            lacking > 0 && pool.count().free < lacking + self.beside(rank) + self.sharing.beside(rank)
        })
    }

    /// Of the sequences that give way; whether there was one.
    fn release_largest(&mut self) -> bool {
        let beside = self.sequences.iter().filter(|((stage, _), _)| self.gives_way(*stage));
        let Some((stage, request)) = beside.max_by_key(|(_, kv)| kv.pages(0)).map(|(key, _)| *key) else {
            return false;
        };
        self.release(stage, request);
        true
    }

    /// Pages of those that give way.
    pub(super) fn beside(&self, rank: usize) -> usize {
        if !self.stages.values().any(|loaded| loaded.page_use == PageUse::Cached) {
            return 0;
        }
        let beside = self.sequences.iter().filter(|((stage, _), _)| self.gives_way(*stage));
        beside.map(|(_, kv)| kv.pages(rank)).sum()
    }

    pub(super) fn gives_way(&self, stage: StageKey) -> bool {
        self.stages.get(&stage).is_some_and(|loaded| loaded.page_use == PageUse::Cached)
    }
}
