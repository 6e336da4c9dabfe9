//! AVX-512 (F, BW, DQ, VL): sixteen lanes to a register.

use super::{
    Isa, Sealed, instructions,
    pack::{Pack, Store},
};
use bytemuck::{Zeroable, bytes_of, bytes_of_mut, cast};
use std::arch::x86_64::*;

/// Says that the processor has AVX-512 (F, BW, DQ, VL), and so AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512(());

impl Sealed for Avx512 {}

impl Avx512 {
    /// # Safety
    /// The processor has them.
    #[inline(always)]
    pub unsafe fn had() -> Self {
        Self(())
    }
}

impl Isa<16> for Avx512 {
    type Floats = __m512;
    type Sums = __m256;

    instructions! { "avx512f,avx512bw,avx512dq,avx512vl",
        fn splat(x: f32) -> __m512 {
            _mm512_set1_ps(x)
        }
        fn load(at: &[f32; 16]) -> __m512 {
            cast(*at)
        }
        fn load_bytes(at: &[[u8; 4]; 16]) -> __m512 {
            cast(*at)
        }
        fn load_f16(at: &[[u8; 2]; 16]) -> __m512 {
            _mm512_cvtph_ps(cast(*at))
        }
        fn load_bf16(at: &[[u8; 2]; 16]) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(cast(*at))))
        }
        fn store(x: __m512, at: &mut [f32; 16]) {
            *at = cast(x);
        }
        fn add(x: __m512, y: __m512) -> __m512 {
            _mm512_add_ps(x, y)
        }
        fn sub(x: __m512, y: __m512) -> __m512 {
            _mm512_sub_ps(x, y)
        }
        fn mul(x: __m512, y: __m512) -> __m512 {
            _mm512_mul_ps(x, y)
        }
        fn div(x: __m512, y: __m512) -> __m512 {
            _mm512_div_ps(x, y)
        }
        fn neg(x: __m512) -> __m512 {
            _mm512_xor_ps(x, _mm512_set1_ps(-0.0))
        }
        fn mul_add(x: __m512, y: __m512, z: __m512) -> __m512 {
            _mm512_fmadd_ps(x, y, z)
        }
        fn larger(x: __m512, y: __m512) -> __m512 {
            _mm512_max_ps(x, y)
        }
        fn clamp(x: __m512, least: f32, most: f32) -> __m512 {
            // What is not a number is the second operand, and stays.
            _mm512_min_ps(_mm512_set1_ps(most), _mm512_max_ps(_mm512_set1_ps(least), x))
        }
        fn floor(x: __m512) -> __m512 {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x)
        }
        fn power_of_two(n: __m512) -> __m512 {
            let power = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(power))
        }
        fn zero_below(limit: f32, x: __m512, y: __m512) -> __m512 {
            let low = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(limit));
            _mm512_mask_mov_ps(y, low, _mm512_setzero_ps())
        }
        fn largest(x: __m512) -> f32 {
            _mm512_reduce_max_ps(x)
        }
        fn no_sums() -> __m256 {
            _mm256_setzero_ps()
        }
        fn add_to(sums: __m256, x: __m512) -> __m256 {
            _mm256_add_ps(_mm256_add_ps(sums, _mm512_castps512_ps256(x)), _mm512_extractf32x8_ps::<1>(x))
        }
        fn sums(sums: __m256) -> [f32; 8] {
            cast(sums)
        }
        fn ask(at: *const u8) {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
}

impl Pack<16, 2> for Avx512 {
    type Ints = __m512i;
    type Codes = __m256i;

