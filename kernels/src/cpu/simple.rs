//! Work on a row's numbers one by one: norms, gates, turns. The definitions are loops that compilers make vectors of;
//! fast versions are the same loops compiled with more instructions (`avx2/compiled.rs`), so bits are the same.

use super::{LANES, plain::reduce};
use crate::rope::{RopePairs, turn};
pub(super) use crate::tanh::{gelu_mul, soft_cap};

/// RMS norm of a row (Zhang and Sennrich 2019) with weights `w`.
#[inline(always)]
pub(super) fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum(x, |x, sum| x.mul_add(x, sum)) / w.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = x * scale * w;
    }
}

/// Adds `more` to a row, then its [`rms_norm`].
#[inline(always)]
pub(super) fn add_rms_norm(x: &mut [f32], more: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    for (x, more) in x.iter_mut().zip(more) {
        *x += more;
    }
    rms_norm(x, w, eps, out);
}

/// Layer norm of a row (Ba et al. 2016) with weights `w` and biases `b`.
#[inline(always)]
pub(super) fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum(x, |x, sum| x + sum) / w.len() as f32;
    for (out, x) in out.iter_mut().zip(x) {
        *out = x - mean;
    }
    let variance = sum(out, |x, sum| x.mul_add(x, sum)) / w.len() as f32;
    let scale = 1.0 / (variance + eps).sqrt();
    for ((out, w), b) in out.iter_mut().zip(w).zip(b) {
        *out = (*out * scale).mul_add(*w, *b);
    }
}

/// Turns every head of `dim` channels of a row ([`turn`]).
#[inline(always)]
pub(super) fn turn_heads(row: &mut [f32], dim: usize, cos: &[f32], sin: &[f32], pairs: RopePairs) {
    row.chunks_exact_mut(dim).for_each(|head| turn(head, cos, sin, pairs));
}

/// What a row's numbers come to, in eight lanes as dot products are.
#[inline(always)]
fn sum(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (eights, rest) = x.as_chunks::<LANES>();
    for eight in eights {
        for (lane, x) in lanes.iter_mut().zip(eight) {
            *lane = add(*x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = add(*x, *lane);
    }
    reduce(lanes)
}

#[cfg(test)]
mod tests {
    use super::super::{Cpu, Simd};
    use super::*;
    use proptest::prelude::*;

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        /// Every version gives the definition's bits, for any rows and threads.
        #[test]
        fn fast_is_plain(rows in 1usize..6, halves in 1usize..90, seed in any::<u64>()) {
            let width = 2 * halves;
            let mut n = seed;
            let mut next = || { n = n.wrapping_mul(6364136223846793005).wrapping_add(1); (n >> 40) as f32 / 8e6 - 1.0 };
            let mut some = |count: usize| -> Vec<f32> { (0..count).map(|_| next()).collect() };
            let (x, more, w, b) = (some(rows * width), some(rows * width), some(width), some(width));
            let (cos, sin) = (some(halves), some(halves));
            let all = |cpu: &Cpu| {
                let mut found = Vec::new();
                let mut out = vec![0.0; x.len()];
                cpu.rms_norm(&x, &w, 1e-5, &mut out);
                found.push(bits(&out));
                cpu.layer_norm(&x, &w, &b, 1e-5, &mut out);
                found.push(bits(&out));
                let mut sum = x.clone();
                cpu.add_rms_norm(&mut sum, &more, &w, 1e-5, &mut out);
                found.extend([bits(&sum), bits(&out)]);
                cpu.rms_norm(&sum, &w, 1e-5, &mut out);
                assert_eq!(found.last(), Some(&bits(&out)), "adding before is adding");
                for pairs in [RopePairs::Halves, RopePairs::Neighbours] {
                    cpu.simd().turn_heads(&mut sum, width, &cos, &sin, pairs);
                    found.push(bits(&sum));
                }
                cpu.soft_cap(&mut sum, 0.5);
                found.push(bits(&sum));
                found
            };
            let plain = all(&Cpu::new(Simd::Plain, 1).unwrap());
            for simd in Simd::all() {
                prop_assert_eq!(&plain, &all(&Cpu::new(simd, 2).unwrap()), "{:?}", simd);
            }
        }

        /// And it is the norms' formulas, as far as single precision goes.
        #[test]
        fn norms_are_norms(x in prop::collection::vec(-3.0f32..3.0, 8..200)) {
            let cpu = Cpu::new(Simd::detect(), 1).unwrap();
            let (count, w) = (x.len() as f64, vec![1.0; x.len()]);
            let mean = |of: &dyn Fn(f64) -> f64| x.iter().map(|x| of(f64::from(*x))).sum::<f64>() / count;
            let (middle, square) = (mean(&|x| x), mean(&|x| x * x));
            let (mut rms, mut layer) = (x.clone(), x.clone());
            cpu.rms_norm(&x, &w, 1e-5, &mut rms);
            cpu.layer_norm(&x, &w, &vec![0.25; x.len()], 1e-5, &mut layer);
            for ((x, rms), layer) in x.iter().zip(rms).zip(layer) {
                let x = f64::from(*x);
                prop_assert!((f64::from(rms) - x / (square + 1e-5).sqrt()).abs() < 1e-4);
                let spread = (square - middle * middle).max(0.0);
                prop_assert!((f64::from(layer) - 0.25 - (x - middle) / (spread + 1e-5).sqrt()).abs() < 1e-3 / (spread + 1e-5).sqrt());
            }
        }
    }
}
