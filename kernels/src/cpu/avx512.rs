//! AVX-512: two eight-lane sums, or sixteen outputs, to a register; each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `attend.rs` | attention of single rows |
//! | `chunk.rs` | attention of many rows of a prompt |
//! | `dense.rs` | dense products of several rows |
//! | `bf16.rs` | products of bfloat16 numbers as they are |
//! | `rows.rs` | rows as these read them |
//! | `registers.rs` | what these instructions are to loops that are written once (`vector.rs`): mixtures, quantised products, KV for links |
//! | `stored.rs` | how stored numbers become the lanes of two rows |
//! | `exp.rs` | softmax and gates |
//! | `packed.rs` | quantised products of few rows, by whole-number products of bytes (VNNI) |
//! | `amx.rs` | quantised products of many rows, by tiles (AMX) |
//! | `rounded.rs` | rounding rows to 8 bits |
//! | `wire.rs` | KV packed for links |
//!
//! What has these instructions by `#[target_feature]` is called by who knows that the processor has them (`by_simd!`).
#![allow(unsafe_code)] // Vector instructions; each block says why it is sound.

pub(super) mod amx;
mod attend;
pub(super) mod bf16;
pub(super) mod chunk;
mod dense;
mod exp;
mod packed;
mod registers;
mod rounded;
mod rows;
mod stored;
mod wire;

pub(super) use super::avx2::{
    add_rms_norm, gelu_mul, lanes, lanes_of_two, layer_norm, reduce_all, rms_norm, round_to_bf16, soft_cap, turn_heads,
    widen,
};
use super::{avx2::AHEAD, plain};
pub(super) use attend::{scores, weighted_rows};
pub(super) use dense::{RowLines, panel, width, with_lines};
pub(super) use exp::{silu_mul, softmax};
pub(super) use packed::wide;
pub(super) use rounded::round;
use std::arch::x86_64::*;
pub(super) use wire::{choose, decode, encode, low_high, pack_keys, read, unpack_keys};

pub(super) fn is_available() -> bool {
    super::avx2::is_available()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// See [`plain::sum`]. Asks for lines ahead, as products do: the limit is not to be below what they reach.
#[target_feature(enable = "avx512f")]
pub(super) fn sum(numbers: &[u64]) -> u64 {
    let (lines, rest) = numbers.as_chunks::<8>();
    let mut sums = _mm512_setzero_si512();
    for line in lines {
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD / 8).cast());
        // SAFETY: a line is eight numbers.
        sums = _mm512_add_epi64(sums, unsafe { _mm512_loadu_si512(line.as_ptr().cast()) });
    }
    (_mm512_reduce_add_epi64(sums) as u64).wrapping_add(plain::sum(rest))
}

/// `count` multiply-adds in chains enough to keep every unit busy. No closures: they would not have this function's
/// instructions.
#[target_feature(enable = "avx512f")]
pub(super) fn multiply_only(count: usize) -> f32 {
    let (factor, more) = (_mm512_set1_ps(0.999), _mm512_set1_ps(0.001));
    // Hidden from the compiler, which else works out the end: 1 stays 1.
    let mut chains = [_mm512_set1_ps(std::hint::black_box(0.5)); 12];
    for _ in 0..count / (12 * 16) {
        for chain in &mut chains {
            *chain = _mm512_fmadd_ps(*chain, factor, more);
        }
    }
    let mut sum = 0.0;
    for chain in chains {
        sum += _mm512_reduce_add_ps(chain);
    }
    sum
}
