//! How fast one core packs and unpacks, beside how fast it copies the same numbers.

use super::{CodecScratch, KeyRotation, Tile, TileCodec, export, import};
use crate::{
    cpu::Simd,
    pages::{PAGE_BYTES, PageLayout, PagePool, PagesError, SequenceKv, Side},
    rope::{Rope, RopePairs, RopeScaling},
};
use std::hint::black_box;
use std::time::Instant;
use tsnode_protocol::{BytesPerSecond, KvCodec, KvDtype};

/// Rates of one core, bytes a second of 16-bit numbers: what a copy writes, what packing reads and unpacking writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecRates {
    /// Copying, from memory to memory.
    pub copy: BytesPerSecond,
    /// Packing, from pages.
    pub pack: BytesPerSecond,
    /// Unpacking, into pages.
    pub unpack: BytesPerSecond,
    /// Of all that is packed, scales included.
    pub bits_per_element: f64,
}

/// KV of one layer that is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecLoad {
    /// KV heads.
    pub heads: usize,
    /// Channels of a head.
    pub dim: usize,
    /// Tokens.
    pub tokens: usize,
    /// Tokens in a tile.
    pub tile: usize,
}

/// Rates of `codec`, of keys that turn, by the instructions of `simd`: medians of `rounds` rounds, in each of which all three are measured one after the other.
///
/// # Errors
/// When a token's KV does not fit a page.
pub fn measure(simd: Simd, codec: KvCodec, load: CodecLoad, rounds: usize) -> Result<CodecRates, PagesError> {
    let CodecLoad { heads, dim, tokens, .. } = load;
    let page = PAGE_BYTES / (2 * heads * dim * 2).max(1);
    if page == 0 {
        return Err(PagesError::TokenTooLarge { bytes: 4 * heads * dim });
    }
    let layout = PageLayout { heads, dim, dtype: KvDtype::F16, tokens: page };
    let mut pool = PagePool::new(layout.pages(tokens) * PAGE_BYTES);
    let kv = SequenceKv::reserve(&mut pool, layout, 1, tokens)?;
    fill(&mut pool, &kv, load);
    let bytes = 4 * heads * dim * tokens;
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    let starts: Vec<usize> = (0..tokens).step_by(load.tile).collect();
    let tiles: Vec<Tile> = starts
        .iter()
        .map(|start| Tile { layer: 0, heads: 0..heads, tokens: *start..tokens.min(start + load.tile) })
        .collect();
    let mut payloads: Vec<Vec<u8>> = tiles.iter().map(|_| Vec::new()).collect();
    let turn = KeyRotation::new(&Rope::new(dim, 10_000.0, &RopeScaling::None), RopePairs::Halves);
    let packing = TileCodec { simd, codec, turn: Some(&turn) };
    let mut scratch = CodecScratch::default();
    let mut seconds = [const { Vec::new() }; 3];
    for _ in 0..rounds.max(1) {
        seconds[0].push(timed(|| to.copy_from_slice(black_box(&from))));
        black_box(&to);
        seconds[1].push(timed(|| {
            for (tile, payload) in tiles.iter().zip(&mut payloads) {
                export(packing, &kv, &pool, tile, &mut scratch, payload);
            }
        }));
        seconds[2].push(timed(|| {
            for (tile, payload) in tiles.iter().zip(&payloads) {
                // As long as packing made it.
                let _ = import(packing, &kv, &mut pool, tile, &mut scratch, black_box(payload));
            }
        }));
    }
    let [copy, pack, unpack] = seconds.map(|seconds| BytesPerSecond(bytes as f64 / median(seconds)));
    let packed: usize = payloads.iter().map(Vec::len).sum();
    Ok(CodecRates { copy, pack, unpack, bits_per_element: packed as f64 * 16.0 / bytes as f64 })
}

/// Numbers that differ by channel and token.
fn fill(pool: &mut PagePool, kv: &SequenceKv, load: CodecLoad) {
    let mut row = vec![0.0; load.dim];
    let mut n = 1u32;
    for (side, head) in [Side::Keys, Side::Values].into_iter().flat_map(|side| (0..load.heads).map(move |h| (side, h)))
    {
        for token in 0..load.tokens {
            for x in &mut row {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *x = (n >> 8) as f32 / 8_388_608.0 - 1.0;
            }
            kv.write(pool, 0, side, head, token, &row);
        }
    }
}

fn timed(run: impl FnOnce()) -> f64 {
    let at = Instant::now();
    run();
    at.elapsed().as_secs_f64().max(1e-9)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
