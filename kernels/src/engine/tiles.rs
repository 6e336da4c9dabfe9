//! KV as tiles: what is present goes out packed, what comes in is unpacked into reserved pages.

use super::{Engine, EngineError, Loaded, Shards, StageKey};
use crate::{int4, pages::Side};
use tsnode_protocol::{KvCodec, RequestId, TileHeader};

/// A tile's sequence, and the place of its layer in the stage.
struct Place<'a> {
    loaded: &'a Loaded,
    kv: &'a Shards,
    layer: usize,
}

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
        let Place { loaded, kv, layer } = self.locate(stage, request, tile)?;
        if tile.token_end as usize > kv.len() {
            return Err(EngineError::Tile(*tile));
        }
        payload.clear();
        let dim = loaded.shape.head_dim as usize;
        let mut rows = Vec::new();
        for side in [Side::Keys, Side::Values] {
            for head in tile.head_start..tile.head_end {
                let (rank, head) = loaded.place_of(head);
                let (kv, pool) = (kv.of(rank), &self.pools[rank]);
                match codec {
                    KvCodec::Raw => {
                        for token in tile.token_start..tile.token_end {
                            payload.extend_from_slice(kv.element(pool, layer, side, head, token as usize));
                        }
                    }
                    KvCodec::Int4 => {
                        rows.resize(tile.tokens() as usize * dim, 0.0);
                        kv.widen(pool, layer, side, head, tile.token_start as usize, &mut rows);
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
        let Place { loaded, layer, .. } = self.locate(stage, request, tile)?;
        let (dim, tokens) = (loaded.shape.head_dim as usize, tile.tokens() as usize);
        let row = dim * self.dtype.bytes();
        let heads = tile.heads() as usize;
        let expected = match codec {
            KvCodec::Raw => 2 * heads * tokens * row,
            KvCodec::Int4 => int4::tile_bytes(tokens, heads, dim),
        };
        if payload.len() != expected {
            return Err(int4::Int4Error { found: payload.len(), expected }.into());
        }
        // The pages are written below: of the engine, only what is not the pools may be borrowed.
        let kv = self.sequences.get(&(stage, request)).ok_or(EngineError::NoSequence(request))?;
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let mut rest = payload;
        let mut values = vec![0.0; tokens * dim];
        for side in [Side::Keys, Side::Values] {
            for head in tile.head_start..tile.head_end {
                let (rank, head) = loaded.place_of(head);
                let (kv, pool) = (kv.of(rank), &mut self.pools[rank]);
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
                        KvCodec::Raw => {
                            kv.element_mut(pool, layer, side, head, place).copy_from_slice(&part[token * row..][..row])
                        }
                        KvCodec::Int4 => {
                            kv.write(pool, layer, side, head, place, &values[token * dim..][..dim]);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn locate(&self, stage: StageKey, request: RequestId, tile: &TileHeader) -> Result<Place<'_>, EngineError> {
        let loaded = self.stages.get(&stage).ok_or(EngineError::NoStage)?;
        let kv = self.sequence(stage, request)?;
        let inside = tile.check().is_ok()
            && loaded.layers.contains(tile.layer)
            && tile.head_end <= loaded.shape.kv_heads
            && tile.token_end as usize <= kv.room();
        if !inside {
            return Err(EngineError::Tile(*tile));
        }
        Ok(Place { loaded, kv, layer: (tile.layer - loaded.layers.start) as usize })
    }
}
