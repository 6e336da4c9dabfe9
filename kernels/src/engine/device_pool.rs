//! One pool of KV pages for all engines of a device (SeaLLM §4.4): who computes has all of it for as long as it does.
//!
//! Engines of a device compute one after the other. When an engine's turn begins, the pool moves into it, with what is kept there of
//! sequences that ended, and out again when it is over: no page is copied, whatever models come and go. In its turn an engine works
//! on the pool as on one of its own. A page that one gives back is the next one's; and what one keeps goes when another needs the
//! memory, the longest unused first, as it does for its own sequences.
//!
//! Of GPUs the turn has these as well: all engines' stages lie on them, each by a key that no other has, and what one engine asks of
//! them is behind what the one before it asked. So a page that was given back is not written before whoever read it is done.
//!
//! Sequences that give way are their engine's to release. So whoever needs the pages of another's says so, is refused, and asks
//! again; until then they are left to it.

use super::{
    Engine, EngineConfig, EngineError, Prefix, PrefixCache, StageKey, Starting, Threads,
    carded::{OnGpus, Tables},
};
use crate::{
    cuda::{Gpu, GpuError, GpuRanks},
    pages::{PAGE_BYTES, PageCount, PagePool},
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use tsnode_protocol::{KvDtype, RequestId};

/// For how long pages are left to whoever lacks them and does not ask again. Whoever waits asks more often, also where it has to wait
/// for steps of several hosts first.
const LEFT: Duration = Duration::from_secs(5);

/// Pages that a stage needs, by rank, where others have them in sequences that give way.
struct Lack {
    needs: Vec<usize>,
    until: Instant,
}

/// What engines of a device have in their turns.
struct KvMemory {
    pools: Vec<PagePool>,
    /// Where pages and stages are, if they are on GPUs.
    gpus: Option<GpuRanks>,
    /// Page tables of each GPU's last batch, whosever that was.
    tables: Vec<Tables>,
    kept: PrefixCache,
    /// Of the next stage that any of them takes in.
    next_key: u64,
    /// Pages of all engines' sequences that give way, by rank.
    beside: Vec<usize>,
    /// By who needs them.
    lacking: BTreeMap<StageKey, Lack>,
}

/// The pool of a device.
#[derive(Clone)]
pub struct DevicePool {
    ranks: usize,
    is_on_gpus: bool,
    memory: Arc<Mutex<KvMemory>>,
}

impl DevicePool {
    /// So much memory, in as many pages for each rank.
    #[must_use]
    pub fn new(bytes: usize, ranks: usize) -> Self {
        let ranks = ranks.max(1);
        let each = Self::pages(bytes, ranks) / ranks * PAGE_BYTES;
        let pools = (0..ranks).map(|_| PagePool::new(each)).collect();
        Self::of(pools, (None, Vec::new()))
    }

    /// The same on GPUs, each a rank, whose pages so much of their memory in all is for.
    ///
    /// # Errors
    /// When there is no GPU, or one has no memory for the pages.
    pub fn on_gpus(gpus: Vec<Gpu>, bytes: usize) -> Result<Self, GpuError> {
        let ranks = gpus.len().max(1);
        let each = Self::pages(bytes, ranks) / ranks;
        let OnGpus { gpus, tables, pools } = OnGpus::reserve(gpus, |_| each)?;
        Ok(Self::of(pools, (Some(gpus), tables)))
    }

    fn of(pools: Vec<PagePool>, (gpus, tables): (Option<GpuRanks>, Vec<Tables>)) -> Self {
        let (ranks, is_on_gpus) = (pools.len(), gpus.is_some());
        let (kept, beside) = (PrefixCache::default(), vec![0; ranks]);
        let memory = KvMemory { pools, gpus, tables, kept, next_key: 0, beside, lacking: BTreeMap::new() };
        Self { ranks, is_on_gpus, memory: Arc::new(Mutex::new(memory)) }
    }

    /// Pages that so much memory is, as many of each rank.
    #[must_use]
    pub fn pages(bytes: usize, ranks: usize) -> usize {
        let ranks = ranks.max(1);
        bytes / PAGE_BYTES / ranks * ranks
    }
}

/// What an engine knows of a pool that others have as well.
#[derive(Default)]
pub(super) struct PoolSharing {
    pool: Option<DevicePool>,
    /// Pages that its running sequences used when its last turn was over, by rank.
    used: Vec<usize>,
    /// In its turn: pages that others' running sequences use, by rank.
    others: Vec<usize>,
    /// In its turn: pages of others' sequences that give way, by rank.
    beside: Vec<usize>,
    lacking: BTreeMap<StageKey, Lack>,
}

impl PoolSharing {
    /// Whether what is had in turns is on GPUs.
    pub(super) fn is_on_gpus(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.is_on_gpus)
    }

    /// Pages of others' sequences that give way.
    pub(super) fn beside(&self, rank: usize) -> usize {
        self.beside.get(rank).copied().unwrap_or_default()
    }

    /// Pages of a rank that sequences which give way leave to stages that lack them.
    pub(super) fn lacking(&self, rank: usize) -> usize {
        self.lacking.values().filter_map(|lack| lack.needs.get(rank)).sum()
    }

    /// Others' sequences are to give way, when it is their turn, until a stage can have so many pages. If it waits for more already,
    /// that is as it was.
    pub(super) fn lacks(&mut self, stage: StageKey, needs: &[usize]) {
        let is_more = |lack: &Lack| lack.needs.iter().zip(needs).any(|(lacked, need)| lacked > need);
        if self.lacking.get(&stage).is_some_and(is_more) {
            return;
        }
        self.lacking.insert(stage, Lack { needs: needs.to_vec(), until: Instant::now() + LEFT });
    }

    /// A stage can have so many pages: it lacks no more than that.
    pub(super) fn gets(&mut self, stage: StageKey, needs: &[usize]) {
        let is_met = |lack: &Lack| lack.needs.iter().zip(needs).all(|(lacked, need)| lacked <= need);
        if self.lacking.get(&stage).is_some_and(is_met) {
            self.lacking.remove(&stage);
        }
    }

    /// Who has not asked again for long asks no more.
    fn forget_lapsed(&mut self) {
        if !self.lacking.is_empty() {
            let now = Instant::now();
            self.lacking.retain(|_, lack| now < lack.until);
        }
    }
}

