//! KV that leaves GPUs and comes to them: of each GPU its heads.

use super::super::{Engine, EngineError, Shards, StageKey, tiles::TileTarget};
use crate::{
    cuda::{GpuError, GpuRanks, PackingSeconds, Queue, TilePart, TilePlace},
    wire,
};
use std::ops::Range;
use tsnode_protocol::{KvCodec, RequestId, TileHeader};

/// Packed bytes of layers that go through a codec together: enough to keep a GPU busy, and little of its memory.
const AT_ONCE: usize = 16 << 20;

/// What packing on GPUs was measured to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredPacking {
    /// As they lie in pages (bytes).
    pub pages: u64,
    /// Packed (bytes).
    pub packed: u64,
    /// All layers, a launch each.
    pub by_layers: PackingSeconds,
    /// All layers together.
    pub whole: PackingSeconds,
}

impl Engine {
    /// [`Engine::export_layers`] from GPUs.
    pub(in crate::engine) fn export_from_gpus(
        &mut self,
        stage: StageKey,
        request: RequestId,
        (tile, layers): (&TileHeader, u32),
        codec: KvCodec,
        payload: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let last = TileHeader { layer: tile.layer.saturating_add(layers.saturating_sub(1)), ..*tile };
        self.locate(stage, request, &last, codec)?;
        let target = self.locate(stage, request, tile, codec)?;
        if tile.token_end as usize > target.kv.len() {
            return Err(EngineError::Tile(*tile));
        }
        let place = place_of(stage, target.layer..target.layer + layers as usize, tile, codec);
        let parts = parts(&target, tile, &place);
        self.copy_pages()?;
        let gpus = self.gpus.as_mut().ok_or(EngineError::NoStage)?;
        Ok(gpus.export(Queue::Compute, &parts, &place, payload)?)
    }

    /// [`Engine::import`] to GPUs, of a payload of the right length.
    pub(in crate::engine) fn import_to_gpus(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &[u8],
    ) -> Result<(), EngineError> {
        let target = self.locate(stage, request, tile, codec)?;
        let place = place_of(stage, target.layer..target.layer + 1, tile, codec);
        let parts = parts(&target, tile, &place);
        self.copy_pages()?;
        let gpus = self.gpus.as_mut().ok_or(EngineError::NoStage)?;
        Ok(gpus.import(&parts, &place, payload)?)
    }

    /// [`Engine::fake_quantise`] on GPUs, of tokens that nobody else has.
    pub(in crate::engine) fn fake_quantise_on_gpus(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tokens: Range<u32>,
        codec: KvCodec,
    ) -> Result<(), EngineError> {
        let (all, heads) = self.extent(stage)?;
        let (layer, token_start, token_end) = (all.start, tokens.start, tokens.end);
        let tile = TileHeader { layer, head_start: 0, head_end: heads, token_start, token_end, bytes: 0 };
        let kv = self.locate(stage, request, &tile, codec)?.kv;
        if token_end as usize > kv.len() {
            return Err(EngineError::Tile(tile));
        }
        let layout = kv.of(0).layout();
        let of_layer = wire::tile_bytes(codec, layout.dtype, tokens.len(), heads as usize, layout.dim);
        let (layers, together) = (all.len() as usize, (AT_ONCE / of_layer.max(1)).max(1));
        let runs = (0..layers).step_by(together).map(|first| first..layers.min(first + together));
        let places: Vec<TilePlace> = runs.map(|run| place_of(stage, run, &tile, codec)).collect();
        let parts: Vec<_> = places.iter().map(|place| all_parts(kv, self.pools.len(), place)).collect();
        self.copy_pages()?;
        let gpus = self.gpus.as_mut().ok_or(EngineError::NoStage)?;
        for (parts, place) in parts.iter().zip(&places) {
            gpus.fake_quantise(parts, place)?;
        }
        Ok(())
    }

    /// Packs and unpacks a sequence's reserved pages on GPUs, whatever is in them.
    ///
    /// # Errors
    /// When the engine is on no GPU, or the sequence is not there.
    pub(crate) fn packing_on_gpu(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tokens: u32,
        codec: KvCodec,
        runs: usize,
    ) -> Result<MeasuredPacking, EngineError> {
        let (all, heads) = self.extent(stage)?;
        let kv = self.sequence(stage, request)?;
        let (ranks, layers, tokens) = (self.pools.len(), all.len() as usize, 0..tokens as usize);
        let tile = |layers: Range<usize>| {
            let place = TilePlace { stage, layers, tokens: tokens.clone(), codec };
            (all_parts(kv, ranks, &place), place)
        };
        let each: Vec<_> = (0..layers).map(|layer| tile(layer..layer + 1)).collect();
        let together = [tile(0..layers)];
        let layout = kv.of(0).layout();
        let bytes = |codec| wire::tile_bytes(codec, layout.dtype, tokens.len(), heads as usize, layout.dim);
        let [pages, packed] = [KvCodec::Raw, codec].map(|codec| (layers * bytes(codec)) as u64);
        let gpus = self.gpus.as_mut().ok_or_else(|| GpuError::Missing("no GPU".into()))?;
        let (by_layers, whole) = (gpus.packing_seconds(&each, runs)?, gpus.packing_seconds(&together, runs)?);
        Ok(MeasuredPacking { pages, packed, by_layers, whole })
    }
}

/// Packs a layer's KV while later layers are computed; whether the GPUs did it.
pub(in crate::engine) fn export_beside(
    gpus: &mut GpuRanks,
    kv: &Shards,
    place: &TilePlace,
    payload: &mut Vec<u8>,
) -> bool {
    let parts = all_parts(kv, gpus.count(), place);
    gpus.export(Queue::Side, &parts, place, payload).is_ok()
}

fn place_of(stage: StageKey, layers: Range<usize>, tile: &TileHeader, codec: KvCodec) -> TilePlace {
    TilePlace { stage, layers, tokens: tile.token_start as usize..tile.token_end as usize, codec }
}

/// What each GPU has of tiles, if anything.
fn parts(target: &TileTarget<'_>, tile: &TileHeader, place: &TilePlace) -> Vec<TilePart> {
    let (start, end) = (tile.head_start as usize, tile.head_end as usize);
    let mine = |(rank, heads): (usize, &Range<usize>)| {
        let here = start.max(heads.start)..end.min(heads.end);
        (!here.is_empty()).then(|| part(target.kv, rank, place, here.start - heads.start..here.end - heads.start))
    };
    target.loaded.parts.iter().map(|part| &part.heads).enumerate().filter_map(mine).collect()
}

/// All heads of all GPUs.
fn all_parts(kv: &Shards, ranks: usize, place: &TilePlace) -> Vec<TilePart> {
    (0..ranks).map(|rank| part(kv, rank, place, 0..kv.of(rank).layout().heads)).collect()
}

fn part(kv: &Shards, rank: usize, place: &TilePlace, heads: Range<usize>) -> TilePart {
    let kv = kv.of(rank);
    let layout = kv.layout();
    // Up to the page that the last token is in: sequences may have room for many more.
    let needed = layout.pages(place.tokens.end);
    let pages = place.layers.clone().flat_map(|layer| kv.pages_of(layer).take(needed)).collect();
    TilePart { rank, pages, layout, heads }
}
