//! Products of bytes with signs, four columns of four outputs at a time, added up as whole numbers.
//!
//! Quants of every kind fit bytes with signs, and so do rounded rows: one product of two such serves all kinds, and
//! instructions that take one side without signs (`udot`, `usdot`) would add nothing.

use std::arch::{aarch64::*, asm};

/// A token of instructions that multiply them.
pub(super) trait AddFour: Copy {
    /// Adds products of four columns to `H` times eight outputs. In `q` an output's columns lie together; in `x` the columns wanted
    /// are number `FOUR` of four times four.
    fn add<const FOUR: i32, const H: usize>(self, sums: &mut [[int32x4_t; 2]; H], q: [[int8x16_t; 2]; H], x: int8x16_t);
}

/// By what every processor has: products as words, two of them together, then added up in pairs.
#[derive(Clone, Copy)]
pub(super) struct Words;

impl AddFour for Words {
    #[inline(always)]
    fn add<const FOUR: i32, const H: usize>(
        self,
        sums: &mut [[int32x4_t; 2]; H],
        q: [[int8x16_t; 2]; H],
        x: int8x16_t,
    ) {
        // SAFETY: registers only. Two products fit a word: a number of a row is never below -127.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_laneq_s32::<FOUR>(vreinterpretq_s32_s8(x)));
            for (sum, q) in sums.as_flattened_mut().iter_mut().zip(q.as_flattened()) {
                let (low, high) = (vmull_s8(vget_low_s8(*q), vget_low_s8(x)), vmull_high_s8(*q, x));
                *sum = vpadalq_s16(*sum, vpaddq_s16(low, high));
            }
        }
    }
}

/// By instructions made for it. Says that the processor has `dotprod`.
#[derive(Clone, Copy)]
pub(super) struct Dots(());

impl Dots {
    /// Where it is enabled.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub fn here() -> Self {
        Self(())
    }
}

impl AddFour for Dots {
    #[inline(always)]
    fn add<const FOUR: i32, const H: usize>(
        self,
        sums: &mut [[int32x4_t; 2]; H],
        q: [[int8x16_t; 2]; H],
        x: int8x16_t,
    ) {
        for (sum, q) in sums.as_flattened_mut().iter_mut().zip(q.as_flattened()) {
            // SAFETY: who has the token has the instruction.
            *sum = unsafe { dot::<FOUR>(*sum, *q, x) };
        }
    }
}

/// The compiler has no stable name for this one yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const FOUR: i32>(mut sum: int32x4_t, q: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: registers only.
    unsafe {
        asm!("sdot {sum:v}.4s, {q:v}.16b, {x:v}.4b[{four}]",
            sum = inout(vreg) sum, q = in(vreg) q, x = in(vreg) x, four = const FOUR,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
