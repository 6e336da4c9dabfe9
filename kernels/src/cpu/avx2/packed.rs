//! Products of rounded rows with packed matrices: eight outputs to a register, so both halves of sixteen in turn.

use super::super::{
    packed::{Bits, FOUR, HALVES, Layout, Packed, WIDE, by_kind},
    quantised::{Part, Wide},
    rounded::Rounded,
};
use crate::quant::QuantType;
use std::arch::x86_64::*;

/// Rows worked on at once, and where their numbers are.
#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a Rounded,
    layout: Layout,
    first: usize,
    /// First block of columns; blocks are counted from it.
    from: usize,
}

/// See [`super::super::quantised::wide`].
pub(in super::super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: Part, out: &mut [Wide]) {
    assert!(part.first + out.len() <= x.rows && part.from <= part.to && x.fits(w));
    let bytes = w.panel(panel, part.from, part.to);
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the first line is what `groups` asks for.
    unsafe {
        by_kind!(w.kind, groups(bytes, x, part, out));
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C; `bytes` holds the blocks of `part` of a matrix of kind number `KIND`, and `x` the
/// rows from `first` on that `out` has, with everything rounding for this layout gives.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn groups<const KIND: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let Part { first, from, .. } = part;
    let mut r = 0;
    // SAFETY: groups stay within the rows of `out`.
    unsafe {
        while r + 4 <= out.len() {
            group::<KIND, 4>(bytes, Rows { x, layout, first: first + r, from }, &mut out[r..r + 4]);
            r += 4;
        }
        let (rows, rest) = (Rows { x, layout, first: first + r, from }, &mut out[r..]);
        match rest.len() {
            3 => group::<KIND, 3>(bytes, rows, rest),
            2 => group::<KIND, 2>(bytes, rows, rest),
            1 => group::<KIND, 1>(bytes, rows, rest),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`groups`], of `R` rows.
#[inline(always)]
unsafe fn group<const KIND: usize, const R: usize>(bytes: &[u8], rows: Rows<'_>, out: &mut [Wide]) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    // SAFETY: each chunk is a whole block, and `b` counts them as the rows' blocks are counted; a row of `out` has two
    // times eight numbers.
    unsafe {
        let mut acc: [[__m256; R]; 2] =
            [0, 8].map(|half| std::array::from_fn(|i| _mm256_loadu_ps(out[i].as_ptr().add(half))));
        for (b, block) in bytes.chunks_exact(layout.block()).enumerate() {
            for (half, acc) in acc.iter_mut().enumerate() {
                add_block::<KIND, R>(block.as_ptr(), half, rows, b, acc);
            }
        }
        for (half, acc) in acc.into_iter().enumerate() {
            for (out, acc) in out.iter_mut().zip(acc) {
                _mm256_storeu_ps(out.as_mut_ptr().add(8 * half), acc);
            }
        }
    }
}

impl Rows<'_> {
    /// Place of block `b` of row `i`.
    #[inline(always)]
    fn block(self, i: usize, b: usize) -> usize {
        (self.first + i) * (self.x.cols / self.layout.numbers) + self.from + b
    }

    /// # Safety
    /// Row `i` and its block `b` exist.
    #[inline(always)]
    unsafe fn scale(self, i: usize, b: usize) -> __m256 {
        // SAFETY: there is a scale for every block.
        unsafe { _mm256_broadcast_ss(&*self.x.scales.as_ptr().add(self.block(i, b))) }
    }

    /// # Safety
    /// As for [`Self::scale`].
    #[inline(always)]
    unsafe fn sums(self, i: usize, b: usize) -> *const i16 {
        // SAFETY: there is a sum for every part of every block.
        unsafe { self.x.sums.as_ptr().add(self.block(i, b) * self.layout.parts()) }
    }

    /// # Safety
    /// As for [`Self::scale`], and part `p` exists.
    #[inline(always)]
    unsafe fn shift(self, i: usize, b: usize, p: usize) -> __m256i {
        // SAFETY: there is one for every part of every block.
        unsafe { _mm256_set1_epi32(*self.x.shifts.as_ptr().add(self.block(i, b) * self.layout.parts() + p)) }
    }

    /// # Safety
    /// As for [`Self::scale`].
    #[inline(always)]
    unsafe fn bytes(self, i: usize, b: usize) -> *const i8 {
        // SAFETY: there is a byte for every number of every block.
        unsafe { self.x.bytes.as_ptr().add(self.block(i, b) * self.layout.numbers) }
    }
}

/// Eight numbers of half precision, widened.
///
/// # Safety
/// 16 readable bytes, and F16C.
#[inline(always)]
unsafe fn halves(at: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
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

/// Columns `4 * four..` of eight outputs, four bytes each, shifted.
///
/// # Safety
/// `quants` points to a block's quants, moved on to the half of its outputs that is wanted; AVX2.
#[inline(always)]
unsafe fn four_columns(layout: Layout, quants: *const u8, four: usize) -> __m256i {
    // SAFETY: every load is of the half of 64 bytes that belong to these columns.
    unsafe {
        let at = |from: usize| _mm256_loadu_si256(quants.add(from).cast());
        if layout.bits == Bits::Eight {
            return at(four * FOUR);
        }
        let both = at(four / 2 * FOUR);
        let low = if four.is_multiple_of(2) { both } else { _mm256_srli_epi16::<4>(both) };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let (fours, bits, mask) = match layout.bits {
            Bits::Five => (8, 1, 1),
            Bits::Six => (4, 2, 3),
            Bits::Four | Bits::Eight => return low,
        };
        let upper = at(layout.upper() + four / fours * FOUR);
        let upper = _mm256_srl_epi16(upper, _mm_cvtsi32_si128((four % fours * bits) as i32));
        let upper = _mm256_and_si256(upper, _mm256_set1_epi8(mask));
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(upper))
    }
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

/// A whole-number scale for each of eight outputs as both words of each.
///
/// # Safety
/// Eight readable bytes, and AVX2.
#[inline(always)]
unsafe fn scale_words(at: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
        _mm256_or_si256(_mm256_slli_epi32::<16>(scales), _mm256_and_si256(scales, _mm256_set1_epi32(0xffff)))
    }
}

/// Adds block `b` of `R` rows for a half of the outputs.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `block` points to a whole block, and `rows` has `R` rows with a block `b`.
#[inline(always)]
unsafe fn add_block<const KIND: usize, const R: usize>(
    block: *const u8,
    half: usize,
    rows: Rows<'_>,
    b: usize,
    acc: &mut [__m256; R],
) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    // SAFETY: parts and fours of columns are those of a block; what each load reads is said where it is defined.
    unsafe {
        let quants = block.add(layout.header() + FOUR / 2 * half);
        let mut sums = [_mm256_setzero_si256(); R];
        for part in 0..layout.parts() {
            let scale = if layout.is_large() {
                scale_words(block.add(layout.part_scales() + part * WIDE + 8 * half))
            } else {
                _mm256_set1_epi16(1)
            };
            let at_once = fours_in_words(layout.bits).min(layout.part / 4);
            for from in (part * layout.part / 4..(part + 1) * layout.part / 4).step_by(at_once) {
                let mut words = [_mm256_setzero_si256(); R];
                for four in from..from + at_once {
                    let q = four_columns(layout, quants, four);
                    for (i, words) in words.iter_mut().enumerate() {
                        let x = everywhere(rows.bytes(i, b).add(4 * four));
                        *words = _mm256_add_epi16(*words, products(layout, q, x));
                    }
                }
                for (sum, words) in sums.iter_mut().zip(words) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, scale));
                }
            }
            if layout.shift != 0 && layout.bits != Bits::Eight {
                // The upper word of a scale repeats its sign.
                let scale = _mm256_srai_epi32::<16>(scale);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_add_epi32(*sum, _mm256_mullo_epi32(scale, rows.shift(i, b, part)));
                }
            }
        }
        let scales = halves(block.add(WIDE * half));
        for (i, (acc, sum)) in acc.iter_mut().zip(sums).enumerate() {
            let worth = _mm256_mul_ps(scales, rows.scale(i, b));
            *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
        }
        if layout.least {
            add_least::<KIND, R>(block, half, rows, b, acc);
        }
    }
}

