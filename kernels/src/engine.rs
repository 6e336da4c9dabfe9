//! The engine: stages of models and the KV of sequences on one host, and the batches that move through them.
//!
//! Several ranks may hold each stage together (tensor parallelism): every one has threads, pages and a part of the weights
//! of its own, and results are those of one rank, bit for bit.

mod attend;
mod beside;
mod carded;
mod carrier;
mod choosing;
mod device_pool;
mod error;
mod key_rotation;
mod prefix_cache;
mod rank_parts;
mod shards;
mod tap;
mod threads;
mod tiles;

pub use beside::HeldSequence;
pub use carded::RowToSample;
pub use carrier::{CarriedStage, StageCarrier};
pub use device_pool::DevicePool;
pub use error::EngineError;
pub use prefix_cache::{Prefix, PrefixKey};
pub use tap::{Fresh, Tap};
pub use threads::{Starting, Threads};

pub(crate) use attend::{Attend, AttentionParams, GroupState, RotaryTables, StateLayer, StoredKv};

use crate::{
    cpu::{Cpu, Simd, Team},
    cuda::GpuRanks,
    load::{InUse, StageMemory},
    pages::{PAGE_BYTES, PageCount, PagePool, PageUse, PagesError},
    ranks::{Gather, Hall, SingleRank},
    source::StageModel,
    wire,
};
use attend::RowRun;
use device_pool::PoolSharing;
use key_rotation::StageRotations;
use prefix_cache::PrefixCache;
use rank_parts::{Loaded, RankDevice, RankPart};
use shards::Shards;
use std::collections::BTreeMap;
use std::sync::Arc;
use tap::{OnStored, Tapped};
use threads::share_of;
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// How an engine is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Threads that compute.
    pub threads: Threads,
    /// Memory for KV pages of all ranks (bytes); committed as it is used.
    pub pool_bytes: usize,
    /// Elements of KV pages.
    pub kv_dtype: KvDtype,
}

/// A loaded stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageKey(u64);

/// Consecutive tokens of one sequence in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The sequence.
    pub request: RequestId,
    /// Position of the first token; all before it must be present.
    pub start: u32,
    /// How many.
    pub len: u32,
}

/// What enters a stage.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Tokens, for the first stage; one per row.
    Tokens(&'a [Token]),
    /// Rows of the stage before, `[row][hidden]`.
    Hidden(&'a [f32]),
}

/// What leaves a stage.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// All rows, for the next stage, `[row][hidden]`.
    Hidden,
    /// Logits of these rows only, `[row][vocab]`, from the last stage.
    Logits {
        /// Rows of the batch.
        rows: &'a [usize],
    },
}

/// What a rank computes with, its pages, its part of a stage, and who takes KV out.
type RankContext<'a> = (((&'a mut RankDevice, &'a mut PagePool), &'a mut RankPart), Option<Tapped<'a>>);

/// Stages, pages and sequences of one host.
pub struct Engine {
    /// A thread for each rank, the caller's for one.
    team: Team,
    hall: Hall,
    devices: Vec<RankDevice>,
    /// What computes in place of the processor, if something does.
    gpus: Option<GpuRanks>,
    /// Page tables of each GPU's last batch.
    tables: Vec<carded::Tables>,
    /// Pages of each rank.
    pools: Vec<PagePool>,
    dtype: KvDtype,
    stages: BTreeMap<StageKey, Loaded>,
    sequences: BTreeMap<(StageKey, RequestId), Shards>,
    kept: PrefixCache,
    next_key: u64,
    /// Where others have the pools as well.
    sharing: PoolSharing,
    wire: wire::CodecScratch,
    out: Vec<f32>,
    /// Of the batch at hand: positions of all rows, and whose slices have been seen. Kept from step to step.
    positions: Vec<u32>,
    seen: Vec<RequestId>,
}

