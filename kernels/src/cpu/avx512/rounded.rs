//! Rounding rows to 8 bits: what is to be rounded is read once for its largest size and once, from the cache, to be rounded.

use super::super::{
    isa::{Isa, avx512::Avx512, entries, instructions, some_mut},
    packed::Layout,
    rounded::Filled,
};
use std::arch::x86_64::*;

entries! { Avx512, "avx512f,avx512bw,avx512dq,avx512vl",
    /// See [`super::super::rounded::round`].
    pub(in super::super) fn round(layout: Layout, x: &[f32], out: Filled<'_>) = all;
}

#[inline(always)]
fn all(isa: Avx512, layout: Layout, x: &[f32], out: Filled<'_>) {
    assert!(out.fits(layout, x));
    match (layout.numbers, layout.part) {
        (32, _) => blocks::<32, 32>(isa, layout.shift, x, out),
        (_, 16) => blocks::<256, 16>(isa, layout.shift, x, out),
        _ => blocks::<256, 32>(isa, layout.shift, x, out),
    }
}

/// Blocks of `N` numbers in parts of `P`.
#[inline(always)]
fn blocks<const N: usize, const P: usize>(isa: Avx512, shift: u8, x: &[f32], out: Filled<'_>) {
    let Filled { bytes, scales, sums, shifts } = out;
    for (b, (x, bytes)) in x.as_chunks::<N>().0.iter().zip(bytes.as_chunks_mut::<N>().0).enumerate() {
        let mut top = isa.splat(0.0);
        for x in x.as_chunks::<16>().0 {
            // What is not a number leaves the largest size as it is.
            top = isa.larger(isa.size(isa.load(x)), top);
        }
        let top = isa.largest(top);
        scales[b] = top / 127.0;
        let steps = isa.splat(if top > 0.0 { 127.0 / top } else { 0.0 });
        for (p, (x, bytes)) in x.as_chunks::<P>().0.iter().zip(bytes.as_chunks_mut::<P>().0).enumerate() {
            let mut sum = isa.nothing();
            for (i, x) in x.as_chunks::<16>().0.iter().enumerate() {
                let rounded;
                (sum, rounded) = isa.rounded(sum, isa.mul(isa.load(x), steps));
                *some_mut(bytes, 16 * i) = rounded;
            }
            let sum = isa.sum(sum);
            sums[b * (N / P) + p] = sum as i16;
            shifts[b * (N / P) + p] = -i32::from(shift) * sum;
        }
    }
}

impl Avx512 {
    instructions! { "avx512f,avx512bw,avx512dq,avx512vl",
        fn size(x: __m512) -> __m512 {
            _mm512_abs_ps(x)
        }
        fn nothing() -> __m512i {
            _mm512_setzero_si512()
        }
        fn sum(of: __m512i) -> i32 {
            _mm512_reduce_add_epi32(of)
        }
        /// Numbers as bytes, and added to a sum: to the nearest whole number from -127 to 127, to the even one of two as near; 0
        /// for what is not a number.
        fn rounded(sum: __m512i, x: __m512) -> (__m512i, [i8; 16]) {
            let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
            let most = _mm512_set1_ps(127.0);
            let held = _mm512_max_ps(_mm512_min_ps(x, most), _mm512_sub_ps(_mm512_setzero_ps(), most));
            let q = _mm512_maskz_cvtps_epi32(numbers, held);
            (_mm512_add_epi32(sum, q), bytemuck::cast(_mm512_cvtepi32_epi8(q)))
        }
    }
}
