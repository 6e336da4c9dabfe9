//! Attention of single rows: a step of each sequence. Two query heads to a register for scores, so that keys are widened
//! once for all heads of a group; sixteen channels for mixtures.

use super::super::{
    Dtype, LANES, Matrix, avx2,
    vector::{Bf16, F16, F32, array_of, attend},
};
use super::{registers::Avx512, rows::Line, stored::Twice};
use std::arch::x86_64::*;

/// Lines that the rows of a group may take: eight heads of 128 channels.
const ROOM: usize = 64;
/// Tokens whose scores are worked out together.
const TOKENS: usize = 4;

/// See [`super::super::plain::scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let rows = x.len() / w.cols.max(1);
    let groups = w.cols / LANES;
    if rows < 2 || !w.cols.is_multiple_of(LANES) || rows.div_ceil(2) * groups > ROOM {
        return avx2::scores(x, w, stride, out);
    }
    assert!(x.len() == rows * w.cols);
    let mut lines = [Line::ZERO; ROOM];
    for (row, x) in x.chunks_exact(w.cols).enumerate() {
        for (group, eight) in x.as_chunks::<LANES>().0.iter().enumerate() {
            lines[row / 2 * groups + group].put(row % 2, eight);
        }
    }
    let whole = w.rows - w.rows % TOKENS;
    let at = QueryPairs { lines: &lines, groups, rows, w, stride };
    match w.dtype {
        Dtype::F32 => at.pairs::<F32>(whole, out),
        Dtype::F16 => at.pairs::<F16>(whole, out),
        Dtype::Bf16 => at.pairs::<Bf16>(whole, out),
    }
    if whole < w.rows {
        avx2::scores(x, w.slice(whole, w.rows), stride, &mut out[whole..]);
    }
}

/// Rows of queries in pairs, and the keys they meet.
#[derive(Clone, Copy)]
struct QueryPairs<'a> {
    /// `[pair][group of eight channels]`.
    lines: &'a [Line; ROOM],
    groups: usize,
    rows: usize,
    w: Matrix<'a>,
    stride: usize,
}

impl QueryPairs<'_> {
    /// Scores of `whole` keys, a multiple of [`TOKENS`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn pairs<S: Twice>(self, whole: usize, out: &mut [f32]) {
        let (pairs, w, mut p) = (self.rows.div_ceil(2), self.w, 0);
        assert!(S::BYTES == w.dtype.bytes() && self.groups * LANES == w.cols && pairs * self.groups <= ROOM);
        assert!(self.stride >= w.rows && whole <= w.rows && whole.is_multiple_of(TOKENS));
        assert!(self.rows > 0 && out.len() >= (self.rows - 1) * self.stride + w.rows);
        // SAFETY: pairs stay within those counted here, keys and outputs within those that the lines above are about.
        unsafe {
            while p + 2 <= pairs {
                (0..whole).step_by(TOKENS).for_each(|t| self.tile::<S, 2>(p, t, out));
                p += 2;
            }
            if p < pairs {
                (0..whole).step_by(TOKENS).for_each(|t| self.tile::<S, 1>(p, t, out));
            }
        }
    }

    /// # Safety
    /// The processor has AVX-512 (F, BW, DQ, VL); pairs `p..p + P` and keys `t..t + TOKENS` exist, stored as `S` says, and `out` has
    /// numbers for these keys at every stride for each row.
    #[inline(always)]
    unsafe fn tile<S: Twice, const P: usize>(self, p: usize, t: usize, out: &mut [f32]) {
        // SAFETY: loads read lines of these pairs and eight numbers of these keys at `8 * group + 8 <= cols`; stores are of
        // four numbers for a row that exists.
        unsafe {
            let keys: [*const u8; TOKENS] =
                array_of!(TOKENS; |j| self.w.bytes.as_ptr().add((t + j) * self.w.cols * S::BYTES));
            let mut acc = [[_mm512_setzero_ps(); TOKENS]; P];
            for group in 0..self.groups {
                let k: [__m512; TOKENS] = array_of!(TOKENS; |j| S::twice(keys[j].add(group * LANES * S::BYTES)));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let q = self.lines.get_unchecked((p + i) * self.groups + group).load();
                    for (acc, k) in acc.iter_mut().zip(k) {
                        *acc = _mm512_fmadd_ps(q, k, *acc);
                    }
                }
            }
            for (i, acc) in acc.into_iter().enumerate() {
                let (row, sums) = (2 * (p + i), reduce(acc));
                _mm_storeu_ps(out.as_mut_ptr().add(row * self.stride + t), _mm512_castps512_ps128(sums));
                if row + 1 < self.rows {
                    let second = _mm512_extractf32x4_ps::<1>(sums);
                    _mm_storeu_ps(out.as_mut_ptr().add((row + 1) * self.stride + t), second);
                }
            }
        }
    }
}

/// Adds up the lanes of four registers in the order of [`super::super::plain::reduce`]: the first rows' four sums, then the
/// second rows', in the lower half.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce(acc: [__m512; TOKENS]) -> __m512 {
    let low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    let [a, b, c, d] = [acc[0], acc[1], acc[2], acc[3]];
    let mut two = [_mm512_setzero_ps(); 2];
    for (two, (one, other)) in two.iter_mut().zip([(a, b), (c, d)]) {
        let (one, other) = (_mm512_castps_pd(one), _mm512_castps_pd(other));
        let halves = _mm512_add_ps(
            _mm512_castpd_ps(_mm512_permutex2var_pd(one, low, other)),
            _mm512_castpd_ps(_mm512_permutex2var_pd(one, high, other)),
        );
        let quarters = _mm512_add_ps(halves, _mm512_permute_ps::<0b01_00_11_10>(halves));
        *two = _mm512_add_ps(quarters, _mm512_permute_ps::<0b10_11_00_01>(quarters));
    }
    let places = _mm512_setr_epi32(0, 4, 16, 20, 8, 12, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_permutex2var_ps(two[0], places, two[1])
}

/// See [`super::super::plain::weighted_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    if v.cols == 0 || !v.cols.is_multiple_of(2 * LANES) {
        return avx2::weighted_rows(p, stride, v, out);
    }
    attend::weighted_rows::<_, 4, 4, 4, 4>(Avx512::here(), p, stride, v, out);
}
