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
pub(super) use dense::{lanes, reduce_all};
pub(super) use eight::widen;
pub(super) use exp::{silu_mul, softmax};
pub(super) use packed::{wide, wide_by_dots};
pub(super) use rounded::round;

// The compiler has NEON everywhere, so plain code is vector code where it can be, as the loops that measure the machine are.
// Packing KV for links is the definition too: nobody has written it in NEON yet.
pub(super) use super::plain::{choose, decode, encode, low_high, multiply_only, sum, turn_back, turn_on};

/// Whether there are products of bytes that add up four at a time.
pub(super) fn has_dots() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}
