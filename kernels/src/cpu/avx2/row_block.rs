//! A block of a rounded row, as products of whole numbers read it.

use super::super::{packed::Layout, rounded::Rounded};
use std::arch::x86_64::*;

/// A block of a row.
#[derive(Clone, Copy)]
pub(super) struct RowBlock {
    bytes: *const i8,
    pub(super) scale: *const f32,
    pub(super) sums: *const i16,
    shifts: *const i32,
}

impl RowBlock {
    /// Block number `at` of all rows'.
    ///
    /// # Safety
    /// It exists.
    #[inline(always)]
    pub(super) unsafe fn new(layout: Layout, x: &Rounded, at: usize) -> Self {
        // SAFETY: there are as many bytes, scales, sums and shifts.
        unsafe {
            Self {
                bytes: x.bytes.as_ptr().add(at * layout.numbers),
                scale: x.scales.as_ptr().add(at),
                sums: x.sums.as_ptr().add(at * layout.parts()),
                shifts: x.shifts.as_ptr().add(at * layout.parts()),
            }
        }
    }

    /// Columns `4 * four..`, eight times.
    ///
    /// # Safety
    /// The block has them; AVX2.
    #[inline(always)]
    pub(super) unsafe fn four(self, four: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { everywhere(self.bytes.add(4 * four)) }
    }

    /// The sums of parts `2 * pair` and the next, eight times.
    ///
    /// # Safety
    /// The block has them; AVX2.
    #[inline(always)]
    pub(super) unsafe fn pair_of_sums(self, pair: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { everywhere(self.sums.add(2 * pair)) }
    }

    /// What the weights' shift adds to a part, eight times.
    ///
    /// # Safety
    /// The block has that part; AVX2.
    #[inline(always)]
    pub(super) unsafe fn shift(self, part: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { everywhere(self.shifts.add(part)) }
    }
}

/// Four bytes, eight times.
///
/// # Safety
/// Four readable bytes, and AVX2.
#[inline(always)]
unsafe fn everywhere<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise; unaligned reads are asked for.
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}
