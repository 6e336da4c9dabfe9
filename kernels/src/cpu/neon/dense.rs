//! Dense products: tiles of rows by outputs whose lanes, and what is multiplied, fill the 32 registers.

use super::super::{Dtype, LANES, Lanes, dense::Block, plain};
use super::eight::{Bf16, Eight, F16, F32, Stored, load, multiply_add, reduce_four, store};
use std::arch::aarch64::vst1q_f32;

/// See [`plain::lanes`].
pub(in super::super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    block.check(acc);
    // SAFETY: the block lies inside its matrices, by the line above.
    unsafe {
        match block.w.dtype {
            Dtype::F32 => all::<F32>(block, acc),
            Dtype::F16 => all::<F16>(block, acc),
            Dtype::Bf16 => all::<Bf16>(block, acc),
        }
    }
}

/// # Safety
/// `block.check(acc)` holds.
unsafe fn all<S: Stored>(block: Block<'_>, acc: &mut [Lanes]) {
    let mut r = 0;
    // SAFETY: every tile below stays within the rows and outputs counted here.
    unsafe {
        while r + 4 <= block.rows() {
            outputs::<S, 4, 3>(block, acc, r);
            r += 4;
        }
        match block.rows() - r {
            3 => outputs::<S, 3, 3>(block, acc, r),
            2 => outputs::<S, 2, 4>(block, acc, r),
            1 => outputs::<S, 1, 4>(block, acc, r),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`all`], and rows `r..r + R` exist.
#[inline(always)]
unsafe fn outputs<S: Stored, const R: usize, const C: usize>(block: Block<'_>, acc: &mut [Lanes], r: usize) {
    let mut o = 0;
    // SAFETY: outputs `o..o + C` (then single ones) exist.
    unsafe {
        while o + C <= block.w.rows {
            tile::<S, R, C>(block, acc, r, o);
            o += C;
        }
        while o < block.w.rows {
            tile::<S, R, 1>(block, acc, r, o);
            o += 1;
        }
    }
}

/// # Safety
/// As for [`all`]; rows `r..r + R` and outputs `o..o + C` exist.
#[inline(always)]
unsafe fn tile<S: Stored, const R: usize, const C: usize>(block: Block<'_>, acc: &mut [Lanes], r: usize, o: usize) {
    let Block { x, w, from, len, .. } = block;
    let at = |i: usize, j: usize| (r + i) * w.rows + o + j;
    // SAFETY: loads read eight numbers at `k + 8 <= len` behind `from` of rows and outputs that exist.
    unsafe {
        let xs: [*const f32; R] = std::array::from_fn(|i| x.as_ptr().add((r + i) * w.cols + from));
        let ws: [*const u8; C] = std::array::from_fn(|j| w.bytes.as_ptr().add(((o + j) * w.cols + from) * S::BYTES));
        let mut sums: [[Eight; C]; R] = std::array::from_fn(|i| std::array::from_fn(|j| load(acc[at(i, j)].as_ptr())));
        for k in (0..len).step_by(LANES) {
            let wk: [Eight; C] = std::array::from_fn(|j| S::load(ws[j].add(k * S::BYTES)));
            for (sums, x) in sums.iter_mut().zip(xs) {
                let xk = load(x.add(k));
                for (sum, wk) in sums.iter_mut().zip(wk) {
                    *sum = multiply_add(*sum, xk, wk);
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
