//! Tiles whose heads several GPUs have: their bytes are those of one GPU that had all of them.

use super::GpuRanks;
use crate::{
    cuda::{GpuError, GpuTile, Queue},
    engine::StageKey,
    pages::PageLayout,
};
use std::ops::Range;
use tsnode_protocol::KvCodec;

/// What a rank's GPU has of a tile.
pub(crate) struct TilePart {
    pub rank: usize,
    /// The layer's pages of the sequence there.
    pub pages: Vec<u32>,
    pub layout: PageLayout,
    /// As the GPU counts them.
    pub heads: Range<usize>,
}

/// Which part of a sequence's KV tiles are of, and how they are packed.
#[derive(Clone, Debug)]
pub(crate) struct TilePlace {
    pub stage: StageKey,
    /// Counted over the stage.
    pub layer: usize,
    pub tokens: Range<usize>,
    pub codec: KvCodec,
}

impl GpuRanks {
    /// Copies pages of each rank, before anything else is written.
    pub fn copy_pages(&mut self, rank: usize, copies: &[(u32, u32)]) -> Result<(), GpuError> {
        self.each[rank].copy_pages(copies)
    }

    /// Packs a tile into `payload`, which becomes as long as the tile, and waits for it: [`Gpu::export`](super::Gpu::export).
    pub fn export(
        &mut self,
        queue: Queue,
        parts: &[TilePart],
        place: &TilePlace,
        payload: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        let tiles: Vec<GpuTile<'_>> = parts.iter().map(|part| self.tile(part, place)).collect();
        if let ([part], [tile]) = (parts, tiles.as_slice()) {
            return self.each[part.rank].export(queue, tile, payload);
        }
        // All pack before anybody waits for one.
        let mut packed = Vec::with_capacity(parts.len());
        for (part, tile) in parts.iter().zip(&tiles) {
            packed.push(self.each[part.rank].pack(queue, tile)?);
        }
        payload.resize(tiles.iter().flat_map(GpuTile::sides).sum(), 0);
        let mut own = std::mem::take(&mut self.packed);
        let mut taken = Ok(());
        for (((part, packed), tile), sides) in parts.iter().zip(packed).zip(&tiles).zip(sides(&tiles)) {
            own.resize(packed.bytes, 0);
            taken = self.each[part.rank].unload_packed(queue, packed, &mut own);
            if taken.is_err() {
                break;
            }
            let (keys, values) = own.split_at(tile.sides()[0]);
            payload[sides[0].clone()].copy_from_slice(keys);
            payload[sides[1].clone()].copy_from_slice(values);
        }
        self.packed = own;
        taken
    }

    /// Unpacks a payload of the right length into pages.
    pub fn import(&mut self, parts: &[TilePart], place: &TilePlace, payload: &[u8]) -> Result<(), GpuError> {
        let tiles: Vec<GpuTile<'_>> = parts.iter().map(|part| self.tile(part, place)).collect();
        if let ([part], [tile]) = (parts, tiles.as_slice()) {
            return self.each[part.rank].import(tile, payload);
        }
        for ((part, tile), [keys, values]) in parts.iter().zip(&tiles).zip(sides(&tiles)) {
            self.packed.clear();
            self.packed.extend_from_slice(&payload[keys]);
            self.packed.extend_from_slice(&payload[values]);
            self.each[part.rank].import(tile, &self.packed)?;
        }
        Ok(())
    }

    /// Seconds of packing some tiles, of which each GPU has a part, and of unpacking them: the slowest GPU's.
    pub fn packing_seconds(
        &mut self,
        tiles: &[(Vec<TilePart>, TilePlace)],
        runs: usize,
    ) -> Result<(f64, f64), GpuError> {
        let mut slowest = (0.0f64, 0.0f64);
        for rank in 0..self.each.len() {
            let parts = tiles.iter().flat_map(|(parts, place)| parts.iter().map(move |part| (part, place)));
            let mine = parts.filter(|(part, _)| part.rank == rank);
            let mine: Vec<GpuTile<'_>> = mine.map(|(part, place)| self.tile(part, place)).collect();
            let (pack, unpack) = self.each[rank].packing_seconds(&mine, runs)?;
            slowest = (slowest.0.max(pack), slowest.1.max(unpack));
        }
        Ok(slowest)
    }

    fn tile<'a>(&self, part: &'a TilePart, place: &TilePlace) -> GpuTile<'a> {
        let TilePlace { stage, layer, tokens, codec } = place.clone();
        let turn = self.each[part.rank].turn(stage, layer);
        GpuTile { pages: &part.pages, layout: part.layout, heads: part.heads.clone(), tokens, codec, turn }
    }
}

/// Where each part's keys and values lie in the tile: keys of all heads come first.
fn sides<'a>(tiles: &'a [GpuTile<'_>]) -> impl Iterator<Item = [Range<usize>; 2]> + 'a {
    let all_keys: usize = tiles.iter().map(|tile| tile.sides()[0]).sum();
    let mut from = [0, all_keys];
    tiles.iter().map(move |tile| {
        let [keys, values] = tile.sides();
        let place = [from[0]..from[0] + keys, from[1]..from[1] + values];
        from = [place[0].end, place[1].end];
        place
    })
}
