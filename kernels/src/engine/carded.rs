//! An engine whose stages and pages are on cards: the same sequences, books of pages and tiles, computed there. Several
//! cards are as many ranks.

mod tiles;

pub(super) use tiles::export_beside;

use super::{
    Engine, EngineConfig, EngineError, Fresh, Input, Loaded, Output, Part, Shards, Slice, StageKey, Tap, Threads,
};
use crate::{
    cuda::{Card, CardError, CardInput, Cards, Choice, GatherWay, Job, Share},
    pages::{PAGE_BYTES, PagePool, SequenceKv},
    sampling,
};
use std::collections::BTreeMap;
use tsnode_protocol::{KvDtype, RequestId, Sampled, Sampling, Token};

/// A row whose next token is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    /// Of the batch.
    pub row: usize,
    /// How; penalties see no tokens, since who chooses here has none.
    pub sampling: &'a Sampling,
    /// Of the token that is chosen.
    pub position: u32,
}

impl Engine {
    /// An engine that computes on a card; `pool_bytes` of its memory are for pages.
    ///
    /// # Errors
    /// When the system gives no thread, or the card has no memory for the pages.
    pub fn on_card(card: Card, pool_bytes: usize, kv_dtype: KvDtype) -> Result<Self, EngineError> {
        Self::on_cards(vec![card], pool_bytes, kv_dtype)
    }

    /// An engine whose stages several cards hold together, each a rank: stages are to be cut for as many. `pool_bytes` of
    /// their memory in all, as much of each, are for pages ([`Card::pool_bytes_of_all`]).
    ///
    /// # Errors
    /// When there is no card, the system gives no thread, or a card has no memory for the pages.
    pub fn on_cards(cards: Vec<Card>, pool_bytes: usize, kv_dtype: KvDtype) -> Result<Self, EngineError> {
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 0, kv_dtype };
        let missing = |e: std::io::Error| CardError::Missing(format!("no thread for a card: {e}"));
        let mut engine = Self::new(config).map_err(missing)?;
        let (ranks, pages) = (cards.len(), pool_bytes / PAGE_BYTES);
        let share = |rank| super::share_of(pages, rank, ranks);
        engine.cards = Some(Cards::new(cards, share)?);
        engine.tables.resize_with(ranks, Tables::default);
        engine.pools = (0..ranks).map(|rank| PagePool::elsewhere(share(rank) * PAGE_BYTES)).collect();
        Ok(engine)
    }

    /// Whether it computes on a card, or several.
    #[must_use]
    pub fn is_on_card(&self) -> bool {
        self.cards.is_some()
    }

    /// Whether what it computes on still does what it is asked for; a processor does.
    ///
    /// # Errors
    /// When a card is lost.
    pub fn check_cards(&self) -> Result<(), CardError> {
        self.cards.as_ref().map_or(Ok(()), Cards::check)
    }

    /// How the cards that hold stages together put their columns side by side, and why so; none where there are not several.
    #[must_use]
    pub fn gathers(&self) -> Option<&GatherWay> {
        self.cards.as_ref().and_then(Cards::gathers)
    }

    /// On how many cards it computes; on none where the processor does.
    #[must_use]
    pub fn cards(&self) -> usize {
        if self.is_on_card() { self.pools.len() } else { 0 }
    }

    /// Computes a batch and chooses tokens of some rows, on a card without having their logits come here.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_choosing(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        picks: &[Pick<'_>],
    ) -> Result<Vec<Sampled>, EngineError> {
        let rows: Vec<usize> = picks.iter().map(|pick| pick.row).collect();
        let output = Output::Logits { rows: &rows };
        if let Some(tokens) = self.choose_on_card(stage, batch, input, picks, None)? {
            return Ok(tokens.into_iter().map(|token| Sampled { token, logprob: None, top: Vec::new() }).collect());
        }
        let logits = self.forward(stage, batch, input, output)?;
        let vocab = logits.len() / picks.len().max(1);
        let chosen = logits.chunks_exact_mut(vocab.max(1)).zip(picks);
        Ok(chosen.map(|(logits, pick)| sampling::sample(logits, pick.sampling, &[], &[], pick.position)).collect())
    }

    pub(super) fn forward_on_card(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        tap: Option<&mut dyn Tap>,
    ) -> Result<&mut [f32], EngineError> {
        self.step_on_card(stage, batch, input, output, &[], tap)?;
        Ok(&mut self.out)
    }

    /// A step that fits. What comes out is in `self.out`, or is the tokens if there are choices.
    pub(super) fn step_on_card(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        choices: &[Choice],
        tap: Option<&mut dyn Tap>,
    ) -> Result<Vec<Token>, EngineError> {
        self.copy_pages()?;
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let (layers, shape) = (loaded.layers, loaded.shape);
        let shares = shares(&mut self.tables, &self.sequences, (stage, loaded), batch)?;
        let cards = self.cards.as_mut().ok_or(EngineError::NoStage)?;
        let chosen = match output {
            Output::Hidden => &[],
            Output::Logits { rows } => rows,
        };
        let rows = match input {
            Input::Tokens(tokens) => CardInput::Tokens(tokens),
            Input::Hidden(rows) => CardInput::Hidden(rows),
        };
        let group = (shape.heads / shape.kv_heads) as usize;
        let job = Job { stage, batch, rows, chosen, choices, shares: &shares, group, marks: tap.is_some() };
        cards.start(&job)?;
        if let Some(tap) = tap {
            // Layers are packed on the side while later ones are computed.
            for layer in 0..layers.len() as usize {
                cards.wait_for_layer(layer)?;
                let (pool, sequences, scratch) = (&self.pools[0], &self.sequences, &mut self.wire);
                let (turn, heads) = (loaded.turns.of(layer), shape.kv_heads as usize);
                let cards = Some(&mut *cards);
                let mut fresh = Fresh { pool, sequences, stage, layer, heads, turn, scratch, cards };
                tap.layer(layers.start + layer as u32, &mut fresh);
            }
        }
        let tokens = match output {
            Output::Hidden => {
                let count = batch.iter().map(|slice| slice.len as usize).sum();
                cards.hidden(&job, count, &mut self.out).map(|()| Vec::new())
            }
            Output::Logits { .. } if choices.is_empty() => cards.logits(&job, &mut self.out).map(|()| Vec::new()),
            Output::Logits { .. } => cards.tokens(&job),
        }?;
        self.are_present(stage, batch);
        Ok(tokens)
    }

    /// Copies what sequences are to have of others' pages, before anything else is written there.
    fn copy_pages(&mut self) -> Result<(), EngineError> {
        let Some(cards) = &mut self.cards else { return Ok(()) };
        for (rank, pool) in self.pools.iter_mut().enumerate() {
            cards.copy_pages(rank, &pool.take_copies())?;
        }
        Ok(())
    }
}

