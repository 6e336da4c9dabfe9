//! KV as tiles: what is present goes out packed, what comes in is unpacked into reserved pages.

use super::{Engine, EngineError, StageKey};
use crate::wire::{self, Tile};
use std::ops::Range;
use tsnode_protocol::{KvCodec, RequestId, TileHeader};

impl Engine {
    /// The KV a tile names, packed into `payload`, whose memory is used again. The header's `bytes` is not looked at.
    ///
    /// # Errors
    /// When the tile lies outside what is present.
    pub fn export(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
        payload: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let (present, part) = self.locate(stage, request, tile, codec)?;
        let kv = self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        if tile.token_end as usize > present {
            return Err(EngineError::Tile(*tile));
        }
        wire::export(self.cpu.simd(), codec, kv, &self.pool, &part, &mut self.wire, payload);
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
        let (_, part) = self.locate(stage, request, tile, codec)?;
        let kv = self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        Ok(wire::import(self.cpu.simd(), codec, kv, &mut self.pool, &part, &mut self.wire, payload)?)
    }

    /// Leaves `tokens` in the sequence's pages, in all layers of the stage, as they would be had they been sent through
    /// `codec`: who computes again what others received reads the same bits as they do.
    ///
    /// # Errors
    /// When the tokens are not present, cannot begin a tile of `codec`, or others have their pages too. After an error of
    /// the first layer nothing is changed; a later layer fails only where the first did.
    pub fn settle(
        &mut self,
        stage: StageKey,
        request: RequestId,
        tokens: Range<u32>,
        codec: KvCodec,
    ) -> Result<(), EngineError> {
        if codec == KvCodec::Raw || tokens.is_empty() {
            return Ok(());
        }
        let (layers, heads) = self.extent(stage)?;
        let kv = self.sequence(stage, request)?;
        let (present, room) = (kv.len(), kv.room());
        if !kv.is_alone(&self.pool, tokens.start as usize..tokens.end as usize) {
            return Err(EngineError::Position { request, start: tokens.start, end: tokens.end, present, room });
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

    /// How many tokens the sequence has, and where the tile lies in it.
    fn locate(
        &self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
    ) -> Result<(usize, Tile), EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let kv = self.sequence(stage, request)?;
        let inside = tile.check().is_ok()
            && tile.token_start.is_multiple_of(codec.tile_step())
            && loaded.layers.contains(tile.layer)
            && tile.head_end as usize <= kv.layout().heads
            && tile.token_end as usize <= kv.room();
        if !inside {
            return Err(EngineError::Tile(*tile));
        }
        let range = |start: u32, end: u32| start as usize..end as usize;
        let part = Tile {
            layer: (tile.layer - loaded.layers.start) as usize,
            heads: range(tile.head_start, tile.head_end),
            tokens: range(tile.token_start, tile.token_end),
        };
        Ok((kv.len(), part))
    }
}
