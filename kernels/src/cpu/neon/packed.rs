//! Products of rounded rows with packed matrices (`vector/packed.rs`): eight outputs in two registers, as many at once as leave room
//! for the rows' sums.

use super::super::{
    packed::{Bits, FOUR, Layout, Packed, WIDE, by_kind},
    quantised::{ProductRange, Wide},
    rounded::{Rounded, RowBlock},
    vector::{
        instructions,
        packed::{self, Bytes, PackedLanes},
    },
};
use super::{
    bytes::{AddFour, Dots, Words},
    eight::{Eight, Neon},
};
use crate::quant::QuantType;
use std::arch::aarch64::*;

/// Whole numbers of eight outputs.
type Whole = [int32x4_t; 2];

/// See [`super::super::quantised::wide`].
pub(in super::super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    by_kind!(w.kind, by_words(w, panel, x, part, out));
}

/// The same by instructions for products of bytes.
pub(in super::super) fn wide_by_dots(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    // SAFETY: `Simd::all` chose this only after `has_dots`.
    unsafe { by_kind!(w.kind, by_dots(w, panel, x, part, out)) }
}

fn by_words<const KIND: usize>(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    packed::wide::<KIND, 1, 1, 2, _, _>((Neon, Words), w, panel, x, part, out);
}

#[target_feature(enable = "neon,dotprod")]
fn by_dots<const KIND: usize>(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    packed::wide::<KIND, 1, 1, 2, _, _>((Neon, Dots::here()), w, panel, x, part, out);
}

impl PackedLanes for Neon {
    type Whole = Whole;
    instructions! {
        fn zeros(self) -> Whole {
            [vdupq_n_s32(0); 2]
        }
        fn times(self, x: Eight, y: Eight) -> Eight {
            [vmulq_f32(x[0], y[0]), vmulq_f32(x[1], y[1])]
        }
        fn add_whole(self, sum: Whole, worth: Eight, acc: Eight) -> Eight {
            let sum = [vcvtq_f32_s32(sum[0]), vcvtq_f32_s32(sum[1])];
            [vfmaq_f32(acc[0], sum[0], worth[0]), vfmaq_f32(acc[1], sum[1], worth[1])]
        }
        fn take_whole(self, sum: Whole, worth: Eight, acc: Eight) -> Eight {
            let sum = [vcvtq_f32_s32(sum[0]), vcvtq_f32_s32(sum[1])];
            [vfmsq_f32(acc[0], sum[0], worth[0]), vfmsq_f32(acc[1], sum[1], worth[1])]
        }
        unsafe fn add_pairs(self, sum: Whole, bytes: *const u8, words: *const i16) -> Whole {
            let words = vreinterpretq_s16_s32(vdupq_n_s32(words.cast::<i32>().read_unaligned()));
            let pairs = |at: *const u8| {
                let bytes = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(at)));
                let low = vmull_s16(vget_low_s16(bytes), vget_low_s16(words));
                vpaddq_s32(low, vmull_high_s16(bytes, words))
            };
            [vaddq_s32(sum[0], pairs(bytes)), vaddq_s32(sum[1], pairs(bytes.add(8)))]
        }
    }
}

impl<A: AddFour> Bytes<Neon> for A {
    #[inline(always)]
    unsafe fn whole<const KIND: usize, const R: usize, const H: usize>(
        self,
        _by: Neon,
        block: *const u8,
        from: usize,
        rows: &[RowBlock; R],
    ) -> [[Whole; H]; R] {
        let layout = const { Layout::of(QuantType::ALL[KIND]) };
        // SAFETY: parts are those of a block; what each load reads is said where it is defined.
        unsafe {
            let quants = block.add(layout.header() + 4 * from);
            let mut sums = [[[vdupq_n_s32(0); 2]; H]; R];
            for part in 0..layout.parts() {
                let products = products::<KIND, A, R, H>(self, quants, part, rows);
                if !layout.is_large() {
                    return products;
                }
                let scales = block.add(layout.part_scales() + part * WIDE + from);
                for h in 0..H {
                    let scales = [part_scales(scales.add(8 * h)), part_scales(scales.add(8 * h + 4))];
                    for (sums, products) in sums.iter_mut().zip(&products) {
                        let ([a, b], [c, d]) = (sums[h], products[h]);
                        sums[h] = [vmlaq_s32(a, scales[0], c), vmlaq_s32(b, scales[1], d)];
                    }
                }
            }
            sums
        }
    }
}

/// Products of a part of `R` rows, added up.
///
/// # Safety
/// As for [`Bytes::whole`]; `quants` points to the block's, moved on to the outputs that are wanted.
#[inline(always)]
unsafe fn products<const KIND: usize, A: AddFour, const R: usize, const H: usize>(
    way: A,
    quants: *const u8,
    part: usize,
    rows: &[RowBlock; R],
) -> [[Whole; H]; R] {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    // Bytes of eight bits get their signs back; of the others the shift is taken away at once.
    let shifted = layout.shift != 0 && layout.bits != Bits::Eight;
    // SAFETY: sixteens of columns are those of the part.
    unsafe {
        let mut sums = rows.map(|row| [[vdupq_n_s32(if shifted { *row.shift(part) } else { 0 }); 2]; H]);
        for sixteen in part * layout.part / 16..(part + 1) * layout.part / 16 {
            let x = rows.map(|row| vld1q_s8(row.columns(16 * sixteen)));
            add_four::<A, 0, R, H>(way, layout, quants, sixteen, x, &mut sums);
            add_four::<A, 1, R, H>(way, layout, quants, sixteen, x, &mut sums);
            add_four::<A, 2, R, H>(way, layout, quants, sixteen, x, &mut sums);
            add_four::<A, 3, R, H>(way, layout, quants, sixteen, x, &mut sums);
        }
        sums
    }
}

/// Adds products of four columns, number `FOUR_AT` of four times four.
///
/// # Safety
/// As for [`products`], and the sixteen columns exist.
#[inline(always)]
unsafe fn add_four<A: AddFour, const FOUR_AT: i32, const R: usize, const H: usize>(
    way: A,
    layout: Layout,
    quants: *const u8,
    sixteen: usize,
    x: [int8x16_t; R],
    sums: &mut [[Whole; H]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let four = 4 * sixteen + FOUR_AT as usize;
        let mut q = [[vdupq_n_s8(0); 2]; H];
        for (h, q) in q.iter_mut().enumerate() {
            let quants = quants.add(32 * h);
            *q = [four_columns(layout, quants, four), four_columns(layout, quants.add(16), four)];
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            way.add::<FOUR_AT, H>(sums, q, x);
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
