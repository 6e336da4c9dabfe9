//! Attention of many rows of a prompt: sixteen keys side by side in a register, so that a dot product's eight lanes are eight
//! chains of registers and are added without moving anything.

use super::super::{
    Dtype, KEYS, LANES, Matrix,
    vector::{F32, array_of, attend::channels},
};
use super::registers::Avx512;
use std::arch::x86_64::*;

/// Tokens whose values pass all rows of a tile at a time.
const VALUES: usize = 64;

/// Lays sixteen keys of `dim` channels, one after the other, side by side: `[channel][key]`.
pub(in super::super) fn beside(keys: &[f32], dim: usize, out: &mut [f32]) {
    assert!(keys.len() == KEYS * dim && out.len() == KEYS * dim);
    // SAFETY: the processor has AVX-512, since only its path comes here; the line above is what is asked for.
    unsafe { fast_beside(keys, dim, out) }
}

#[target_feature(enable = "avx512f")]
unsafe fn fast_beside(keys: &[f32], dim: usize, out: &mut [f32]) {
    // SAFETY: one number of each of sixteen keys, and sixteen numbers for each channel.
    unsafe {
        let step = _mm512_set1_epi32(dim as i32);
        let places = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), step);
        for channel in 0..dim {
            let of_all = _mm512_i32gather_ps::<4>(places, keys.as_ptr().add(channel));
            _mm512_storeu_ps(out.as_mut_ptr().add(channel * KEYS), of_all);
        }
    }
}

/// `out[i * stride + t] = scale · (q[i] · key[t])` for `dim` channels, of keys laid out by [`beside`].
pub(in super::super) fn scores(q: &[&[f32]], dim: usize, keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    let tokens = keys.len() / dim;
    assert!(dim.is_multiple_of(LANES) && tokens.is_multiple_of(KEYS) && keys.len() == tokens * dim && stride >= tokens);
    assert!(q.iter().all(|q| q.len() == dim) && out.len() >= q.len().saturating_sub(1) * stride + tokens);
    // SAFETY: as in `beside`.
    unsafe { fast_scores(q, dim, keys, scale, stride, out) }
}

/// # Safety
/// The processor has AVX-512 (F), and sizes are as [`scores`] checks them.
#[target_feature(enable = "avx512f")]
unsafe fn fast_scores(q: &[&[f32]], dim: usize, keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    let tokens = keys.len() / dim;
    let mut t = 0;
    while t < tokens {
        let two = t + 2 * KEYS <= tokens;
        for (i, q) in q.chunks(3).enumerate() {
            // SAFETY: one group of keys or two behind `t` exist, and so do as many places of each row of `out`.
            unsafe {
                let keys = keys.as_ptr().add(t * dim);
                let to = out.as_mut_ptr().add(3 * i * stride + t);
                match (q, two) {
                    ([a, b, c], true) => tile::<3, 2>([a, b, c].map(|q| q.as_ptr()), dim, keys, scale, stride, to),
                    ([a, b], true) => tile::<2, 2>([a, b].map(|q| q.as_ptr()), dim, keys, scale, stride, to),
                    ([a, ..], true) => tile::<1, 2>([a.as_ptr()], dim, keys, scale, stride, to),
                    ([a, b, c], false) => tile::<3, 1>([a, b, c].map(|q| q.as_ptr()), dim, keys, scale, stride, to),
                    ([a, b], false) => tile::<2, 1>([a, b].map(|q| q.as_ptr()), dim, keys, scale, stride, to),
                    ([a, ..], false) => tile::<1, 1>([a.as_ptr()], dim, keys, scale, stride, to),
                    ([], _) => {}
                }
            }
        }
        t += if two { 2 * KEYS } else { KEYS };
    }
}

