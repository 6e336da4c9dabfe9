//! Softmax and gates: [`plain::exp`] for four numbers.

use super::super::{LANES, plain, vector::Vector};
use super::eight::{Neon, larger};
use std::arch::aarch64::*;

/// See [`plain::exp`]: the same operations in the same order.
#[inline]
#[target_feature(enable = "neon")]
fn exp(x: float32x4_t) -> float32x4_t {
    let all = |v: f32| vdupq_n_f32(v);
    // What is not a number stays.
    let clamped = vminq_f32(vmaxq_f32(x, all(-87.3)), all(88.3));
    let n = vrndmq_f32(vfmaq_f32(all(0.5), clamped, all(std::f32::consts::LOG2_E)));
    let r = vfmaq_f32(vfmaq_f32(clamped, n, all(-0.693_359_4)), n, all(2.121_944_4e-4));
    let mut p = all(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5e-1] {
        p = vfmaq_f32(all(c), p, r);
    }
    let y = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), all(1.0));
    let power = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
    let e = vmulq_f32(y, vreinterpretq_f32_s32(power));
    vbslq_f32(vcltq_f32(x, all(-87.3)), all(0.0), e)
}

/// See [`plain::softmax`].
#[target_feature(enable = "neon")]
pub(in super::super) fn softmax(x: &mut [f32]) {
    let top = largest(x);
    let (eights, rest) = x.as_chunks_mut::<LANES>();
    let mut sums = Neon.all(0.0);
    for x in eights {
        let e = Neon.lanes(x).map(|x| exp(vsubq_f32(x, vdupq_n_f32(top))));
        Neon.put_lanes(x, e);
        sums = [vaddq_f32(sums[0], e[0]), vaddq_f32(sums[1], e[1])];
    }
    let mut lanes = [0.0; LANES];
    Neon.put_lanes(&mut lanes, sums);
    for (x, lane) in rest.iter_mut().zip(&mut lanes) {
        *x = plain::exp(*x - top);
        *lane += *x;
    }
    let scale = 1.0 / plain::reduce(lanes);
    x.iter_mut().for_each(|x| *x *= scale);
}

/// The largest number; those that are none have no say.
#[inline]
#[target_feature(enable = "neon")]
fn largest(x: &[f32]) -> f32 {
    let (eights, rest) = x.as_chunks::<LANES>();
    let mut tops = Neon.all(f32::NEG_INFINITY);
    for x in eights {
        let x = Neon.lanes(x);
        tops = [larger(x[0], tops[0]), larger(x[1], tops[1])];
    }
    let top = vmaxvq_f32(larger(tops[0], tops[1]));
    rest.iter().fold(top, |top, x| if *x > top { *x } else { top })
}

/// See [`plain::silu_mul`].
#[target_feature(enable = "neon")]
pub(in super::super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    let (gates, ups) = (gate.as_chunks_mut::<LANES>().0, up.as_chunks::<LANES>().0);
    let done = LANES * gates.len().min(ups.len());
    for (gate, up) in gates.iter_mut().zip(ups) {
        let silu = Neon.lanes(gate).map(|g| vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0), exp(vnegq_f32(g)))));
        let up = Neon.lanes(up);
        Neon.put_lanes(gate, [vmulq_f32(silu[0], up[0]), vmulq_f32(silu[1], up[1])]);
    }
    plain::silu_mul(&mut gate[done..], &up[done..]);
}
