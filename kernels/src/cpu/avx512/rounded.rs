//! Rounding rows to 8 bits: what is to be rounded is read once for its largest size and once, from the cache, to be rounded.

use super::super::{packed::Layout, rounded::Filled, vector::Vector};
use super::registers::Avx512;
use std::arch::x86_64::*;

/// See [`super::super::rounded::round`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn round(layout: Layout, x: &[f32], out: Filled<'_>) {
    assert!(out.fits(layout, x));
    match (layout.numbers, layout.part) {
        (32, _) => blocks::<32, 32>(layout.shift, x, out),
        (_, 16) => blocks::<256, 16>(layout.shift, x, out),
        _ => blocks::<256, 32>(layout.shift, x, out),
    }
}

/// Blocks of `N` numbers in parts of `P`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn blocks<const N: usize, const P: usize>(shift: u8, x: &[f32], out: Filled<'_>) {
    let (by, Filled { bytes, scales, sums, shifts }) = (Avx512::here(), out);
    for (b, (x, bytes)) in x.chunks_exact(N).zip(bytes.chunks_exact_mut(N)).enumerate() {
        let mut top = _mm512_setzero_ps();
        for x in x.as_chunks::<16>().0 {
            // What is not a number leaves the largest size as it is: the second operand.
            top = _mm512_max_ps(_mm512_abs_ps(by.lanes(x)), top);
        }
        let top = _mm512_reduce_max_ps(top);
        scales[b] = top / 127.0;
        let steps = _mm512_set1_ps(if top > 0.0 { 127.0 / top } else { 0.0 });
        for (p, (x, bytes)) in x.chunks_exact(P).zip(bytes.chunks_exact_mut(P)).enumerate() {
            let mut sum = _mm512_setzero_si512();
            for (x, to) in x.as_chunks::<16>().0.iter().zip(bytes.as_chunks_mut::<16>().0) {
                let q = rounded(_mm512_mul_ps(by.lanes(x), steps));
                sum = _mm512_add_epi32(sum, q);
                // SAFETY: sixteen bytes.
                unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
            }
            let sum = _mm512_reduce_add_epi32(sum);
            sums[b * (N / P) + p] = sum as i16;
            shifts[b * (N / P) + p] = -i32::from(shift) * sum;
        }
    }
}

/// To the nearest whole number from -127 to 127, to the even one of two as near; 0 for what is not a number.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded(x: __m512) -> __m512i {
    let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
    let most = _mm512_set1_ps(127.0);
    let held = _mm512_max_ps(_mm512_min_ps(x, most), _mm512_sub_ps(_mm512_setzero_ps(), most));
    _mm512_maskz_cvtps_epi32(numbers, held)
}
