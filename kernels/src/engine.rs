//! The engine: stages of models and the KV of sequences on one device, and the batches that move through them.

use crate::{
    cpu::{Cpu, Simd},
    int4,
    models::Stage,
    pages::{Layout, PageCount, PagePool, PagesError, SequenceKv, Side},
    source::StageModel,
    tanh,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use tsnode_protocol::{KvCodec, KvDtype, LayerRange, ModelShape, RequestId, TileHeader, Token};

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
    Payload(#[from] int4::Int4Error),
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
    next_key: u64,
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
            next_key: 0,
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
    }

    /// Reserves pages for a sequence of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// When there are too few pages, no such stage, or the sequence is there already.
    pub fn admit(&mut self, stage: StageKey, request: RequestId, max_tokens: u32) -> Result<(), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        if self.sequences.contains_key(&(stage, request)) {
            return Err(EngineError::Twice(request));
        }
        let layers = loaded.layers.len() as usize;
        let kv = SequenceKv::reserve(&mut self.pool, loaded.layout, layers, max_tokens as usize)?;
        self.sequences.insert((stage, request), kv);
        Ok(())
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

    /// Pages free and in all.
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

    /// The KV a tile names, packed into `payload`. The header's `bytes` is not looked at.
    ///
    /// # Errors
    /// When the tile lies outside what is present.
    pub fn export(
        &self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let (kv, layer) = self.locate(stage, request, tile)?;
        if tile.token_end as usize > kv.len() {
            return Err(EngineError::Tile(*tile));
        }
        payload.clear();
        let dim = kv.layout().dim;
        let mut rows = Vec::new();
        for side in [Side::Keys, Side::Values] {
            for head in tile.head_start..tile.head_end {
                match codec {
                    KvCodec::Raw => {
                        for token in tile.token_start..tile.token_end {
                            payload.extend_from_slice(kv.element(
                                &self.pool,
                                layer,
                                side,
                                head as usize,
                                token as usize,
                            ));
                        }
                    }
                    KvCodec::Int4 => {
                        rows.resize(tile.tokens() as usize * dim, 0.0);
                        kv.widen(&self.pool, layer, side, head as usize, tile.token_start as usize, &mut rows);
                        int4::pack(side, &rows, dim, payload);
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a tile's payload into the sequence's pages. The tokens count as present only after [`Self::set_len`].
    ///
    /// # Errors
    /// When the tile lies outside what is reserved, or the payload has another size.
    pub fn import(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &[u8],
    ) -> Result<(), EngineError> {
        let (kv, layer) = self.locate(stage, request, tile)?;
        let (dim, tokens) = (kv.layout().dim, tile.tokens() as usize);
        let row = dim * kv.layout().dtype.bytes();
        let heads = tile.heads() as usize;
        let expected = match codec {
            KvCodec::Raw => 2 * heads * tokens * row,
            KvCodec::Int4 => int4::tile_bytes(tokens, heads, dim),
        };
        if payload.len() != expected {
            return Err(int4::Int4Error { found: payload.len(), expected }.into());
        }
        // Ends the borrow of the sequence: the pages are written below.
        let kv = self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        let mut rest = payload;
        let mut values = vec![0.0; tokens * dim];
        for side in [Side::Keys, Side::Values] {
            for head in tile.head_start as usize..tile.head_end as usize {
                let bytes = match codec {
                    KvCodec::Raw => tokens * row,
                    KvCodec::Int4 => int4::side_bytes(side, tokens, dim),
                };
                let (part, after) = rest.split_at(bytes);
                rest = after;
                if codec == KvCodec::Int4 {
                    int4::unpack(side, part, dim, &mut values)?;
                }
                for token in 0..tokens {
                    let place = tile.token_start as usize + token;
                    match codec {
                        KvCodec::Raw => kv
                            .element_mut(&mut self.pool, layer, side, head, place)
                            .copy_from_slice(&part[token * row..][..row]),
                        KvCodec::Int4 => {
                            kv.write(&mut self.pool, layer, side, head, place, &values[token * dim..][..dim]);
                        }
                    }
                }
            }
        }
        Ok(())
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

    /// The sequence and the place of the tile's layer in the stage.
    fn locate(
        &self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
    ) -> Result<(&SequenceKv, usize), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let kv = self.sequence(stage, request)?;
        let inside = tile.check().is_ok()
            && loaded.layers.contains(tile.layer)
            && tile.head_end as usize <= kv.layout().heads
            && tile.token_end as usize <= kv.room();
        if !inside {
            return Err(EngineError::Tile(*tile));
        }
        Ok((kv, (tile.layer - loaded.layers.start) as usize))
    }
}

/// How a layer's rows look at the tokens before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// Largest size of a score, approached smoothly ([`tanh::soft_cap`]).
    pub cap: Option<f32>,
    /// Tokens a row sees, itself included; all without one.
    pub window: Option<usize>,
}

/// What a model's layers see of the engine: attention over the pages of the batch's sequences.
pub(crate) struct Attend<'a> {
    pool: &'a mut PagePool,
    sequences: &'a mut BTreeMap<(StageKey, RequestId), SequenceKv>,
    stage: StageKey,
    batch: &'a [Slice],
    positions: &'a [u32],
    heads: usize,
    layout: Layout,
}

/// A row of the batch: whose it is, and which tokens it looks at.
struct Row<'a> {
    kv: &'a SequenceKv,
    tokens: Range<usize>,
}

impl Attend<'_> {
    /// Position of every row.
    pub(crate) fn positions(&self) -> &[u32] {
        self.positions
    }

    /// Stores keys and values of every row in `layer` of the stage, then mixes values by softmax of scaled products.
    /// `q` and `out` are `[row][head][channel]`, `k` and `v` `[row][kv_head][channel]`.
    #[allow(clippy::too_many_arguments)] // Three inputs and an output, as everyone calls them.
    pub(crate) fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        look: Look,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) {
        let Layout { heads: kv_heads, dim, .. } = self.layout;
        self.store(layer, k, v);
        let rows = self.rows(look.window);
        let pool = &*self.pool;
        let group = self.heads / kv_heads;
        let work: usize = rows.iter().map(|r| r.tokens.len() * self.heads * dim * 2).sum();
        let part = group * dim;
        cpu.for_each_part(out, part, work, |i, out| {
            let (row, head) = (i / kv_heads, i % kv_heads);
            let Row { kv, tokens } = &rows[row];
            let q = &q[(row * kv_heads + head) * part..][..part];
            mix(cpu, kv, pool, Place { layer, head, tokens: tokens.clone() }, q, look, out);
        });
    }

    fn store(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let Layout { heads, dim, .. } = self.layout;
        let mut row = 0;
        for slice in self.batch {
            let Some(kv) = self.sequences.get(&(self.stage, slice.request)) else { continue };
            for position in slice.start..slice.start + slice.len {
                for head in 0..heads {
                    let at = (row * heads + head) * dim;
                    kv.write(self.pool, layer, Side::Keys, head, position as usize, &k[at..at + dim]);
                    kv.write(self.pool, layer, Side::Values, head, position as usize, &v[at..at + dim]);
                }
                row += 1;
            }
        }
    }

    fn rows(&self, window: Option<usize>) -> Vec<Row<'_>> {
        let seen = |end: usize| window.map_or(0, |w| end.saturating_sub(w))..end;
        let mut rows = Vec::with_capacity(self.positions.len());
        for slice in self.batch {
            // `Engine::check` has seen every sequence of the batch.
            let Some(kv) = self.sequences.get(&(self.stage, slice.request)) else { continue };
            rows.extend((slice.start..slice.start + slice.len).map(|p| Row { kv, tokens: seen(p as usize + 1) }));
        }
        rows
    }

    /// The batch's tokens are present from now on.
    fn commit(self) {
        for slice in self.batch {
            if let Some(kv) = self.sequences.get_mut(&(self.stage, slice.request)) {
                kv.set_len((slice.start + slice.len) as usize);
            }
        }
    }
}

