//! KV as tiles: what is present goes out packed, what comes in is unpacked into reserved pages.

use super::{Engine, EngineError, StageKey};
use crate::{
    int4,
    pages::{SequenceKv, Side},
};
use std::ops::Range;
use tsnode_protocol::{KvCodec, RequestId, TileHeader};

impl Engine {
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
        let (kv, layer) = self.locate(stage, request, tile, codec)?;
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
        let (kv, layer) = self.locate(stage, request, tile, codec)?;
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

    /// The sequence and the place of the tile's layer in the stage.
    fn locate(
        &self,
        stage: StageKey,
        request: RequestId,
        tile: &TileHeader,
        codec: KvCodec,
    ) -> Result<(&SequenceKv, usize), EngineError> {
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
        Ok((kv, (tile.layer - loaded.layers.start) as usize))
    }
}
