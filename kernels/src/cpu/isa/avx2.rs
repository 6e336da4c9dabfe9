//! AVX2, FMA and F16C: eight lanes to a register.

use super::{Eight, Isa, Sealed, instructions, pack::Pack};
use bytemuck::cast;
use std::arch::x86_64::*;

/// Says that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Sealed for Avx2 {}

impl Avx2 {
    /// # Safety
    /// The processor has them.
    #[inline(always)]
    pub unsafe fn had() -> Self {
        Self(())
    }
}

impl Isa<8> for Avx2 {
    type Floats = __m256;
    type Sums = __m256;

    instructions! { "avx2,fma,f16c",
        fn splat(x: f32) -> __m256 {
            _mm256_set1_ps(x)
        }
        fn load(at: &[f32; 8]) -> __m256 {
            cast(*at)
        }
        fn load_bytes(at: &[[u8; 4]; 8]) -> __m256 {
            cast(*at)
        }
        fn load_f16(at: &[[u8; 2]; 8]) -> __m256 {
            _mm256_cvtph_ps(cast(*at))
        }
        fn load_bf16(at: &[[u8; 2]; 8]) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(cast(*at))))
        }
        fn store(x: __m256, at: &mut [f32; 8]) {
            *at = cast(x);
        }
        fn add(x: __m256, y: __m256) -> __m256 {
            _mm256_add_ps(x, y)
        }
        fn sub(x: __m256, y: __m256) -> __m256 {
            _mm256_sub_ps(x, y)
        }
        fn mul(x: __m256, y: __m256) -> __m256 {
            _mm256_mul_ps(x, y)
        }
        fn div(x: __m256, y: __m256) -> __m256 {
            _mm256_div_ps(x, y)
        }
        fn neg(x: __m256) -> __m256 {
            _mm256_xor_ps(x, _mm256_set1_ps(-0.0))
        }
        fn mul_add(x: __m256, y: __m256, z: __m256) -> __m256 {
            _mm256_fmadd_ps(x, y, z)
        }
        fn larger(x: __m256, y: __m256) -> __m256 {
            _mm256_max_ps(x, y)
        }
        fn clamp(x: __m256, least: f32, most: f32) -> __m256 {
            // What is not a number is the second operand, and stays.
            _mm256_min_ps(_mm256_set1_ps(most), _mm256_max_ps(_mm256_set1_ps(least), x))
        }
        fn floor(x: __m256) -> __m256 {
            _mm256_floor_ps(x)
        }
        fn power_of_two(n: __m256) -> __m256 {
            let power = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(power))
        }
        fn zero_below(limit: f32, x: __m256, y: __m256) -> __m256 {
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(limit)), y)
        }
        fn largest(x: __m256) -> f32 {
            cast::<_, [f32; 8]>(x).into_iter().fold(f32::NEG_INFINITY, f32::max)
        }
        fn no_sums() -> __m256 {
            _mm256_setzero_ps()
        }
        fn add_to(sums: __m256, x: __m256) -> __m256 {
            _mm256_add_ps(sums, x)
        }
        fn sums(sums: __m256) -> [f32; 8] {
            cast(sums)
        }
        fn ask(at: *const u8) {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
}

impl Eight for Avx2 {
    instructions! { "avx2,fma,f16c",
        fn load_apart(at: &[[u8; 2]; 16]) -> [__m256; 2] {
            let both = cast(*at);
            let second = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_castsi256_ps(second), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both))]
        }
        fn reduce_four(lanes: [__m256; 4]) -> [f32; 4] {
            let halves = lanes.map(|l| _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps::<1>(l)));
            let (a, b) = (_mm_unpacklo_ps(halves[0], halves[1]), _mm_unpacklo_ps(halves[2], halves[3]));
            let (c, d) = (_mm_unpackhi_ps(halves[0], halves[1]), _mm_unpackhi_ps(halves[2], halves[3]));
            let even = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movelh_ps(c, d));
            let odd = _mm_add_ps(_mm_movehl_ps(b, a), _mm_movehl_ps(d, c));
            cast(_mm_add_ps(even, odd))
        }
    }
}

impl Pack<8, 4> for Avx2 {
    type Ints = __m256i;
    type Codes = __m256i;

    instructions! { "avx2,fma,f16c",
        fn smaller(x: __m256, y: __m256) -> __m256 {
            _mm256_min_ps(x, y)
        }
        fn least_and_largest(low: __m256, high: __m256) -> (f32, f32) {
            // Both as largest numbers, in the two halves of one register.
            let least = _mm256_sub_ps(_mm256_set1_ps(-0.0), low);
            let swapped = _mm256_permute2f128_ps::<0x21>(least, high);
            let both = _mm256_max_ps(swapped, _mm256_blend_ps::<0xf0>(least, high));
            let both = _mm256_max_ps(both, _mm256_permute_ps::<0b01_00_11_10>(both));
            let both = _mm256_max_ps(both, _mm256_permute_ps::<0b10_11_00_01>(both));
            (-_mm256_cvtss_f32(both), _mm_cvtss_f32(_mm256_extractf128_ps::<1>(both)))
        }
        fn nearest(x: __m256, y: __m256, z: __m256) -> __m256i {
            _mm256_cvtps_epi32(_mm256_fmsub_ps(x, y, z))
        }
        fn in_halves(first: [__m256i; 4], second: [__m256i; 4]) -> __m256i {
            let (first, second) = (in_sixteen(first), in_sixteen(second));
            // Codes are below 16: nothing moves from one byte into the next.
            in_order(_mm256_or_si256(first, _mm256_slli_epi16::<4>(second)))
        }
        fn in_bytes(codes: [__m256i; 4]) -> __m256i {
            let [a, b, c, d] = codes;
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            in_order(_mm256_max_epi8(bytes, _mm256_set1_epi8(-127)))
        }
        fn load_codes(at: &[u8; 32]) -> __m256i {
            cast(*at)
        }
        fn store_codes(codes: __m256i, at: &mut [u8; 32]) {
            *at = cast(codes);
        }
        fn lower(codes: __m256i) -> __m256i {
            _mm256_and_si256(codes, _mm256_set1_epi8(15))
        }
        fn upper(codes: __m256i) -> __m256i {
            _mm256_and_si256(_mm256_srli_epi16::<4>(codes), _mm256_set1_epi8(15))
        }
        fn numbers(codes: __m256i) -> [__m256; 4] {
            let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(first))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(second)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(second))),
            ]
        }
        fn store_bytes(x: __m256, at: &mut [[u8; 4]; 8]) {
            *at = cast(x);
        }
        fn store_f16(x: __m256, at: &mut [[u8; 2]; 8]) {
            let x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-65504.0)), _mm256_set1_ps(65504.0));
            *at = cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
        fn store_bf16(x: __m256, at: &mut [[u8; 2]; 8]) {
            // Half of what is cut off, and the last bit that stays, are added.
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
            let words = _mm256_srli_epi32::<16>(up);
            *at = cast(_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)));
        }
    }
}

/// Four registers of whole numbers as bytes of 0 to 15, in the order that packing leaves.
#[inline]
#[target_feature(enable = "avx2")]
fn in_sixteen([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_min_epu8(bytes, _mm256_set1_epi8(15))
}

/// Undoes that packing works on halves of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(bytes: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}
