//! KV that leaves GPUs and comes to them: of each GPU its heads.

use super::super::{Engine, EngineError, Shards, StageKey, tiles::TileTarget};
use crate::cuda::{GpuError, GpuRanks, Queue, TilePart, TilePlace};
use std::ops::Range;
use tsnode_protocol::{KvCodec, RequestId, TileHeader};

impl Engine {
    /// [`Engine::export`] from GPUs.
    pub(in crate::engine) fn export_from_gpus(
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
        let (parts, place) = (parts(&place, tile), place_of(stage, place.layer, tile, codec));
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
        let place = self.locate(stage, request, tile, codec)?;
        let (parts, place) = (parts(&place, tile), place_of(stage, place.layer, tile, codec));
        self.copy_pages()?;
        let gpus = self.gpus.as_mut().ok_or(EngineError::NoStage)?;
        Ok(gpus.import(&parts, &place, payload)?)
    }

    /// Packs and unpacks a sequence's reserved pages on GPUs, whatever is in them: their bytes, and seconds of each.
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
    ) -> Result<(u64, f64, f64), EngineError> {
        let (layers, _) = self.extent(stage)?;
        let kv = self.sequence(stage, request)?;
        let (ranks, layers, tokens) = (self.pools.len(), layers.len() as usize, 0..tokens as usize);
        let place = |layer| TilePlace { stage, layer, tokens: tokens.clone(), codec };
        let tiles: Vec<_> = (0..layers).map(|layer| (all_parts(kv, ranks, layer), place(layer))).collect();
        let of_token: usize = (0..ranks).map(|rank| kv.of(rank).layout()).map(|l| 2 * l.heads * l.row()).sum();
        let gpus = self.gpus.as_mut().ok_or_else(|| GpuError::Missing("no GPU".into()))?;
        let (pack, unpack) = gpus.packing_seconds(&tiles, runs)?;
        Ok(((of_token * tokens.len() * layers) as u64, pack, unpack))
    }
}

/// Packs a layer's KV while later layers are computed; whether the GPUs did it.
pub(in crate::engine) fn export_beside(
    gpus: &mut GpuRanks,
    kv: &Shards,
    place: &TilePlace,
    payload: &mut Vec<u8>,
) -> bool {
    let parts = all_parts(kv, gpus.count(), place.layer);
    gpus.export(Queue::Side, &parts, place, payload).is_ok()
}

fn place_of(stage: StageKey, layer: usize, tile: &TileHeader, codec: KvCodec) -> TilePlace {
    TilePlace { stage, layer, tokens: tile.token_start as usize..tile.token_end as usize, codec }
}

/// What each GPU has of a tile, if anything.
fn parts(place: &TileTarget<'_>, tile: &TileHeader) -> Vec<TilePart> {
    let (start, end) = (tile.head_start as usize, tile.head_end as usize);
    let mine = |(rank, heads): (usize, &Range<usize>)| {
        let here = start.max(heads.start)..end.min(heads.end);
        (!here.is_empty()).then(|| part(place.kv, rank, place.layer, here.start - heads.start..here.end - heads.start))
    };
    place.loaded.parts.iter().map(|part| &part.heads).enumerate().filter_map(mine).collect()
}

/// All heads of all GPUs.
fn all_parts(kv: &Shards, ranks: usize, layer: usize) -> Vec<TilePart> {
    (0..ranks).map(|rank| part(kv, rank, layer, 0..kv.of(rank).layout().heads)).collect()
}

fn part(kv: &Shards, rank: usize, layer: usize, heads: Range<usize>) -> TilePart {
    let kv = kv.of(rank);
    TilePart { rank, pages: kv.pages_of(layer).collect(), layout: kv.layout(), heads }
}
