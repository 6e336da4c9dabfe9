//! Products of rounded rows with packed matrices (`vector/packed.rs`): eight outputs to a register.
//!
//! Words of four rows and all outputs would not fit the registers beside their sums, so [`Words`] take half of them then; [`Dots`] are
//! sums already.

use super::super::{
    packed::{Packed, by_kind},
    quantised::{ProductRange, Wide},
    rounded::Rounded,
    vector::{
        instructions,
        packed::{self, PackedLanes},
    },
};
use super::{
    Avx2,
    bytes::{Dots, Words, add_words, everywhere},
};
use crate::quant::QuantType;
use std::arch::x86_64::*;

/// See [`super::super::quantised::wide`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    by_kind!(w.kind, by_words(w, panel, x, part, out));
}

/// The same by instructions for products of bytes.
pub(in super::super) fn wide_by_dots(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    // SAFETY: `Simd::all` chose this only after `is_available` and `has_dots`.
    unsafe { by_kind!(w.kind, by_dots(w, panel, x, part, out)) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn by_words<const KIND: usize>(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    packed::wide::<KIND, 2, 1, 2, _, _>((Avx2::here(), Words), w, panel, x, part, out);
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn by_dots<const KIND: usize>(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    packed::wide::<KIND, 2, 2, 2, _, _>((Avx2::here(), Dots::here()), w, panel, x, part, out);
}

impl PackedLanes for Avx2 {
    type Whole = __m256i;
    instructions! {
        fn zeros(self) -> __m256i {
            _mm256_setzero_si256()
        }
        fn times(self, x: __m256, y: __m256) -> __m256 {
            _mm256_mul_ps(x, y)
        }
        fn add_whole(self, sum: __m256i, worth: __m256, acc: __m256) -> __m256 {
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), worth, acc)
        }
        fn take_whole(self, sum: __m256i, worth: __m256, acc: __m256) -> __m256 {
            _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sum), worth, acc)
        }
        unsafe fn add_pairs(self, sum: __m256i, bytes: *const u8, words: *const i16) -> __m256i {
            add_words(sum, _mm256_cvtepu8_epi16(_mm_loadu_si128(bytes.cast())), everywhere(words))
        }
    }
}
