//! Stages beside the others: their sequences give way to all others' as soon as those need the memory.
//!
//! What a draft model remembers of an answer makes it faster and nothing else, as what is kept of ended sequences does. Its
//! pages count as free. What is kept goes first, which nobody may ever ask for again; and a sequence beside displaces what is
//! kept, but none of its kind, which would take turns at reading the same tokens.

use super::{Engine, EngineError, PrefixKey, StageKey};
use crate::{
    pages::{PagePool, PageUse},
    source::StageModel,
};
use tsnode_protocol::RequestId;

/// What there is of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
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
    pub fn held(&self, stage: StageKey, request: RequestId) -> Option<Held> {
        let kv = self.sequences.get(&(stage, request))?;
        Some(Held { present: kv.len() as u32, room: kv.room() as u32 })
    }

    /// Sees to it that each rank has so many pages for a sequence of a stage, as far as others' may go for it.
    pub(super) fn make_room(&mut self, stage: StageKey, needs: &[usize], spared: Option<PrefixKey>) {
        let gives_way = self.gives_way(stage);
        let own = |rank| if gives_way { self.beside(rank) } else { 0 };
        let out_of_reach = |rank| own(rank) + self.sharing.beside(rank);
        let may_get = |(rank, pool): (usize, &PagePool)| pool.count().free >= needs[rank] + out_of_reach(rank);
        if !self.pools.iter().enumerate().all(may_get) {
            let would_do = self.pools.iter().zip(needs).all(|(pool, need)| pool.count().free >= *need);
            if would_do && !gives_way {
                // What is out of reach are others' that give way, once it is their turn.
                self.give_way(needs);
                self.sharing.lacks(needs);
            }
            return;
        }
        self.kept.make_room(&mut self.pools, |rank| needs[rank], spared);
        if !gives_way {
            self.give_way(needs);
        }
    }

    /// Lets sequences go that give way, the largest first, until each rank has so many free pages.
    pub(super) fn give_way(&mut self, needs: &[usize]) {
        while self.pools.iter().zip(needs).any(|(pool, need)| !pool.has(*need)) {
            let beside = self.sequences.iter().filter(|((stage, _), _)| self.gives_way(*stage));
            let Some((stage, request)) = beside.max_by_key(|(_, kv)| kv.pages(0)).map(|(key, _)| *key) else { return };
            self.release(stage, request);
        }
    }

    /// Pages of those that give way.
    pub(super) fn beside(&self, rank: usize) -> usize {
        if !self.stages.values().any(|loaded| loaded.page_use == PageUse::Cached) {
            return 0;
        }
        let beside = self.sequences.iter().filter(|((stage, _), _)| self.gives_way(*stage));
        beside.map(|(_, kv)| kv.pages(rank)).sum()
    }

    /// Whether any of them gives way.
    pub(super) fn has_beside(&self) -> bool {
        self.sequences.keys().any(|(stage, _)| self.gives_way(*stage))
    }

    pub(super) fn gives_way(&self, stage: StageKey) -> bool {
        self.stages.get(&stage).is_some_and(|loaded| loaded.page_use == PageUse::Cached)
    }
}
