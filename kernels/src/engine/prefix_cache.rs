//! What is kept of sequences that ended, for others that begin alike; the first to go when memory is short.
//!
//! Who begins with what is decided by a group's leader, who knows the tokens: here a prefix is a name and pages. All
//! models on a device share its pages, so what one keeps goes when another needs the memory, the longest unused first.

use super::{Engine, EngineError, Shards, StageKey};
use crate::pages::PagePool;
use std::collections::BTreeMap;
use tsnode_protocol::RequestId;

/// What is kept of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey(u64);

/// Whose first tokens a sequence shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// Of one that runs.
    Running(RequestId),
    /// Of one that ended.
    Kept(PrefixKey),
}

#[derive(Debug)]
struct PrefixCacheEntry {
    stage: StageKey,
    kv: Shards,
    used: u64,
}

/// All that is kept on a device.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    entries: BTreeMap<PrefixKey, PrefixCacheEntry>,
    next_key: u64,
    uses: u64,
}

impl PrefixCache {
    fn insert(&mut self, stage: StageKey, kv: Shards) -> PrefixKey {
        let key = PrefixKey(self.next_key);
        self.next_key += 1;
        self.uses += 1;
        self.entries.insert(key, PrefixCacheEntry { stage, kv, used: self.uses });
        key
    }

    fn get(&self, stage: StageKey, key: PrefixKey) -> Option<&Shards> {
        self.entries.get(&key).filter(|e| e.stage == stage).map(|e| &e.kv)
    }

    fn touch(&mut self, key: PrefixKey) {
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.used = self.uses;
        }
    }

    fn remove(&mut self, pools: &mut [PagePool], key: PrefixKey) {
        if let Some(entry) = self.entries.remove(&key) {
            entry.kv.release(pools);
        }
    }

    /// Lets go of what was longest unused, but for `spared`, until every rank has the pages it needs; nothing, if it never
    /// will.
    pub(super) fn make_room(
        &mut self,
        pools: &mut [PagePool],
        needs: impl Fn(usize) -> usize,
        spared: Option<PrefixKey>,
    ) {
        let lacks = |pools: &[PagePool]| pools.iter().enumerate().any(|(rank, pool)| !pool.has(needs(rank)));
        let may_get = |pools: &[PagePool]| pools.iter().enumerate().all(|(rank, p)| p.count().free >= needs(rank));
        while lacks(pools) && may_get(pools) {
            let others = self.entries.iter().filter(|(key, _)| Some(**key) != spared);
            let Some((key, _)) = others.min_by_key(|(_, entry)| entry.used) else { return };
            let key = *key;
            self.remove(pools, key);
        }
    }

    pub(super) fn drop_stage(&mut self, pools: &mut [PagePool], stage: StageKey) {
        let here: Vec<PrefixKey> = self.entries.iter().filter(|(_, e)| e.stage == stage).map(|(key, _)| *key).collect();
        here.into_iter().for_each(|key| self.remove(pools, key));
    }
}

impl Engine {
    /// Admits a sequence that begins with the first `tokens` tokens of another on this stage; they are present at once.
    ///
    /// # Errors
    /// [`EngineError::NoPrefix`] when the other is gone or shorter, or has more tokens and a state, or is kept and in the way of the
    /// rest; otherwise as [`Engine::admit`].
    pub fn admit_after(
        &mut self,
        stage: StageKey,
        request: RequestId,
        room: u32,
        prefix: Prefix,
        tokens: u32,
    ) -> Result<(), EngineError> {
        if !self.stages.contains_key(&stage) {
            return Err(EngineError::NoStage);
        }
        if self.gives_way(stage) {
            return Err(EngineError::NoPrefix);
        }
        if self.sequences.contains_key(&(stage, request)) {
            return Err(EngineError::Twice(request));
        }
        let (tokens, room) = (tokens as usize, room as usize);
        let spared = match prefix {
            Prefix::Kept(key) => Some(key),
            Prefix::Running(_) => None,
        };
        let from = self.prefix(stage, prefix, tokens, room)?;
        let pages: Vec<usize> = (0..self.pools.len()).map(|rank| from.fork_pages(rank, tokens, room)).collect();
        self.make_room(stage, &pages, spared)?;
        if spared.is_some() && self.is_in_the_way(stage, &pages, room) {
            return Err(EngineError::NoPrefix);
        }
        if let Some(key) = spared {
            self.kept.touch(key);
        }
        let from = match prefix {
            Prefix::Running(other) => self.sequences.get(&(stage, other)),
            Prefix::Kept(key) => self.kept.get(stage, key),
        };
        let kv = from.ok_or(EngineError::NoPrefix)?.fork(&mut self.pools, tokens, room)?;
        self.sequences.insert((stage, request), kv);
        Ok(())
    }

    /// Whether what is kept leaves too few pages to whoever begins with it, and without it there would be enough: it would be waited
    /// for without end, since it does not go for that one. A state is copied, and more may be kept than is shared.
    fn is_in_the_way(&self, stage: StageKey, lacked: &[usize], room: usize) -> bool {
        let Some(loaded) = self.stages.get(&stage) else { return false };
        let lacks = self.pools.iter().zip(lacked).any(|(pool, pages)| !pool.has(*pages));
        let anew = |rank: usize| loaded.pages(rank, room) + self.beside(rank) + self.sharing.beside(rank);
        lacks && self.pools.iter().enumerate().all(|(rank, pool)| pool.count().free >= anew(rank))
    }

    /// The sequence to begin with, if it has so many tokens and they fit.
    pub(super) fn prefix(
        &self,
        stage: StageKey,
        prefix: Prefix,
        tokens: usize,
        room: usize,
    ) -> Result<&Shards, EngineError> {
        let kv = match prefix {
            Prefix::Running(other) => self.sequences.get(&(stage, other)),
            Prefix::Kept(key) => self.kept.get(stage, key),
        };
        kv.filter(|kv| kv.may_fork(tokens) && tokens <= room).ok_or(EngineError::NoPrefix)
    }

    /// Ends a sequence and keeps its first `tokens` tokens, as many as are present, until they are forgotten or their
    /// memory is needed; `None` if it is not there, gives way anyhow, or has more tokens and a state.
    pub fn keep(&mut self, stage: StageKey, request: RequestId, tokens: u32) -> Option<PrefixKey> {
        let cut = |kv: &Shards| kv.has_state() && (tokens as usize) < kv.len();
        if self.gives_way(stage) || self.sequences.get(&(stage, request)).is_some_and(cut) {
            self.release(stage, request);
            return None;
        }
        let kv = self.sequences.remove(&(stage, request))?.keep(&mut self.pools, tokens as usize);
        Some(self.kept.insert(stage, kv))
    }

    /// Gives the pages of what was kept back; what is not there is no error.
    pub fn forget(&mut self, key: PrefixKey) {
        self.kept.remove(&mut self.pools, key);
    }
}
