//! An engine whose stages and pages are on a card: the same sequences, books of pages and tiles, computed there.

use super::{Engine, EngineConfig, EngineError, Fresh, Input, Output, Part, Slice, StageKey, Tap, Threads};
use crate::{
    cuda::{Card, CardError, CardInput, CardTile, Choice, Job, Queue},
    pages::{PagePool, SequenceKv},
    sampling,
};
use std::ops::Range;
use tsnode_protocol::{KvCodec, KvDtype, RequestId, Sampled, Sampling, TileHeader, Token};

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
    pub fn on_card(mut card: Card, pool_bytes: usize, kv_dtype: KvDtype) -> Result<Self, EngineError> {
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 0, kv_dtype };
        let missing = |e: std::io::Error| CardError::Missing(format!("no thread for a card: {e}"));
        let mut engine = Self::new(config).map_err(missing)?;
        card.reserve(pool_bytes)?;
        engine.pools = vec![PagePool::elsewhere(pool_bytes)];
        engine.card = Some(card);
        Ok(engine)
    }

    /// Whether it computes on a card.
    #[must_use]
    pub fn is_on_card(&self) -> bool {
        self.card.is_some()
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
        let choices: Option<Vec<Choice>> = picks.iter().map(|pick| Choice::of(pick.sampling, pick.position)).collect();
        if let Some(choices) = choices.filter(|choices| self.card.is_some() && !choices.is_empty()) {
            self.check(stage, batch, input, output)?;
            let tokens = self.step_on_card(stage, batch, input, output, &choices, None)?;
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
    fn step_on_card(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        output: Output<'_>,
        choices: &[Choice],
        tap: Option<&mut dyn Tap>,
    ) -> Result<Vec<Token>, EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let (layers, shape) = (loaded.layers, loaded.shape);
        let layout = loaded.parts[0].layout;
        let kv = |slice: &Slice| -> Result<&SequenceKv, EngineError> {
            let sequence = self.sequences.get(&(stage, slice.request));
            Ok(sequence.ok_or(EngineError::NoSequence(slice.request))?.of(0))
        };
        let kvs: Vec<&SequenceKv> = batch.iter().map(kv).collect::<Result<_, EngineError>>()?;
        self.tables.fit(&kvs, layers.len() as usize);
        let card = self.card.as_mut().ok_or(EngineError::NoStage)?;
        card.copy_pages(&self.pools[0].take_copies())?;
        let chosen = match output {
            Output::Hidden => &[],
            Output::Logits { rows } => rows,
        };
        let rows = match input {
            Input::Tokens(tokens) => CardInput::Tokens(tokens),
            Input::Hidden(rows) => CardInput::Hidden(rows),
        };
        let group = (shape.heads / shape.kv_heads) as usize;
        let layers_count = layers.len() as usize;
        let Tables { pages: tables, most, edition, .. } = &self.tables;
        let (most, edition, marks) = (*most, *edition, tap.is_some());
        let job = Job { stage, batch, rows, chosen, choices, tables, edition, most, layout, group, marks };
        card.start(&job)?;
        if let Some(tap) = tap {
            // Layers are packed on the side while later ones are computed.
            for layer in 0..layers_count {
                card.wait_for_layer(layer)?;
                let (pool, sequences, scratch) = (&self.pools[0], &self.sequences, &mut self.wire);
                let turn = loaded.turns.of(layer);
                let heads = layout.heads;
                let mut fresh = Fresh { pool, sequences, stage, layer, heads, turn, scratch, card: Some(card) };
                tap.layer(layers.start + layer as u32, &mut fresh);
            }
        }
        let tokens = match output {
            Output::Hidden => {
                let count = batch.iter().map(|slice| slice.len as usize).sum();
                card.hidden(&job, count, &mut self.out).map(|()| Vec::new())
            }
            Output::Logits { .. } if choices.is_empty() => card.logits(&job, &mut self.out).map(|()| Vec::new()),
            Output::Logits { .. } => card.tokens(&job),
        }?;
        self.are_present(stage, batch);
        Ok(tokens)
    }

    /// Packs and unpacks a sequence's reserved pages on a card, whatever is in them: their bytes, and seconds of each.
    ///
    /// # Errors
    /// When the engine is on no card, or the sequence is not there.
    pub(crate) fn packing_on_card(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tokens: u32,
        codec: KvCodec,
        runs: usize,
    ) -> Result<(u64, f64, f64), EngineError> {
        let kv = self.sequence(stage, request)?.of(0);
        let (layers, _) = self.extent(stage)?;
        let layout = kv.layout();
        let pages: Vec<Vec<u32>> = (0..layers.len() as usize).map(|layer| kv.pages_of(layer).collect()).collect();
        let card = self.card.as_mut().ok_or_else(|| CardError::Missing("no card".into()))?;
        let (heads, tokens) = (0..layout.heads, 0..tokens as usize);
        let mut tiles = Vec::with_capacity(pages.len());
        for (layer, pages) in pages.iter().enumerate() {
            let (heads, tokens, turn) = (heads.clone(), tokens.clone(), card.turn(stage, layer));
            tiles.push(CardTile { pages, layout, heads, tokens, codec, turn });
        }
        let bytes = 2 * layout.heads * tokens.len() * layout.row() * pages.len();
        let (pack, unpack) = card.packing_seconds(&tiles, runs)?;
        Ok((bytes as u64, pack, unpack))
    }

    /// [`Engine::export`] from a card.
    pub(super) fn export_from_card(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let place = self.locate(stage, request, tile, codec)?;
        if tile.token_end as usize > place.kv.len() {
            return Err(EngineError::Tile(*tile));
        }
        let (kv, layer) = (place.kv.of(0), place.layer);
        let (pages, layout) = (kv.pages_of(layer).collect::<Vec<_>>(), kv.layout());
        let (heads, tokens) = extent(tile);
        let card = self.card.as_mut().ok_or(EngineError::NoStage)?;
        card.copy_pages(&self.pools[0].take_copies())?;
        let turn = card.turn(stage, layer);
        Ok(card.export(Queue::Compute, &CardTile { pages: &pages, layout, heads, tokens, codec, turn }, payload)?)
    }

    /// [`Engine::import`] to a card, of a payload of the right length.
    pub(super) fn import_to_card(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &[u8],
    ) -> Result<(), EngineError> {
        let place = self.locate(stage, request, tile, codec)?;
        let (kv, layer) = (place.kv.of(0), place.layer);
        let (pages, layout) = (kv.pages_of(layer).collect::<Vec<_>>(), kv.layout());
        let (heads, tokens) = extent(tile);
        let card = self.card.as_mut().ok_or(EngineError::NoStage)?;
        card.copy_pages(&self.pools[0].take_copies())?;
        let turn = card.turn(stage, layer);
        Ok(card.import(&CardTile { pages: &pages, layout, heads, tokens, codec, turn }, payload)?)
    }
}

