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
use std::ops::Range;
use tsnode_protocol::{KvCodec, KvDtype};

/// Channels that share a scale of packed values.
const GROUP: usize = 32;

/// How a layer's keys turn over a block, as kernels are told: [`wire::KeyRotation`](crate::wire::KeyRotation) on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuTurn {
    /// Where its angles are.
    pub angles: u64,
    pub half: usize,
    pub pairs: RopePairs,
}

/// The same part of some layers' KV of a sequence: one launch packs all of them, one behind the other.
#[derive(Clone, Debug)]
pub(crate) struct GpuTile<'a> {
    /// The layers' pages of the sequence, of each as many.
    pub pages: &'a [u32],
    pub layers: usize,
    pub layout: PageLayout,
    pub heads: Range<usize>,
    pub tokens: Range<usize>,
    pub codec: KvCodec,
    /// That of all of the layers; none for keys that do not turn.
    pub turn: Option<GpuTurn>,
}

impl GpuTile<'_> {
    /// Bytes of a layer's keys, and of its values behind them.
    pub fn sides(&self) -> [usize; 2] {
        [Side::Keys, Side::Values].map(|side| self.heads.len() * self.strip_bytes(side))
    }

    /// Bytes of all its layers.
    pub fn bytes(&self) -> usize {
        self.layers * self.sides().iter().sum::<usize>()
    }

    /// Bytes of a block of so many tokens of a head's keys or values.
    fn block_bytes(&self, side: Side, tokens: usize) -> usize {
        block_bytes(self.codec, self.layout.dtype, side, tokens, self.layout.dim)
    }

    /// Bytes of a head's keys or values.
    fn strip_bytes(&self, side: Side) -> usize {
        let (whole, rest) = (self.tokens.len() / BLOCK, self.tokens.len() % BLOCK);
        whole * self.block_bytes(side, BLOCK) + if rest == 0 { 0 } else { self.block_bytes(side, rest) }
    }

    /// A block of threads for each block of tokens, of each head's keys and values, of each layer: kernels find out by it which
    /// theirs is.
    fn grid(&self) -> [u32; 3] {
        [self.tokens.len().div_ceil(BLOCK), 2 * self.heads.len(), self.layers].map(|blocks| blocks as u32)
    }

    /// Pages of each layer.
    fn pages_of_layer(&self) -> usize {
        self.pages.len() / self.layers.max(1)
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
    fn args(&self, pool: u64, table: u64, packed: u64) -> Result<[Arg; 20], GpuError> {
        let bits = match self.codec {
            KvCodec::Raw => 0,
            KvCodec::Int4 => 4,
            KvCodec::Int8 => 8,
            KvCodec::Int3 => return Err(GpuError::Unsupported("packing in three bits".into())),
        };
        let number = |x: usize| Arg::Whole(x as u32);
        let PageLayout { heads, dim, dtype, tokens } = self.layout;
        let (angles, half, pairs) =
            self.turn.map_or((0, 0, RopePairs::Halves), |turn| (turn.angles, turn.half, turn.pairs));
        Ok([
            Arg::Whole(bits),
            number(self.tokens.start),
            number(self.tokens.len()),
            number(self.heads.start),
            number(self.heads.len()),
            number(self.block_bytes(Side::Keys, BLOCK)),
            number(self.block_bytes(Side::Values, BLOCK)),
            Arg::Wide(self.strip_bytes(Side::Keys) as u64),
            Arg::Wide(self.strip_bytes(Side::Values) as u64),
            Arg::Wide(pool),
            Arg::Wide(table),
            number(self.pages_of_layer()),
            number(tokens),
            number(heads),
            number(dim),
            Arg::Whole(Kind::from(dtype) as u32),
            Arg::Wide(packed),
            Arg::Wide(angles),
            number(half),
            Arg::Whole(u32::from(pairs == RopePairs::Neighbours)),
        ])
    }
}

/// Where packed tiles lie on a GPU, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedTiles {
    at: u64,
    pub bytes: usize,
}

/// Of a tile's two kernels the one that packs, or the one that unpacks.
type OneKernel = fn((&'static str, &'static str)) -> &'static str;

/// Seconds that packing takes, and unpacking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PackingSeconds {
    pub pack: f64,
    pub unpack: f64,
}

