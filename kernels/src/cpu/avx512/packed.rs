//! Products of few rounded rows with packed matrices: sixteen outputs to a register.

use super::super::{
    avx2::ask_for_part,
    packed::{Bits, FOUR, HALVES, Layout, Packed, WIDE, by_kind},
    quantised::{Part, Wide},
    rounded::Rounded,
};
use crate::quant::QuantType;
use std::arch::x86_64::*;

/// See [`super::super::quantised::wide`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: Part, out: &mut [Wide]) {
    assert!(part.first + out.len() <= x.rows && part.from <= part.to && x.fits(w));
    let bytes = w.panel(panel, part.from, part.to);
    // SAFETY: the first line is what `groups` asks for.
    unsafe { by_kind!(w.kind, groups(bytes, x, part, out)) }
}

/// # Safety
/// The processor has AVX-512 (F, BW, DQ, VL, VNNI); `bytes` holds the blocks of `part` of a matrix of kind number `KIND`,
/// and `x` the rows from `first` on that `out` has, with everything rounding for this layout gives.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn groups<const KIND: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    let mut r = 0;
    // SAFETY: groups stay within the rows of `out`.
    unsafe {
        while r + 8 <= out.len() {
            group::<KIND, 8>(bytes, x, part, r, out);
            r += 8;
        }
        if r + 4 <= out.len() {
            group::<KIND, 4>(bytes, x, part, r, out);
            r += 4;
        }
        match out.len() - r {
            3 => group::<KIND, 3>(bytes, x, part, r, out),
            2 => group::<KIND, 2>(bytes, x, part, r, out),
            1 => group::<KIND, 1>(bytes, x, part, r, out),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`groups`]; rows `r..r + R` of `out` exist.
#[inline(always)]
unsafe fn group<const KIND: usize, const R: usize>(bytes: &[u8], x: &Rounded, part: Part, r: usize, out: &mut [Wide]) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let per_row = x.cols / layout.numbers;
    // SAFETY: each chunk is a whole block, and every row of `x` has that block; a row of `out` is sixteen numbers.
    unsafe {
        let mut acc: [__m512; R] = std::array::from_fn(|i| _mm512_loadu_ps(out[r + i].as_ptr()));
        for (b, block) in (part.from..).zip(bytes.chunks_exact(layout.block())) {
            let rows = std::array::from_fn(|i| RowBlock::new(layout, x, (part.first + r + i) * per_row + b));
            add_block::<KIND, R>(block.as_ptr(), &rows, &mut acc);
        }
        for (i, acc) in acc.into_iter().enumerate() {
            _mm512_storeu_ps(out[r + i].as_mut_ptr(), acc);
        }
    }
}

/// A block of a row.
#[derive(Clone, Copy)]
struct RowBlock {
    bytes: *const i8,
    scale: *const f32,
    sums: *const i16,
    shifts: *const i32,
}

impl RowBlock {
    /// Block number `at` of all rows'.
    ///
    /// # Safety
    /// It exists.
    #[inline(always)]
    unsafe fn new(layout: Layout, x: &Rounded, at: usize) -> Self {
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
}

/// Adds a block of `R` rows.
///
/// # Safety
/// As for [`groups`]; `block` points to a whole block.
#[inline(always)]
unsafe fn add_block<const KIND: usize, const R: usize>(block: *const u8, rows: &[RowBlock; R], acc: &mut [__m512; R]) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let fours = layout.part / 4;
    // SAFETY: parts and fours of columns are those of a block; what each load reads is said where it is defined.
    unsafe {
        let quants = block.add(layout.header());
        let mut sums = [_mm512_setzero_si512(); R];
        for part in 0..layout.parts() {
            ask_for_part(layout, block, part);
            let mut dots = [_mm512_setzero_si512(); R];
            if layout.shift != 0 {
                dots = std::array::from_fn(|i| _mm512_set1_epi32(*rows[i].shifts.add(part)));
            }
            for four in 0..fours {
                let q = four_columns(layout, quants, part * fours + four);
                for (dot, row) in dots.iter_mut().zip(rows) {
                    *dot = _mm512_dpbusd_epi32(*dot, q, everywhere(row.bytes.add(4 * (part * fours + four))));
                }
            }
            if !layout.is_large() {
                sums = dots;
                continue;
            }
            let scale = block.add(layout.part_scales() + part * WIDE);
            let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(scale.cast()));
            for (sum, dot) in sums.iter_mut().zip(dots) {
                *sum = _mm512_add_epi32(*sum, _mm512_mullo_epi32(scale, dot));
            }
        }
        let scales = halves(block);
        for ((acc, sum), row) in acc.iter_mut().zip(sums).zip(rows) {
            let worth = _mm512_mul_ps(scales, _mm512_set1_ps(*row.scale));
            *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), worth, *acc);
        }
        if layout.least {
            add_least(layout, block, rows, acc);
        }
    }
}

