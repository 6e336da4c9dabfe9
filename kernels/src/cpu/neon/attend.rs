//! Attention: scores of short rows, whole in one go, and mixtures of values.

use super::super::{Dtype, LANES, Matrix, plain};
use super::eight::{Bf16, Eight, F16, F32, Stored, load, multiply_add, reduce_four, store, zero};
use std::arch::aarch64::{vdupq_n_f32, vst1q_f32};

/// See [`plain::scores`].
pub(in super::super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let rows = x.len() / w.cols.max(1);
    if !w.cols.is_multiple_of(LANES) || rows == 0 {
        return plain::scores(x, w, stride, out);
    }
    assert!(x.len() == rows * w.cols && stride >= w.rows && out.len() >= (rows - 1) * stride + w.rows);
    // SAFETY: the line above is what `short` asks for.
    unsafe {
        match w.dtype {
            Dtype::F32 => short::<F32>(x, w, stride, out),
            Dtype::F16 => short::<F16>(x, w, stride, out),
            Dtype::Bf16 => short::<Bf16>(x, w, stride, out),
        }
    }
}

/// # Safety
/// `x` holds rows of `w.cols` numbers, whole groups of eight, and `out` has `w.rows` numbers at every `stride` for each.
unsafe fn short<S: Stored>(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let fours = w.rows - w.rows % 4;
    let rows = x.len() / w.cols;
    let mut r = 0;
    // SAFETY: rows and outputs stay within those counted here.
    unsafe {
        while r + 2 <= rows {
            (0..fours).step_by(4).for_each(|o| four_scores::<S, 2>(x, w, stride, out, r, o));
            r += 2;
        }
        if r < rows {
            (0..fours).step_by(4).for_each(|o| four_scores::<S, 1>(x, w, stride, out, r, o));
        }
    }
    if fours < w.rows {
        plain::scores(x, w.slice(fours, w.rows), stride, &mut out[fours..]);
    }
}

/// # Safety
/// As for [`short`]; rows `r..r + R` and outputs `o..o + 4` exist.
#[inline(always)]
unsafe fn four_scores<S: Stored, const R: usize>(
    x: &[f32],
    w: Matrix<'_>,
    stride: usize,
    out: &mut [f32],
    r: usize,
    o: usize,
) {
    // SAFETY: loads read eight numbers at `k + 8 <= cols` of rows and outputs that exist; stores by `short`.
    unsafe {
        let xs: [*const f32; R] = std::array::from_fn(|i| x.as_ptr().add((r + i) * w.cols));
        let ws: [*const u8; 4] = std::array::from_fn(|j| w.bytes.as_ptr().add((o + j) * w.cols * S::BYTES));
        let mut sums = [[zero(); 4]; R];
        for k in (0..w.cols).step_by(LANES) {
            let wk = ws.map(|w| S::load(w.add(k * S::BYTES)));
            for (sums, x) in sums.iter_mut().zip(xs) {
                let xk = load(x.add(k));
                for (sum, wk) in sums.iter_mut().zip(wk) {
                    *sum = multiply_add(*sum, xk, wk);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            vst1q_f32(out.as_mut_ptr().add((r + i) * stride + o), reduce_four(sums));
        }
    }
}

/// See [`plain::weighted_rows`].
pub(in super::super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    let rows = out.len() / v.cols.max(1);
    assert!(stride >= v.rows && rows * v.cols == out.len());
    assert!(rows == 0 || p.len() >= (rows - 1) * stride + v.rows);
    // SAFETY: the lines above are what `weighted` asks for.
    unsafe {
        match v.dtype {
            Dtype::F32 => weighted::<F32>(p, stride, v, out),
            Dtype::F16 => weighted::<F16>(p, stride, v, out),
            Dtype::Bf16 => weighted::<Bf16>(p, stride, v, out),
        }
    }
}

/// # Safety
/// `p` has `v.rows` numbers at every `stride` for each row of `out`.
unsafe fn weighted<S: Stored>(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    let rows = out.len() / v.cols;
    let mut r = 0;
    // SAFETY: every tile stays within the rows counted here.
    unsafe {
        while r + 4 <= rows {
            channels::<S, 4, 2>(p, stride, v, out, r);
            r += 4;
        }
        match rows - r {
            3 => channels::<S, 3, 2>(p, stride, v, out, r),
            2 => channels::<S, 2, 4>(p, stride, v, out, r),
            1 => channels::<S, 1, 8>(p, stride, v, out, r),
            _ => {}
        }
    }
    plain::last_channels(p, stride, v, out);
}

/// # Safety
/// As for [`weighted`], and rows `r..r + R` exist.
#[inline(always)]
unsafe fn channels<S: Stored, const R: usize, const C: usize>(
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
    r: usize,
) {
    let mut d = 0;
    // SAFETY: `C` groups of eight channels (then single ones) behind `d` exist.
    unsafe {
        while d + C * LANES <= v.cols {
            mix::<S, R, C>(p, stride, v, out, r, d);
            d += C * LANES;
        }
        while d + LANES <= v.cols {
            mix::<S, R, 1>(p, stride, v, out, r, d);
            d += LANES;
        }
    }
}

/// # Safety
/// As for [`channels`], and channels `d..d + 8 * C` exist.
#[inline(always)]
unsafe fn mix<S: Stored, const R: usize, const C: usize>(
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
    r: usize,
    d: usize,
) {
    let place = |i: usize, j: usize| (r + i) * v.cols + d + LANES * j;
    // SAFETY: eight numbers at `d + 8 * j` of each row of `v`, and of rows `r + i` of `out`; `p` by `weighted`.
    unsafe {
        let mut sums: [[Eight; C]; R] =
            std::array::from_fn(|i| std::array::from_fn(|j| load(out.as_ptr().add(place(i, j)))));
        for t in 0..v.rows {
            let at = v.bytes.as_ptr().add((t * v.cols + d) * S::BYTES);
            let values: [Eight; C] = std::array::from_fn(|j| S::load(at.add(LANES * j * S::BYTES)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let p = [vdupq_n_f32(*p.as_ptr().add((r + i) * stride + t)); 2];
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = multiply_add(*sum, p, value);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                store(out.as_mut_ptr().add(place(i, j)), sum);
            }
        }
    }
}
