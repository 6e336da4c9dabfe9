//! Dense products: tiles of rows by outputs whose lanes, and what is multiplied, fill the 32 registers.

use super::super::{
    Dtype, Lanes,
    dense::{Block, RowElement},
    plain,
};
use super::eight::{Eight, F16, F32, Stored, load, multiply_add, reduce_four, store};
use half::bf16;
use std::arch::aarch64::*;
use std::marker::PhantomData;

/// How rows and stored numbers become lanes.
trait Multiplied {
    /// Of a row.
    type Number: RowElement;
    /// What lanes take at once, of a row or an output.
    type Group: Copy;
    /// Of a stored number.
    const BYTES: usize;
    /// # Safety
    /// `at` points to a readable group of numbers.
    unsafe fn row(at: *const Self::Number) -> Self::Group;
    /// # Safety
    /// As for [`Self::row`], of stored numbers.
    unsafe fn weights(at: *const u8) -> Self::Group;
    fn multiply_add(sums: Eight, x: Self::Group, w: Self::Group) -> Eight;
}

/// A number for each lane.
struct One<S>(PhantomData<S>);

impl<S: Stored> Multiplied for One<S> {
    type Number = f32;
    type Group = Eight;
    const BYTES: usize = S::BYTES;
    #[inline(always)]
    unsafe fn row(at: *const f32) -> Eight {
        // SAFETY: the caller's promise.
        unsafe { load(at) }
    }
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> Eight {
        // SAFETY: the caller's promise.
        unsafe { S::load(at) }
    }
    #[inline(always)]
    fn multiply_add(sums: Eight, x: Eight, w: Eight) -> Eight {
        multiply_add(sums, x, w)
    }
}

/// Two bfloat16 numbers for each lane, the second ones and the first ones. A bfloat16 is the upper half of the
/// single-precision number.
struct Two;

impl Two {
    /// # Safety
    /// `at` points to sixteen readable numbers.
    #[inline(always)]
    unsafe fn load(at: *const u16) -> [Eight; 2] {
        // SAFETY: the caller's promise; the rest is registers only.
        unsafe {
            let both = [vld1q_u16(at), vld1q_u16(at.add(8))].map(|eight| vreinterpretq_u32_u16(eight));
            let second = both.map(|both| vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff_0000))));
            [second, both.map(|both| vreinterpretq_f32_u32(vshlq_n_u32::<16>(both)))]
        }
    }
}

impl Multiplied for Two {
    type Number = bf16;
    type Group = [Eight; 2];
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn row(at: *const bf16) -> [Eight; 2] {
        // SAFETY: the caller's promise.
        unsafe { Self::load(at.cast()) }
    }
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> [Eight; 2] {
        // SAFETY: the caller's promise; the loads need no alignment.
        unsafe { Self::load(at.cast()) }
    }
    #[inline(always)]
    fn multiply_add(sums: Eight, x: [Eight; 2], w: [Eight; 2]) -> Eight {
        multiply_add(multiply_add(sums, x[0], w[0]), x[1], w[1])
    }
}

/// See [`plain::lanes`].
pub(in super::super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    block.check(acc);
    // SAFETY: the block lies inside its matrices, by the line above.
    unsafe {
        match block.w.dtype {
            Dtype::F32 => all::<One<F32>>(block, acc),
            Dtype::F16 => all::<One<F16>>(block, acc),
            Dtype::Bf16 => unreachable!("rows were not rounded"),
        }
    }
}

/// See [`plain::lanes_of_two`].
pub(in super::super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    block.check(acc);
    assert_eq!(block.w.dtype, Dtype::Bf16);
    // SAFETY: as in `lanes`.
    unsafe { all::<Two>(block, acc) }
}

/// # Safety
/// `block.check(acc)` holds.
unsafe fn all<M: Multiplied>(block: Block<'_, M::Number>, acc: &mut [Lanes]) {
    let mut r = 0;
    // SAFETY: every tile below stays within the rows and outputs counted here.
    unsafe {
        while r + 4 <= block.rows() {
            outputs::<M, 4, 3>(block, acc, r);
            r += 4;
        }
        match block.rows() - r {
            3 => outputs::<M, 3, 3>(block, acc, r),
            2 => outputs::<M, 2, 4>(block, acc, r),
            1 => outputs::<M, 1, 4>(block, acc, r),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`all`], and rows `r..r + R` exist.
#[inline(always)]
unsafe fn outputs<M: Multiplied, const R: usize, const C: usize>(
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
) {
    let mut o = 0;
    // SAFETY: outputs `o..o + C` (then single ones) exist.
    unsafe {
        while o + C <= block.w.rows {
            tile::<M, R, C>(block, acc, r, o);
            o += C;
        }
        while o < block.w.rows {
            tile::<M, R, 1>(block, acc, r, o);
            o += 1;
        }
    }
}

/// # Safety
/// As for [`all`]; rows `r..r + R` and outputs `o..o + C` exist.
#[inline(always)]
unsafe fn tile<M: Multiplied, const R: usize, const C: usize>(
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
    o: usize,
) {
    let Block { x, w, from, len } = block;
    let at = |i: usize, j: usize| (r + i) * w.rows + o + j;
    // SAFETY: loads read a group of numbers at `k + GROUP <= len` behind `from` of rows and outputs that exist.
    unsafe {
        let xs: [*const M::Number; R] = std::array::from_fn(|i| x.as_ptr().add((r + i) * w.cols + from));
        let ws: [*const u8; C] = std::array::from_fn(|j| w.bytes.as_ptr().add(((o + j) * w.cols + from) * M::BYTES));
        let mut sums: [[Eight; C]; R] = std::array::from_fn(|i| std::array::from_fn(|j| load(acc[at(i, j)].as_ptr())));
        for k in (0..len).step_by(M::Number::GROUP) {
            let wk: [M::Group; C] = std::array::from_fn(|j| M::weights(ws[j].add(k * M::BYTES)));
            for (sums, x) in sums.iter_mut().zip(xs) {
                let xk = M::row(x.add(k));
                for (sum, wk) in sums.iter_mut().zip(wk) {
                    *sum = M::multiply_add(*sum, xk, wk);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                store(acc[at(i, j)].as_mut_ptr(), sum);
            }
        }
    }
}

/// See [`plain::reduce_all`].
pub(in super::super) fn reduce_all(acc: &[Lanes], sums: &mut [f32]) {
    assert!(sums.len() >= acc.len());
    let (fours, rest) = acc.as_chunks::<4>();
    for (lanes, out) in fours.iter().zip(sums.as_chunks_mut::<4>().0) {
        // SAFETY: every load and store is of whole arrays of eight and four numbers.
        unsafe { vst1q_f32(out.as_mut_ptr(), reduce_four(lanes.each_ref().map(|lanes| load(lanes.as_ptr())))) };
    }
    plain::reduce_all(rest, &mut sums[4 * fours.len()..]);
}
