//! Tiles whose heads several GPUs have: their bytes are those of one GPU that had all of them.

use super::GpuRanks;
use crate::{
    cuda::{GpuError, GpuTile, PackingSeconds, Queue},
    engine::StageKey,
    pages::PageLayout,
};
use std::ops::Range;
use tsnode_protocol::KvCodec;

/// What a rank's GPU has of tiles.
pub(crate) struct TilePart {
    pub rank: usize,
    /// The layers' pages of the sequence there, of each as many.
    pub pages: Vec<u32>,
    pub layout: PageLayout,
    /// As the GPU counts them.
    pub heads: Range<usize>,
}

/// Which part of a sequence's KV tiles are of, and how they are packed: a tile a layer.
#[derive(Clone, Debug)]
pub(crate) struct TilePlace {
    pub stage: StageKey,
    /// Counted over the stage.
    pub layers: Range<usize>,
    pub tokens: Range<usize>,
    pub codec: KvCodec,
}

impl GpuRanks {
    /// Copies pages of each rank, before anything else is written.
    pub fn copy_pages(&mut self, rank: usize, copies: &[(u32, u32)]) -> Result<(), GpuError> {
        self.each[rank].copy_pages(copies)
    }

    /// Packs tiles into `payload`, which becomes as long as they are, and waits for them: [`Gpu::export`](super::Gpu::export).
    pub fn export(
        &mut self,
        queue: Queue,
        parts: &[TilePart],
        place: &TilePlace,
        payload: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        let tiles: Vec<Vec<GpuTile<'_>>> = parts.iter().map(|part| self.tiles(part, place)).collect();
        if let ([part], [tiles]) = (parts, tiles.as_slice()) {
            return self.each[part.rank].export(queue, tiles, payload);
        }
        let exported = self.export_of_all(queue, (parts, tiles.as_slice()), place.layers.len(), payload);
        if exported.is_err() {
            // Where one failed, what others still pack into is not to be written by what comes next, by another queue perhaps.
            self.come_to_rest();
        }
        exported
    }

    /// The same of several GPUs: all pack before anybody waits for one.
    fn export_of_all(
        &mut self,
        queue: Queue,
        (parts, tiles): (&[TilePart], &[Vec<GpuTile<'_>>]),
        layers: usize,
        payload: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        let mut packed = Vec::with_capacity(parts.len());
        for (part, tiles) in parts.iter().zip(tiles) {
            packed.push(self.each[part.rank].pack(queue, tiles)?);
        }
        payload.resize(tiles.iter().flatten().map(GpuTile::bytes).sum(), 0);
        let mut own = std::mem::take(&mut self.packed);
        let mut taken = Ok(());
        for ((part, packed), places) in parts.iter().zip(packed).zip(sides(tiles, layers)) {
            own.resize(packed.bytes, 0);
            taken = self.each[part.rank].unload_packed(queue, packed, &mut own);
            if taken.is_err() {
                break;
            }
            let mut rest = own.as_slice();
            for place in places {
                let (mine, behind) = rest.split_at(place.len());
                payload[place].copy_from_slice(mine);
                rest = behind;
            }
        }
        self.packed = own;
        taken
    }

    /// Unpacks a payload of the right length into pages.
    pub fn import(&mut self, parts: &[TilePart], place: &TilePlace, payload: &[u8]) -> Result<(), GpuError> {
        let tiles: Vec<Vec<GpuTile<'_>>> = parts.iter().map(|part| self.tiles(part, place)).collect();
        if let ([part], [tiles]) = (parts, tiles.as_slice()) {
            return self.each[part.rank].import(tiles, payload);
        }
        for ((part, mine), places) in parts.iter().zip(&tiles).zip(sides(&tiles, place.layers.len())) {
            self.packed.clear();
            for place in places {
                self.packed.extend_from_slice(&payload[place]);
            }
            self.each[part.rank].import(mine, &self.packed)?;
        }
        Ok(())
    }

    /// Packs tiles and unpacks them where they were: [`Gpu::fake_quantise`](super::Gpu::fake_quantise).
    pub fn fake_quantise(&mut self, parts: &[TilePart], place: &TilePlace) -> Result<(), GpuError> {
        for part in parts {
            let tiles = self.tiles(part, place);
            self.each[part.rank].fake_quantise(&tiles)?;
        }
        Ok(())
    }

    /// Seconds of packing some tiles, of which each GPU has a part, and of unpacking them: the slowest GPU's.
    pub fn packing_seconds(
        &mut self,
        tiles: &[(Vec<TilePart>, TilePlace)],
        runs: usize,
    ) -> Result<PackingSeconds, GpuError> {
        let mut slowest = PackingSeconds::default();
        for rank in 0..self.each.len() {
            let parts = tiles.iter().flat_map(|(parts, place)| parts.iter().map(move |part| (part, place)));
            let mine = parts.filter(|(part, _)| part.rank == rank);
            let mine: Vec<GpuTile<'_>> = mine.flat_map(|(part, place)| self.tiles(part, place)).collect();
            let PackingSeconds { pack, unpack } = self.each[rank].packing_seconds(&mine, runs)?;
            slowest = PackingSeconds { pack: slowest.pack.max(pack), unpack: slowest.unpack.max(unpack) };
        }
        Ok(slowest)
    }

    /// A part of a place as a GPU packs it: layers whose keys turn alike together.
    fn tiles<'a>(&self, part: &'a TilePart, place: &TilePlace) -> Vec<GpuTile<'a>> {
        let TilePlace { stage, layers, tokens, codec } = place;
        let turn = |layer: usize| self.each[part.rank].turn(*stage, layer);
        let each = part.pages.len() / layers.len().max(1);
        let layers: Vec<usize> = layers.clone().collect();
        let mut pages = part.pages.as_slice();
        let tile = |run: &[usize]| {
            let (mine, behind) = pages.split_at(run.len() * each);
            pages = behind;
            let (layout, heads, tokens) = (part.layout, part.heads.clone(), tokens.clone());
            GpuTile { pages: mine, layers: run.len(), layout, heads, tokens, codec: *codec, turn: turn(run[0]) }
        };
        layers.chunk_by(|a, b| turn(*a) == turn(*b)).map(tile).collect()
    }
}

/// Where each part's keys and values lie in the payload, layer by layer: in a layer keys of all heads come first.
fn sides(tiles: &[Vec<GpuTile<'_>>], layers: usize) -> Vec<Vec<Range<usize>>> {
    let of_part = |tiles: &Vec<GpuTile<'_>>| tiles.first().map_or([0, 0], GpuTile::sides);
    let each: Vec<[usize; 2]> = tiles.iter().map(of_part).collect();
    let [keys, values] = [0, 1].map(|side| each.iter().map(|sides| sides[side]).sum::<usize>());
    let mut before = [0, keys];
    let place = |sides: [usize; 2]| {
        let first = before;
        before = [before[0] + sides[0], before[1] + sides[1]];
        let of_layer = |layer: usize| [0, 1].map(|side| layer * (keys + values) + first[side]).into_iter().zip(sides);
        (0..layers).flat_map(of_layer).map(|(at, bytes)| at..at + bytes).collect::<Vec<_>>()
    };
    each.into_iter().map(place).collect()
}