impl Engine {
    /// An engine with no stage.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(config: EngineConfig) -> std::io::Result<Self> {
        Self::started(config, Arc::new(|_| ()))
    }

    /// The same, where each thread but the caller's does `starting` first.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn started(config: EngineConfig, starting: Starting) -> std::io::Result<Self> {
        let EngineConfig { threads, pool_bytes, kv_dtype } = config;
        let ranks = threads.ranks.max(1);
        let device = |rank| -> std::io::Result<RankDevice> {
            let (starting, first) = (starting.clone(), threads.before(rank));
            let cpu = Cpu::started(Simd::detect(), threads.of(rank), move |member| starting(first + member))?;
            Ok(RankDevice { cpu, hidden: Vec::new(), chosen: Vec::new(), logits: Vec::new(), runs: Vec::new() })
        };
        let pages = pool_bytes / PAGE_BYTES;
        let pool = |rank| PagePool::new(share_of(pages, rank, ranks) * PAGE_BYTES);
        let devices = (0..ranks).map(device).collect::<Result<_, _>>()?;
        Ok(Self {
            team: Team::new(ranks, move |rank| starting(threads.before(rank)))?,
            hall: Hall::new(ranks),
            devices,
            gpus: None,
            tables: Vec::new(),
            pools: (0..ranks).map(pool).collect(),
            dtype: kv_dtype,
            stages: BTreeMap::new(),
            sequences: BTreeMap::new(),
            kept: PrefixCache::default(),
            next_key: 0,
            sharing: PoolSharing::default(),
            wire: wire::CodecScratch::default(),
            out: Vec::new(),
            positions: Vec::new(),
            seen: Vec::new(),
        })
    }

    /// Takes a stage in.
    ///
    /// # Errors
    /// When one token's KV does not fit a page, or the stage was cut for another number of ranks.
    pub fn load(&mut self, model: StageModel) -> Result<StageKey, EngineError> {
        let carried = self.carrier().carry(model)?;
        Ok(self.take(carried))
    }

    fn take_in(&mut self, carried: CarriedStage, page_use: PageUse) -> StageKey {
        let CarriedStage { parts, shape, layers, there } = carried;
        let key = StageKey(self.next_key);
        self.next_key += 1;
        let mut weights = 0;
        match (&mut self.gpus, there) {
            (Some(gpus), Some(there)) => gpus.put(key, there),
            _ => {
                parts.iter().zip(&self.devices).for_each(|(part, device)| part.stage.prepare(&device.cpu));
                weights = StageMemory::of(parts.iter().map(|part| part.stage.as_ref())).total();
            }
        }
        let turns = StageRotations::new(parts[0].stage.as_ref());
        self.stages.insert(key, Loaded { parts, shape, layers, turns, page_use, weights });
        key
    }

    /// Drops a stage and every sequence on it.
    pub fn unload(&mut self, stage: StageKey) {
        self.stages.remove(&stage);
        let here: Vec<RequestId> =
            self.sequences.keys().filter(|(key, _)| *key == stage).map(|(_, request)| *request).collect();
        for request in here {
            self.release(stage, request);
        }
        self.kept.drop_stage(&mut self.pools, stage);
        if let Some(gpus) = &mut self.gpus {
            gpus.unload(stage);
        }
    }

    /// Reserves pages for a sequence of at most `room` tokens, by those of what is kept if there are too few.
    ///
    /// # Errors
    /// When there are too few pages, no such stage, or the sequence is there already.
    pub fn admit(&mut self, stage: StageKey, request: RequestId, room: u32) -> Result<(), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        if self.sequences.contains_key(&(stage, request)) {
            return Err(EngineError::Twice(request));
        }
        let (layers, room) = (loaded.layers.len() as usize, room as usize);
        let needs: Vec<usize> = (0..self.pools.len()).map(|rank| loaded.pages(rank, room)).collect();
        self.make_room(stage, &needs, None)?;
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let kv = Shards::reserve(&mut self.pools, loaded.layouts(), layers, room, loaded.page_use)?;
        self.sequences.insert((stage, request), kv);
        Ok(())
    }

    /// Whether a sequence of so many tokens fits the pool at all.
    ///
    /// # Errors
    /// When it has fewer pages than that takes, or there is no such stage.
    pub fn could_hold(&self, stage: StageKey, tokens: u32) -> Result<(), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        for (rank, pool) in self.pools.iter().enumerate() {
            let (wanted, PageCount { free, total }) = (loaded.pages(rank, tokens as usize), pool.count());
            if wanted > total {
                return Err(PagesError::Full { wanted, free, total }.into());
            }
        }
        Ok(())
    }

    /// Makes room for `room` tokens in all.
    ///
    /// # Errors
    /// When there are too few pages, or no such sequence; then it is as it was.
    pub fn grow(&mut self, stage: StageKey, request: RequestId, room: u32) -> Result<(), EngineError> {
        let kv = self.sequence(stage, request)?;
        let needs: Vec<usize> = (0..self.pools.len()).map(|rank| kv.grow_pages(rank, room as usize)).collect();
        self.make_room(stage, &needs, None)?;
        let kv = self.sequences.get_mut(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        Ok(kv.grow(&mut self.pools, room as usize)?)
    }

    /// Forgets a sequence's tokens from `len` on, if it has as many: they were draft tokens, and rejected.
    ///
    /// # Errors
    /// When it is not there, others have their pages, or layers keep a state of it.
    pub fn truncate(&mut self, stage: StageKey, request: RequestId, len: u32) -> Result<(), EngineError> {
        let kv = self.sequences.get_mut(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        let (present, room) = (kv.len(), kv.room());
        if present <= len as usize || kv.truncate(&self.pools, len as usize) {
            return Ok(());
        }
        Err(EngineError::Position { request, start: len, end: len, present, room })
    }

    /// Gives a sequence's pages back; one that is not there is no error.
    pub fn release(&mut self, stage: StageKey, request: RequestId) {
        if let Some(kv) = self.sequences.remove(&(stage, request)) {
            kv.release(&mut self.pools);
        }
    }

    /// Layers of a stage, and KV heads of each.
    pub(crate) fn extent(&self, stage: StageKey) -> Result<(LayerRange, u32), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        Ok((loaded.layers, loaded.shape.kv_heads))
    }

    /// Pages free, what is kept among them, and in all; of all ranks.
    #[must_use]
    pub fn pages(&self) -> PageCount {
        let none = PageCount { free: 0, total: 0 };
        let sum = |a: PageCount, b: PageCount| PageCount { free: a.free + b.free, total: a.total + b.total };
        self.pools.iter().map(PagePool::count).fold(none, sum)
    }

    /// Elements of its pages.
    #[must_use]
    pub fn kv_dtype(&self) -> KvDtype {
        self.dtype
    }

    /// What stages and pages take here.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        let weights = self.stages.values().map(|loaded| loaded.weights).sum();
        InUse { weights, kv: self.pools.iter().map(PagePool::committed).sum() }
    }

    /// Does a little of what the next sequences need, for when there is nothing else to do; says whether there may be more.
    pub fn make_ready(&mut self) -> bool {
        let ready = |engine: &mut Self| !engine.stages.is_empty() && engine.pools.iter_mut().any(PagePool::make_ready);
        self.turn_if_free(ready).unwrap_or(false)
    }

    /// Computes a batch: any mix of prompt chunks and single tokens, each slice's rows one after the other. The result
    /// may be changed in place by the caller.
    ///
    /// # Errors
    /// When input, slices and stage do not fit together; then nothing is changed.
    pub fn forward(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
    ) -> Result<&mut [f32], EngineError> {
        self.forward_tapped(stage, batch, input, output, None)
    }

    /// The same, with somebody who takes KV out layer by layer.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_tapped(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        tap: Option<&mut dyn Tap>,
    ) -> Result<&mut [f32], EngineError> {
        self.check(stage, batch, input, output)?;
        if self.gpus.is_some() {
            return self.forward_on_gpu(stage, batch, input, output, tap);
        }
        self.positions.clear();
        self.positions.extend(batch.iter().flat_map(|s| s.start..s.start + s.len));
        let loaded = self.stages.get_mut(&stage).ok_or(EngineError::NoStage)?;
        rank_parts::enter(&mut self.devices, loaded, input, &self.positions);
        let tokens = match input {
            Input::Tokens(tokens) => tokens,
            Input::Hidden(_) => &[],
        };
        self.compute(stage, batch, (tokens, output), tap)?;
        self.are_present(stage, batch);
        match output {
            // Every rank has all rows.
            Output::Hidden => Ok(&mut self.devices[0].hidden),
            Output::Logits { .. } if self.devices.len() == 1 => Ok(&mut self.devices[0].logits),
            Output::Logits { rows } => {
                let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
                rank_parts::side_by_side(&self.devices, loaded, rows.len(), &mut self.out);
                Ok(&mut self.out)
            }
        }
    }

    /// A batch's tokens are present now.
    fn are_present(&mut self, stage: StageKey, batch: &[Slice]) {
        for slice in batch {
            if let Some(kv) = self.sequences.get_mut(&(stage, slice.request)) {
                kv.set_len((slice.start + slice.len) as usize);
            }
        }
    }

    /// Every rank computes its part of what has entered, side by side.
    fn compute(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        (tokens, output): (&[Token], Output<'_>),
        tap: Option<&mut dyn Tap>,
    ) -> Result<(), EngineError> {
        let loaded = self.stages.get_mut(&stage).ok_or(EngineError::NoStage)?;
        self.hall.open();
        let (ranks, hall, sequences, positions) = (self.devices.len(), &self.hall, &self.sequences, &self.positions);
        let width = loaded.shape.hidden as usize;
        let (first, turns, scratch) = (loaded.layers.start, &loaded.turns, &mut self.wire);
        // Keys and values beside states leave nothing.
        let tapped =
            tap.filter(|_| ranks == 1 && !loaded.has_states()).map(|tap| Tapped { tap, first, turns, scratch });
        // A tap is the only rank's, if there is but one.
        let taps = std::iter::once(tapped).chain(std::iter::repeat_with(|| None));
        let mut places = self.devices.iter_mut().zip(&mut self.pools).zip(&mut loaded.parts).zip(taps);
        let compute = |rank: usize, (((device, pool), part), tap): &mut RankContext<'_>| {
            let (seat, layout) = (hall.seat(rank), part.layout);
            let others: &dyn Gather = if ranks == 1 { &SingleRank } else { &seat };
            let tap = tap.as_mut().map(|tap| tap as &mut dyn OnStored);
            // `check` has seen every sequence of the batch.
            let kvs = batch.iter().filter_map(|s| Some(sequences.get(&(stage, s.request))?.of(rank)));
            let runs = RowRun::all(std::mem::take(&mut device.runs), batch, kvs, device.cpu.has_chunks(layout.dim));
            let mut attend = Attend { pool, sequences, stage, positions, tokens, others, layout, tap, runs };
            part.stage.layers(&device.cpu, &mut device.hidden, &mut attend);
            device.runs = attend::emptied(attend.runs);
            if let Output::Logits { rows } = output {
                device.chosen.clear();
                rows.iter().for_each(|row| device.chosen.extend_from_slice(&device.hidden[row * width..][..width]));
                device.logits.resize(rows.len() * part.vocab.len(), 0.0);
                part.stage.logits(&device.cpu, &device.chosen, &mut device.logits);
            }
        };
        match places.next() {
            Some(mut only) if ranks == 1 => compute(0, &mut only),
            first => self.team.share_each(&mut first.into_iter().chain(places).collect::<Vec<_>>(), compute),
        }
        Ok(())
    }

    fn check(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        out: Output<'_>,
    ) -> Result<(), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let rows: usize = batch.iter().map(|s| s.len as usize).sum();
        let size = |what, found, expected| Err(EngineError::Size { what, found, expected });
        match input {
            Input::Tokens(tokens) if tokens.len() != rows => return size("tokens", tokens.len(), rows),
            Input::Tokens(tokens) => {
                if let Some(stray) = tokens.iter().find(|t| t.0 >= loaded.shape.vocab) {
                    return size("token id", stray.0 as usize, loaded.shape.vocab as usize - 1);
                }
            }
            Input::Hidden(values) => {
                let expected = rows * loaded.shape.hidden as usize;
                if values.len() != expected {
                    return size("activations", values.len(), expected);
                }
            }
        }
        if let Output::Logits { rows: wanted } = out
            && let Some(stray) = wanted.iter().find(|r| **r >= rows)
        {
            return size("row", *stray, rows.saturating_sub(1));
        }
        self.seen.clear();
        self.seen.extend(batch.iter().map(|slice| slice.request));
        self.seen.sort_unstable();
        let twice = self.seen.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        for slice in batch {
            let kv = self.sequence(stage, slice.request)?;
            let end = slice.start.saturating_add(slice.len);
            let fits = slice.start as usize == kv.len()
                && end as usize <= kv.room()
                && end <= loaded.shape.context
                && twice != Some(slice.request);
            if !fits {
                let (present, room) = (kv.len(), kv.room());
                return Err(EngineError::Position { request: slice.request, start: slice.start, end, present, room });
            }
        }
        Ok(())
    }

    fn sequence(&self, stage: StageKey, request: RequestId) -> Result<&Shards, EngineError> {
        self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))
    }

    /// After all tiles are in: the sequence has `tokens` tokens now.
    ///
    /// # Errors
    /// When it is not there, or has no room for them, or has a state, which is behind as many as it has.
    pub fn set_len(&mut self, stage: StageKey, request: RequestId, tokens: u32) -> Result<(), EngineError> {
        let kv = self.sequence(stage, request)?;
        if kv.has_state() && tokens as usize != kv.len() {
            return Err(EngineError::State);
        }
        self.assume_len(stage, request, tokens)
    }

    /// The same whatever lies there: for steps that are only timed.
    pub(crate) fn assume_len(&mut self, stage: StageKey, request: RequestId, tokens: u32) -> Result<(), EngineError> {
        let kv = self.sequences.get_mut(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        if tokens as usize > kv.room() {
            let (present, room) = (kv.len(), kv.room());
            return Err(EngineError::Position { request, start: 0, end: tokens, present, room });
        }
        kv.set_len(tokens as usize);
        Ok(())
    }
}
