//! KV as tiles: what is present goes out packed, what comes in is unpacked into reserved pages.

use super::{Engine, EngineError, Loaded, Shards, StageKey};
use crate::{
    cpu::Simd,
    pages::Side,
    wire::{self, PayloadError, Strip, TileCodec},
};
use std::ops::Range;
use tsnode_protocol::{KvCodec, KvDtype, RequestId, TileHeader};

/// A tile's sequence, and the place of its layer in the stage.
pub(super) struct TileTarget<'a> {
    pub loaded: &'a Loaded,
    pub kv: &'a Shards,
    pub layer: usize,
}

impl Engine {
    /// The KV a tile names, packed into `payload`, whose memory is used again. The header's `bytes` is not looked at.
    ///
    /// # Errors
    /// When the tile lies outside what is present, or is of a model whose layers keep states, which are in no tile.
    pub fn export(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        if self.gpus.is_some() {
            return self.export_from_gpus(stage, request, (tile, 1), codec, payload);
        }
        let mut scratch = std::mem::take(&mut self.wire);
        let located = self.locate(stage, request, tile, codec).and_then(|place| {
            if tile.token_end as usize > place.kv.len() { Err(EngineError::Tile(*tile)) } else { Ok(place) }
        });
        let exported = located.map(|TileTarget { loaded, kv, layer }| {
            payload.resize(tile_bytes(loaded, self.dtype, tile, codec), 0);
            let packing = TileCodec { simd: Simd::detect(), codec, turn: loaded.turns.of(layer) };
            let strips = sides(tile).map(|(side, head)| {
                let (rank, strip) = strip(loaded, layer, side, head, tile);
                (strip, (kv.of(rank), &self.pools[rank]))
            });
            wire::export_strips(packing, strips, &mut scratch, payload);
        });
        self.wire = scratch;
        exported
    }

    /// Layers that are best packed together, as far as they wait at the same time: a GPU has as much to do for one as for many, while
    /// a processor is done with one sooner.
    #[must_use]
    pub fn layers_at_once(&self) -> u32 {
        if self.is_on_gpu() { u32::MAX } else { 1 }
    }

    /// Like [`Self::export`], of as many layers from the tile's on: `payload` has their tiles one behind the other, all as long.
    ///
    /// # Errors
    /// As [`Self::export`].
    pub fn export_layers(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        layers: u32,
        codec: KvCodec,
        payload: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        if self.gpus.is_some() {
            return self.export_from_gpus(stage, request, (tile, layers), codec, payload);
        }
        if layers == 1 {
            return self.export(stage, request, tile, codec, payload);
        }
        payload.clear();
        let mut one = Vec::new();
        for layer in (tile.layer..).take(layers as usize) {
            self.export(stage, request, &TileHeader { layer, ..*tile }, codec, &mut one)?;
            payload.extend_from_slice(&one);
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
        let TileTarget { loaded, layer, .. } = self.locate(stage, request, tile, codec)?;
        let (found, expected) = (payload.len(), tile_bytes(loaded, self.dtype, tile, codec));
        if found != expected {
            return Err(PayloadError { found, expected }.into());
        }
        if self.gpus.is_some() {
            return self.import_to_gpus(stage, request, tile, codec, payload);
        }
        // The pages are written below: of the engine, only what is not the pools may be borrowed.
        let kv = self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let mut rest = payload;
        let packing = TileCodec { simd: Simd::detect(), codec, turn: loaded.turns.of(layer) };
        for (side, head) in sides(tile) {
            let (rank, strip) = strip(loaded, layer, side, head, tile);
            let pages = (kv.of(rank), &mut self.pools[rank]);
            rest = strip.import(packing, pages, &mut self.wire, rest);
        }
        Ok(())
    }

    /// Leaves `tokens` in the sequence's pages, in all layers of the stage, as they would be had they been sent through
    /// `codec`: who computes again what others received reads the same bits as they do. Of a model whose layers keep states nobody
    /// receives anything, and it stays as it is everywhere.
    ///
    /// # Errors
    /// When the tokens are not present, cannot begin a tile of `codec`, or others have their pages too. After an error of
    /// the first layer nothing is changed; a later layer fails only where the first did.
    pub fn fake_quantise(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tokens: Range<u32>,
        codec: KvCodec,
    ) -> Result<(), EngineError> {
        let stays = self.stages.get(&stage).is_some_and(Loaded::has_states);
        if codec == KvCodec::Raw || tokens.is_empty() || stays {
            return Ok(());
        }
        let (layers, heads) = self.extent(stage)?;
        let kv = self.sequence(stage, request)?;
        let (present, room) = (kv.len(), kv.room());
        if !kv.is_alone(&self.pools, tokens.start as usize..tokens.end as usize) {
            return Err(EngineError::Position { request, start: tokens.start, end: tokens.end, present, room });
        }
        if self.gpus.is_some() {
            return self.fake_quantise_on_gpus(stage, request, tokens, codec);
        }
        let mut payload = Vec::new();
        for layer in layers.iter() {
            let (token_start, token_end) = (tokens.start, tokens.end);
            let tile = TileHeader { layer, head_start: 0, head_end: heads, token_start, token_end, bytes: 0 };
            self.export(stage, request, &tile, codec, &mut payload)?;
            self.import(stage, request, &tile, codec, &payload)?;
        }
        Ok(())
    }

    pub(super) fn locate(
        &self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
    ) -> Result<TileTarget<'_>, EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        if loaded.has_states() {
            return Err(EngineError::State);
        }
        let kv = self.sequence(stage, request)?;
        let inside = tile.check().is_ok()
            && tile.token_start.is_multiple_of(codec.tile_step())
            && loaded.layers.contains(tile.layer)
            && tile.head_end <= loaded.shape.kv_heads
            && tile.token_end as usize <= kv.room();
        if !inside {
            return Err(EngineError::Tile(*tile));
        }
        Ok(TileTarget { loaded, kv, layer: (tile.layer - loaded.layers.start) as usize })
    }
}

/// A tile's parts in the order of their bytes.
fn sides(tile: &TileHeader) -> impl Iterator<Item = (Side, u32)> + use<> {
    let heads = tile.head_start..tile.head_end;
    [Side::Keys, Side::Values].into_iter().flat_map(move |side| heads.clone().map(move |head| (side, head)))
}

/// The rank that has a head, and where the tile's part of it lies there.
fn strip(loaded: &Loaded, layer: usize, side: Side, head: u32, tile: &TileHeader) -> (usize, Strip) {
    let (rank, head) = loaded.place_of(head);
    (rank, Strip { layer, side, head, tokens: tile.token_start as usize..tile.token_end as usize })
}

fn tile_bytes(loaded: &Loaded, dtype: KvDtype, tile: &TileHeader, codec: KvCodec) -> usize {
    let (tokens, heads) = (tile.tokens() as usize, tile.heads() as usize);
    wire::tile_bytes(codec, dtype, tokens, heads, loaded.shape.head_dim as usize)
}