impl Gpu {
    /// Packs tiles into `payload`, which becomes as long as they are, and waits for it, but not for steps that came after what
    /// `queue` was asked for.
    pub(crate) fn export(
        &mut self,
        queue: Queue,
        tiles: &[GpuTile<'_>],
        payload: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        let packed = self.pack(queue, tiles)?;
        if payload.capacity() < packed.bytes {
            // Memory that the system gives is zero: written once less than where zeros are put into it.
            *payload = vec![0; packed.bytes];
        }
        payload.resize(packed.bytes, 0);
        self.unload_packed(queue, packed, payload)
    }

    /// Packs tiles on the GPU; it is under way when this returns.
    pub(super) fn pack(&mut self, queue: Queue, tiles: &[GpuTile<'_>]) -> Result<PackedTiles, GpuError> {
        let bytes: usize = tiles.iter().map(GpuTile::bytes).sum();
        if bytes == 0 {
            return Ok(PackedTiles { at: 0, bytes });
        }
        let [table, at] = self.tile_memory(queue, tiles, bytes)?;
        self.run_all(queue, tiles, |(pack, _)| pack, [table, at])?;
        Ok(PackedTiles { at, bytes })
    }

    /// Waits for tiles that were packed, and takes them.
    pub(super) fn unload_packed(&self, queue: Queue, packed: PackedTiles, payload: &mut [u8]) -> Result<(), GpuError> {
        if packed.bytes == 0 { Ok(()) } else { self.machine.download(queue, packed.at, payload) }
    }

    /// Unpacks a payload of the right length into pages; it is under way when this returns.
    pub(crate) fn import(&mut self, tiles: &[GpuTile<'_>], payload: &[u8]) -> Result<(), GpuError> {
        let bytes: usize = tiles.iter().map(GpuTile::bytes).sum();
        debug_assert_eq!(bytes, payload.len(), "the engine checks sizes");
        if bytes == 0 {
            return Ok(());
        }
        let [table, at] = self.tile_memory(Queue::Compute, tiles, bytes)?;
        self.machine.upload(Queue::Compute, at, payload)?;
        self.run_all(Queue::Compute, tiles, |(_, unpack)| unpack, [table, at])
    }

    /// Packs tiles and unpacks them where they were; it is under way when this returns, and nothing leaves the GPU.
    pub(super) fn fake_quantise(&mut self, tiles: &[GpuTile<'_>]) -> Result<(), GpuError> {
        let bytes: usize = tiles.iter().map(GpuTile::bytes).sum();
        if bytes == 0 {
            return Ok(());
        }
        let places = self.tile_memory(Queue::Compute, tiles, bytes)?;
        self.run_all(Queue::Compute, tiles, |(pack, _)| pack, places)?;
        self.run_all(Queue::Compute, tiles, |(_, unpack)| unpack, places)
    }

    /// Seconds of packing all of some tiles, a launch each, and of unpacking them, in the best run. What is packed has a place
    /// of its own in memory, as it would not stay in a cache.
    pub(crate) fn packing_seconds(&mut self, tiles: &[GpuTile<'_>], runs: usize) -> Result<PackingSeconds, GpuError> {
        let pages: Vec<u32> = tiles.iter().flat_map(|tile| tile.pages).copied().collect();
        let table = GpuMemory::of(&self.machine, bytemuck::cast_slice(&pages))?;
        let bytes: usize = tiles.iter().map(GpuTile::bytes).sum();
        // As in `tile_memory`: kernels read whole sixteens.
        let packed = GpuMemory::take(&self.machine, bytes.next_multiple_of(16))?;
        let places = [table.at(), packed.at()];
        let time =
            |kernel: OneKernel| best(&self.machine, runs, || self.run_all(Queue::Compute, tiles, kernel, places));
        // Nothing uses the memory any more when this returns: measuring waits.
        Ok(PackingSeconds { pack: time(|(pack, _)| pack)?, unpack: time(|(_, unpack)| unpack)? })
    }

    /// Memory with the tiles' pages in it, and room for what is packed.
    fn tile_memory(&mut self, queue: Queue, tiles: &[GpuTile<'_>], bytes: usize) -> Result<[u64; 2], GpuError> {
        let joined: Vec<u32>;
        let pages = match tiles {
            [tile] => tile.pages,
            _ => {
                joined = tiles.iter().flat_map(|tile| tile.pages).copied().collect();
                joined.as_slice()
            }
        };
        let pages = bytemuck::cast_slice::<_, u8>(pages);
        let room = pages.len().next_multiple_of(16);
        // Kernels read whole sixteens.
        let at = self.tiles.fit(room + bytes.next_multiple_of(16))?;
        self.machine.upload(queue, at, pages)?;
        Ok([at, at + room as u64])
    }

    /// Runs one kernel of each tile. Their pages lie one behind the other, and so do their bytes.
    fn run_all(
        &self,
        queue: Queue,
        tiles: &[GpuTile<'_>],
        kernel: OneKernel,
        [mut table, mut at]: [u64; 2],
    ) -> Result<(), GpuError> {
        for tile in tiles {
            if tile.bytes() > 0 {
                let (kernel, grid) = (kernel(tile.kernels()), tile.grid());
                let launch = Launch { module: "tiles", kernel, grid, threads: 256, shared: 0 };
                self.machine.launch(queue, launch, &tile.args(self.pool(), table, at)?)?;
            }
            table += size_of_val(tile.pages) as u64;
            at += tile.bytes() as u64;
        }
        Ok(())
    }
}
