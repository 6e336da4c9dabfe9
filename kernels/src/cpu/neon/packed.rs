//! Products of rounded rows with packed matrices: four outputs to a register, as many registers at once as leave room for
//! the rows' sums.

use super::super::{
    packed::{Bits, FOUR, HALVES, Layout, Packed, WIDE, by_kind},
    quantised::{Part, Wide},
    rounded::Rounded,
};
use super::{
    bytes::{Bytes, Dots, Words},
    eight::four_halves,
};
use crate::quant::QuantType;
use std::arch::aarch64::*;

/// See [`super::super::quantised::wide`].
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
unsafe fn by_words<const KIND: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    // SAFETY: the caller's promise.
    unsafe { groups::<KIND, Words>(bytes, x, part, out) }
}

/// # Safety
/// As for [`groups`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn by_dots<const KIND: usize>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    // SAFETY: the caller's promise.
    unsafe { groups::<KIND, Dots>(bytes, x, part, out) }
}

/// # Safety
/// The processor has the instructions of `B`; `bytes` holds the blocks of `part` of a matrix of kind number `KIND`, and `x`
/// the rows from `first` on that `out` has, with everything rounding for this layout gives.
#[inline(always)]
unsafe fn groups<const KIND: usize, B: Bytes>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Wide]) {
    let mut r = 0;
    // SAFETY: groups stay within the rows of `out`.
    unsafe {
        while r + 4 <= out.len() {
            group::<KIND, B, 4, 2>(bytes, x, part, r, out);
            r += 4;
        }
        match out.len() - r {
            3 => group::<KIND, B, 3, 2>(bytes, x, part, r, out),
            2 => group::<KIND, B, 2, 4>(bytes, x, part, r, out),
            1 => group::<KIND, B, 1, 4>(bytes, x, part, r, out),
            _ => {}
        }
    }
}

/// `R` rows, with `H` registers of outputs at a time.
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
    for from in (0..WIDE).step_by(4 * H) {
        // SAFETY: each chunk is a whole block, and every row of `x` has that block; outputs from `from` on are four times
        // `H` of the sixteen of a row.
        unsafe {
            let mut acc: [[float32x4_t; H]; R] =
                std::array::from_fn(|i| std::array::from_fn(|h| vld1q_f32(out[r + i].as_ptr().add(from + 4 * h))));
            for (b, block) in (part.from..).zip(bytes.chunks_exact(layout.block())) {
                let rows = std::array::from_fn(|i| RowBlock::new(layout, x, (part.first + r + i) * per_row + b));
                add_block::<KIND, B, R, H>(block.as_ptr(), from, &rows, &mut acc);
            }
            for (i, acc) in acc.into_iter().enumerate() {
                for (h, acc) in acc.into_iter().enumerate() {
                    vst1q_f32(out[r + i].as_mut_ptr().add(from + 4 * h), acc);
                }
            }
        }
    }
}

/// A block of a row.
#[derive(Clone, Copy)]
struct RowBlock {
    bytes: *const i8,
    scale: f32,
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
                scale: *x.scales.as_ptr().add(at),
                sums: x.sums.as_ptr().add(at * layout.parts()),
                shifts: x.shifts.as_ptr().add(at * layout.parts()),
            }
        }
    }
}

/// Adds a block of `R` rows for the outputs from `from` on.
///
/// # Safety
/// As for [`group`]; `block` points to a whole block.
#[inline(always)]
unsafe fn add_block<const KIND: usize, B: Bytes, const R: usize, const H: usize>(
    block: *const u8,
    from: usize,
    rows: &[RowBlock; R],
    acc: &mut [[float32x4_t; H]; R],
) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    // SAFETY: parts are those of a block; what each load reads is said where it is defined.
    unsafe {
        let quants = block.add(layout.header() + 4 * from);
        let mut sums = [[vdupq_n_s32(0); H]; R];
        for part in 0..layout.parts() {
            let products = products::<KIND, B, R, H>(quants, part, rows);
            if !layout.is_large() {
                sums = products;
                continue;
            }
            let scales = block.add(layout.part_scales() + part * WIDE + from);
            let scales: [int32x4_t; H] = std::array::from_fn(|h| part_scales(scales.add(4 * h)));
            for (sums, products) in sums.iter_mut().zip(products) {
                *sums = std::array::from_fn(|h| vmlaq_s32(sums[h], scales[h], products[h]));
            }
        }
        for h in 0..H {
            let scales = halves(block.add(2 * (from + 4 * h)));
            for ((acc, sums), row) in acc.iter_mut().zip(&sums).zip(rows) {
                acc[h] = vfmaq_f32(acc[h], vcvtq_f32_s32(sums[h]), vmulq_n_f32(scales, row.scale));
            }
        }
        if layout.least {
            add_least(layout, block, from, rows, acc);
        }
    }
}

