//! KV packed for links and unpacked into pages on a GPU: the processor's bytes (`kernels/src/wire.rs`).

use super::{
    Gpu,
    machine::{Arg, GpuError, GpuMemory, Launch, Queue},
    ops::Kind,
    probe::best,
};
use crate::{
    pages::{PageLayout, Side},
    rope::RopePairs,
    wire::{BLOCK, block_bytes},
};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use tsnode_protocol::{KvCodec, KvDtype};

/// Channels that share a scale of packed values.
const GROUP: usize = 32;

/// A block of a tile, as `device/tiles.cu` reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct TileBlock {
    at: u64,
    side: u32,
    head: u32,
    token: u32,
    tokens: u32,
}
const _: () = assert!(size_of::<TileBlock>() == 24);

/// How a layer's keys turn over a block, as kernels are told: [`wire::KeyRotation`](crate::wire::KeyRotation) on the GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuTurn {
    /// Where its angles are.
    pub angles: u64,
    pub half: usize,
    pub pairs: RopePairs,
}

/// A part of one layer's KV of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct GpuTile<'a> {
    /// The layer's pages of the sequence.
    pub pages: &'a [u32],
    pub layout: PageLayout,
    pub heads: Range<usize>,
    pub tokens: Range<usize>,
    pub codec: KvCodec,
    /// None for keys that do not turn.
    pub turn: Option<GpuTurn>,
}

impl GpuTile<'_> {
    /// Bytes of its keys, and of its values behind them.
    pub fn sides(&self) -> [usize; 2] {
        [Side::Keys, Side::Values].map(|side| self.heads.len() * self.strip_bytes(side))
    }

    /// Bytes of a head's keys or values.
    fn strip_bytes(&self, side: Side) -> usize {
        let blocks = self.tokens.clone().step_by(BLOCK).map(|token| BLOCK.min(self.tokens.end - token));
        blocks.map(|tokens| block_bytes(self.codec, self.layout.dtype, side, tokens, self.layout.dim)).sum()
    }

    /// Its blocks in the order of their bytes, and how many bytes those are.
    fn blocks(&self) -> (Vec<TileBlock>, usize) {
        let (mut blocks, mut at) = (Vec::new(), 0);
        for (number, side) in [Side::Keys, Side::Values].into_iter().enumerate() {
            for head in self.heads.clone() {
                for token in self.tokens.clone().step_by(BLOCK) {
                    let tokens = BLOCK.min(self.tokens.end - token);
                    let [head, token, count] = [head, token, tokens].map(|x| x as u32);
                    blocks.push(TileBlock { at: at as u64, side: number as u32, head, token, tokens: count });
                    at += block_bytes(self.codec, self.layout.dtype, side, tokens, self.layout.dim);
                }
            }
        }
        (blocks, at)
    }

    /// The kernels that pack and unpack it: those of the widest heads that hold its channels where they are written for it,
    /// those for anything elsewhere.
    fn kernels(&self) -> (&'static str, &'static str) {
        // Keys are read in words of two channels that turn together.
        let whole = self.turn.is_none_or(|turn| turn.pairs == RopePairs::Neighbours || turn.half.is_multiple_of(2));
        let PageLayout { dim, dtype, .. } = self.layout;
        if self.codec != KvCodec::Int4 || !dim.is_multiple_of(GROUP) || !whole {
            return ("pack_tiles", "unpack_tiles");
        }
        match (dtype, dim) {
            (KvDtype::F16, ..=64) => ("pack_64_f16", "unpack_64_f16"),
            (KvDtype::F16, ..=128) => ("pack_128_f16", "unpack_128_f16"),
            (KvDtype::F16, ..=256) => ("pack_256_f16", "unpack_256_f16"),
            (KvDtype::Bf16, ..=64) => ("pack_64_bf16", "unpack_64_bf16"),
            (KvDtype::Bf16, ..=128) => ("pack_128_bf16", "unpack_128_bf16"),
            (KvDtype::Bf16, ..=256) => ("pack_256_bf16", "unpack_256_bf16"),
            _ => ("pack_tiles", "unpack_tiles"),
        }
    }

    /// What both kernels are told.
    fn args(&self, blocks: u64, pool: u64, table: u64, packed: u64) -> Result<[Arg; 12], GpuError> {
        let bits = match self.codec {
            KvCodec::Raw => 0,
            KvCodec::Int4 => 4,
            KvCodec::Int8 => 8,
            KvCodec::Int3 => return Err(GpuError::Unsupported("packing in three bits".into())),
        };
        let PageLayout { heads, dim, dtype, tokens } = self.layout;
        let [tokens, heads, dim] = [tokens, heads, dim].map(|x| Arg::Whole(x as u32));
        let kind = Arg::Whole(Kind::from(dtype) as u32);
        let (angles, half, pairs) =
            self.turn.map_or((0, 0, RopePairs::Halves), |turn| (turn.angles, turn.half, turn.pairs));
        let turn = [Arg::Wide(angles), Arg::Whole(half as u32), Arg::Whole(u32::from(pairs == RopePairs::Neighbours))];
        let [angles, half, neighbours] = turn;
        let (blocks, bits, packed) = (blocks.into(), Arg::Whole(bits), packed.into());
        Ok([blocks, bits, pool.into(), table.into(), tokens, heads, dim, kind, packed, angles, half, neighbours])
    }
}

