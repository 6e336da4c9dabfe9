//! Products of rounded rows with packed matrices: sixteen outputs of some rows, a block of columns after the other.

use super::{Vector, array_of};
use crate::{
    cpu::{
        packed::{HALVES, Layout, Packed, WIDE},
        quantised::{ProductRange, Wide},
        rounded::{Rounded, RowBlock},
    },
    quant::QuantType,
};

/// What these products do with a register of outputs.
pub(in super::super) trait PackedLanes: Vector {
    /// As many whole numbers as there are lanes.
    type Whole: Copy;

    /// Zeros.
    fn zeros(self) -> Self::Whole;

    /// `x · y`.
    fn times(self, x: Self::Numbers, y: Self::Numbers) -> Self::Numbers;

    /// `sum · worth + acc`, each lane rounded once.
    fn add_whole(self, sum: Self::Whole, worth: Self::Numbers, acc: Self::Numbers) -> Self::Numbers;

    /// `acc - sum · worth`, each lane rounded once.
    fn take_whole(self, sum: Self::Whole, worth: Self::Numbers, acc: Self::Numbers) -> Self::Numbers;

    /// Adds products of each lane's two bytes, without signs, with the same two words.
    ///
    /// # Safety
    /// Two readable bytes for each lane, and two words; they need no alignment.
    unsafe fn add_pairs(self, sum: Self::Whole, bytes: *const u8, words: *const i16) -> Self::Whole;
}

/// A token of instructions that multiply bytes.
pub(in super::super) trait Bytes<V: PackedLanes>: Copy {
    /// Products of a block with each row, times the parts' scales, added up: whole numbers of `H` registers of outputs.
    ///
    /// # Safety
    /// `block` points to a whole block of kind number `KIND`, which has so many outputs from `from` on, and rows are rounded for its
    /// layout.
    unsafe fn whole<const KIND: usize, const R: usize, const H: usize>(
        self,
        by: V,
        block: *const u8,
        from: usize,
        rows: &[RowBlock; R],
    ) -> [[V::Whole; H]; R];
}

/// See [`crate::cpu::quantised::wide`], for a matrix that is laid out as those of kind number `KIND`. Three rows or four keep the
/// sums of `MANY` registers of outputs, and multiply `MANY_AT_ONCE` of them at a time; fewer rows `FEW`. Where these are one, eight
/// rows go together.
#[inline(always)]
pub(in super::super) fn wide<
    const KIND: usize,
    const MANY: usize,
    const MANY_AT_ONCE: usize,
    const FEW: usize,
    V: PackedLanes,
    B: Bytes<V>,
>(
    with: (V, B),
    w: &Packed,
    panel: usize,
    x: &Rounded,
    part: ProductRange,
    out: &mut [Wide],
) {
    assert!(part.first + out.len() <= x.rows && part.from <= part.to && x.fits(w));
    assert!(w.layout == const { Layout::of(QuantType::ALL[KIND]) });
    let bytes = w.panel(panel, part.from, part.to);
    let mut r = 0;
    // SAFETY: groups stay within the rows of `out`, of which `x` has all, and `bytes` are the blocks of `part`, by the lines above.
    unsafe {
        while const { V::COUNT == WIDE } && r + 8 <= out.len() {
            group::<KIND, 8, 1, 1, V, B>(with, bytes, x, part, r, out);
            r += 8;
        }
        while r + 4 <= out.len() {
            group::<KIND, 4, MANY, MANY_AT_ONCE, V, B>(with, bytes, x, part, r, out);
            r += 4;
        }
        match out.len() - r {
            3 => group::<KIND, 3, MANY, MANY_AT_ONCE, V, B>(with, bytes, x, part, r, out),
            2 => group::<KIND, 2, FEW, FEW, V, B>(with, bytes, x, part, r, out),
            1 => group::<KIND, 1, FEW, FEW, V, B>(with, bytes, x, part, r, out),
            _ => {}
        }
    }
}