/// Products of a part of `R` rows, added up.
///
/// # Safety
/// As for [`add_block`]; `quants` points to the block's, moved on to the outputs that are wanted.
#[inline(always)]
unsafe fn products<const KIND: usize, B: Bytes, const R: usize, const H: usize>(
    quants: *const u8,
    part: usize,
    rows: &[RowBlock; R],
) -> [[int32x4_t; H]; R] {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    // Bytes of eight bits get their signs back; of the others the shift is taken away at once.
    let shifted = layout.shift != 0 && layout.bits != Bits::Eight;
    // SAFETY: sixteens of columns are those of the part.
    unsafe {
        let mut sums = rows.map(|row| [vdupq_n_s32(if shifted { *row.shifts.add(part) } else { 0 }); H]);
        for sixteen in part * layout.part / 16..(part + 1) * layout.part / 16 {
            let x = rows.map(|row| vld1q_s8(row.bytes.add(16 * sixteen)));
            add_four::<B, 0, R, H>(layout, quants, sixteen, x, &mut sums);
            add_four::<B, 1, R, H>(layout, quants, sixteen, x, &mut sums);
            add_four::<B, 2, R, H>(layout, quants, sixteen, x, &mut sums);
            add_four::<B, 3, R, H>(layout, quants, sixteen, x, &mut sums);
        }
        sums
    }
}

/// Adds products of four columns, number `FOUR_AT` of four times four.
///
/// # Safety
/// As for [`products`], and the sixteen columns exist.
#[inline(always)]
unsafe fn add_four<B: Bytes, const FOUR_AT: i32, const R: usize, const H: usize>(
    layout: Layout,
    quants: *const u8,
    sixteen: usize,
    x: [int8x16_t; R],
    sums: &mut [[int32x4_t; H]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let four = 4 * sixteen + FOUR_AT as usize;
        let q: [int8x16_t; H] = std::array::from_fn(|h| four_columns(layout, quants.add(16 * h), four));
        for (sums, x) in sums.iter_mut().zip(x) {
            B::add::<FOUR_AT, H>(sums, q, x);
        }
    }
}

/// Columns `4 * four..` of four outputs, four bytes each: shifted, but with signs if they have eight bits.
///
/// # Safety
/// `quants` points to a block's quants, moved on to the outputs that are wanted.
#[inline(always)]
unsafe fn four_columns(layout: Layout, quants: *const u8, four: usize) -> int8x16_t {
    // SAFETY: every load is of the quarter of 64 bytes that belongs to these columns.
    unsafe {
        let at = |from: usize| vld1q_u8(quants.add(from));
        if layout.bits == Bits::Eight {
            return vreinterpretq_s8_u8(veorq_u8(at(four * FOUR), vdupq_n_u8(layout.shift)));
        }
        let both = at(four / 2 * FOUR);
        let low = if four.is_multiple_of(2) { vandq_u8(both, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(both) };
        let (fours, bits, mask) = match layout.bits {
            Bits::Five => (8, 1, 1 << 4),
            Bits::Six => (4, 2, 3 << 4),
            Bits::Four | Bits::Eight => return vreinterpretq_s8_u8(low),
        };
        // The bits wanted are moved to where they belong: up for the first columns, down for the last.
        let up = 4 - (four % fours * bits) as i8;
        let upper = vshlq_u8(at(layout.upper() + four / fours * FOUR), vdupq_n_s8(up));
        vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(upper, vdupq_n_u8(mask))))
    }
}

/// Adds least values times sums of numbers, or takes steps of them away.
///
/// # Safety
/// As for [`add_block`], of a layout that has them.
#[inline(always)]
unsafe fn add_least<const R: usize, const H: usize>(
    layout: Layout,
    block: *const u8,
    from: usize,
    rows: &[RowBlock; R],
    acc: &mut [[float32x4_t; H]; R],
) {
    // SAFETY: least values of four outputs, and of a large block those of pairs of parts; sums of the block's parts.
    unsafe {
        for h in 0..H {
            let first = 2 * (from + 4 * h);
            let least = halves(block.add(HALVES + first));
            for (acc, row) in acc.iter_mut().zip(rows) {
                let worth = vmulq_n_f32(least, row.scale);
                if !layout.is_large() {
                    acc[h] = vfmaq_n_f32(acc[h], worth, f32::from(*row.sums));
                    continue;
                }
                let mut sum = vdupq_n_s32(0);
                for pair in 0..layout.parts() / 2 {
                    let least = block.add(layout.part_least() + HALVES * pair + first);
                    sum = vaddq_s32(sum, pairs(least, row.sums.add(2 * pair)));
                }
                acc[h] = vfmsq_f32(acc[h], vcvtq_f32_s32(sum), worth);
            }
        }
    }
}

/// Two bytes without signs of each of four outputs by the same two words, added up.
///
/// # Safety
/// Eight readable bytes, and two words.
#[inline(always)]
unsafe fn pairs(bytes: *const u8, words: *const i16) -> int32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(bytes)));
        let words = vreinterpretq_s16_s32(vdupq_n_s32(words.cast::<i32>().read_unaligned()));
        let low = vmull_s16(vget_low_s16(bytes), vget_low_s16(words));
        vpaddq_s32(low, vmull_high_s16(bytes, words))
    }
}

/// Whole-number scales of four outputs.
///
/// # Safety
/// Four readable bytes.
#[inline(always)]
unsafe fn part_scales(at: *const u8) -> int32x4_t {
    // SAFETY: the caller's promise; the rest is registers only.
    unsafe {
        let four = at.cast::<u32>().read_unaligned();
        vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four.into()))))
    }
}

/// Four numbers of half precision, widened.
///
/// # Safety
/// Eight readable bytes.
#[inline(always)]
unsafe fn halves(at: *const u8) -> float32x4_t {
    // SAFETY: the caller's promise.
    four_halves(unsafe { vld1_u16(at.cast()) })
}
