//! Dense products: tiles of rows by outputs whose lanes, and what is multiplied, fill the registers.

use super::{EightLanes, F16, F32, StoredNumber, array_of};
use crate::cpu::{
    Dtype, Lanes,
    dense::{Block, RowElement},
};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// How rows and stored numbers become lanes.
pub(in super::super) trait Multiplied<V: EightLanes> {
    /// Of a row.
    type Number: RowElement;
    /// What lanes take at once, of a row or an output.
    type Group: Copy;
    /// Of a stored number.
    const BYTES: usize;
    /// # Safety
    /// `at` points to a readable group of numbers.
    unsafe fn row(by: V, at: *const Self::Number) -> Self::Group;
    /// # Safety
    /// As for [`Self::row`], of stored numbers.
    unsafe fn weights(by: V, at: *const u8) -> Self::Group;
    /// # Safety
    /// The processor has what instructions this needs beyond those of `V`, if any.
    unsafe fn multiply_add(by: V, x: Self::Group, w: Self::Group, sums: V::Numbers) -> V::Numbers;
}

/// A number for each lane.
struct One<S>(PhantomData<S>);

impl<V: EightLanes, S: StoredNumber> Multiplied<V> for One<S> {
    type Number = f32;
    type Group = V::Numbers;
    const BYTES: usize = S::BYTES;
    #[inline(always)]
    unsafe fn row(by: V, at: *const f32) -> V::Numbers {
        // SAFETY: the caller's promise.
        unsafe { by.load(at) }
    }
    #[inline(always)]
    unsafe fn weights(by: V, at: *const u8) -> V::Numbers {
        // SAFETY: the caller's promise.
        unsafe { S::load(by, at) }
    }
    #[inline(always)]
    unsafe fn multiply_add(by: V, x: V::Numbers, w: V::Numbers, sums: V::Numbers) -> V::Numbers {
        by.multiply_add(x, w, sums)
    }
}

/// Two bfloat16 numbers for each lane, the second ones and the first ones.
struct Two;

impl<V: EightLanes> Multiplied<V> for Two {
    type Number = bf16;
    type Group = [V::Numbers; 2];
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn row(by: V, at: *const bf16) -> [V::Numbers; 2] {
        // SAFETY: the caller's promise.
        unsafe { by.load_two(at.cast()) }
    }
    #[inline(always)]
    unsafe fn weights(by: V, at: *const u8) -> [V::Numbers; 2] {
        // SAFETY: the caller's promise.
        unsafe { by.load_two(at) }
    }
    #[inline(always)]
    unsafe fn multiply_add(by: V, x: [V::Numbers; 2], w: [V::Numbers; 2], sums: V::Numbers) -> V::Numbers {
        by.multiply_add(x[1], w[1], by.multiply_add(x[0], w[0], sums))
    }
}

/// See [`crate::cpu::plain::lanes`]. Of three rows `THREE` outputs are worked on at once.
#[inline(always)]
pub(in super::super) fn lanes<V: EightLanes, const THREE: usize>(by: V, block: Block<'_>, acc: &mut [Lanes]) {
    match block.w.dtype {
        Dtype::F32 => all::<V, One<F32>, THREE>(by, block, acc),
        Dtype::F16 => all::<V, One<F16>, THREE>(by, block, acc),
        Dtype::Bf16 => unreachable!("rows were not rounded"),
    }
}

/// See [`crate::cpu::plain::lanes_of_two`].
#[inline(always)]
pub(in super::super) fn lanes_of_two<V: EightLanes, const THREE: usize>(
    by: V,
    block: Block<'_, bf16>,
    acc: &mut [Lanes],
) {
    assert_eq!(block.w.dtype, Dtype::Bf16);
    all::<V, Two, THREE>(by, block, acc);
}

#[inline(always)]
fn all<V: EightLanes, M: Multiplied<V>, const THREE: usize>(by: V, block: Block<'_, M::Number>, acc: &mut [Lanes]) {
    block.check(acc);
    assert_eq!(M::BYTES, block.w.dtype.bytes());
    let mut r = 0;
    // SAFETY: every tile below stays within the rows and outputs counted here; the lines above are what `outputs` asks for, and
    // both that are multiplied here need no other instructions.
    unsafe {
        while r + 4 <= block.rows() {
            outputs::<V, M, 4, 3>(by, block, acc, r);
            r += 4;
        }
        match block.rows() - r {
            3 => outputs::<V, M, 3, THREE>(by, block, acc, r),
            2 => outputs::<V, M, 2, 4>(by, block, acc, r),
            1 => outputs::<V, M, 1, 4>(by, block, acc, r),
            _ => {}
        }
    }
}

