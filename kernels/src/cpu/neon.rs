//! NEON: eight lanes in two registers, or four outputs in one; each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `eight.rs` | what these instructions are to loops that are written once (`vector.rs`): dense products, attention |
//! | `exp.rs` | softmax and gates |
//! | `rounded.rs` | rounding rows to 8 bits |
//! | `packed.rs` | quantised products |
//! | `bytes.rs` | what they are made of: products of bytes, with and without instructions for them |
//!
//! NEON is part of every aarch64 processor, and of what this is compiled for: no block here has to ask for it. Functions that are
//! nothing else ask for it by `#[target_feature]`, which saves them blocks.
#![allow(unsafe_code)] // Vector instructions; each block says why it is sound.

mod bytes;
mod eight;
mod exp;
mod packed;
mod rounded;

pub(super) use exp::{silu_mul, softmax};
pub(super) use packed::{wide, wide_by_dots};
pub(super) use rounded::round;

// The compiler has NEON everywhere, so plain code is vector code where it can be, as the loop that measures reading is.
// Packing KV for links is the definition too, though it is not: nobody has written that in NEON yet.
pub(super) use super::plain::{
    add_rms_norm, choose, decode, encode, gelu_mul, layer_norm, low_high, pack_keys, read, rms_norm, round_to_bf16,
    soft_cap, sum, turn_heads, unpack_keys,
};

use super::{
    LANES, Lanes, Matrix,
    dense::Block,
    vector::{Vector, attend, dense},
};
use eight::{Eight, Neon};
use half::bf16;
use std::{arch::aarch64::*, hint::black_box};

/// Whether there are products of bytes that add up four at a time.
pub(super) fn has_dots() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// See [`super::plain::lanes`].
pub(super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    dense::lanes::<_, 3>(Neon, block, acc);
}

/// See [`super::plain::lanes_of_two`].
pub(super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    dense::lanes_of_two::<_, 3>(Neon, block, acc);
}

/// See [`super::plain::reduce_all`].
pub(super) fn reduce_all(acc: &[Lanes], sums: &mut [f32]) {
    attend::reduce_all(Neon, acc, sums);
}

/// See [`super::plain::scores`].
pub(super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    attend::scores(Neon, x, w, stride, out);
}

/// See [`super::plain::weighted_rows`].
pub(super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    attend::weighted_rows::<_, 2, 2, 4, 8>(Neon, p, stride, v, out);
}

/// See [`super::plain::widen`].
pub(super) fn widen(w: Matrix<'_>, out: &mut [f32]) {
    attend::widen(Neon, w, out);
}

/// `count` multiply-adds in chains enough to keep every unit busy. Products are added to what a chain has: NEON has no
/// instruction for the other way round, as the definition has it, and moving numbers for it would be measured instead.
#[target_feature(enable = "neon")]
pub(super) fn multiply_only(count: usize) -> f32 {
    // Hidden from the compiler, which else works out the end.
    let (x, w) = (Neon.all(black_box(0.5)), Neon.all(black_box(0.001)));
    let mut chains: [Eight; 12] = std::array::from_fn(|i| Neon.all(black_box(i as f32)));
    for _ in 0..count / (12 * LANES) {
        chains = chains.map(|chain| Neon.multiply_add(x, w, chain));
    }
    chains.into_iter().flatten().map(|four| vaddvq_f32(four)).sum()
}
