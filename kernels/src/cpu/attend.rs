//! Attention of single rows, whatever the instruction set: scores of short rows, whole in one go, and mixtures of values.

use super::isa::{Bf16, Eight, F16, F32, Isa, Stored, each, some, some_mut};
use super::{Dtype, LANES, Matrix, plain};

/// See [`plain::scores`].
#[inline(always)]
pub(super) fn scores<I: Eight>(isa: I, x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let rows = x.len() / w.cols.max(1);
    if !w.cols.is_multiple_of(LANES) || rows == 0 {
        return plain::scores(x, w, stride, out);
    }
    assert!(x.len() == rows * w.cols && stride >= w.rows && out.len() >= (rows - 1) * stride + w.rows);
    match w.dtype {
        Dtype::F32 => short::<I, F32>(isa, x, w, stride, out),
        Dtype::F16 => short::<I, F16>(isa, x, w, stride, out),
        Dtype::Bf16 => short::<I, Bf16>(isa, x, w, stride, out),
    }
    let fours = w.rows - w.rows % 4;
    if fours < w.rows {
        plain::scores(x, w.slice(fours, w.rows), stride, &mut out[fours..]);
    }
}

/// Whole fours of outputs.
#[inline(always)]
fn short<I: Eight, S: Stored>(isa: I, x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let (rows, mut r) = (x.len() / w.cols, 0);
    while r + 2 <= rows {
        for o in (0..w.rows - w.rows % 4).step_by(4) {
            four_scores::<I, S, 2>(isa, x, w, stride, out, r, o);
        }
        r += 2;
    }
    if r < rows {
        for o in (0..w.rows - w.rows % 4).step_by(4) {
            four_scores::<I, S, 1>(isa, x, w, stride, out, r, o);
        }
    }
}

/// Rows `r..r + R` by outputs `o..o + 4`.
#[inline(always)]
fn four_scores<I: Eight, S: Stored, const R: usize>(
    isa: I,
    x: &[f32],
    w: Matrix<'_>,
    stride: usize,
    out: &mut [f32],
    r: usize,
    o: usize,
) {
    let groups = w.cols / LANES;
    let x = &x.as_chunks::<LANES>().0[r * groups..];
    let xs: [&[[f32; LANES]]; R] = each(|i| &x[i * groups..][..groups]);
    let w = &S::numbers(w.bytes).as_chunks::<LANES>().0[o * groups..];
    let ws: [&[[S::Bytes; LANES]]; 4] = each(|j| &w[j * groups..][..groups]);
    let mut sums = [[isa.splat(0.0); 4]; R];
    for k in 0..groups {
        let wk: [I::Floats; 4] = each(|j| S::load(isa, &ws[j][k]));
        for (sums, x) in sums.iter_mut().zip(xs) {
            let xk = isa.load(&x[k]);
            for (sum, wk) in sums.iter_mut().zip(wk) {
                *sum = isa.mul_add(xk, wk, *sum);
            }
        }
    }
    for (i, sums) in sums.into_iter().enumerate() {
        *some_mut(out, (r + i) * stride + o) = isa.reduce_four(sums);
    }
}

/// See [`plain::weighted_rows`]: mixes channels of whole registers into four rows at a time, `C4` registers of them, or `C3`,
/// `C2` and `C1` into the last rows, as many as the instruction set has registers for; then `H` and one at a time.
#[inline(always)]
pub(super) fn weighted_rows<
    I: Isa<W>,
    const W: usize,
    const C4: usize,
    const C3: usize,
    const C2: usize,
    const C1: usize,
    const H: usize,
>(
    isa: I,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
) {
    let rows = out.len() / v.cols.max(1);
    assert!(stride >= v.rows && rows * v.cols == out.len());
    assert!(rows == 0 || p.len() >= (rows - 1) * stride + v.rows);
    match v.dtype {
        Dtype::F32 => weighted::<I, F32, W, C4, C3, C2, C1, H>(isa, p, stride, v, out),
        Dtype::F16 => weighted::<I, F16, W, C4, C3, C2, C1, H>(isa, p, stride, v, out),
        Dtype::Bf16 => weighted::<I, Bf16, W, C4, C3, C2, C1, H>(isa, p, stride, v, out),
    }
    plain::last_channels(p, stride, v, out);
}

