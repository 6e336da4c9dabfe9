//! Dense products: tiles of rows by outputs whose lanes, and what is multiplied, fill the registers.

use super::super::{
    Dtype, Lanes,
    dense::{Block, RowElement},
};
use super::{F16, F32, Stored};
use half::bf16;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

/// How rows and stored numbers become lanes.
pub(in super::super) trait Multiplied {
    /// Of a row.
    type Number: RowElement;
    /// What lanes take at once, of a row or an output.
    type Group: Copy;
    /// Of a stored number.
    const BYTES: usize;
    /// # Safety
    /// `at` points to a readable group of numbers, and the processor has AVX2, FMA and F16C.
    unsafe fn row(at: *const Self::Number) -> Self::Group;
    /// # Safety
    /// As for [`Self::row`], of stored numbers.
    unsafe fn weights(at: *const u8) -> Self::Group;
    /// # Safety
    /// As for [`Self::row`].
    unsafe fn multiply_add(x: Self::Group, w: Self::Group, sums: __m256) -> __m256;
}

/// A number for each lane.
struct One<S>(PhantomData<S>);

impl<S: Stored> Multiplied for One<S> {
    type Number = f32;
    type Group = __m256;
    const BYTES: usize = S::BYTES;
    #[inline(always)]
    unsafe fn row(at: *const f32) -> __m256 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm256_loadu_ps(at) }
    }
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { S::load(at) }
    }
    #[inline(always)]
    unsafe fn multiply_add(x: __m256, w: __m256, sums: __m256) -> __m256 {
        // SAFETY: registers only.
        unsafe { _mm256_fmadd_ps(x, w, sums) }
    }
}

/// Two bfloat16 numbers for each lane, the second ones and the first ones. A bfloat16 is the upper half of the
/// single-precision number.
struct Two;

impl Two {
    /// # Safety
    /// `at` points to sixteen readable numbers, and the processor has AVX2.
    #[inline(always)]
    unsafe fn load(at: *const u8) -> [__m256; 2] {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe {
            let both = _mm256_loadu_si256(at.cast());
            let second = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [second, _mm256_slli_epi32::<16>(both)].map(|numbers| _mm256_castsi256_ps(numbers))
        }
    }
}

impl Multiplied for Two {
    type Number = bf16;
    type Group = [__m256; 2];
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn row(at: *const bf16) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { Self::load(at.cast()) }
    }
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { Self::load(at) }
    }
    #[inline(always)]
    unsafe fn multiply_add(x: [__m256; 2], w: [__m256; 2], sums: __m256) -> __m256 {
        // SAFETY: registers only.
        unsafe { _mm256_fmadd_ps(x[1], w[1], _mm256_fmadd_ps(x[0], w[0], sums)) }
    }
}

/// See [`super::plain::lanes`].
pub(in super::super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    block.check(acc);
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the block lies inside its matrices.
    unsafe {
        match block.w.dtype {
            Dtype::F32 => all::<One<F32>>(block, acc),
            Dtype::F16 => all::<One<F16>>(block, acc),
            Dtype::Bf16 => unreachable!("rows were not rounded"),
        }
    }
}

/// See [`super::plain::lanes_of_two`].
pub(in super::super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    block.check(acc);
    assert_eq!(block.w.dtype, Dtype::Bf16);
    // SAFETY: as in `lanes`.
    unsafe { all::<Two>(block, acc) }
}

/// # Safety
/// The processor has AVX2, FMA and F16C, and `block.check(acc)` holds.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all<M: Multiplied>(block: Block<'_, M::Number>, acc: &mut [Lanes]) {
    let mut r = 0;
    // SAFETY: every tile below stays within the rows and outputs counted here.
    unsafe {
        while r + 4 <= block.rows() {
            outputs::<M, 4, 3>(block, acc, r);
            r += 4;
        }
        match block.rows() - r {
            3 => outputs::<M, 3, 4>(block, acc, r),
            2 => outputs::<M, 2, 4>(block, acc, r),
            1 => outputs::<M, 1, 4>(block, acc, r),
            _ => {}
        }
    }
}

/// `R` rows by all outputs, `C` at a time.
///
/// # Safety
/// As for [`all`], and rows `r..r + R` exist; whatever instructions `M` needs, the caller has.
#[inline(always)]
pub(in super::super) unsafe fn outputs<M: Multiplied, const R: usize, const C: usize>(
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

/// `R` rows by `C` outputs, a register of lanes for each. Asks for weights further on meanwhile ([`Prefetch`]).
///
/// # Safety
/// As for [`outputs`]; outputs `o..o + C` exist.
#[inline(always)]
unsafe fn tile<M: Multiplied, const R: usize, const C: usize>(
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
    o: usize,
) {
    let Block { x, w, from, len } = block;
    // SAFETY: loads read a group of numbers at `k + GROUP <= len` behind `from` of rows and outputs that exist.
    unsafe {
        let at = |i: usize, j: usize| (r + i) * w.rows + o + j;
        let xs: [*const M::Number; R] = std::array::from_fn(|i| x.as_ptr().add((r + i) * w.cols + from));
        let ws: [*const u8; C] = std::array::from_fn(|j| w.bytes.as_ptr().add(((o + j) * w.cols + from) * M::BYTES));
        let mut sums: [[__m256; C]; R] =
            std::array::from_fn(|i| std::array::from_fn(|j| _mm256_loadu_ps(acc[at(i, j)].as_ptr())));
        let group = M::Number::GROUP;
        let (line, mut k) = (LINE / M::BYTES, 0);
        for Prefetch { lines, further } in Prefetch::all(len / line, C * w.cols * M::BYTES) {
            while k < lines.end * line {
                for w in ws {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(k * M::BYTES + further).cast());
                }
                for part in 0..line / group {
                    go_on::<M, R, C>(xs, ws, k + part * group, &mut sums);
                }
                k += line;
            }
        }
        while k < len {
            go_on::<M, R, C>(xs, ws, k, &mut sums);
            k += group;
        }
        for i in 0..R {
            for j in 0..C {
                _mm256_storeu_ps(acc[at(i, j)].as_mut_ptr(), sums[i][j]);
            }
        }
    }
}

/// A group of columns from `k` on.
///
/// # Safety
/// All rows and outputs have these columns; whatever instructions `M` needs, the caller has.
#[inline(always)]
unsafe fn go_on<M: Multiplied, const R: usize, const C: usize>(
    xs: [*const M::Number; R],
    ws: [*const u8; C],
    k: usize,
    sums: &mut [[__m256; C]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let wk: [M::Group; C] = std::array::from_fn(|j| M::weights(ws[j].add(k * M::BYTES)));
        for i in 0..R {
            let xk = M::row(xs[i].add(k));
            for j in 0..C {
                sums[i][j] = M::multiply_add(xk, wk[j], sums[i][j]);
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
