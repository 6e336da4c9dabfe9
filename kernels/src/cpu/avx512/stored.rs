//! How numbers as they are stored become a register's.

use std::arch::x86_64::*;

/// How stored numbers become lanes.
pub(super) trait Stored {
    const BYTES: usize;
    /// Eight numbers, twice.
    ///
    /// # Safety
    /// `at` points to eight readable numbers, and the processor has AVX-512 (F, BW, DQ).
    unsafe fn load(at: *const u8) -> __m512;
    /// Sixteen numbers.
    ///
    /// # Safety
    /// `at` points to sixteen readable numbers, and the processor has AVX-512 (F, BW, DQ).
    unsafe fn load_all(at: *const u8) -> __m512;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(at.cast())) }
    }
    #[inline(always)]
    unsafe fn load_all(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 64 readable bytes; the load needs no alignment.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_all(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // A bfloat16 is the upper half of the single-precision number: bytes 0 and 1 to bytes 2 and 3, in each quarter of
        // the register four numbers.
        const NONE: i32 = 0x80;
        const fn number(i: i32) -> i32 {
            NONE | NONE << 8 | (2 * i) << 16 | (2 * i + 1) << 24
        }
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe {
            let (low, high) =
                ([number(0), number(1), number(2), number(3)], [number(4), number(5), number(6), number(7)]);
            #[rustfmt::skip]
            let places = _mm512_setr_epi32(
                low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
                low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
            );
            let four_times = _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast()));
            _mm512_castsi512_ps(_mm512_shuffle_epi8(four_times, places))
        }
    }
    #[inline(always)]
    unsafe fn load_all(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())))) }
    }
}
