//! Attention of single rows: a step of each sequence. Two query heads to a register for scores, so that keys are widened
//! once for all heads of a group; sixteen channels for mixtures.

use super::super::{
    Dtype, LANES, Matrix, attend, avx2,
    isa::{Bf16, F16, F32, Isa, avx512::Avx512, each, entries, some, some_mut},
};
use super::{rows::Line, stored::Twice};
use std::arch::x86_64::__m512;

/// Lines that the rows of a group may take: eight heads of 128 channels.
const ROOM: usize = 64;
/// Tokens whose scores are worked out together.
const TOKENS: usize = 4;

entries! { Avx512, "avx512f,avx512bw,avx512dq,avx512vl",
    fn whole_scores(at: At<'_>, whole: usize, out: &mut [f32]) = At::scores;
    fn mix_wide(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) =
        attend::weighted_rows::<Avx512, 16, 4, 4, 4, 4, 2>;
}

/// See [`super::super::plain::scores`].
pub(in super::super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let rows = x.len() / w.cols.max(1);
    let groups = w.cols / LANES;
    if rows < 2 || !w.cols.is_multiple_of(LANES) || rows.div_ceil(2) * groups > ROOM {
        return avx2::scores(x, w, stride, out);
    }
    assert!(x.len() == rows * w.cols && stride >= w.rows && out.len() >= (rows - 1) * stride + w.rows);
    let mut lines = [Line::ZERO; ROOM];
    for (row, x) in x.chunks_exact(w.cols).enumerate() {
        for (group, eight) in x.as_chunks::<LANES>().0.iter().enumerate() {
            lines[row / 2 * groups + group].put(row % 2, eight);
        }
    }
    let whole = w.rows - w.rows % TOKENS;
    whole_scores(At { lines: &lines, groups, rows, w, stride }, whole, out);
    if whole < w.rows {
        avx2::scores(x, w.slice(whole, w.rows), stride, &mut out[whole..]);
    }
}

/// Rows of queries in pairs, and the keys they meet.
#[derive(Clone, Copy)]
struct At<'a> {
    /// `[pair][group of eight channels]`.
    lines: &'a [Line; ROOM],
    groups: usize,
    rows: usize,
    w: Matrix<'a>,
    stride: usize,
}

impl At<'_> {
    /// Scores of `whole` keys, a multiple of [`TOKENS`].
    #[inline(always)]
    fn scores(isa: Avx512, at: At<'_>, whole: usize, out: &mut [f32]) {
        match at.w.dtype {
            Dtype::F32 => at.pairs::<F32>(isa, whole, out),
            Dtype::F16 => at.pairs::<F16>(isa, whole, out),
            Dtype::Bf16 => at.pairs::<Bf16>(isa, whole, out),
        }
    }

    #[inline(always)]
    fn pairs<S: Twice>(self, isa: Avx512, whole: usize, out: &mut [f32]) {
        let (pairs, mut p) = (self.rows.div_ceil(2), 0);
        while p + 2 <= pairs {
            for t in (0..whole).step_by(TOKENS) {
                self.tile::<S, 2>(isa, p, t, out);
            }
            p += 2;
        }
        if p < pairs {
            for t in (0..whole).step_by(TOKENS) {
                self.tile::<S, 1>(isa, p, t, out);
            }
        }
    }

    /// Pairs `p..p + P` and keys `t..t + TOKENS`.
    #[inline(always)]
    fn tile<S: Twice, const P: usize>(self, isa: Avx512, p: usize, t: usize, out: &mut [f32]) {
        let groups = self.groups;
        let keys = &S::numbers(self.w.bytes).as_chunks::<LANES>().0[t * groups..];
        let keys: [&[[S::Bytes; LANES]]; TOKENS] = each(|j| &keys[j * groups..][..groups]);
        let lines: [&[Line]; P] = each(|i| &self.lines[(p + i) * groups..][..groups]);
        let mut acc = [[isa.splat(0.0); TOKENS]; P];
        for group in 0..groups {
            let k: [__m512; TOKENS] = each(|j| S::twice(isa, &keys[j][group]));
            for (acc, lines) in acc.iter_mut().zip(lines) {
                let q = lines[group].load(isa);
                for (acc, k) in acc.iter_mut().zip(k) {
                    *acc = isa.mul_add(q, k, *acc);
                }
            }
        }
        for (i, acc) in acc.into_iter().enumerate() {
            let (row, sums) = (2 * (p + i), isa.reduce_two_fours(acc));
            *some_mut(out, row * self.stride + t) = *some::<_, TOKENS>(&sums, 0);
            if row + 1 < self.rows {
                *some_mut(out, (row + 1) * self.stride + t) = *some::<_, TOKENS>(&sums, TOKENS);
            }
        }
    }
}

/// See [`super::super::plain::weighted_rows`].
pub(in super::super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    if v.cols == 0 || !v.cols.is_multiple_of(2 * LANES) {
        return avx2::weighted_rows(p, stride, v, out);
    }
    mix_wide(p, stride, v, out);
}
