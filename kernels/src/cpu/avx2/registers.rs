//! What AVX2, FMA and F16C are to loops that are written once for all instruction sets: eight lanes to a register.

use super::super::vector::{EightLanes, Vector, array_of, instructions};
use std::arch::x86_64::*;

/// Says that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    /// Where these are enabled.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(in super::super) fn here() -> Self {
        Self(())
    }
}

impl Vector for Avx2 {
    const COUNT: usize = 8;
    type Numbers = __m256;
    instructions! {
        fn all(self, x: f32) -> __m256 {
            _mm256_set1_ps(x)
        }
        fn multiply_add(self, x: __m256, w: __m256, sum: __m256) -> __m256 {
            _mm256_fmadd_ps(x, w, sum)
        }
        unsafe fn load(self, at: *const f32) -> __m256 {
            _mm256_loadu_ps(at)
        }
        unsafe fn load_f16(self, at: *const u8) -> __m256 {
            _mm256_cvtph_ps(_mm_loadu_si128(at.cast()))
        }
        unsafe fn load_bf16(self, at: *const u8) -> __m256 {
            // A bfloat16 is the upper half of the single-precision number.
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()))))
        }
        unsafe fn store(self, at: *mut f32, x: __m256) {
            _mm256_storeu_ps(at, x);
        }
    }
}

impl EightLanes for Avx2 {
    instructions! {
        fn add_up(self, lanes: [__m256; 4], sums: &mut [f32; 4]) {
            let halves = array_of!(4; |i| {
                _mm_add_ps(_mm256_castps256_ps128(lanes[i]), _mm256_extractf128_ps::<1>(lanes[i]))
            });
            let (a, b) = (_mm_unpacklo_ps(halves[0], halves[1]), _mm_unpacklo_ps(halves[2], halves[3]));
            let (c, d) = (_mm_unpackhi_ps(halves[0], halves[1]), _mm_unpackhi_ps(halves[2], halves[3]));
            let even = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movelh_ps(c, d));
            let odd = _mm_add_ps(_mm_movehl_ps(b, a), _mm_movehl_ps(d, c));
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_add_ps(even, odd));
        }
        fn ask_for(self, line: *const u8) {
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        unsafe fn load_two(self, at: *const u8) -> [__m256; 2] {
            // A bfloat16 is the upper half of the single-precision number.
            let both = _mm256_loadu_si256(at.cast());
            let second = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_castsi256_ps(second), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both))]
        }
    }
}
