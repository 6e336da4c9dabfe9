//! NEON: eight lanes to two registers. It is part of what this is compiled for, so every processor this runs on has it.

use super::{Eight, Isa, Sealed, instructions};
use bytemuck::cast;
use std::arch::{aarch64::*, asm};

/// NEON, which every aarch64 processor has.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon;

impl Sealed for Neon {}

/// Four numbers of half precision, widened. Its intrinsic is newer than the oldest compiler this is for.
#[inline(always)]
pub(in super::super) fn four_halves(halves: uint16x4_t) -> float32x4_t {
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

/// Eight numbers.
type Two = [float32x4_t; 2];

impl Isa<8> for Neon {
    type Floats = Two;
    type Sums = Two;

    instructions! { "neon",
        fn splat(x: f32) -> Two {
            [vdupq_n_f32(x); 2]
        }
        fn load(at: &[f32; 8]) -> Two {
            cast(*at)
        }
        fn load_bytes(at: &[[u8; 4]; 8]) -> Two {
            cast(*at)
        }
        fn load_f16(at: &[[u8; 2]; 8]) -> Two {
            let halves = cast(*at);
            [four_halves(vget_low_u16(halves)), upper_halves(halves)]
        }
        fn load_bf16(at: &[[u8; 2]; 8]) -> Two {
            let (upper, zero) = (cast(*at), vdupq_n_u16(0));
            [vreinterpretq_f32_u16(vzip1q_u16(zero, upper)), vreinterpretq_f32_u16(vzip2q_u16(zero, upper))]
        }
        fn store(x: Two, at: &mut [f32; 8]) {
            *at = cast(x);
        }
        fn add(x: Two, y: Two) -> Two {
            [vaddq_f32(x[0], y[0]), vaddq_f32(x[1], y[1])]
        }
        fn sub(x: Two, y: Two) -> Two {
            [vsubq_f32(x[0], y[0]), vsubq_f32(x[1], y[1])]
        }
        fn mul(x: Two, y: Two) -> Two {
            [vmulq_f32(x[0], y[0]), vmulq_f32(x[1], y[1])]
        }
        fn div(x: Two, y: Two) -> Two {
            [vdivq_f32(x[0], y[0]), vdivq_f32(x[1], y[1])]
        }
        fn neg(x: Two) -> Two {
            [vnegq_f32(x[0]), vnegq_f32(x[1])]
        }
        fn mul_add(x: Two, y: Two, z: Two) -> Two {
            [vfmaq_f32(z[0], x[0], y[0]), vfmaq_f32(z[1], x[1], y[1])]
        }
        fn larger(x: Two, y: Two) -> Two {
            // The instruction for it would let what is not a number win.
            [vbslq_f32(vcgtq_f32(x[0], y[0]), x[0], y[0]), vbslq_f32(vcgtq_f32(x[1], y[1]), x[1], y[1])]
        }
        fn clamp(x: Two, least: f32, most: f32) -> Two {
            let (least, most) = (vdupq_n_f32(least), vdupq_n_f32(most));
            [vminq_f32(vmaxq_f32(x[0], least), most), vminq_f32(vmaxq_f32(x[1], least), most)]
        }
        fn floor(x: Two) -> Two {
            [vrndmq_f32(x[0]), vrndmq_f32(x[1])]
        }
        fn power_of_two(n: Two) -> Two {
            let (bias, [a, b]) = (vdupq_n_s32(127), n);
            let powers = [vaddq_s32(vcvtq_s32_f32(a), bias), vaddq_s32(vcvtq_s32_f32(b), bias)];
            [
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(powers[0])),
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(powers[1])),
            ]
        }
        fn zero_below(limit: f32, x: Two, y: Two) -> Two {
            let (limit, zero) = (vdupq_n_f32(limit), vdupq_n_f32(0.0));
            [vbslq_f32(vcltq_f32(x[0], limit), zero, y[0]), vbslq_f32(vcltq_f32(x[1], limit), zero, y[1])]
        }
        fn largest(x: Two) -> f32 {
            vmaxvq_f32(vmaxq_f32(x[0], x[1]))
        }
        fn no_sums() -> Two {
            [vdupq_n_f32(0.0); 2]
        }
        fn add_to(sums: Two, x: Two) -> Two {
            [vaddq_f32(sums[0], x[0]), vaddq_f32(sums[1], x[1])]
        }
        fn sums(sums: Two) -> [f32; 8] {
            cast(sums)
        }
    }
}

impl Eight for Neon {
    instructions! { "neon",
        fn load_apart(at: &[[u8; 2]; 16]) -> [Two; 2] {
            let [a, b]: [uint32x4_t; 2] = cast(*at);
            let upper = vdupq_n_u32(0xffff_0000);
            [
                [vreinterpretq_f32_u32(vandq_u32(a, upper)), vreinterpretq_f32_u32(vandq_u32(b, upper))],
                [vreinterpretq_f32_u32(vshlq_n_u32::<16>(a)), vreinterpretq_f32_u32(vshlq_n_u32::<16>(b))],
            ]
        }
        fn reduce_four(lanes: [Two; 4]) -> [f32; 4] {
            // `a + e`, `b + f`, `c + g`, `d + h` of each.
            let [p, q, r, s] = lanes.map(|l| vaddq_f32(l[0], l[1]));
            // Of two side by side: what is even in the first two places, what is odd in the last.
            let both = |p, q| vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(p, q), vzip2q_f32(p, q)));
            let (first, last) = (both(p, q), both(r, s));
            let (even, odd) = (vzip1q_f64(first, last), vzip2q_f64(first, last));
            cast(vaddq_f32(vreinterpretq_f32_f64(even), vreinterpretq_f32_f64(odd)))
        }
    }
}
