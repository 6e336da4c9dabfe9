//! Dense products of eight lanes, whatever the instruction set: tiles of rows by outputs whose lanes, and what is multiplied, fill
//! the registers.

use super::super::{
    Dtype, LANES, Lanes,
    bf16::SIXTEEN,
    isa::{Eight, F16, F32, Stored, each},
    plain,
};
use super::{Block, Number};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// How rows and stored numbers become lanes.
pub(in super::super) trait Multiplied<I: Eight>: Copy {
    /// Of a row.
    type Number: Number;
    /// What of a row lanes take at once, in memory.
    type OfRow: Copy;
    /// The same of an output's stored numbers.
    type OfOutput: Copy;
    /// The same in registers, of either.
    type Group: Copy;
    /// A row in groups.
    fn groups(row: &[Self::Number]) -> &[Self::OfRow];
    /// Stored numbers in groups.
    fn stored(bytes: &[u8]) -> &[Self::OfOutput];
    /// A group of a row.
    fn row(self, isa: I, at: &Self::OfRow) -> Self::Group;
    /// A group of stored numbers.
    fn weights(self, isa: I, at: &Self::OfOutput) -> Self::Group;
    /// Goes on with sums.
    fn multiply_add(self, isa: I, x: Self::Group, w: Self::Group, sums: I::Floats) -> I::Floats;
}

/// A number for each lane.
#[derive(Clone, Copy)]
struct One<S>(PhantomData<S>);

impl<I: Eight, S: Stored> Multiplied<I> for One<S> {
    type Number = f32;
    type OfRow = [f32; LANES];
    type OfOutput = [S::Bytes; LANES];
    type Group = I::Floats;
    #[inline(always)]
    fn groups(row: &[f32]) -> &[[f32; LANES]] {
        row.as_chunks().0
    }
    #[inline(always)]
    fn stored(bytes: &[u8]) -> &[[S::Bytes; LANES]] {
        S::numbers(bytes).as_chunks().0
    }
    #[inline(always)]
    fn row(self, isa: I, at: &[f32; LANES]) -> I::Floats {
        isa.load(at)
    }
    #[inline(always)]
    fn weights(self, isa: I, at: &[S::Bytes; LANES]) -> I::Floats {
        S::load(isa, at)
    }
    #[inline(always)]
    fn multiply_add(self, isa: I, x: I::Floats, w: I::Floats, sums: I::Floats) -> I::Floats {
        isa.mul_add(x, w, sums)
    }
}

/// Two bfloat16 numbers for each lane, the second ones and the first ones.
#[derive(Clone, Copy)]
struct Two;

impl<I: Eight> Multiplied<I> for Two {
    type Number = bf16;
    type OfRow = [bf16; SIXTEEN];
    type OfOutput = [[u8; 2]; SIXTEEN];
    type Group = [I::Floats; 2];
    #[inline(always)]
    fn groups(row: &[bf16]) -> &[[bf16; SIXTEEN]] {
        row.as_chunks().0
    }
    #[inline(always)]
    fn stored(bytes: &[u8]) -> &[[[u8; 2]; SIXTEEN]] {
        bytes.as_chunks().0.as_chunks().0
    }
    #[inline(always)]
    fn row(self, isa: I, at: &[bf16; SIXTEEN]) -> [I::Floats; 2] {
        isa.load_apart(bytemuck::cast_ref(at))
    }
    #[inline(always)]
    fn weights(self, isa: I, at: &[[u8; 2]; SIXTEEN]) -> [I::Floats; 2] {
        isa.load_apart(at)
    }
    #[inline(always)]
    fn multiply_add(self, isa: I, x: [I::Floats; 2], w: [I::Floats; 2], sums: I::Floats) -> I::Floats {
        isa.mul_add(x[1], w[1], isa.mul_add(x[0], w[0], sums))
    }
}

/// See [`plain::lanes`]; `C3` outputs to a tile of three rows.
#[inline(always)]
pub(in super::super) fn lanes<I: Eight, const C3: usize>(isa: I, block: Block<'_>, acc: &mut [Lanes]) {
    block.check(acc);
    match block.w.dtype {
        Dtype::F32 => all::<I, _, C3>(isa, One::<F32>(PhantomData), block, acc),
        Dtype::F16 => all::<I, _, C3>(isa, One::<F16>(PhantomData), block, acc),
        Dtype::Bf16 => unreachable!("rows were not rounded"),
    }
}

/// See [`plain::lanes_of_two`]; `C3` as for [`lanes`].
#[inline(always)]
pub(in super::super) fn lanes_of_two<I: Eight, const C3: usize>(isa: I, block: Block<'_, bf16>, acc: &mut [Lanes]) {
    block.check(acc);
    assert_eq!(block.w.dtype, Dtype::Bf16);
    all::<I, _, C3>(isa, Two, block, acc);
}

