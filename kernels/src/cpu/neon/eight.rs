//! What NEON is to loops that are written once for all instruction sets: eight lanes in two registers.

use super::super::vector::{EightLanes, Vector, instructions};
use std::arch::{aarch64::*, asm};

/// Eight lanes.
pub(super) type Eight = [float32x4_t; 2];

/// Says that the processor has NEON, as every aarch64 processor does.
#[derive(Clone, Copy)]
pub(super) struct Neon;

impl Vector for Neon {
    const COUNT: usize = 8;
    type Numbers = Eight;
    instructions! {
        fn all(self, x: f32) -> Eight {
            [vdupq_n_f32(x); 2]
        }
        fn multiply_add(self, x: Eight, w: Eight, sum: Eight) -> Eight {
            [vfmaq_f32(sum[0], x[0], w[0]), vfmaq_f32(sum[1], x[1], w[1])]
        }
        unsafe fn load(self, at: *const f32) -> Eight {
            [vld1q_f32(at), vld1q_f32(at.add(4))]
        }
        unsafe fn load_f16(self, at: *const u8) -> Eight {
            let halves = vld1q_u16(at.cast());
            [four_halves(vget_low_u16(halves)), upper_halves(halves)]
        }
        unsafe fn load_bf16(self, at: *const u8) -> Eight {
            // A bfloat16 is the upper half of the single-precision number.
            let (upper, zero) = (vld1q_u16(at.cast()), vdupq_n_u16(0));
            [vreinterpretq_f32_u16(vzip1q_u16(zero, upper)), vreinterpretq_f32_u16(vzip2q_u16(zero, upper))]
        }
        unsafe fn store(self, at: *mut f32, x: Eight) {
            vst1q_f32(at, x[0]);
            vst1q_f32(at.add(4), x[1]);
        }
    }
}

impl EightLanes for Neon {
    instructions! {
        fn add_up(self, lanes: [Eight; 4], sums: &mut [f32; 4]) {
            // `a + e`, `b + f`, `c + g`, `d + h` of each.
            let [p, q, r, s] = lanes.map(|l| vaddq_f32(l[0], l[1]));
            // Of two side by side: what is even in the first two places, what is odd in the last.
            let both = |p, q| vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(p, q), vzip2q_f32(p, q)));
            let (first, last) = (both(p, q), both(r, s));
            let (even, odd) = (vzip1q_f64(first, last), vzip2q_f64(first, last));
            vst1q_f32(sums.as_mut_ptr(), vaddq_f32(vreinterpretq_f32_f64(even), vreinterpretq_f32_f64(odd)));
        }
        unsafe fn load_two(self, at: *const u8) -> [Eight; 2] {
            // A bfloat16 is the upper half of the single-precision number.
            let both = [vld1q_u16(at.cast()), vld1q_u16(at.add(16).cast())].map(|eight| vreinterpretq_u32_u16(eight));
            let second = both.map(|both| vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff_0000))));
            [second, both.map(|both| vreinterpretq_f32_u32(vshlq_n_u32::<16>(both)))]
        }
    }

    /// Processors with NEON have guesses of their own.
    #[inline(always)]
    fn ask_for(self, _line: *const u8) {}
}

/// The larger of two, lane by lane; what is not a number has no say, as it would by the instruction for the larger.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn larger(x: float32x4_t, top: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(x, top), x, top)
}

/// Four numbers of half precision, widened. Its intrinsic is newer than the oldest compiler this is for.
#[inline(always)]
fn four_halves(halves: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: registers only; every aarch64 processor has the instruction.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// The same of the upper four of eight.
#[inline(always)]
fn upper_halves(halves: uint16x8_t) -> float32x4_t {
    let wide;
    // SAFETY: as in `four_halves`.
    unsafe {
        asm!("fcvtl2 {wide:v}.4s, {halves:v}.8h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}
