//! NEON: eight lanes in two registers, or four outputs in one; each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `rounded.rs` | rounding rows to 8 bits |
//! | `packed.rs` | quantised products |
//! | `bytes.rs` | what they are made of: products of bytes, with and without instructions for them |
//!
//! Dense products, attention, softmax and gates are those of `dense/tile.rs`, `attend.rs` and `exp.rs`.
//!
//! NEON is part of every aarch64 processor, and of what this is compiled for: no block here has to ask for it.
#![expect(unsafe_code, reason = "vector instructions; each block says why it is sound")]

mod bytes;
mod packed;
mod rounded;

pub(super) use packed::{wide, wide_by_dots};
pub(super) use rounded::round;

// The compiler has NEON everywhere, so plain code is vector code where it can be, as the loop that measures reading is.
// Packing KV for links is the definition too, though it is not: nobody has written that in NEON yet.
pub(super) use super::plain::{
    add_rms_norm, choose, decode, encode, gelu_mul, layer_norm, low_high, rms_norm, round_to_bf16, soft_cap, sum,
    turn_back, turn_heads, turn_on,
};

use super::{
    LANES, Lanes, Matrix, attend,
    dense::{Block, tile},
    exp,
    isa::{Isa, neon::Neon},
};
use half::bf16;
use std::hint::black_box;

/// Makes functions of generic ones that take the instruction set as their first argument.
macro_rules! entries {
    ($($name:ident($($arg:ident: $kind:ty),*) = $what:expr;)*) => {$(
        /// The definition's bits, by this instruction set.
        pub(super) fn $name($($arg: $kind),*) {
            $what(Neon, $($arg),*)
        }
    )*};
}

entries! {
    lanes(block: Block<'_>, acc: &mut [Lanes]) = tile::lanes::<Neon, 3>;
    lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) = tile::lanes_of_two::<Neon, 3>;
    reduce_all(acc: &[Lanes], sums: &mut [f32]) = tile::reduce_all;
    scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) = attend::scores;
    weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) =
        attend::weighted_rows::<Neon, 8, 2, 2, 4, 8, 1>;
    widen(w: Matrix<'_>, out: &mut [f32]) = attend::widen::<Neon, 8>;
    softmax(x: &mut [f32]) = exp::softmax;
    silu_mul(gate: &mut [f32], up: &[f32]) = exp::silu_mul;
}

/// Whether there are products of bytes that add up four at a time.
pub(super) fn has_dots() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// `count` multiply-adds in chains enough to keep every unit busy. Products are added to what a chain has: NEON has no
/// instruction for the other way round, as the definition has it, and moving numbers for it would be measured instead.
pub(super) fn multiply_only(count: usize) -> f32 {
    // The numbers are hidden from the compiler, which else works out the end.
    let (x, w) = (Neon.splat(black_box(0.5)), Neon.splat(black_box(0.001)));
    let mut chains: [_; 12] = std::array::from_fn(|i| Neon.splat(black_box(i as f32)));
    for _ in 0..count / (12 * LANES) {
        chains = chains.map(|chain| Neon.mul_add(x, w, chain));
    }
    chains.into_iter().flat_map(|chain| Neon.sums(chain)).sum()
}
