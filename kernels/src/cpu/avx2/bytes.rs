//! Whole numbers of a block: products of quants, which are stored without signs, and of rounded rows, which have them, four
//! columns of eight outputs at a time.
//!
//! Loops here have no closures: they would not have the processor's instructions, and calls would take their place.

use super::super::{
    packed::{Bits, FOUR, Layout, WIDE},
    rounded::RowBlock,
    vector::packed::Bytes,
};
use super::{Avx2, ask_for_part};
use crate::quant::QuantType;
use std::arch::x86_64::*;

/// Whole numbers of `H` times eight outputs for each of `R` rows.
type Whole<const R: usize, const H: usize> = [[__m256i; H]; R];

/// By AVX2: products as words, as many of them as fit added up, then times the scale of their part.
#[derive(Clone, Copy)]
pub(super) struct Words;

impl Bytes<Avx2> for Words {
    #[inline(always)]
    unsafe fn whole<const KIND: usize, const R: usize, const H: usize>(
        self,
        _by: Avx2,
        block: *const u8,
        from: usize,
        rows: &[RowBlock; R],
    ) -> Whole<R, H> {
        let layout = const { Layout::of(QuantType::ALL[KIND]) };
        let at_once = fours_in_words(layout.bits).min(layout.part / 4);
        // SAFETY: parts and fours of columns are those of the block; what each load reads is said where it is defined.
        unsafe {
            let quants = block.add(layout.header() + 4 * from);
            let mut sums = Self::shifts::<KIND, R, H>(block, from, rows);
            for part in 0..layout.parts() {
                // Of outputs in two halves the first asks for both.
                if from == 0 {
                    ask_for_part(layout, block, part);
                }
                let mut scales = [_mm256_set1_epi16(1); H];
                if layout.is_large() {
                    for (h, scales) in scales.iter_mut().enumerate() {
                        let at = block.add(layout.part_scales() + part * WIDE + from + 8 * h);
                        *scales = scale_words(_mm_loadl_epi64(at.cast()));
                    }
                }
                for first in (part * layout.part / 4..(part + 1) * layout.part / 4).step_by(at_once) {
                    let mut words = [[_mm256_setzero_si256(); H]; R];
                    for four in first..first + at_once {
                        let q = columns::<H>(layout, quants, four);
                        for (words, row) in words.iter_mut().zip(rows) {
                            let x = everywhere(row.columns(4 * four));
                            for (words, q) in words.iter_mut().zip(q) {
                                *words = _mm256_add_epi16(*words, products(layout.bits, q, x));
                            }
                        }
                    }
                    for (sums, words) in sums.iter_mut().zip(words) {
                        for h in 0..H {
                            sums[h] = add_words(sums[h], words[h], scales[h]);
                        }
                    }
                }
            }
            sums
        }
    }
}

impl Words {
    /// What the shift of quants takes away. Those of eight bits get their signs back instead.
    ///
    /// # Safety
    /// As for [`Bytes::whole`].
    #[inline(always)]
    unsafe fn shifts<const KIND: usize, const R: usize, const H: usize>(
        block: *const u8,
        from: usize,
        rows: &[RowBlock; R],
    ) -> Whole<R, H> {
        let layout = const { Layout::of(QuantType::ALL[KIND]) };
        // SAFETY: parts of the block; eight scales each.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); H]; R];
            if layout.shift == 0 || layout.bits == Bits::Eight {
                return sums;
            }
            if !layout.is_large() {
                for (sums, row) in sums.iter_mut().zip(rows) {
                    *sums = [everywhere(row.shift(0)); H];
                }
                return sums;
            }
            for pair in 0..layout.parts() / 2 {
                for h in 0..H {
                    let at = block.add(layout.part_scales() + 2 * pair * WIDE + from + 8 * h);
                    let parts = _mm_unpacklo_epi8(_mm_loadl_epi64(at.cast()), _mm_loadl_epi64(at.add(WIDE).cast()));
                    let scales = _mm256_cvtepi8_epi16(parts);
                    for (sums, row) in sums.iter_mut().zip(rows) {
                        sums[h] = add_words(sums[h], scales, everywhere(row.pair_of_sums(pair)));
                    }
                }
            }
            let shift = _mm256_set1_epi32(-i32::from(layout.shift));
            for sum in sums.as_flattened_mut() {
                *sum = _mm256_mullo_epi32(*sum, shift);
            }
            sums
        }
    }
}

/// By instructions made for it: four products added up at once. Says that the processor has AVX-VNNI.
#[derive(Clone, Copy)]
pub(super) struct Dots(());

impl Dots {
    /// Where it is enabled.
    #[inline]
    #[target_feature(enable = "avxvnni")]
    pub fn here() -> Self {
        Self(())
    }
}

