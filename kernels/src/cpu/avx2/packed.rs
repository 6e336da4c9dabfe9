//! Products of rounded rows with packed matrices: eight outputs to a register, sixteen or both halves of them in turn.

use super::super::{
    packed::{HALVES, Layout, Packed, WIDE, by_kind},
    quantised::{Part, Wide},
    rounded::Rounded,
};
use super::{
    bytes::{Bytes, Dots, Whole, Words, add_words},
    row_block::RowBlock,
};
use crate::quant::QuantType;
use std::arch::x86_64::*;

/// See [`super::super::quantised::wide`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: Part, out: &mut [Wide]) {
    let bytes = blocks(w, panel, x, part, out);
    // SAFETY: `blocks` asks what `groups` does.
    unsafe { by_kind!(w.kind, by_words(bytes, x, part, out)) }
}

/// The same by instructions for products of bytes.
pub(in super::super) fn wide_by_dots(w: &Packed, panel: usize, x: &Rounded, part: Part, out: &mut [Wide]) {
    let bytes = blocks(w, panel, x, part, out);
    // SAFETY: `Simd::detect` chose this only after `has_dots`; `blocks` asks what `groups` does.
    unsafe { by_kind!(w.kind, by_dots(bytes, x, part, out)) }
}

/// The blocks of `part`, once it is sure that `x` has all rows that `out` has.
fn blocks<'a>(w: &'a Packed, panel: usize, x: &Rounded, part: Part, out: &[Wide]) -> &'a [u8] {
    assert!(part.first + out.len() <= x.rows && part.from <= part.to && x.fits(w));
    w.panel(panel, part.from, part.to)
}

/// # Safety
/// As for [`groups`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_words<const KIND: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    // SAFETY: the caller's promise.
    unsafe { groups::<KIND, Words, 1>(bytes, x, part, out) }
}

/// # Safety
/// As for [`groups`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn by_dots<const KIND: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    // SAFETY: the caller's promise.
    unsafe { groups::<KIND, Dots, 2>(bytes, x, part, out) }
}

/// # Safety
/// The processor has AVX2, FMA, F16C and the instructions of `B`; `bytes` holds the blocks of `part` of a matrix of kind
/// number `KIND`, and `x` the rows from `first` on that `out` has, with everything rounding for this layout gives.
#[inline(always)]
unsafe fn groups<const KIND: usize, B: Bytes, const H: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    let mut r = 0;
    // SAFETY: groups stay within the rows of `out`.
    unsafe {
        while r + 4 <= out.len() {
            group::<KIND, B, 4, H>(bytes, x, part, r, out);
            r += 4;
        }
        match out.len() - r {
            3 => group::<KIND, B, 3, H>(bytes, x, part, r, out),
            2 => group::<KIND, B, 2, 2>(bytes, x, part, r, out),
            1 => group::<KIND, B, 1, 2>(bytes, x, part, r, out),
            _ => {}
        }
    }
}

/// `R` rows, with `H` registers of outputs at a time. Words of four rows and all outputs would not fit the registers beside
/// their sums, so [`Words`] take half of them then; [`Dots`] are sums already.
///
/// # Safety
/// As for [`groups`]; rows `r..r + R` of `out` exist.
#[inline(always)]
unsafe fn group<const KIND: usize, B: Bytes, const R: usize, const H: usize>(
    bytes: &[u8],
    x: &Rounded,
    part: Part,
    r: usize,
    out: &mut [Wide],
) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let per_row = x.cols / layout.numbers;
    // SAFETY: each chunk is a whole block, and every row of `x` has that block; a row of `out` has two times eight numbers.
    unsafe {
        let mut acc: [[__m256; R]; 2] =
            [0, 8].map(|from| std::array::from_fn(|i| _mm256_loadu_ps(out[r + i].as_ptr().add(from))));
        for (b, block) in (part.from..).zip(bytes.chunks_exact(layout.block())) {
            let rows = std::array::from_fn(|i| RowBlock::new(layout, x, (part.first + r + i) * per_row + b));
            for from in (0..WIDE).step_by(8 * H) {
                let whole = B::whole::<KIND, R, H>(block.as_ptr(), from, &rows);
                for h in 0..H {
                    add_half::<R, H>(layout, block.as_ptr(), from / 8 + h, &rows, (&whole, h), &mut acc[from / 8 + h]);
                }
            }
        }
        for (half, acc) in acc.into_iter().enumerate() {
            for (i, acc) in acc.into_iter().enumerate() {
                _mm256_storeu_ps(out[r + i].as_mut_ptr().add(8 * half), acc);
            }
        }
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

/// Adds a block of `R` rows for a half of the outputs, whose whole numbers are known.
///
/// # Safety
/// As for [`group`]; `block` points to a whole block.
#[inline(always)]
unsafe fn add_half<const R: usize, const H: usize>(
    layout: Layout,
    block: *const u8,
    half: usize,
    rows: &[RowBlock; R],
    (whole, h): (&Whole<R, H>, usize),
    acc: &mut [__m256; R],
) {
    // SAFETY: scales of eight outputs.
    unsafe {
        let scales = halves(block.add(WIDE * half));
        for ((acc, whole), row) in acc.iter_mut().zip(whole).zip(rows) {
            let worth = _mm256_mul_ps(scales, _mm256_broadcast_ss(&*row.scale));
            *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[h]), worth, *acc);
        }
        if layout.least {
            add_least::<R>(layout, block, half, rows, acc);
        }
    }
}

/// Adds least values times sums of numbers, or takes steps of them away.
///
/// # Safety
/// As for [`add_half`], of a layout that has them.
#[inline(always)]
unsafe fn add_least<const R: usize>(
    layout: Layout,
    block: *const u8,
    half: usize,
    rows: &[RowBlock; R],
    acc: &mut [__m256; R],
) {
    // SAFETY: least values of eight outputs, and of a large block those of pairs of parts; sums of the block's parts.
    unsafe {
        let least = halves(block.add(HALVES + WIDE * half));
        for (acc, row) in acc.iter_mut().zip(rows) {
            let worth = _mm256_mul_ps(least, _mm256_broadcast_ss(&*row.scale));
            if !layout.is_large() {
                *acc = _mm256_fmadd_ps(_mm256_set1_ps(f32::from(*row.sums)), worth, *acc);
                continue;
            }
            let mut sum = _mm256_setzero_si256();
            for pair in 0..layout.parts() / 2 {
                let least = block.add(layout.part_least() + HALVES * pair + WIDE * half);
                let least = _mm256_cvtepu8_epi16(_mm_loadu_si128(least.cast()));
                sum = add_words(sum, least, row.pair_of_sums(pair));
            }
            *acc = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
        }
    }
}
