//! How numbers as they are stored become a register's.

use super::super::vector::{Bf16, F16, F32, StoredNumber};
use super::rows::{Line, LineContent};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// How eight stored numbers become the lanes of two rows.
pub(super) trait Twice: StoredNumber {
    /// Eight numbers, twice.
    ///
    /// # Safety
    /// `at` points to eight readable numbers, and the processor has AVX-512 (F, BW, DQ).
    unsafe fn twice(at: *const u8) -> __m512;
}

impl Twice for F32 {
    #[inline(always)]
    unsafe fn twice(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(at.cast())) }
    }
}

impl Twice for F16 {
    #[inline(always)]
    unsafe fn twice(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast()))) }
    }
}

impl Twice for Bf16 {
    #[inline(always)]
    unsafe fn twice(at: *const u8) -> __m512 {
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
}

/// How lines of rows and stored numbers become lanes.
pub(super) trait Multiplied {
    /// What the lanes of two rows take at once, of an output.
    type Weights: Copy;
    /// Of a stored number.
    const BYTES: usize;
    /// Of the rows.
    const FORM: LineContent;
    /// # Safety
    /// `at` points to as many readable numbers as [`LineContent::columns`], and the processor has AVX-512 (F, BW, DQ, VL).
    unsafe fn weights(at: *const u8) -> Self::Weights;
    /// # Safety
    /// `x` points to [`LineContent::lines`] lines, and the processor has AVX-512 (F, BW, DQ, VL).
    unsafe fn multiply_add(x: *const Line, w: Self::Weights, sums: __m512) -> __m512;
    /// Of the last columns, fewer than a group, behind which rows and weights are zero.
    ///
    /// # Safety
    /// As for [`Self::multiply_add`].
    #[inline(always)]
    unsafe fn multiply_add_rest(x: *const Line, w: Self::Weights, sums: __m512, _columns: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { Self::multiply_add(x, w, sums) }
    }
}

/// A number for each lane.
pub(super) struct One<S>(PhantomData<S>);

impl<S: Twice> Multiplied for One<S> {
    type Weights = __m512;
    const BYTES: usize = S::BYTES;
    const FORM: LineContent = LineContent::Eight;
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { S::twice(at) }
    }
    #[inline(always)]
    unsafe fn multiply_add(x: *const Line, w: __m512, sums: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps((*x).load(), w, sums) }
    }
    #[inline(always)]
    unsafe fn multiply_add_rest(x: *const Line, w: __m512, sums: __m512, columns: usize) -> __m512 {
        // Lanes past the end keep what they have, as the definition's do.
        let some = ((1u16 << columns) - 1) * 0x101;
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask3_fmadd_ps((*x).load(), w, sums, some) }
    }
}

/// Two bfloat16 numbers for each lane, as they are: for processors that multiply them so.
pub(super) struct Two;

impl Multiplied for Two {
    type Weights = __m512i;
    const BYTES: usize = 2;
    const FORM: LineContent = LineContent::Two;
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m512i {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast())) }
    }
    #[inline(always)]
    unsafe fn multiply_add(x: *const Line, w: __m512i, sums: __m512) -> __m512 {
        // SAFETY: the caller's promise; any 512 bits are numbers.
        unsafe {
            let x = std::mem::transmute::<__m512, __m512bh>((*x).load());
            _mm512_dpbf16_ps(sums, x, std::mem::transmute::<__m512i, __m512bh>(w))
        }
    }
}

/// The same, widened: the second ones and the first ones. A bfloat16 is the upper half of the single-precision number.
pub(super) struct TwoApart;

impl Multiplied for TwoApart {
    type Weights = [__m512; 2];
    const BYTES: usize = 2;
    const FORM: LineContent = LineContent::TwoApart;
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> [__m512; 2] {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe {
            let both = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast()));
            let second = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(second), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both))]
        }
    }
    #[inline(always)]
    unsafe fn multiply_add(x: *const Line, w: [__m512; 2], sums: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps((*x.add(1)).load(), w[1], _mm512_fmadd_ps((*x).load(), w[0], sums)) }
    }
}