    instructions! { "avx512f,avx512bw,avx512dq,avx512vl",
        fn smaller(x: __m512, y: __m512) -> __m512 {
            _mm512_min_ps(x, y)
        }
        fn least_and_largest(low: __m512, high: __m512) -> (f32, f32) {
            // Both as largest numbers, in the two halves of one register.
            let least = _mm512_sub_ps(_mm512_set1_ps(-0.0), low);
            let firsts = _mm512_shuffle_f32x4::<0b01_00_01_00>(least, high);
            let seconds = _mm512_shuffle_f32x4::<0b11_10_11_10>(least, high);
            let both = _mm512_max_ps(firsts, seconds);
            let both = _mm512_max_ps(both, _mm512_shuffle_f32x4::<0b10_11_00_01>(both, both));
            let both = _mm512_max_ps(both, _mm512_permute_ps::<0b01_00_11_10>(both));
            let both = _mm512_max_ps(both, _mm512_permute_ps::<0b10_11_00_01>(both));
            (-_mm512_cvtss_f32(both), _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(both)))
        }
        fn nearest(x: __m512, y: __m512, z: __m512) -> __m512i {
            _mm512_cvtps_epi32(_mm512_fmsub_ps(x, y, z))
        }
        fn in_halves(first: [__m512i; 2], second: [__m512i; 2]) -> __m256i {
            let (least, most) = (_mm512_setzero_si512(), _mm512_set1_epi32(15));
            let mut bytes = [_mm_setzero_si128(); 2];
            for (bytes, (first, second)) in bytes.iter_mut().zip(first.into_iter().zip(second)) {
                let first = _mm512_min_epi32(_mm512_max_epi32(first, least), most);
                let second = _mm512_min_epi32(_mm512_max_epi32(second, least), most);
                *bytes = _mm512_cvtepi32_epi8(_mm512_or_si512(first, _mm512_slli_epi32::<4>(second)));
            }
            cast(bytes)
        }
        fn in_bytes(codes: [__m512i; 2]) -> __m256i {
            let bytes = [_mm512_cvtsepi32_epi8(codes[0]), _mm512_cvtsepi32_epi8(codes[1])];
            cast([_mm_max_epi8(bytes[0], _mm_set1_epi8(-127)), _mm_max_epi8(bytes[1], _mm_set1_epi8(-127))])
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
        fn numbers(codes: __m256i) -> [__m512; 2] {
            let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
            [_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(first)), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(second))]
        }
        fn store_bytes(x: __m512, at: &mut [[u8; 4]; 16]) {
            *at = cast(x);
        }
        fn store_f16(x: __m512, at: &mut [[u8; 2]; 16]) {
            let x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-65504.0)), _mm512_set1_ps(65504.0));
            *at = cast(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
        fn store_bf16(x: __m512, at: &mut [[u8; 2]; 16]) {
            // Half of what is cut off, and the last bit that stays, are added.
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
            *at = cast(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(up)));
        }
    }

    /// Of a table of what the sixteen codes are: of two bytes each, 32 numbers are one permutation.
    #[inline(always)]
    fn store_group<S: Store>(self, codes: __m256i, step: f32, shift: f32, at: &mut [S::Bytes; 32]) {
        const CODES: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
        let numbers = self.mul_add(self.load(&CODES), self.splat(step), self.splat(shift));
        let mut table = [S::Bytes::zeroed(); 16];
        S::store(self, numbers, &mut table);
        let (table, at) = (bytes_of(&table), bytes_of_mut(at).as_chunks_mut::<64>().0);
        match (table.first_chunk::<64>(), table.first_chunk::<32>(), at) {
            (Some(fours), _, [low, high]) => [*low, *high] = self.look_up_fours(codes, fours),
            (None, Some(twos), [at]) => *at = self.look_up_twos(codes, twos),
            _ => unreachable!("numbers of two bytes or four"),
        }
    }
}

impl Avx512 {
    instructions! { "avx512f,avx512bw,avx512dq,avx512vl",
        fn look_up_fours(codes: __m256i, table: &[u8; 64]) -> [[u8; 64]; 2] {
            let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
            let table = cast(*table);
            [
                cast(_mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(first), table)),
                cast(_mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(second), table)),
            ]
        }
        fn look_up_twos(codes: __m256i, table: &[u8; 32]) -> [u8; 64] {
            cast(_mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(codes), _mm512_castsi256_si512(cast(*table))))
        }
    }
}