#[inline(always)]
fn weighted<
    I: Isa<W>,
    S: Stored,
    const W: usize,
    const C4: usize,
    const C3: usize,
    const C2: usize,
    const C1: usize,
    const H: usize,
>(
    isa: I,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
) {
    let (rows, mut r) = (out.len() / v.cols.max(1), 0);
    while r + 4 <= rows {
        channels::<I, S, W, 4, C4, H>(isa, p, stride, v, out, r);
        r += 4;
    }
    match rows - r {
        3 => channels::<I, S, W, 3, C3, H>(isa, p, stride, v, out, r),
        2 => channels::<I, S, W, 2, C2, H>(isa, p, stride, v, out, r),
        1 => channels::<I, S, W, 1, C1, H>(isa, p, stride, v, out, r),
        _ => {}
    }
}

/// Rows `r..r + R`.
#[inline(always)]
pub(super) fn channels<I: Isa<W>, S: Stored, const W: usize, const R: usize, const C: usize, const H: usize>(
    isa: I,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
    r: usize,
) {
    let mut d = 0;
    while d + C * W <= v.cols {
        mix::<I, S, W, R, C>(isa, p, stride, v, out, r, d);
        d += C * W;
    }
    while H > 1 && d + H * W <= v.cols {
        mix::<I, S, W, R, H>(isa, p, stride, v, out, r, d);
        d += H * W;
    }
    while d + W <= v.cols {
        mix::<I, S, W, R, 1>(isa, p, stride, v, out, r, d);
        d += W;
    }
}

/// Channels `d..d + W * C` of rows `r..r + R`.
#[inline(always)]
fn mix<I: Isa<W>, S: Stored, const W: usize, const R: usize, const C: usize>(
    isa: I,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
    r: usize,
    d: usize,
) {
    let ps: [&[f32]; R] = each(|i| &p[(r + i) * stride..][..v.rows]);
    let values = S::numbers(v.bytes).chunks_exact(v.cols);
    let mut sums = [[isa.splat(0.0); C]; R];
    for (i, sums) in sums.iter_mut().enumerate() {
        let row = &out[(r + i) * v.cols..][..v.cols];
        for (j, sum) in sums.iter_mut().enumerate() {
            *sum = isa.load(some(row, d + W * j));
        }
    }
    for (t, value) in values.enumerate().take(v.rows) {
        let value: &[[S::Bytes; W]; C] = some(value[d..].as_chunks().0, 0);
        let vt: [I::Floats; C] = each(|j| S::load(isa, &value[j]));
        for (sums, p) in sums.iter_mut().zip(ps) {
            let p = isa.splat(p[t]);
            for (sum, v) in sums.iter_mut().zip(vt) {
                *sum = isa.mul_add(p, v, *sum);
            }
        }
    }
    for (i, sums) in sums.into_iter().enumerate() {
        let row = &mut out[(r + i) * v.cols..][..v.cols];
        for (j, sum) in sums.into_iter().enumerate() {
            isa.store(sum, some_mut(row, d + W * j));
        }
    }
}

/// See [`plain::widen`].
#[inline(always)]
pub(super) fn widen<I: Isa<W>, const W: usize>(isa: I, w: Matrix<'_>, out: &mut [f32]) {
    match w.dtype {
        Dtype::F32 => widen_all::<I, F32, W>(isa, w, out),
        Dtype::F16 => widen_all::<I, F16, W>(isa, w, out),
        Dtype::Bf16 => widen_all::<I, Bf16, W>(isa, w, out),
    }
}

#[inline(always)]
fn widen_all<I: Isa<W>, S: Stored, const W: usize>(isa: I, w: Matrix<'_>, out: &mut [f32]) {
    if !w.cols.is_multiple_of(W) {
        return plain::widen(w, out);
    }
    for (numbers, out) in S::numbers(w.bytes).as_chunks::<W>().0.iter().zip(out.as_chunks_mut::<W>().0) {
        isa.store(S::load(isa, numbers), out);
    }
}
