//! Softmax and gates: [`plain::exp`] for sixteen numbers.

use super::super::{LANES, avx2::Avx2, plain, vector::Vector};
use super::registers::Avx512;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
fn all(v: f32) -> __m512 {
    _mm512_set1_ps(v)
}

/// See [`plain::exp`]: the same operations in the same order.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    // What is not a number is the second operand, and stays.
    let clamped = _mm512_min_ps(all(88.3), _mm512_max_ps(all(-87.3), x));
    let n = _mm512_fmadd_ps(clamped, all(std::f32::consts::LOG2_E), all(0.5));
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(n);
    let r = _mm512_fmadd_ps(n, all(2.121_944_4e-4), _mm512_fmadd_ps(n, all(-0.693_359_4), clamped));
    let mut p = all(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5e-1] {
        p = _mm512_fmadd_ps(p, r, all(c));
    }
    let y = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), all(1.0));
    let power = _mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127)));
    let low = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, all(-87.3));
    _mm512_mask_mov_ps(_mm512_mul_ps(y, _mm512_castsi512_ps(power)), low, _mm512_setzero_ps())
}

/// See [`plain::softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn softmax(x: &mut [f32]) {
    let by = Avx512::here();
    let (wide, rest) = x.as_chunks_mut::<{ 2 * LANES }>();
    let mut top = _mm512_set1_ps(f32::NEG_INFINITY);
    for x in wide.iter() {
        // What is not a number leaves the largest as it is: the second operand.
        top = _mm512_max_ps(by.lanes(x), top);
    }
    let top = rest.iter().fold(_mm512_reduce_max_ps(top), |top, x| if *x > top { *x } else { top });
    let mut sums = _mm256_setzero_ps();
    for x in wide.iter_mut() {
        let e = exp(_mm512_sub_ps(by.lanes(x), _mm512_set1_ps(top)));
        by.put_lanes(x, e);
        sums = _mm256_add_ps(sums, _mm512_castps512_ps256(e));
        sums = _mm256_add_ps(sums, _mm512_extractf32x8_ps::<1>(e));
    }
    let mut lanes = [0.0; LANES];
    Avx2::here().put_lanes(&mut lanes, sums);
    for (k, x) in rest.iter_mut().enumerate() {
        *x = plain::exp(*x - top);
        lanes[k % LANES] += *x;
    }
    let scale = 1.0 / plain::reduce(lanes);
    for x in x.iter_mut() {
        *x *= scale;
    }
}

/// See [`plain::silu_mul`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    let by = Avx512::here();
    let (gates, rest) = gate.as_chunks_mut::<16>();
    let (ups, up_rest) = up.as_chunks::<16>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        let g = by.lanes(gate);
        // Turning the sign bit is what negating is.
        let minus = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(g), _mm512_set1_epi32(i32::MIN)));
        let sigmoid = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0), exp(minus)));
        by.put_lanes(gate, _mm512_mul_ps(sigmoid, by.lanes(up)));
    }
    // Longer ones end where the shorter does, and whole groups of the one may face a rest of the other.
    if gates.len() == ups.len() {
        plain::silu_mul(rest, up_rest);
    } else {
        let done = 16 * gates.len().min(ups.len());
        plain::silu_mul(&mut gate[done..], &up[done..]);
    }
}