impl Bytes<Avx2> for Dots {
    #[inline(always)]
    unsafe fn whole<const KIND: usize, const R: usize, const H: usize>(
        self,
        _by: Avx2,
        block: *const u8,
        from: usize,
        rows: &[RowBlock; R],
    ) -> Whole<R, H> {
        let layout = const { Layout::of(QuantType::ALL[KIND]) };
        let fours = layout.part / 4;
        // SAFETY: parts and fours of columns are those of the block; what each load reads is said where it is defined.
        unsafe {
            let quants = block.add(layout.header() + 4 * from);
            let mut sums = [[_mm256_setzero_si256(); H]; R];
            for part in 0..layout.parts() {
                // Of outputs in two halves the first asks for both.
                if from == 0 {
                    ask_for_part(layout, block, part);
                }
                let mut dots = [[_mm256_setzero_si256(); H]; R];
                if layout.shift != 0 {
                    for (dots, row) in dots.iter_mut().zip(rows) {
                        *dots = [everywhere(row.shift(part)); H];
                    }
                }
                for four in part * fours..(part + 1) * fours {
                    let q = columns::<H>(layout, quants, four);
                    for (dots, row) in dots.iter_mut().zip(rows) {
                        let x = everywhere(row.columns(4 * four));
                        for (dot, q) in dots.iter_mut().zip(q) {
                            *dot = _mm256_dpbusd_avx_epi32(*dot, q, x);
                        }
                    }
                }
                if !layout.is_large() {
                    return dots;
                }
                for h in 0..H {
                    let scale = block.add(layout.part_scales() + part * WIDE + from + 8 * h);
                    let scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64(scale.cast()));
                    for (sums, dots) in sums.iter_mut().zip(&dots) {
                        sums[h] = _mm256_add_epi32(sums[h], _mm256_mullo_epi32(scale, dots[h]));
                    }
                }
            }
            sums
        }
    }
}

/// Adds products of words, two of them together.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_words(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
}

/// Four bytes, eight times.
///
/// # Safety
/// Four readable bytes, and AVX2.
#[inline(always)]
pub(super) unsafe fn everywhere<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise; unaligned reads are asked for.
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// Fours of columns whose products, two of them, fit a word together: `31 · 2 · 127 · 4` does.
const fn fours_in_words(bits: Bits) -> usize {
    match bits {
        Bits::Four => 8,
        Bits::Five => 4,
        Bits::Six => 2,
        Bits::Eight => 1,
    }
}

/// A whole-number scale for each of eight outputs, of the lower half, as both words of each.
#[inline]
#[target_feature(enable = "avx2")]
fn scale_words(scales: __m128i) -> __m256i {
    _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(scales, scales))
}

/// Products of four columns, two added up as a word.
#[inline]
#[target_feature(enable = "avx2")]
fn products(bits: Bits, q: __m256i, x: __m256i) -> __m256i {
    if bits != Bits::Eight {
        return _mm256_maddubs_epi16(q, x);
    }
    // Shifted bytes do not fit two to a word, so back to those with signs; `x` is never -128.
    let q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
    _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
}

/// Columns `4 * four..` of `H` times eight outputs.
///
/// # Safety
/// As for [`four_columns`].
#[inline(always)]
unsafe fn columns<const H: usize>(layout: Layout, quants: *const u8, four: usize) -> [__m256i; H] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut q = [_mm256_setzero_si256(); H];
        for (h, q) in q.iter_mut().enumerate() {
            *q = four_columns(layout, quants.add(32 * h), four);
        }
        q
    }
}

/// Columns `4 * four..` of eight outputs, four bytes each, shifted.
///
/// # Safety
/// `quants` points to a block's quants, moved on to the outputs that are wanted; AVX2.
#[inline(always)]
unsafe fn four_columns(layout: Layout, quants: *const u8, four: usize) -> __m256i {
    // SAFETY: every load is of the half of 64 bytes that belongs to these columns.
    unsafe {
        if layout.bits == Bits::Eight {
            return _mm256_loadu_si256(quants.add(four * FOUR).cast());
        }
        let both = _mm256_loadu_si256(quants.add(four / 2 * FOUR).cast());
        let low = if four.is_multiple_of(2) { both } else { _mm256_srli_epi16::<4>(both) };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let (fours, bits, mask) = match layout.bits {
            Bits::Five => (8, 1, 1 << 4),
            Bits::Six => (4, 2, 3 << 4),
            Bits::Four | Bits::Eight => return low,
        };
        // The bits wanted are moved to where they belong: up for the first columns, down for the last.
        let upper = _mm256_loadu_si256(quants.add(layout.upper() + four / fours * FOUR).cast());
        let from = four % fours * bits;
        let moved = if from <= 4 {
            _mm256_sll_epi16(upper, _mm_cvtsi32_si128(4 - from as i32))
        } else {
            _mm256_srl_epi16(upper, _mm_cvtsi32_si128(from as i32 - 4))
        };
        _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(mask)))
    }
}