/// `R` rows by all outputs, `C` at a time.
///
/// # Safety
/// `block.check(acc)` holds, its matrix is of numbers of `M`, and rows `r..r + R` exist; whatever instructions `M` needs, the
/// processor has.
#[inline(always)]
pub(in super::super) unsafe fn outputs<V: EightLanes, M: Multiplied<V>, const R: usize, const C: usize>(
    by: V,
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
) {
    let mut o = 0;
    // SAFETY: outputs `o..o + C` (then single ones) exist.
    unsafe {
        while o + C <= block.w.rows {
            tile::<V, M, R, C>(by, block, acc, r, o);
            o += C;
        }
        while o < block.w.rows {
            tile::<V, M, R, 1>(by, block, acc, r, o);
            o += 1;
        }
    }
}

/// `R` rows by `C` outputs, a register of lanes for each. Asks for weights further on meanwhile ([`Prefetch`]).
///
/// # Safety
/// As for [`outputs`]; outputs `o..o + C` exist.
#[inline(always)]
unsafe fn tile<V: EightLanes, M: Multiplied<V>, const R: usize, const C: usize>(
    by: V,
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
    o: usize,
) {
    let Block { x, w, from, len } = block;
    let at = |i: usize, j: usize| (r + i) * w.rows + o + j;
    // SAFETY: loads read a group of numbers at `k + GROUP <= len` behind `from` of rows and outputs that exist.
    unsafe {
        let xs: [*const M::Number; R] = array_of!(R; |i| x.as_ptr().add((r + i) * w.cols + from));
        let ws: [*const u8; C] = array_of!(C; |j| w.bytes.as_ptr().add(((o + j) * w.cols + from) * M::BYTES));
        let mut sums = array_of!(R; |i| array_of!(C; |j| by.lanes(&acc[at(i, j)])));
        let group = M::Number::GROUP;
        let (line, mut k) = (LINE / M::BYTES, 0);
        for Prefetch { lines, further } in Prefetch::all(len / line, C * w.cols * M::BYTES) {
            while k < lines.end * line {
                for w in ws {
                    by.ask_for(w.wrapping_add(k * M::BYTES + further));
                }
                for part in 0..line / group {
                    go_on::<V, M, R, C>(by, xs, ws, k + part * group, &mut sums);
                }
                k += line;
            }
        }
        while k < len {
            go_on::<V, M, R, C>(by, xs, ws, k, &mut sums);
            k += group;
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                by.put_lanes(&mut acc[at(i, j)], *sum);
            }
        }
    }
}

/// A group of columns from `k` on.
///
/// # Safety
/// All rows and outputs have these columns; whatever instructions `M` needs, the processor has.
#[inline(always)]
unsafe fn go_on<V: EightLanes, M: Multiplied<V>, const R: usize, const C: usize>(
    by: V,
    xs: [*const M::Number; R],
    ws: [*const u8; C],
    k: usize,
    sums: &mut [[V::Numbers; C]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let wk: [M::Group; C] = array_of!(C; |j| M::weights(by, ws[j].add(k * M::BYTES)));
        for i in 0..R {
            let xk = M::row(by, xs[i].add(k));
            for j in 0..C {
                sums[i][j] = M::multiply_add(by, xk, wk[j], sums[i][j]);
            }
        }
    }
}

/// Bytes of a cache line.
pub(in super::super) const LINE: usize = 64;
/// Lines of every output's weights that are asked for before they are needed.
const AHEAD: usize = 32;

/// How much further on some lines of a tile's weights are asked for: in the same outputs, and at their end in the next
/// tile's. The processor's own guesses end where a page of 4 KiB does, which may be every output; and what several outputs
/// need comes from several places, which it guesses worse than one.
pub(in super::super) struct Prefetch {
    /// Lines of each output.
    pub lines: Range<usize>,
    /// Bytes from one of them to what is asked for with it.
    pub further: usize,
}

impl Prefetch {
    /// For outputs of so many lines, the next tile's so many bytes behind.
    #[inline(always)]
    pub fn all(lines: usize, next: usize) -> [Self; 2] {
        let ahead = AHEAD.min(lines);
        let same = lines - ahead;
        [
            Self { lines: 0..same, further: ahead * LINE },
            Self { lines: same..lines, further: next.wrapping_sub(same * LINE) },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_next_outputs_is_asked_for_once() {
        for lines in [0, 1, 5, AHEAD, AHEAD + 1, 100] {
            let next = 100_000;
            let asked =
                Prefetch::all(lines, next).into_iter().flat_map(|ask| ask.lines.map(move |at| at * LINE + ask.further));
            let ahead = AHEAD.min(lines);
            let expected = (ahead..lines).map(|at| at * LINE).chain((0..ahead).map(|at| next + at * LINE));
            assert!(asked.eq(expected), "{lines}");
        }
    }
}