/// Copies a stage to a card.
pub(super) fn load(card: &mut Card, key: StageKey, parts: &[Part]) -> Result<(), EngineError> {
    let [part] = parts else { return Err(EngineError::Ranks { found: parts.len(), expected: 1 }) };
    let none = || CardError::Unsupported("this family of models".into());
    let outline = part.stage.outline().ok_or_else(none)?;
    Ok(card.load(key, &outline, &part.layout)?)
}

/// Packs a layer's KV while later layers are computed; whether the card did it.
pub(super) fn export_beside(
    card: &mut Card,
    kv: &SequenceKv,
    (stage, layer): (StageKey, usize),
    tokens: Range<usize>,
    codec: KvCodec,
    payload: &mut Vec<u8>,
) -> bool {
    let (pages, layout) = (kv.pages_of(layer).collect::<Vec<_>>(), kv.layout());
    let turn = card.turn(stage, layer);
    let tile = CardTile { pages: &pages, layout, heads: 0..layout.heads, tokens, codec, turn };
    card.export(Queue::Side, &tile, payload).is_ok()
}

fn extent(tile: &TileHeader) -> (Range<usize>, Range<usize>) {
    (tile.head_start as usize..tile.head_end as usize, tile.token_start as usize..tile.token_end as usize)
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