#[inline(always)]
fn all<I: Eight, M: Multiplied<I>, const C3: usize>(isa: I, by: M, block: Block<'_, M::Number>, acc: &mut [Lanes]) {
    let mut r = 0;
    while r + 4 <= block.rows() {
        outputs::<I, M, 4, 3>(isa, by, block, acc, r);
        r += 4;
    }
    match block.rows() - r {
        3 => outputs::<I, M, 3, C3>(isa, by, block, acc, r),
        2 => outputs::<I, M, 2, 4>(isa, by, block, acc, r),
        1 => outputs::<I, M, 1, 4>(isa, by, block, acc, r),
        _ => {}
    }
}

/// Rows `r..r + R` by all outputs, `C` at a time.
#[inline(always)]
pub(in super::super) fn outputs<I: Eight, M: Multiplied<I>, const R: usize, const C: usize>(
    isa: I,
    by: M,
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
) {
    let mut o = 0;
    while o + C <= block.w.rows {
        tile::<I, M, R, C>(isa, by, block, acc, r, o);
        o += C;
    }
    while o < block.w.rows {
        tile::<I, M, R, 1>(isa, by, block, acc, r, o);
        o += 1;
    }
}

/// Rows `r..r + R` by outputs `o..o + C`, a register of lanes for each. Asks for weights further on meanwhile ([`Ask`]).
#[inline(always)]
fn tile<I: Eight, M: Multiplied<I>, const R: usize, const C: usize>(
    isa: I,
    by: M,
    block: Block<'_, M::Number>,
    acc: &mut [Lanes],
    r: usize,
    o: usize,
) {
    let Block { x, w, from, len } = block;
    let (bytes, groups) = (w.dtype.bytes(), len / M::Number::GROUP);
    let at = |i: usize, j: usize| (r + i) * w.rows + o + j;
    let xs: [&[M::OfRow]; R] = each(|i| &M::groups(&x[(r + i) * w.cols + from..][..len])[..groups]);
    let ws: [&[M::OfOutput]; C] =
        each(|j| &M::stored(&w.bytes[((o + j) * w.cols + from) * bytes..][..len * bytes])[..groups]);
    let mut sums: [[I::Floats; C]; R] = each(|i| each(|j| isa.load(&acc[at(i, j)])));
    let per_line = LINE / size_of::<M::OfOutput>();
    let mut k = 0;
    for Ask { lines, further } in Ask::all(groups / per_line, C * w.cols * bytes) {
        while k < lines.end * per_line {
            for w in ws {
                isa.ask(w.as_ptr().wrapping_add(k).cast::<u8>().wrapping_add(further));
            }
            for part in k..k + per_line {
                go_on(isa, by, xs, ws, part, &mut sums);
            }
            k += per_line;
        }
    }
    while k < groups {
        go_on(isa, by, xs, ws, k, &mut sums);
        k += 1;
    }
    for (i, sums) in sums.into_iter().enumerate() {
        for (j, sum) in sums.into_iter().enumerate() {
            isa.store(sum, &mut acc[at(i, j)]);
        }
    }
}

/// Group `k` of columns.
#[inline(always)]
fn go_on<I: Eight, M: Multiplied<I>, const R: usize, const C: usize>(
    isa: I,
    by: M,
    xs: [&[M::OfRow]; R],
    ws: [&[M::OfOutput]; C],
    k: usize,
    sums: &mut [[I::Floats; C]; R],
) {
    let wk: [M::Group; C] = each(|j| by.weights(isa, &ws[j][k]));
    for (sums, x) in sums.iter_mut().zip(xs) {
        let xk = by.row(isa, &x[k]);
        for (sum, wk) in sums.iter_mut().zip(wk) {
            *sum = by.multiply_add(isa, xk, wk, *sum);
        }
    }
}

/// See [`plain::reduce_all`].
#[inline(always)]
pub(in super::super) fn reduce_all<I: Eight>(isa: I, acc: &[Lanes], sums: &mut [f32]) {
    assert!(sums.len() >= acc.len());
    let (fours, rest) = acc.as_chunks::<4>();
    for ([a, b, c, d], out) in fours.iter().zip(sums.as_chunks_mut::<4>().0) {
        *out = isa.reduce_four([isa.load(a), isa.load(b), isa.load(c), isa.load(d)]);
    }
    plain::reduce_all(rest, &mut sums[4 * fours.len()..]);
}

/// Bytes of a cache line.
pub(in super::super) const LINE: usize = 64;
/// Lines of every output's weights that are asked for before they are needed.
const AHEAD: usize = 32;

/// How much further on some lines of a tile's weights are asked for: in the same outputs, and at their end in the next
/// tile's. The processor's own guesses end where a page of 4 KiB does, which may be every output; and what several outputs
/// need comes from several places, which it guesses worse than one.
pub(in super::super) struct Ask {
    /// Lines of each output.
    pub lines: Range<usize>,
    /// Bytes from one of them to what is asked for with it.
    pub further: usize,
}

impl Ask {
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
                Ask::all(lines, next).into_iter().flat_map(|ask| ask.lines.map(move |at| at * LINE + ask.further));
            let ahead = AHEAD.min(lines);
            let expected = (ahead..lines).map(|at| at * LINE).chain((0..ahead).map(|at| next + at * LINE));
            assert!(asked.eq(expected), "{lines}");
        }
    }
}