/// # Safety
/// As for [`fast_scores`]: `dim` channels of every row and of `C` groups of keys, and room for their scores.
#[inline(always)]
unsafe fn tile<const Q: usize, const C: usize>(
    q: [*const f32; Q],
    dim: usize,
    keys: *const f32,
    scale: f32,
    stride: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let lane = Lane { q, dim, keys };
        // The tree of `plain::reduce`.
        let left = add(add(lane.sums::<C>(0), lane.sums(4)), add(lane.sums(2), lane.sums(6)));
        let sums = add(left, add(add(lane.sums(1), lane.sums(5)), add(lane.sums(3), lane.sums(7))));
        for (i, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(out.add(i * stride + c * KEYS), _mm512_mul_ps(*sum, _mm512_set1_ps(scale)));
            }
        }
    }
}

/// Rows of queries and the keys they meet.
#[derive(Clone, Copy)]
struct Lane<const Q: usize> {
    q: [*const f32; Q],
    dim: usize,
    keys: *const f32,
}

impl<const Q: usize> Lane<Q> {
    /// Lane `j` of every dot product.
    ///
    /// # Safety
    /// As for [`tile`].
    #[inline(always)]
    unsafe fn sums<const C: usize>(self, j: usize) -> [[__m512; C]; Q] {
        // SAFETY: the caller's promise; channels from `j` on, eight apart.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); C]; Q];
            for channel in (j..self.dim).step_by(LANES) {
                let at = self.keys.add(channel * KEYS);
                let keys: [__m512; C] = array_of!(C; |c| _mm512_loadu_ps(at.add(c * self.dim * KEYS)));
                for (sums, q) in sums.iter_mut().zip(self.q) {
                    let q = _mm512_set1_ps(*q.add(channel));
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum = _mm512_fmadd_ps(q, key, *sum);
                    }
                }
            }
            sums
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add<const Q: usize, const C: usize>(a: [[__m512; C]; Q], b: [[__m512; C]; Q]) -> [[__m512; C]; Q] {
    let mut sums = a;
    for (sums, b) in sums.iter_mut().zip(b) {
        for (sum, b) in sums.iter_mut().zip(b) {
            *sum = _mm512_add_ps(*sum, b);
        }
    }
    sums
}

/// `out[i][d] += p[i * stride + t] · values[t][d]` in the order of `t`, for rows of `dim` channels, a multiple of sixteen.
pub(in super::super) fn mix(p: &[f32], stride: usize, values: &[f32], dim: usize, out: &mut [f32]) {
    // SAFETY: as in `beside`.
    unsafe { fast_mix(p, stride, values, dim, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn fast_mix(p: &[f32], stride: usize, values: &[f32], dim: usize, out: &mut [f32]) {
    let (rows, tokens) = (out.len() / dim, values.len() / dim);
    assert!(dim.is_multiple_of(16) && out.len() == rows * dim && values.len() == tokens * dim && stride >= tokens);
    if rows == 0 {
        return;
    }
    assert!(p.len() >= (rows - 1) * stride + tokens);
    let by = Avx512::here();
    for (part, values) in values.chunks(VALUES * dim).enumerate() {
        let (p, mut r) = (&p[part * VALUES..], 0);
        let v = Matrix::new(bytemuck::cast_slice(values), Dtype::F32, values.len() / dim, dim);
        // SAFETY: rows stay within those counted here, and have a weight for each token, by the lines above.
        unsafe {
            while r < rows {
                match rows - r {
                    1 => channels::<_, F32, 1, 4>(by, p, stride, v, out, r),
                    2 => channels::<_, F32, 2, 4>(by, p, stride, v, out, r),
                    3 => channels::<_, F32, 3, 4>(by, p, stride, v, out, r),
                    5 => channels::<_, F32, 5, 4>(by, p, stride, v, out, r),
                    6.. => channels::<_, F32, 6, 4>(by, p, stride, v, out, r),
                    _ => channels::<_, F32, 4, 4>(by, p, stride, v, out, r),
                }
                r += (rows - r).min(6);
            }
        }
    }
}
