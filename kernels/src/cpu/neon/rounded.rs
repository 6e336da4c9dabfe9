//! Rounding rows to 8 bits: sixteen numbers become a register of bytes.

use super::super::{packed::Layout, rounded::Filled};
use super::eight::larger;
use std::arch::aarch64::*;

/// See [`super::super::rounded::round`].
#[target_feature(enable = "neon")]
pub(in super::super) fn round(layout: Layout, x: &[f32], out: Filled<'_>) {
    assert!(out.fits(layout, x));
    let Filled { bytes, scales, sums, shifts } = out;
    let blocks = x.chunks_exact(layout.numbers).zip(bytes.chunks_exact_mut(layout.numbers));
    for ((x, q), scale) in blocks.zip(scales) {
        *scale = round_block(x.as_chunks().0, q.as_chunks_mut().0);
    }
    let parts = bytes.chunks_exact(layout.part).take(x.len() / layout.part);
    for ((q, sum), shift) in parts.zip(sums).zip(shifts) {
        *sum = q.as_chunks().0.iter().map(add_up).sum();
        *shift = -i32::from(layout.shift) * i32::from(*sum);
    }
}

/// See [`super::super::rounded::round_block`].
#[inline]
#[target_feature(enable = "neon")]
fn round_block(x: &[[f32; 16]], out: &mut [[i8; 16]]) -> f32 {
    let top = largest_size(x);
    let steps = if top > 0.0 { 127.0 / top } else { 0.0 };
    for (out, x) in out.iter_mut().zip(x) {
        let [a, b, c, d] = load(x).map(|x| rounded(x, steps));
        // SAFETY: sixteen bytes. What is narrowed fits.
        unsafe {
            let (low, high) = (vmovn_high_s32(vmovn_s32(a), b), vmovn_high_s32(vmovn_s32(c), d));
            vst1q_s8(out.as_mut_ptr(), vmovn_high_s16(vmovn_s16(low), high));
        }
    }
    top / 127.0
}

/// The largest size; what is not a number has no say.
#[inline]
#[target_feature(enable = "neon")]
fn largest_size(x: &[[f32; 16]]) -> f32 {
    let mut tops = [vdupq_n_f32(0.0); 4];
    for x in x {
        for (top, x) in tops.iter_mut().zip(load(x)) {
            *top = larger(vabsq_f32(x), *top);
        }
    }
    vmaxvq_f32(larger(larger(tops[0], tops[1]), larger(tops[2], tops[3])))
}

/// To the nearest whole number from -127 to 127, to the even one of two as near; 0 for what is not a number, by the
/// conversion itself.
#[inline]
#[target_feature(enable = "neon")]
fn rounded(x: float32x4_t, steps: f32) -> int32x4_t {
    let held = vminq_f32(vmulq_n_f32(x, steps), vdupq_n_f32(127.0));
    vcvtnq_s32_f32(vmaxq_f32(held, vdupq_n_f32(-127.0)))
}

#[inline(always)]
fn load(x: &[f32; 16]) -> [float32x4_t; 4] {
    // SAFETY: four numbers from each fourth one on.
    unsafe { [0, 4, 8, 12].map(|from| vld1q_f32(x.as_ptr().add(from))) }
}

fn add_up(q: &[i8; 16]) -> i16 {
    // SAFETY: sixteen bytes.
    unsafe { vaddlvq_s8(vld1q_s8(q.as_ptr())) }
}
