//! An engine whose stages and pages are on GPUs: the same sequences, books of pages and tiles, computed there. Several
//! GPUs are as many ranks.

mod tiles;

pub(super) use tiles::export_beside;

use super::{
    Engine, EngineConfig, EngineError, Fresh, Input, Loaded, Output, RankPart, Shards, Slice, StageKey, Tap, Threads,
};
use crate::{
    cuda::{ChosenToken, GatherWay, Gpu, GpuError, GpuInput, GpuJob, GpuKv, GpuRanks, RowChoice},
    pages::{PAGE_BYTES, PagePool, SequenceKv},
    sampling,
};
use std::collections::BTreeMap;
use tsnode_protocol::{KvDtype, RequestId, Sampled, Sampling};

/// A row whose next token is chosen.
#[derive(Clone, Copy, Debug)]
pub struct RowToSample<'a> {
    /// Of the batch.
    pub row: usize,
    /// How; penalties see no tokens, since who chooses here has none.
    pub sampling: &'a Sampling,
    /// Of the token that is chosen.
    pub position: u32,
}

/// GPUs, and what is known here of the pages on each.
pub(super) struct OnGpus {
    pub gpus: GpuRanks,
    pub tables: Vec<Tables>,
    pub pools: Vec<PagePool>,
}

impl OnGpus {
    /// Takes memory for so many pages of each rank.
    pub fn reserve(gpus: Vec<Gpu>, pages: impl Fn(usize) -> usize) -> Result<Self, GpuError> {
        let ranks = gpus.len();
        let gpus = GpuRanks::new(gpus, &pages)?;
        let pools = (0..ranks).map(|rank| PagePool::elsewhere(pages(rank) * PAGE_BYTES)).collect();
        Ok(Self { gpus, tables: (0..ranks).map(|_| Tables::default()).collect(), pools })
    }
}

impl Engine {
    /// An engine that computes on a GPU; `pool_bytes` of its memory are for pages.
    ///
    /// # Errors
    /// When the system gives no thread, or the GPU has no memory for the pages.
    pub fn on_gpu(gpu: Gpu, pool_bytes: usize, kv_dtype: KvDtype) -> Result<Self, EngineError> {
        Self::on_gpus(vec![gpu], pool_bytes, kv_dtype)
    }

    /// An engine whose stages several GPUs hold together, each a rank: stages are to be cut for as many. `pool_bytes` of
    /// their memory in all, as much of each, are for pages ([`Gpu::pool_bytes_of_all`]).
    ///
    /// # Errors
    /// When there is no GPU, the system gives no thread, or a GPU has no memory for the pages.
    pub fn on_gpus(gpus: Vec<Gpu>, pool_bytes: usize, kv_dtype: KvDtype) -> Result<Self, EngineError> {
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 0, kv_dtype };
        let missing = |e: std::io::Error| GpuError::Missing(format!("no thread for a GPU: {e}"));
        let mut engine = Self::new(config).map_err(missing)?;
        let (ranks, pages) = (gpus.len(), pool_bytes / PAGE_BYTES);
        let on_gpus = OnGpus::reserve(gpus, |rank| super::share_of(pages, rank, ranks))?;
        (engine.gpus, engine.tables, engine.pools) = (Some(on_gpus.gpus), on_gpus.tables, on_gpus.pools);
        Ok(engine)
    }

    /// Whether it computes on a GPU, or several.
    #[must_use]
    pub fn is_on_gpu(&self) -> bool {
        // Between its turns it has none of those that others compute on as well.
        self.gpus.is_some() || self.sharing.is_on_gpus()
    }

    /// Whether what it computes on still does what it is asked for; a processor does.
    ///
    /// # Errors
    /// When a GPU is lost.
    pub fn check_gpus(&self) -> Result<(), GpuError> {
        self.gpus.as_ref().map_or(Ok(()), GpuRanks::check)
    }

    /// How the GPUs that hold stages together put their columns side by side, and why so; none where there are not several.
    #[must_use]
    pub fn gathers(&self) -> Option<&GatherWay> {
        self.gpus.as_ref().and_then(GpuRanks::gathers)
    }

    /// On how many GPUs it computes; on none where the processor does.
    #[must_use]
    pub fn gpus(&self) -> usize {
        if self.is_on_gpu() { self.pools.len() } else { 0 }
    }

    /// Computes a batch and chooses tokens of some rows, on a GPU without having their logits come here.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_choosing(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        picks: &[RowToSample<'_>],
    ) -> Result<Vec<Sampled>, EngineError> {
        let rows: Vec<usize> = picks.iter().map(|pick| pick.row).collect();
        let output = Output::Logits { rows: &rows };
        if let Some(chosen) = self.choose_on_gpu(stage, batch, input, picks, None)? {
            return Ok(chosen);
        }
        let logits = self.forward(stage, batch, input, output)?;
        let vocab = logits.len() / picks.len().max(1);
        let chosen = logits.chunks_exact_mut(vocab.max(1)).zip(picks);
        Ok(chosen.map(|(logits, pick)| sampling::sample(logits, pick.sampling, &[], &[], pick.position)).collect())
    }

    pub(super) fn forward_on_gpu(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        tap: Option<&mut dyn Tap>,
    ) -> Result<&mut [f32], EngineError> {
        self.step_on_gpu(stage, batch, input, output, &[], tap)?;
        Ok(&mut self.out)
    }

    /// A step that fits. What comes out is in `self.out`, or is the tokens if there are choices.
    pub(super) fn step_on_gpu(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        choices: &[RowChoice],
        tap: Option<&mut dyn Tap>,
    ) -> Result<Vec<ChosenToken>, EngineError> {
        let done = self.ask_gpus(stage, batch, input, output, choices, tap);
        match &done {
            Ok(_) => self.are_present(stage, batch),
            // Nothing was asked for.
            Err(EngineError::Gpu(GpuError::Rows { .. })) => {}
            Err(_) => self.lose_states(stage, batch),
        }
        done
    }

    /// Nobody knows which states a step that failed has changed: of its sequences that have some no token is present any more.
    fn lose_states(&mut self, stage: StageKey, batch: &[Slice]) {
        if !self.stages.get(&stage).is_some_and(Loaded::has_states) {
            return;
        }
        for slice in batch {
            if let Some(kv) = self.sequences.get_mut(&(stage, slice.request)) {
                kv.set_len(0);
            }
        }
    }

    fn ask_gpus(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        choices: &[RowChoice],
        tap: Option<&mut dyn Tap>,
    ) -> Result<Vec<ChosenToken>, EngineError> {
        self.copy_pages()?;
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let (layers, shape) = (loaded.layers, loaded.shape);
        // Keys and values beside states leave nothing.
        let tap = tap.filter(|_| !loaded.has_states());
        let shares = shares(&mut self.tables, &self.sequences, (stage, loaded), batch)?;
        let gpus = self.gpus.as_mut().ok_or(EngineError::NoStage)?;
        let chosen = match output {
            Output::Hidden => &[],
            Output::Logits { rows } => rows,
        };
        let rows = match input {
            Input::Tokens(tokens) => GpuInput::Tokens(tokens),
            Input::Hidden(rows) => GpuInput::Hidden(rows),
        };
        let group = (shape.heads / shape.kv_heads) as usize;
        let job = GpuJob { stage, batch, rows, chosen, choices, shares: &shares, group, marks: tap.is_some() };
        gpus.start(&job)?;
        if let Some(tap) = tap {
            // Layers are packed on the side while later ones are computed.
            for layer in 0..layers.len() as usize {
                gpus.wait_for_layer(layer)?;
                let (pool, sequences, scratch) = (&self.pools[0], &self.sequences, &mut self.wire);
                let (turn, heads) = (loaded.turns.of(layer), shape.kv_heads as usize);
                let gpus = Some(&mut *gpus);
                let mut fresh = Fresh { pool, sequences, stage, layer, heads, turn, scratch, gpus };
                tap.layer(layers.start + layer as u32, &mut fresh);
            }
        }
        let tokens = match output {
            Output::Hidden => {
                let count = batch.iter().map(|slice| slice.len as usize).sum();
                gpus.hidden(&job, count, &mut self.out).map(|()| Vec::new())
            }
            Output::Logits { .. } if choices.is_empty() => gpus.logits(&job, &mut self.out).map(|()| Vec::new()),
            Output::Logits { .. } => gpus.tokens(&job),
        }?;
        Ok(tokens)
    }

    /// Copies what sequences are to have of others' pages, before anything else is written there.
    fn copy_pages(&mut self) -> Result<(), EngineError> {
        let Some(gpus) = &mut self.gpus else { return Ok(()) };
        for (rank, pool) in self.pools.iter_mut().enumerate() {
            gpus.copy_pages(rank, &pool.take_copies())?;
        }
        Ok(())
    }
}