/// Where a packed tile lies on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedTile {
    at: u64,
    pub bytes: usize,
}

impl Gpu {
    /// Packs a tile into `payload`, which becomes as long as the tile, and waits for it, but not for steps that came after
    /// what `queue` was asked for.
    pub(crate) fn export(&mut self, queue: Queue, tile: &GpuTile<'_>, payload: &mut Vec<u8>) -> Result<(), GpuError> {
        let packed = self.pack(queue, tile)?;
        payload.resize(packed.bytes, 0);
        self.unload_packed(queue, packed, payload)
    }

    /// Packs a tile on the GPU; it is under way when this returns.
    pub(super) fn pack(&mut self, queue: Queue, tile: &GpuTile<'_>) -> Result<PackedTile, GpuError> {
        let (blocks, bytes) = tile.blocks();
        if blocks.is_empty() {
            return Ok(PackedTile { at: 0, bytes: 0 });
        }
        let [at, table, packed] = self.tile_memory(queue, &blocks, tile.pages, bytes)?;
        self.run_tiles(queue, tile.kernels().0, blocks.len(), &tile.args(at, self.pool(), table, packed)?)?;
        Ok(PackedTile { at: packed, bytes })
    }

    /// Waits for a tile that was packed, and takes it.
    pub(super) fn unload_packed(&self, queue: Queue, packed: PackedTile, payload: &mut [u8]) -> Result<(), GpuError> {
        if packed.bytes == 0 { Ok(()) } else { self.machine.download(queue, packed.at, payload) }
    }

    /// Unpacks a payload of the right length into pages.
    pub(crate) fn import(&mut self, tile: &GpuTile<'_>, payload: &[u8]) -> Result<(), GpuError> {
        let (blocks, bytes) = tile.blocks();
        debug_assert_eq!(bytes, payload.len(), "the engine checks sizes");
        if blocks.is_empty() {
            return Ok(());
        }
        let [at, table, packed] = self.tile_memory(Queue::Compute, &blocks, tile.pages, bytes)?;
        self.machine.upload(Queue::Compute, packed, payload)?;
        self.run_tiles(Queue::Compute, tile.kernels().1, blocks.len(), &tile.args(at, self.pool(), table, packed)?)
    }

    /// Seconds of packing all of some tiles, and of unpacking them, in the best run.
    pub(crate) fn packing_seconds(&mut self, tiles: &[GpuTile<'_>], runs: usize) -> Result<(f64, f64), GpuError> {
        let mut told = Vec::with_capacity(tiles.len());
        let mut memory = Vec::with_capacity(tiles.len());
        for tile in tiles {
            let (blocks, bytes) = tile.blocks();
            let at = GpuMemory::of(&self.machine, bytemuck::cast_slice(&blocks))?;
            let table = GpuMemory::of(&self.machine, bytemuck::cast_slice(tile.pages))?;
            // Kernels read whole words.
            let packed = GpuMemory::take(&self.machine, bytes.next_multiple_of(4))?;
            told.push((blocks.len(), tile.kernels(), tile.args(at.at(), self.pool(), table.at(), packed.at())?));
            memory.extend([at, table, packed]);
        }
        let pack = || {
            told.iter()
                .try_for_each(|(blocks, (kernel, _), args)| self.run_tiles(Queue::Compute, kernel, *blocks, args))
        };
        let unpack = || {
            told.iter()
                .try_for_each(|(blocks, (_, kernel), args)| self.run_tiles(Queue::Compute, kernel, *blocks, args))
        };
        let both = (best(&self.machine, runs, pack)?, best(&self.machine, runs, unpack)?);
        // Nothing uses the memory any more: measuring waits.
        drop(memory);
        Ok(both)
    }

    /// Memory with the blocks and the pages in it, and room for what is packed.
    fn tile_memory(
        &mut self,
        queue: Queue,
        blocks: &[TileBlock],
        pages: &[u32],
        bytes: usize,
    ) -> Result<[u64; 3], GpuError> {
        let (blocks, pages) = (bytemuck::cast_slice::<_, u8>(blocks), bytemuck::cast_slice::<_, u8>(pages));
        let first = blocks.len().next_multiple_of(16);
        let second = first + pages.len().next_multiple_of(16);
        let at = self.tiles.fit(second + bytes)?;
        self.machine.upload(queue, at, blocks)?;
        self.machine.upload(queue, at + first as u64, pages)?;
        Ok([at, at + first as u64, at + second as u64])
    }

    fn run_tiles(&self, queue: Queue, kernel: &'static str, blocks: usize, args: &[Arg]) -> Result<(), GpuError> {
        let grid = [blocks as u32, 1, 1];
        self.machine.launch(queue, Launch { module: "tiles", kernel, grid, threads: 256, shared: 0 }, args)
    }
}