/// `R` rows, `A` registers of outputs after the other, of which `H` are multiplied at a time.
///
/// # Safety
/// `bytes` holds the blocks of `part` of a matrix that is laid out as those of kind number `KIND`, and `x` the rows from the part's
/// first on that `out` has, with everything rounding for this layout gives; rows `r..r + R` of `out` exist.
#[inline(always)]
unsafe fn group<const KIND: usize, const R: usize, const A: usize, const H: usize, V: PackedLanes, B: Bytes<V>>(
    (by, way): (V, B),
    bytes: &[u8],
    x: &Rounded,
    part: ProductRange,
    r: usize,
    out: &mut [Wide],
) {
    const { assert!(WIDE.is_multiple_of(A * V::COUNT) && A.is_multiple_of(H)) }
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let per_row = x.cols / layout.numbers;
    for first in (0..WIDE).step_by(A * V::COUNT) {
        // SAFETY: each chunk is a whole block, and every row of `x` has that block; a row of `out` is sixteen numbers.
        unsafe {
            let mut acc = array_of!(A; |a| array_of!(R; |i| by.load(out[r + i].as_ptr().add(first + a * V::COUNT))));
            let first_blocks = array_of!(R; |i| x.block(layout, (part.first + r + i) * per_row + part.from));
            for (b, block) in bytes.chunks_exact(layout.block()).enumerate() {
                let rows = array_of!(R; |i| first_blocks[i].after(layout, b));
                for a in (0..A).step_by(H) {
                    let from = first + a * V::COUNT;
                    let whole = way.whole::<KIND, R, H>(by, block.as_ptr(), from, &rows);
                    for h in 0..H {
                        let from = from + h * V::COUNT;
                        add_register(by, layout, block.as_ptr(), from, &rows, (&whole, h), &mut acc[a + h]);
                    }
                }
            }
            for (a, acc) in acc.iter().enumerate() {
                for (i, acc) in acc.iter().enumerate() {
                    by.store(out[r + i].as_mut_ptr().add(first + a * V::COUNT), *acc);
                }
            }
        }
    }
}

/// Adds a block of `R` rows for a register of outputs from `from` on, whose whole numbers are known.
///
/// # Safety
/// As for [`group`]; `block` points to a whole block, and rows have that block.
#[inline(always)]
unsafe fn add_register<const R: usize, const H: usize, V: PackedLanes>(
    by: V,
    layout: Layout,
    block: *const u8,
    from: usize,
    rows: &[RowBlock; R],
    (whole, h): (&[[V::Whole; H]; R], usize),
    acc: &mut [V::Numbers; R],
) {
    // SAFETY: scales of the register's outputs.
    unsafe {
        let scales = by.load_f16(block.add(2 * from));
        for ((acc, whole), row) in acc.iter_mut().zip(whole).zip(rows) {
            let worth = by.times(scales, by.all(*row.scale));
            *acc = by.add_whole(whole[h], worth, *acc);
        }
        if layout.least {
            add_least(by, layout, block, from, rows, acc);
        }
    }
}

/// Adds least values times sums of numbers, or takes steps of them away.
///
/// # Safety
/// As for [`add_register`], of a layout that has them.
#[inline(always)]
unsafe fn add_least<const R: usize, V: PackedLanes>(
    by: V,
    layout: Layout,
    block: *const u8,
    from: usize,
    rows: &[RowBlock; R],
    acc: &mut [V::Numbers; R],
) {
    // SAFETY: least values of the register's outputs, and of a large block those of pairs of parts; sums of the block's parts.
    unsafe {
        let least = by.load_f16(block.add(HALVES + 2 * from));
        for (acc, row) in acc.iter_mut().zip(rows) {
            let worth = by.times(least, by.all(*row.scale));
            if !layout.is_large() {
                *acc = by.multiply_add(by.all(f32::from(*row.sums)), worth, *acc);
                continue;
            }
            let mut sum = by.zeros();
            for pair in 0..layout.parts() / 2 {
                let least = block.add(layout.part_least() + HALVES * pair + 2 * from);
                sum = by.add_pairs(sum, least, row.pair_of_sums(pair));
            }
            *acc = by.take_whole(sum, worth, *acc);
        }
    }
}