/// Where each GPU has the keys and values of a batch.
fn shares<'t>(
    tables: &'t mut [Tables],
    sequences: &BTreeMap<(StageKey, RequestId), Shards>,
    (stage, loaded): (StageKey, &Loaded),
    batch: &[Slice],
) -> Result<Vec<GpuKv<'t>>, EngineError> {
    let layers = loaded.layers.len() as usize;
    let share = |(rank, (tables, part)): (usize, (&'t mut Tables, &RankPart))| {
        let kv = |slice: &Slice| -> Result<&SequenceKv, EngineError> {
            let sequence = sequences.get(&(stage, slice.request));
            Ok(sequence.ok_or(EngineError::NoSequence(slice.request))?.of(rank))
        };
        tables.fit(&batch.iter().map(kv).collect::<Result<Vec<_>, EngineError>>()?, layers);
        let Tables { pages, most, edition, .. } = &*tables;
        let state_pages = part.states.pages();
        Ok(GpuKv { tables: pages, edition: *edition, most: *most, state_pages, layout: part.layout })
    };
    tables.iter_mut().zip(&loaded.parts).enumerate().map(share).collect()
}

/// Page tables of a batch, kept as long as the batch is of the same sequences and none of them gets or gives pages: they are
/// large, and change once in many tokens.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Stamps of the sequences, in the order of the batch.
    stamps: Vec<u64>,
    /// Pages of every layer and sequence, then of every sequence's state.
    pages: Vec<u32>,
    /// How many each of the first has room for: a power of two, so that few sizes come up.
    most: usize,
    /// How often they were made.
    edition: u64,
}

impl Tables {
    /// Makes them those of a batch, where they are not.
    fn fit(&mut self, kvs: &[&SequenceKv], layers: usize) {
        let stamps = || kvs.iter().map(|kv| kv.stamp());
        if stamps().eq(self.stamps.iter().copied()) {
            return;
        }
        self.stamps.clear();
        self.stamps.extend(stamps());
        self.edition += 1;
        let longest = kvs.iter().map(|kv| kv.pages_of(0).len()).max().unwrap_or(0);
        self.most = longest.max(1).next_power_of_two();
        self.pages.clear();
        self.pages.resize(layers * kvs.len() * self.most, 0);
        let mut places = self.pages.chunks_exact_mut(self.most);
        for layer in 0..layers {
            for (kv, place) in kvs.iter().zip(&mut places) {
                place.iter_mut().zip(kv.pages_of(layer)).for_each(|(place, page)| *place = page);
            }
        }
        self.pages.extend(kvs.iter().flat_map(|kv| kv.state_pages()));
    }
}