/// Where attention looks.
struct Place {
    layer: usize,
    head: usize,
    tokens: Range<usize>,
}

thread_local! {
    /// Scores of one row's query heads, kept from step to step.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Attention of the query heads that share one KV head, for one row. Scores, sums and mixing run in token order.
fn mix(cpu: &Cpu, kv: &SequenceKv, pool: &PagePool, at: Place, q: &[f32], look: Look, out: &mut [f32]) {
    let group = q.len() / kv.layout().dim;
    let context = at.tokens.len();
    SCORES.with_borrow_mut(|scores| {
        scores.resize(group * context, 0.0);
        let mut done = 0;
        for keys in kv.blocks(pool, at.layer, Side::Keys, at.head, at.tokens.clone()) {
            cpu.scores(q, keys, context, &mut scores[done..]);
            done += keys.rows();
        }
        scores.iter_mut().for_each(|score| *score *= look.scale);
        if let Some(cap) = look.cap {
            tanh::soft_cap(scores, cap);
        }
        scores.chunks_exact_mut(context).for_each(|p| cpu.softmax(p));
        out.fill(0.0);
        let mut from = 0;
        for values in kv.blocks(pool, at.layer, Side::Values, at.head, at.tokens.clone()) {
            cpu.weighted_rows(&scores[from..], context, values, out);
            from += values.rows();
        }
    });
}
