//! The engine: stages of models and the KV of sequences on one device, and the batches that move through them.

mod attend;
mod kept;
mod tiles;

pub use kept::{KeptKey, Prefix};

pub(crate) use attend::{Attend, Look};

use crate::{
    cpu::{Cpu, Simd},
    models::Stage,
    pages::{Layout, PageCount, PagePool, PagesError, SequenceKv},
    source::StageModel,
    wire::{self, PayloadError},
};
use kept::Kept;
use std::collections::BTreeMap;
use tsnode_protocol::{KvDtype, LayerRange, ModelShape, RequestId, TileHeader, Token};

/// How an engine is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Threads that compute.
    pub threads: usize,
    /// Memory for KV pages (bytes); committed as it is used.
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

/// Why a batch was not computed, or KV not moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No such stage is loaded.
    #[error("the stage is not loaded")]
    NoStage,
    /// No such sequence was admitted on the stage.
    #[error("{0} was not admitted")]
    NoSequence(RequestId),
    /// The sequence was admitted already.
    #[error("{0} is admitted already")]
    Twice(RequestId),
    /// What a sequence was to begin with is not here, or not as much of it.
    #[error("what the sequence was to begin with is gone")]
    NoPrefix,
    /// Tokens are not the next ones of their sequence, or there is no room for them.
    #[error("{request}: tokens {start}..{end} where {present} of {room} are present")]
    Position {
        /// The sequence.
        request: RequestId,
        /// First token.
        start: u32,
        /// One past the last.
        end: u32,
        /// Tokens present.
        present: usize,
        /// Tokens reserved for.
        room: usize,
    },
    /// Rows or tokens do not fit the batch or the model.
    #[error("{what}: {found} where {expected} fit")]
    Size {
        /// Of what.
        what: &'static str,
        /// Given.
        found: usize,
        /// Allowed.
        expected: usize,
    },
    /// A tile outside the stage or the sequence.
    #[error("tile outside the sequence: {0:?}")]
    Tile(TileHeader),
    /// A payload that does not fit its tile.
    #[error("tile payload: {0}")]
    Payload(#[from] PayloadError),
    /// No pages.
    #[error(transparent)]
    Pages(#[from] PagesError),
}

struct Loaded {
    stage: Box<dyn Stage>,
    shape: ModelShape,
    layers: LayerRange,
    layout: Layout,
}

/// Stages, pages and sequences of one device.
pub struct Engine {
    cpu: Cpu,
    pool: PagePool,
    dtype: KvDtype,
    stages: BTreeMap<StageKey, Loaded>,
    sequences: BTreeMap<(StageKey, RequestId), SequenceKv>,
    kept: Kept,
    next_key: u64,
    wire: wire::Scratch,
    hidden: Vec<f32>,
    out: Vec<f32>,
}

impl Engine {
    /// An engine with no stage.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(config: EngineConfig) -> std::io::Result<Self> {
        let cpu = Cpu::new(Simd::detect(), config.threads.max(1))?;
        Ok(Self {
            cpu,
            pool: PagePool::new(config.pool_bytes),
            dtype: config.kv_dtype,
            stages: BTreeMap::new(),
            sequences: BTreeMap::new(),
            kept: Kept::default(),
            next_key: 0,
            wire: wire::Scratch::default(),
            hidden: Vec::new(),
            out: Vec::new(),
        })
    }

    /// Takes a stage in.
    ///
    /// # Errors
    /// When one token's KV does not fit a page.
    pub fn load(&mut self, model: StageModel) -> Result<StageKey, EngineError> {
        let layout = Layout::new(&model.shape, self.dtype)?;
        let key = StageKey(self.next_key);
        self.next_key += 1;
        let StageModel { stage, shape, layers } = model;
        stage.prepare(&self.cpu);
        self.stages.insert(key, Loaded { stage, shape, layers, layout });
        Ok(key)
    }

    /// Drops a stage and every sequence on it.
    pub fn unload(&mut self, stage: StageKey) {
        self.stages.remove(&stage);
        let here: Vec<RequestId> =
            self.sequences.keys().filter(|(key, _)| *key == stage).map(|(_, request)| *request).collect();
        for request in here {
            self.release(stage, request);
        }
        self.kept.drop_stage(&mut self.pool, stage);
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
        let (layout, layers, room) = (loaded.layout, loaded.layers.len() as usize, room as usize);
        self.kept.make_room(&mut self.pool, layout.pages(room) * layers, None);
        let kv = SequenceKv::reserve(&mut self.pool, layout, layers, room)?;
        self.sequences.insert((stage, request), kv);
        Ok(())
    }

    /// Whether a sequence of so many tokens fits the pool at all.
    ///
    /// # Errors
    /// When it has fewer pages than that takes, or there is no such stage.
    pub fn could_hold(&self, stage: StageKey, tokens: u32) -> Result<(), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let wanted = loaded.layout.pages(tokens as usize) * loaded.layers.len() as usize;
        let PageCount { free, total } = self.pool.count();
        if wanted > total { Err(PagesError::Full { wanted, free, total }.into()) } else { Ok(()) }
    }

    /// Makes room for `room` tokens in all.
    ///
    /// # Errors
    /// When there are too few pages, or no such sequence; then it is as it was.
    pub fn grow(&mut self, stage: StageKey, request: RequestId, room: u32) -> Result<(), EngineError> {
        let kv = self.sequences.get_mut(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        self.kept.make_room(&mut self.pool, kv.grow_pages(room as usize), None);
        Ok(kv.grow(&mut self.pool, room as usize)?)
    }

    /// Forgets a sequence's tokens from `len` on, if it has as many: they were guesses, and wrong.
    ///
    /// # Errors
    /// When it is not there, or others have their pages.
    pub fn truncate(&mut self, stage: StageKey, request: RequestId, len: u32) -> Result<(), EngineError> {
        let kv = self.sequences.get_mut(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        let (present, room) = (kv.len(), kv.room());
        if present <= len as usize || kv.truncate(&self.pool, len as usize) {
            return Ok(());
        }
        Err(EngineError::Position { request, start: len, end: len, present, room })
    }

    /// Gives a sequence's pages back; one that is not there is no error.
    pub fn release(&mut self, stage: StageKey, request: RequestId) {
        if let Some(kv) = self.sequences.remove(&(stage, request)) {
            kv.release(&mut self.pool);
        }
    }

    /// Layers of a stage, and KV heads of each.
    pub(crate) fn extent(&self, stage: StageKey) -> Result<(LayerRange, u32), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        Ok((loaded.layers, loaded.shape.kv_heads))
    }

    /// Pages free, what is kept among them, and in all.
    #[must_use]
    pub fn pages(&self) -> PageCount {
        self.pool.count()
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
        self.check(stage, batch, input, output)?;
        let loaded = self.stages.get_mut(&stage).ok_or(EngineError::NoStage)?;
        let width = loaded.shape.hidden as usize;
        let positions: Vec<u32> = batch.iter().flat_map(|s| s.start..s.start + s.len).collect();
        self.hidden.resize(positions.len() * width, 0.0);
        match input {
            Input::Tokens(tokens) => loaded.stage.embed(tokens, &positions, &mut self.hidden),
            Input::Hidden(rows) => self.hidden.copy_from_slice(rows),
        }
        let mut attend = Attend {
            pool: &mut self.pool,
            sequences: &mut self.sequences,
            stage,
            batch,
            positions: &positions,
            heads: loaded.shape.heads as usize,
            layout: loaded.layout,
        };
        loaded.stage.layers(&self.cpu, &mut self.hidden, &mut attend);
        attend.commit();
        let Output::Logits { rows } = output else { return Ok(&mut self.hidden) };
        let chosen: Vec<f32> = rows.iter().flat_map(|r| self.hidden[r * width..][..width].iter().copied()).collect();
        self.out.resize(rows.len() * loaded.shape.vocab as usize, 0.0);
        loaded.stage.logits(&self.cpu, &chosen, &mut self.out);
        Ok(&mut self.out)
    }

    fn check(&self, stage: StageKey, batch: &[Slice], input: Input<'_>, out: Output<'_>) -> Result<(), EngineError> {
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
        let mut seen = std::collections::BTreeSet::new();
        for slice in batch {
            let kv = self.sequence(stage, slice.request)?;
            let end = slice.start.saturating_add(slice.len);
            let fits = slice.start as usize == kv.len()
                && end as usize <= kv.room()
                && end <= loaded.shape.context
                && seen.insert(slice.request);
            if !fits {
                let (present, room) = (kv.len(), kv.room());
                return Err(EngineError::Position { request: slice.request, start: slice.start, end, present, room });
            }
        }
        Ok(())
    }

    fn sequence(&self, stage: StageKey, request: RequestId) -> Result<&SequenceKv, EngineError> {
        self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))
    }

    /// After all tiles are in: the sequence has `tokens` tokens now.
    ///
    /// # Errors
    /// When it is not there, or has no room for them.
    pub fn set_len(&mut self, stage: StageKey, request: RequestId, tokens: u32) -> Result<(), EngineError> {
        let kv = self.sequences.get_mut(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        if tokens as usize > kv.room() {
            let (present, room) = (kv.len(), kv.room());
            return Err(EngineError::Position { request, start: 0, end: tokens, present, room });
        }
        kv.set_len(tokens as usize);
        Ok(())
    }
}
