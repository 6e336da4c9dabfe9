//! NEON: eight lanes in two registers, or four outputs in one; each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `eight.rs` | eight lanes, and how stored numbers become them |
//! | `dense.rs` | dense products |
//! | `attend.rs` | attention's scores and mixtures |
//! | `exp.rs` | softmax and gates |
//! | `rounded.rs` | rounding rows to 8 bits |
//! | `packed.rs` | quantised products |
//! | `bytes.rs` | what they are made of: products of bytes, with and without instructions for them |
//!
//! NEON is part of every aarch64 processor, and of what this is compiled for: no block here has to ask for it.
#![allow(unsafe_code)] // Vector instructions; each block says why it is sound.

mod attend;
mod bytes;
mod dense;
mod eight;
mod exp;
mod packed;
mod rounded;

pub(super) use attend::{scores, weighted_rows};
pub(super) use dense::{lanes, lanes_of_two, reduce_all};
pub(super) use eight::widen;
pub(super) use exp::{silu_mul, softmax};
pub(super) use packed::{wide, wide_by_dots};
pub(super) use rounded::round;

// The compiler has NEON everywhere, so plain code is vector code where it can be, as the loop that measures reading is.
// Packing KV for links is the definition too, though it is not: nobody has written that in NEON yet.
pub(super) use super::plain::{
    add_rms_norm, choose, decode, encode, gelu_mul, layer_norm, low_high, rms_norm, round_to_bf16, soft_cap, sum,
    turn_back, turn_heads, turn_on,
};

use super::LANES;
use eight::Eight;
use std::{arch::aarch64::*, hint::black_box};

/// Whether there are products of bytes that add up four at a time.
pub(super) fn has_dots() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// `count` multiply-adds in chains enough to keep every unit busy. Products are added to what a chain has: NEON has no
/// instruction for the other way round, as the definition has it, and moving numbers for it would be measured instead.
pub(super) fn multiply_only(count: usize) -> f32 {
    // SAFETY: registers only. The numbers are hidden from the compiler, which else works out the end.
    unsafe {
        let (x, w): (Eight, Eight) = ([vdupq_n_f32(black_box(0.5)); 2], [vdupq_n_f32(black_box(0.001)); 2]);
        let mut chains: [Eight; 12] = std::array::from_fn(|i| [vdupq_n_f32(black_box(i as f32)); 2]);
        for _ in 0..count / (12 * LANES) {
            chains = chains.map(|chain| eight::multiply_add(chain, x, w));
        }
        chains.into_iter().flatten().map(|four| vaddvq_f32(four)).sum()
    }
}