/// Adds least values times sums of numbers, or takes steps of them away.
///
/// # Safety
/// As for [`add_block`], of a layout that has them.
#[inline(always)]
unsafe fn add_least<const R: usize>(layout: Layout, block: *const u8, rows: &[RowBlock; R], acc: &mut [__m512; R]) {
    // SAFETY: least values of sixteen outputs, and of a large block those of pairs of parts; sums of the block's parts.
    unsafe {
        let least = halves(block.add(HALVES));
        for (acc, row) in acc.iter_mut().zip(rows) {
            let worth = _mm512_mul_ps(least, _mm512_set1_ps(*row.scale));
            if !layout.is_large() {
                *acc = _mm512_fmadd_ps(_mm512_set1_ps(f32::from(*row.sums)), worth, *acc);
                continue;
            }
            let mut sum = _mm512_setzero_si512();
            for pair in 0..layout.parts() / 2 {
                let least = words(block.add(layout.part_least() + HALVES * pair));
                sum = _mm512_dpwssd_epi32(sum, least, everywhere(row.sums.add(2 * pair)));
            }
            *acc = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum), worth, *acc);
        }
    }
}

/// Sixteen numbers of half precision, widened.
///
/// # Safety
/// 32 readable bytes, and AVX-512.
#[inline(always)]
pub(super) unsafe fn halves(at: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

/// 32 bytes without signs, as words.
///
/// # Safety
/// 32 readable bytes, and AVX-512.
#[inline(always)]
pub(super) unsafe fn words(at: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.cast())) }
}

/// Four bytes, sixteen times.
///
/// # Safety
/// Four readable bytes, and AVX-512.
#[inline(always)]
pub(super) unsafe fn everywhere<T>(at: *const T) -> __m512i {
    // SAFETY: the caller's promise; unaligned reads are asked for.
    unsafe { _mm512_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// Columns `4 * four..` of sixteen outputs, four bytes each, shifted.
///
/// # Safety
/// `quants` points to a block's quants; AVX-512.
#[inline(always)]
pub(super) unsafe fn four_columns(layout: Layout, quants: *const u8, four: usize) -> __m512i {
    // SAFETY: every load is of the 64 bytes that belong to these columns.
    unsafe {
        let at = |from: usize| _mm512_loadu_si512(quants.add(from).cast());
        if layout.bits == Bits::Eight {
            return at(four * FOUR);
        }
        let both = at(four / 2 * FOUR);
        let low = if four.is_multiple_of(2) { both } else { _mm512_srli_epi16::<4>(both) };
        let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
        let (fours, bits, mask) = match layout.bits {
            Bits::Five => (8, 1, 1 << 4),
            Bits::Six => (4, 2, 3 << 4),
            Bits::Four | Bits::Eight => return low,
        };
        // The bits wanted are moved to where they belong: up for the first columns, down for the last.
        let (upper, from) = (at(layout.upper() + four / fours * FOUR), four % fours * bits);
        let moved = if from <= 4 {
            _mm512_sll_epi16(upper, _mm_cvtsi32_si128(4 - from as i32))
        } else {
            _mm512_srl_epi16(upper, _mm_cvtsi32_si128(from as i32 - 4))
        };
        _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(mask)))
    }
}