/// Products of four columns, two added up as a word.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn products(layout: Layout, q: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's promise; registers only.
    unsafe {
        if layout.bits != Bits::Eight {
            return _mm256_maddubs_epi16(q, x);
        }
        // Shifted bytes do not fit two to a word, so back to those with signs; `x` is never -128.
        let q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
    }
}

/// Adds least values times sums of numbers, or takes steps of them away.
///
/// # Safety
/// As for [`add_block`], of a layout that has them.
#[inline(always)]
unsafe fn add_least<const KIND: usize, const R: usize>(
    block: *const u8,
    half: usize,
    rows: Rows<'_>,
    b: usize,
    acc: &mut [__m256; R],
) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    // SAFETY: least values of eight outputs, and of a large block those of pairs of parts; sums of the block's parts.
    unsafe {
        let worth = halves(block.add(HALVES + WIDE * half));
        for (i, acc) in acc.iter_mut().enumerate() {
            let (of, worth) = (rows.sums(i, b), _mm256_mul_ps(worth, rows.scale(i, b)));
            if !layout.is_large() {
                *acc = _mm256_fmadd_ps(_mm256_set1_ps(f32::from(*of)), worth, *acc);
                continue;
            }
            let mut sum = _mm256_setzero_si256();
            for pair in 0..layout.parts() / 2 {
                let least = block.add(layout.part_least() + HALVES * pair + WIDE * half);
                let least = _mm256_cvtepu8_epi16(_mm_loadu_si128(least.cast()));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(least, everywhere(of.add(2 * pair))));
            }
            *acc = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
        }
    }
}
