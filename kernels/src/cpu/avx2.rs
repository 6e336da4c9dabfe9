//! AVX2 + FMA + F16C: several rows and outputs at a time, each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `packed.rs` | quantised products |
//! | `bytes.rs` | what quantised products are made of: products of bytes, with and without instructions for them (AVX-VNNI) |
//! | `turn.rs` | keys turned back and on for links |
//!
//! The rest is here: of it, dense products and attention are those of `dense/tile.rs` and `attend.rs`, and packing
//! KV for links that of `pack.rs`.
#![expect(unsafe_code, reason = "vector instructions; each block says why it is sound")]

mod bytes;
mod packed;
mod turn;

use super::{
    Dtype, Lanes, Matrix, attend,
    dense::{Block, tile},
    isa::{avx2::Avx2, compiled, entries},
    pack,
    packed::Layout,
    plain,
    rounded::Filled,
};
use crate::{
    rope::RopePairs,
    wire::{Form, Rows},
};
use bytemuck::cast;
use half::bf16;
pub(super) use packed::{wide, wide_by_dots};
use std::arch::x86_64::*;
pub(super) use turn::{turn_back, turn_on};

/// Bytes that weights are asked for before they are needed: the processor's own guesses end where a page of 4 KiB does.
pub(super) const AHEAD: usize = 3072;

/// Asks for a part's share of the lines of a block further on, into the second-level cache: the first is asked for by loads
/// early enough, and waits for fewer lines at a time. Those of a whole block of 256 at once would be more than a processor waits
/// for, and what it needs now would wait behind them.
#[inline(always)]
pub(super) fn ask_for_part(layout: Layout, block: *const u8, part: usize) {
    let (lines, parts) = (layout.block().div_ceil(64), layout.parts());
    for line in part * lines / parts..(part + 1) * lines / parts {
        // SAFETY: every x86-64 processor can; asking for what is not there does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(block.wrapping_add(2 * AHEAD + 64 * line).cast()) };
    }
}

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Whether there are products of bytes that add up four at a time.
pub(super) fn has_dots() -> bool {
    is_x86_feature_detected!("avxvnni")
}

entries! { Avx2, "avx2,fma,f16c",
    pub(super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) = tile::lanes::<Avx2, 4>;
    pub(super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) = tile::lanes_of_two::<Avx2, 4>;
    pub(super) fn reduce_all(acc: &[Lanes], sums: &mut [f32]) = tile::reduce_all;
    pub(super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) = attend::scores;
    pub(super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) =
        attend::weighted_rows::<Avx2, 8, 2, 4, 4, 8, 1>;
    pub(super) fn widen(w: Matrix<'_>, out: &mut [f32]) = attend::widen::<Avx2, 8>;
    pub(super) fn low_high(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) = pack::low_high;
    pub(super) fn encode(form: Form, rows: Rows<'_>, inverse: &[f32], zero: &[f32], codes: &mut [u8]) = pack::encode;
    pub(super) fn decode(
        form: Form, codes: &[u8], first: usize, scales: (&[f32], &[f32]), dtype: Dtype, out: &mut [u8]
    ) = pack::decode;
}

compiled! { "avx2,fma,f16c",
    pub(super) fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    pub(super) fn add_rms_norm(x: &mut [f32], more: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    pub(super) fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]);
    pub(super) fn turn_heads(row: &mut [f32], dim: usize, cos: &[f32], sin: &[f32], pairs: RopePairs);
    pub(super) fn gelu_mul(gate: &mut [f32], up: &[f32]);
    pub(super) fn silu_mul(gate: &mut [f32], up: &[f32]);
    pub(super) fn soft_cap(x: &mut [f32], cap: f32);
    pub(super) fn softmax(x: &mut [f32]);
    pub(super) fn round(layout: Layout, x: &[f32], out: Filled<'_>);
    pub(super) fn round_to_bf16(x: &[f32], out: &mut [bf16]);
    pub(super) fn multiply_only(count: usize) -> f32;
    pub(super) fn choose(
        form: Form, low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]
    );
}

/// Asks memory for some bytes that will be read soon.
pub(super) fn ask_for(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: asking reads nothing; every x86-64 processor can.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// See [`plain::sum`]. Asks for lines ahead, as products do: the limit is not to be below what they reach.
pub(super) fn sum(numbers: &[u64]) -> u64 {
    #[target_feature(enable = "avx2")]
    fn fast(numbers: &[u64]) -> u64 {
        let (lines, rest) = numbers.as_chunks::<8>();
        let mut sums = [_mm256_setzero_si256(); 2];
        for line in lines {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD / 8).cast());
            for (sum, half) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                *sum = _mm256_add_epi64(*sum, cast(*half));
            }
        }
        let four: [u64; 4] = cast(_mm256_add_epi64(sums[0], sums[1]));
        plain::sum(&four).wrapping_add(plain::sum(rest))
    }
    // SAFETY: `Simd::detect` chose this file only after `is_available`.
    unsafe { fast(numbers) }
}
