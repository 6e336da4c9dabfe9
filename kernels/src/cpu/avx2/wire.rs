//! KV packed for links (`vector/wire.rs`): 32 channels in four registers.

use super::super::vector::{
    instructions,
    wire::{self, Narrow, Packs, WIDE},
};
use super::Avx2;
use crate::{
    cpu::Dtype,
    wire::{BlockRows, BlockShape},
};
use std::arch::x86_64::*;

/// See [`crate::wire::low_high`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn low_high(form: BlockShape, rows: BlockRows<'_>, low: &mut [f32], high: &mut [f32]) {
    wire::low_high::<_, 4>(Avx2::here(), form, rows, low, high);
}

/// See [`crate::wire::encode`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn encode(form: BlockShape, rows: BlockRows<'_>, inverse: &[f32], zero: &[f32], codes: &mut [u8]) {
    wire::encode::<_, 4>(Avx2::here(), form, rows, inverse, zero, codes);
}

/// See [`crate::wire::decode`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn decode(
    form: BlockShape,
    codes: &[u8],
    first: usize,
    scales: (&[f32], &[f32]),
    dtype: Dtype,
    out: &mut [u8],
) {
    wire::decode::<_, 4>(Avx2::here(), form, codes, first, scales, dtype, out);
}

impl Narrow for Avx2 {
    instructions! {
        fn smaller(self, x: __m256, than: __m256) -> __m256 {
            _mm256_min_ps(x, than)
        }
        fn larger(self, x: __m256, than: __m256) -> __m256 {
            _mm256_max_ps(x, than)
        }
        unsafe fn store_f16(self, at: *mut u8, x: __m256) {
            let most = _mm256_set1_ps(65504.0);
            let x = _mm256_min_ps(_mm256_max_ps(x, _mm256_sub_ps(_mm256_setzero_ps(), most)), most);
            _mm_storeu_si128(at.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
        unsafe fn store_bf16(self, at: *mut u8, x: __m256) {
            // Half of what is cut off, and the last bit that stays, are added.
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
            let words = _mm256_srli_epi32::<16>(up);
            let both = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(at.cast(), both);
        }
    }
}

impl Packs<4> for Avx2 {
    type Whole = __m256i;
    /// In the order that packing leaves.
    type Sixteen = __m256i;
    instructions! {
        fn none(self) -> __m256i {
            _mm256_setzero_si256()
        }
        fn range(self, least: __m256, most: __m256) -> (f32, f32) {
            // Both as largest numbers, in the two halves of one register.
            let least = _mm256_sub_ps(_mm256_set1_ps(-0.0), least);
            let swapped = _mm256_permute2f128_ps::<0x21>(least, most);
            let both = _mm256_max_ps(swapped, _mm256_blend_ps::<0xf0>(least, most));
            let both = _mm256_max_ps(both, _mm256_permute_ps::<0b01_00_11_10>(both));
            let both = _mm256_max_ps(both, _mm256_permute_ps::<0b10_11_00_01>(both));
            (-_mm256_cvtss_f32(both), _mm_cvtss_f32(_mm256_extractf128_ps::<1>(both)))
        }
        fn code(self, x: __m256, inverse: __m256, zero: __m256) -> __m256i {
            _mm256_cvtps_epi32(_mm256_fmsub_ps(x, inverse, zero))
        }
        fn sixteen(self, codes: [__m256i; 4]) -> __m256i {
            let [a, b, c, d] = codes;
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            _mm256_min_epu8(bytes, _mm256_set1_epi8(15))
        }
        fn put_halves(self, first: __m256i, second: __m256i, out: &mut [u8; WIDE]) {
            // Codes are below 16: nothing moves from one byte into the next.
            let both = _mm256_or_si256(first, _mm256_slli_epi16::<4>(second));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), in_order(both));
        }
        fn put_bytes(self, codes: [__m256i; 4], out: &mut [u8; WIDE]) {
            let [a, b, c, d] = codes;
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8(-127));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), in_order(bytes));
        }
        fn numbers(self, codes: __m256i) -> [__m256; 4] {
            let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
            let eights = [first, _mm_srli_si128::<8>(first), second, _mm_srli_si128::<8>(second)];
            let mut numbers = [_mm256_setzero_ps(); 4];
            for (number, eight) in numbers.iter_mut().zip(eights) {
                *number = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
            }
            numbers
        }
    }
}

/// Undoes that packing works on halves of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(bytes: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}