/// A turn: the pool is in the engine, whatever becomes of its work.
struct Lease<'a> {
    engine: &'a mut Engine,
    memory: &'a mut KvMemory,
}

impl<'a> Lease<'a> {
    fn new(engine: &'a mut Engine, memory: &'a mut KvMemory) -> Self {
        engine.begin(memory);
        Self { engine, memory }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.engine.end(self.memory);
    }
}

impl Engine {
    /// An engine whose pages are a device's, as others' are: it has them in its turns, and nothing else of it may be used beyond
    /// these ([`Self::turn`]). Its ranks are as many as the pool's; where they are GPUs, threads have nothing to do.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn started_in(
        pool: &DevicePool,
        threads: Threads,
        kv_dtype: KvDtype,
        starting: Starting,
    ) -> std::io::Result<Self> {
        let threads = if pool.is_on_gpus { Threads::together(1) } else { Threads { ranks: pool.ranks, ..threads } };
        let mut engine = Self::started(EngineConfig { threads, pool_bytes: 0, kv_dtype }, starting)?;
        engine.pools = Vec::new();
        engine.sharing.pool = Some(pool.clone());
        Ok(engine)
    }

    /// Does something with the device's pool, which nobody else has meanwhile; with its own, if it has one.
    pub fn turn<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let Some(pool) = self.sharing.pool.clone() else { return work(self) };
        // Whole whenever the lock is free: a turn that ends by a panic gives all back.
        let mut memory = pool.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = Lease::new(self, &mut memory);
        work(&mut *lease.engine)
    }

    /// The same, where nobody has the pool now.
    pub(super) fn turn_if_free<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let Some(pool) = self.sharing.pool.clone() else { return Some(work(self)) };
        let mut memory = match pool.memory.try_lock() {
            Ok(memory) => memory,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let lease = Lease::new(self, &mut memory);
        Some(work(&mut *lease.engine))
    }

    /// Pages that its running sequences use, of all ranks: as many of each as of the one that has most.
    #[must_use]
    pub fn pages_used(&self) -> usize {
        // Between its turns it has no pool.
        if self.pools.is_empty() {
            of_each(self.sharing.used.iter().copied())
        } else {
            of_each((0..self.pools.len()).map(|rank| self.used(rank)))
        }
    }

    /// Pages, counted so, that a sequence takes from what is free which is admitted with so much room, and begins with the first tokens
    /// of another if it does.
    ///
    /// # Errors
    /// As [`Engine::admit`] and [`Engine::admit_after`], but for pages.
    pub fn admit_pages(&self, stage: StageKey, room: u32, prefix: Option<(Prefix, u32)>) -> Result<usize, EngineError> {
        let (loaded, ranks) = (self.stages.get(&stage).ok_or(EngineError::NoStage)?, 0..self.pools.len());
        let room = room as usize;
        Ok(match prefix {
            Some((prefix @ Prefix::Running(_), tokens)) => {
                let from = self.prefix(stage, prefix, tokens as usize, room)?;
                of_each(ranks.map(|rank| from.fork_pages(rank, tokens as usize, room)))
            }
            // What is kept counts as free until somebody runs on it.
            None | Some((Prefix::Kept(_), _)) => of_each(ranks.map(|rank| loaded.pages(rank, room))),
        })
    }

    /// Pages, counted so, that more room takes.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn grow_pages(&self, stage: StageKey, request: RequestId, room: u32) -> Result<usize, EngineError> {
        let kv = self.sequence(stage, request)?;
        Ok(of_each((0..self.pools.len()).map(|rank| kv.grow_pages(rank, room as usize))))
    }

    /// In its turn: pages of a rank that its running sequences use.
    fn used(&self, rank: usize) -> usize {
        self.running(rank).saturating_sub(self.sharing.others.get(rank).copied().unwrap_or_default())
    }

    /// Pages of a rank that all engines' running sequences use.
    fn running(&self, rank: usize) -> usize {
        let PageCount { free, total } = self.pools[rank].count();
        total - free
    }

    fn begin(&mut self, memory: &mut KvMemory) {
        self.swap(memory);
        self.sharing.lacking = std::mem::take(&mut memory.lacking);
        self.sharing.forget_lapsed();
        let before = |rank: usize| self.sharing.used.get(rank).copied().unwrap_or_default();
        let running = (0..self.pools.len()).map(|rank| self.running(rank).saturating_sub(before(rank)));
        self.sharing.others = running.collect();
        let others = |(rank, all): (usize, &usize)| all.saturating_sub(self.beside(rank));
        self.sharing.beside = memory.beside.iter().enumerate().map(others).collect();
        self.give_way_to_others();
    }

    fn end(&mut self, memory: &mut KvMemory) {
        self.sharing.used = (0..self.pools.len()).map(|rank| self.used(rank)).collect();
        memory.beside.clear();
        memory.beside.extend((0..self.pools.len()).map(|rank| self.sharing.beside(rank) + self.beside(rank)));
        memory.lacking = std::mem::take(&mut self.sharing.lacking);
        self.swap(memory);
    }

    fn swap(&mut self, memory: &mut KvMemory) {
        std::mem::swap(&mut self.pools, &mut memory.pools);
        std::mem::swap(&mut self.gpus, &mut memory.gpus);
        std::mem::swap(&mut self.tables, &mut memory.tables);
        std::mem::swap(&mut self.kept, &mut memory.kept);
        std::mem::swap(&mut self.next_key, &mut memory.next_key);
    }
}

/// Pages where each rank has to have as many: what counts is the one with most, and all have pools of one size.
fn of_each(ranks: impl ExactSizeIterator<Item = usize>) -> usize {
    ranks.len() * ranks.max().unwrap_or_default()
}
