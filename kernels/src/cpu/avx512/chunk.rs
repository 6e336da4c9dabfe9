//! Attention of many rows of a prompt: sixteen keys side by side in a register, so that a dot product's eight lanes are eight
//! chains of registers and are added without moving anything.

use super::super::{
    Dtype, KEYS, LANES, Matrix, attend,
    isa::{F32, Isa, avx512::Avx512, each, entries, some_mut},
};
use std::arch::x86_64::*;

/// Tokens whose values pass all rows of a tile at a time.
const VALUES: usize = 64;

/// Lays sixteen keys of `dim` channels, one after the other, side by side: `[channel][key]`.
pub(in super::super) fn beside(keys: &[f32], dim: usize, out: &mut [f32]) {
    #[target_feature(enable = "avx512f")]
    fn fast(keys: &[f32], dim: usize, out: &mut [f32]) {
        let step = _mm512_set1_epi32(dim as i32);
        let places = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), step);
        for (channel, out) in out.as_chunks_mut::<KEYS>().0.iter_mut().enumerate() {
            // SAFETY: one number of each of sixteen keys, `dim` apart, of a channel that they have.
            *out = bytemuck::cast(unsafe { _mm512_i32gather_ps::<4>(places, keys.as_ptr().add(channel)) });
        }
    }
    assert!(keys.len() == KEYS * dim && out.len() == KEYS * dim);
    // SAFETY: the processor has AVX-512, since only its path comes here.
    unsafe { fast(keys, dim, out) }
}

entries! { Avx512, "avx512f,avx512bw,avx512dq,avx512vl",
    fn all_scores(q: &[&[f32]], dim: usize, keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) = scores_of;
    fn mix_all(p: &[f32], stride: usize, values: &[f32], dim: usize, out: &mut [f32]) = mix_of;
}

/// `out[i * stride + t] = scale · (q[i] · key[t])` for `dim` channels, of keys laid out by [`beside`].
pub(in super::super) fn scores(q: &[&[f32]], dim: usize, keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    let tokens = keys.len() / dim;
    assert!(dim.is_multiple_of(LANES) && tokens.is_multiple_of(KEYS) && keys.len() == tokens * dim && stride >= tokens);
    assert!(q.iter().all(|q| q.len() == dim) && out.len() >= q.len().saturating_sub(1) * stride + tokens);
    all_scores(q, dim, keys, scale, stride, out);
}

#[inline(always)]
fn scores_of(isa: Avx512, q: &[&[f32]], dim: usize, keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    let (keys, tokens) = (keys.as_chunks::<KEYS>().0, keys.len() / dim);
    let mut t = 0;
    while t < tokens {
        let two = t + 2 * KEYS <= tokens;
        let keys = &keys[t / KEYS * dim..];
        for (i, q) in q.chunks(3).enumerate() {
            let out = &mut out[3 * i * stride + t..];
            match (q, two) {
                ([a, b, c], true) => tile::<3, 2>(isa, [a, b, c], dim, keys, scale, stride, out),
                ([a, b], true) => tile::<2, 2>(isa, [a, b], dim, keys, scale, stride, out),
                ([a, ..], true) => tile::<1, 2>(isa, [a], dim, keys, scale, stride, out),
                ([a, b, c], false) => tile::<3, 1>(isa, [a, b, c], dim, keys, scale, stride, out),
                ([a, b], false) => tile::<2, 1>(isa, [a, b], dim, keys, scale, stride, out),
                ([a, ..], false) => tile::<1, 1>(isa, [a], dim, keys, scale, stride, out),
                ([], _) => {}
            }
        }
        t += if two { 2 * KEYS } else { KEYS };
    }
}

