//! What AVX-512 is to loops that are written once for all instruction sets: sixteen lanes to a register.

use super::super::vector::{Vector, instructions};
use std::arch::x86_64::*;

/// Says that the processor has AVX-512 (F, BW, DQ, VL, VNNI).
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// Where these are enabled.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub fn here() -> Self {
        Self(())
    }
}

impl Vector for Avx512 {
    const COUNT: usize = 16;
    type Numbers = __m512;
    instructions! {
        fn all(self, x: f32) -> __m512 {
            _mm512_set1_ps(x)
        }
        fn multiply_add(self, x: __m512, w: __m512, sum: __m512) -> __m512 {
            _mm512_fmadd_ps(x, w, sum)
        }
        unsafe fn load(self, at: *const f32) -> __m512 {
            _mm512_loadu_ps(at)
        }
        unsafe fn load_f16(self, at: *const u8) -> __m512 {
            _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))
        }
        unsafe fn load_bf16(self, at: *const u8) -> __m512 {
            // A bfloat16 is the upper half of the single-precision number.
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()))))
        }
        unsafe fn store(self, at: *mut f32, x: __m512) {
            _mm512_storeu_ps(at, x);
        }
    }
}
