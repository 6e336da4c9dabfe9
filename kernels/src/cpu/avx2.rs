//! AVX2 + FMA + F16C: several rows and outputs at a time, each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `registers.rs` | what these instructions are to loops that are written once (`vector.rs`): dense products, attention |
//! | `compiled.rs` | definitions compiled with them: norms, gates, turns and others |
//! | `packed.rs` | quantised products |
//! | `bytes.rs` | what they are made of: products of bytes, with and without instructions for them (AVX-VNNI) |
//! | `wire.rs` | KV packed for links |
//!
//! What has these instructions by `#[target_feature]` is called by who knows that the processor has them (`by_simd!`).
#![allow(unsafe_code)] // Vector instructions; each block says why it is sound.

mod bytes;
mod compiled;
mod packed;
mod registers;
mod wire;

use super::{
    Lanes, Matrix,
    dense::Block,
    packed::Layout,
    plain,
    vector::{attend, dense},
};
pub(super) use compiled::{
    add_rms_norm, choose, gelu_mul, layer_norm, multiply_only, read, rms_norm, round, round_to_bf16, silu_mul,
    soft_cap, softmax, turn_heads,
};
use half::bf16;
pub(super) use packed::{wide, wide_by_dots};
pub(super) use registers::Avx2;
use std::arch::x86_64::*;
pub(super) use wire::{decode, encode, low_high, pack_keys, unpack_keys};

/// Bytes that weights are asked for before they are needed: the processor's own guesses end where a page of 4 KiB does.
pub(super) const AHEAD: usize = 3072;

/// Asks for a part's share of the lines of a block further on, into the second-level cache: the first is asked for by loads
/// early enough, and waits for fewer lines at a time. Those of a whole block of 256 at once would be more than a processor waits
/// for, and what it needs now would wait behind them.
///
/// # Safety
/// SSE.
#[inline(always)]
pub(super) unsafe fn ask_for_part(layout: Layout, block: *const u8, part: usize) {
    let (lines, parts) = (layout.block().div_ceil(64), layout.parts());
    for line in part * lines / parts..(part + 1) * lines / parts {
        // SAFETY: the caller's promise; asking for what is not there does nothing.
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

/// Asks memory for some bytes that will be read soon.
pub(super) fn ask_for(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: asking reads nothing; every x86-64 processor can.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

/// See [`plain::lanes`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    dense::lanes::<_, 4>(Avx2::here(), block, acc);
}

/// See [`plain::lanes_of_two`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    dense::lanes_of_two::<_, 4>(Avx2::here(), block, acc);
}

/// See [`plain::reduce_all`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn reduce_all(acc: &[Lanes], sums: &mut [f32]) {
    attend::reduce_all(Avx2::here(), acc, sums);
}

/// See [`plain::scores`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    attend::scores(Avx2::here(), x, w, stride, out);
}

/// See [`plain::weighted_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    attend::weighted_rows::<_, 2, 4, 4, 8>(Avx2::here(), p, stride, v, out);
}

/// See [`plain::widen`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen(w: Matrix<'_>, out: &mut [f32]) {
    attend::widen(Avx2::here(), w, out);
}

/// See [`plain::sum`]. Asks for lines ahead, as products do: the limit is not to be below what they reach.
#[target_feature(enable = "avx2")]
pub(super) fn sum(numbers: &[u64]) -> u64 {
    let (lines, rest) = numbers.as_chunks::<8>();
    let mut sums = [_mm256_setzero_si256(); 2];
    for line in lines {
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD / 8).cast());
        for (sum, half) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
            // SAFETY: half a line is four numbers.
            *sum = _mm256_add_epi64(*sum, unsafe { _mm256_loadu_si256(half.as_ptr().cast()) });
        }
    }
    let four = _mm256_add_epi64(sums[0], sums[1]);
    let two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
    let both = [_mm_cvtsi128_si64(two) as u64, _mm_extract_epi64::<1>(two) as u64];
    plain::sum(&both).wrapping_add(plain::sum(rest))
}