/// `Q` rows by `C` groups of keys.
#[inline(always)]
fn tile<const Q: usize, const C: usize>(
    isa: Avx512,
    q: [&[f32]; Q],
    dim: usize,
    keys: &[[f32; KEYS]],
    scale: f32,
    stride: usize,
    out: &mut [f32],
) {
    let lane: Lane<'_, Q, C> = Lane { q: q.map(|q| &q[..dim]), keys: each(|c| &keys[c * dim..][..dim]), dim };
    // The tree of `plain::reduce`.
    let left = add(isa, add(isa, lane.sums(isa, 0), lane.sums(isa, 4)), add(isa, lane.sums(isa, 2), lane.sums(isa, 6)));
    let right =
        add(isa, add(isa, lane.sums(isa, 1), lane.sums(isa, 5)), add(isa, lane.sums(isa, 3), lane.sums(isa, 7)));
    let scale = isa.splat(scale);
    for (i, sums) in add(isa, left, right).into_iter().enumerate() {
        for (c, sum) in sums.into_iter().enumerate() {
            isa.store(isa.mul(sum, scale), some_mut(out, i * stride + c * KEYS));
        }
    }
}

/// Rows of queries and the keys they meet, of `dim` channels all.
#[derive(Clone, Copy)]
struct Lane<'a, const Q: usize, const C: usize> {
    q: [&'a [f32]; Q],
    keys: [&'a [[f32; KEYS]]; C],
    dim: usize,
}

impl<const Q: usize, const C: usize> Lane<'_, Q, C> {
    /// Lane `j` of every dot product: channels from `j` on, eight apart.
    #[inline(always)]
    fn sums(self, isa: Avx512, j: usize) -> [[__m512; C]; Q] {
        let mut sums = [[isa.splat(0.0); C]; Q];
        for channel in (j..self.dim).step_by(LANES) {
            let keys: [__m512; C] = each(|c| isa.load(&self.keys[c][channel]));
            for (sums, q) in sums.iter_mut().zip(self.q) {
                let q = isa.splat(q[channel]);
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = isa.mul_add(q, key, *sum);
                }
            }
        }
        sums
    }
}

#[inline(always)]
fn add<const Q: usize, const C: usize>(isa: Avx512, mut a: [[__m512; C]; Q], b: [[__m512; C]; Q]) -> [[__m512; C]; Q] {
    for (a, b) in a.as_flattened_mut().iter_mut().zip(b.as_flattened()) {
        *a = isa.add(*a, *b);
    }
    a
}

/// `out[i][d] += p[i * stride + t] · values[t][d]` in the order of `t`, for rows of `dim` channels, a multiple of sixteen.
pub(in super::super) fn mix(p: &[f32], stride: usize, values: &[f32], dim: usize, out: &mut [f32]) {
    let (rows, tokens) = (out.len() / dim, values.len() / dim);
    assert!(dim.is_multiple_of(16) && out.len() == rows * dim && values.len() == tokens * dim && stride >= tokens);
    assert!(rows == 0 || p.len() >= (rows - 1) * stride + tokens);
    mix_all(p, stride, values, dim, out);
}

#[inline(always)]
fn mix_of(isa: Avx512, p: &[f32], stride: usize, values: &[f32], dim: usize, out: &mut [f32]) {
    let rows = out.len() / dim;
    for (part, values) in values.chunks(VALUES * dim).enumerate() {
        let (v, mut r) = (Matrix::new(bytemuck::cast_slice(values), Dtype::F32, values.len() / dim, dim), 0);
        while r < rows {
            let p = &p[part * VALUES..];
            r += match rows - r {
                1 => mix_rows::<1>(isa, p, stride, v, out, r),
                2 => mix_rows::<2>(isa, p, stride, v, out, r),
                3 => mix_rows::<3>(isa, p, stride, v, out, r),
                5 => mix_rows::<5>(isa, p, stride, v, out, r),
                6.. => mix_rows::<6>(isa, p, stride, v, out, r),
                _ => mix_rows::<4>(isa, p, stride, v, out, r),
            };
        }
    }
}

/// Mixes into `Q` rows from `r` on, and says how many those were.
#[inline(always)]
fn mix_rows<const Q: usize>(isa: Avx512, p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32], r: usize) -> usize {
    attend::channels::<Avx512, F32, 16, Q, 4, 1>(isa, p, stride, v, out, r);
    Q
}