/// Where each card has the keys and values of a batch.
fn shares<'t>(
    tables: &'t mut [Tables],
    sequences: &BTreeMap<(StageKey, RequestId), Shards>,
    (stage, loaded): (StageKey, &Loaded),
    batch: &[Slice],
) -> Result<Vec<Share<'t>>, EngineError> {
    let layers = loaded.layers.len() as usize;
    let share = |(rank, (tables, part)): (usize, (&'t mut Tables, &Part))| {
        let kv = |slice: &Slice| -> Result<&SequenceKv, EngineError> {
            let sequence = sequences.get(&(stage, slice.request));
            Ok(sequence.ok_or(EngineError::NoSequence(slice.request))?.of(rank))
        };
        tables.fit(&batch.iter().map(kv).collect::<Result<Vec<_>, EngineError>>()?, layers);
        let Tables { pages, most, edition, .. } = &*tables;
        Ok(Share { tables: pages, edition: *edition, most: *most, layout: part.layout })
    };
    tables.iter_mut().zip(&loaded.parts).enumerate().map(share).collect()
}

/// Page tables of a batch, kept as long as the batch is of the same sequences and none of them gets or gives pages: they are
/// large, and change once in many tokens.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Stamps of the sequences, in the order of the batch.
    stamps: Vec<u64>,
    /// Pages of every layer and sequence.
    pages: Vec<u32>,
    /// How many each has room for: a power of two, so that few sizes come up.
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
    }
}
