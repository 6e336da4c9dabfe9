//! Attention: scores of short rows, whole in one go, and mixtures of values.

use super::{Bf16, EightLanes, F16, F32, StoredNumber, Vector, array_of};
use crate::cpu::{Dtype, LANES, Lanes, Matrix, plain};

/// See [`plain::reduce_all`].
#[inline(always)]
pub(in super::super) fn reduce_all<V: EightLanes>(by: V, acc: &[Lanes], sums: &mut [f32]) {
    assert!(sums.len() >= acc.len());
    let (fours, rest) = acc.as_chunks::<4>();
    for ([a, b, c, d], sums) in fours.iter().zip(sums.as_chunks_mut::<4>().0) {
        by.add_up([by.lanes(a), by.lanes(b), by.lanes(c), by.lanes(d)], sums);
    }
    plain::reduce_all(rest, &mut sums[4 * fours.len()..]);
}

/// See [`plain::widen`].
#[inline(always)]
pub(in super::super) fn widen<V: EightLanes>(by: V, w: Matrix<'_>, out: &mut [f32]) {
    if !w.cols.is_multiple_of(LANES) {
        return plain::widen(w, out);
    }
    match w.dtype {
        Dtype::F32 => widen_all::<V, F32>(by, w.bytes, out),
        Dtype::F16 => widen_all::<V, F16>(by, w.bytes, out),
        Dtype::Bf16 => widen_all::<V, Bf16>(by, w.bytes, out),
    }
}

#[inline(always)]
fn widen_all<V: EightLanes, S: StoredNumber>(by: V, bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.chunks_exact(LANES * S::BYTES).zip(out.as_chunks_mut::<LANES>().0) {
        // SAFETY: eight numbers.
        by.put_lanes(out, unsafe { S::load(by, bytes.as_ptr()) });
    }
}

/// See [`plain::scores`].
#[inline(always)]
pub(in super::super) fn scores<V: EightLanes>(by: V, x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    if !w.cols.is_multiple_of(LANES) || x.len() < w.cols.max(1) {
        return plain::scores(x, w, stride, out);
    }
    match w.dtype {
        Dtype::F32 => short::<V, F32>(by, x, w, stride, out),
        Dtype::F16 => short::<V, F16>(by, x, w, stride, out),
        Dtype::Bf16 => short::<V, Bf16>(by, x, w, stride, out),
    }
}

/// Of one row at least, of whole groups of eight numbers.
#[inline(always)]
fn short<V: EightLanes, S: StoredNumber>(by: V, x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    const { assert!(V::COUNT == LANES) }
    let rows = x.len() / w.cols;
    assert!(rows > 0 && w.cols.is_multiple_of(LANES) && S::BYTES == w.dtype.bytes());
    assert!(x.len() == rows * w.cols && stride >= w.rows && out.len() >= (rows - 1) * stride + w.rows);
    let fours = w.rows - w.rows % 4;
    let mut r = 0;
    // SAFETY: rows and outputs stay within those counted here; the lines above are what `four_scores` asks for.
    unsafe {
        while r + 2 <= rows {
            for o in (0..fours).step_by(4) {
                four_scores::<V, S, 2>(by, x, w, stride, out, r, o);
            }
            r += 2;
        }
        if r < rows {
            for o in (0..fours).step_by(4) {
                four_scores::<V, S, 1>(by, x, w, stride, out, r, o);
            }
        }
    }
    if fours < w.rows {
        plain::scores(x, w.slice(fours, w.rows), stride, &mut out[fours..]);
    }
}

/// # Safety
/// `x` holds rows of `w.cols` numbers, whole groups of eight, and `out` has `w.rows` numbers at every `stride` for each; rows
/// `r..r + R` and outputs `o..o + 4` exist, and are stored as `S` says.
#[inline(always)]
unsafe fn four_scores<V: EightLanes, S: StoredNumber, const R: usize>(
    by: V,
    x: &[f32],
    w: Matrix<'_>,
    stride: usize,
    out: &mut [f32],
    r: usize,
    o: usize,
) {
    // SAFETY: loads read eight numbers at `k + 8 <= cols` of rows and outputs that exist; stores are of four that exist.
    unsafe {
        let xs: [*const f32; R] = array_of!(R; |i| x.as_ptr().add((r + i) * w.cols));
        let ws: [*const u8; 4] = array_of!(4; |j| w.bytes.as_ptr().add((o + j) * w.cols * S::BYTES));
        let mut sums = [[by.all(0.0); 4]; R];
        for k in (0..w.cols).step_by(LANES) {
            let wk: [V::Numbers; 4] = array_of!(4; |j| S::load(by, ws[j].add(k * S::BYTES)));
            for (sums, x) in sums.iter_mut().zip(xs) {
                let xk = by.load(x.add(k));
                for (sum, w) in sums.iter_mut().zip(wk) {
                    *sum = by.multiply_add(xk, w, *sum);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            let to = out.as_mut_ptr().add((r + i) * stride + o).cast::<[f32; 4]>();
            by.add_up(sums, &mut *to);
        }
    }
}

/// See [`plain::weighted_rows`]: of four rows `FOUR` registers of channels at a time, of three rows `THREE`, and so on. Where a
/// register holds more than eight channels, rows are whole registers.
#[inline(always)]
pub(in super::super) fn weighted_rows<
    V: Vector,
    const FOUR: usize,
    const THREE: usize,
    const TWO: usize,
    const ONE: usize,
>(
    by: V,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
) {
    match v.dtype {
        Dtype::F32 => weighted::<V, F32, FOUR, THREE, TWO, ONE>(by, p, stride, v, out),
        Dtype::F16 => weighted::<V, F16, FOUR, THREE, TWO, ONE>(by, p, stride, v, out),
        Dtype::Bf16 => weighted::<V, Bf16, FOUR, THREE, TWO, ONE>(by, p, stride, v, out),
    }
}

#[inline(always)]
fn weighted<V: Vector, S: StoredNumber, const FOUR: usize, const THREE: usize, const TWO: usize, const ONE: usize>(
    by: V,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
) {
    let rows = out.len() / v.cols.max(1);
    assert!(stride >= v.rows && rows * v.cols == out.len() && S::BYTES == v.dtype.bytes());
    assert!(rows == 0 || p.len() >= (rows - 1) * stride + v.rows);
    assert!(V::COUNT == LANES || v.cols.is_multiple_of(V::COUNT));
    let mut r = 0;
    // SAFETY: rows stay within those counted here; the lines above are what `channels` asks for.
    unsafe {
        while r + 4 <= rows {
            channels::<V, S, 4, FOUR>(by, p, stride, v, out, r);
            r += 4;
        }
        match rows - r {
            3 => channels::<V, S, 3, THREE>(by, p, stride, v, out, r),
            2 => channels::<V, S, 2, TWO>(by, p, stride, v, out, r),
            1 => channels::<V, S, 1, ONE>(by, p, stride, v, out, r),
            _ => {}
        }
    }
    plain::last_channels(p, stride, v, out);
}

/// # Safety
/// `p` has `v.rows` numbers at every `stride` for each row of `out`, of which rows `r..r + R` exist, as wide as those of `v`, which
/// are stored as `S` says.
#[inline(always)]
pub(in super::super) unsafe fn channels<V: Vector, S: StoredNumber, const R: usize, const C: usize>(
    by: V,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
    r: usize,
) {
    let mut d = 0;
    // SAFETY: `C` registers of channels (then two, then one) behind `d` exist.
    unsafe {
        while d + C * V::COUNT <= v.cols {
            mix::<V, S, R, C>(by, p, stride, v, out, r, d);
            d += C * V::COUNT;
        }
        while C > 2 && d + 2 * V::COUNT <= v.cols {
            mix::<V, S, R, 2>(by, p, stride, v, out, r, d);
            d += 2 * V::COUNT;
        }
        while d + V::COUNT <= v.cols {
            mix::<V, S, R, 1>(by, p, stride, v, out, r, d);
            d += V::COUNT;
        }
    }
}

/// # Safety
/// As for [`channels`], and `C` registers of channels from `d` on exist.
#[inline(always)]
unsafe fn mix<V: Vector, S: StoredNumber, const R: usize, const C: usize>(
    by: V,
    p: &[f32],
    stride: usize,
    v: Matrix<'_>,
    out: &mut [f32],
    r: usize,
    d: usize,
) {
    let place = |i: usize, j: usize| (r + i) * v.cols + d + V::COUNT * j;
    // SAFETY: a register of numbers from each place on, of rows of `v` and of `out`; a weight for each row of `v`.
    unsafe {
        // No closures: vector code in one might be called, not inlined, and a call of this may be of a page with few tokens.
        let mut sums = [[by.all(0.0); C]; R];
        for (i, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = by.load(out.as_ptr().add(place(i, j)));
            }
        }
        for t in 0..v.rows {
            let at = v.bytes.as_ptr().add((t * v.cols + d) * S::BYTES);
            let values: [V::Numbers; C] = array_of!(C; |j| S::load(by, at.add(V::COUNT * j * S::BYTES)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let p = by.all(*p.as_ptr().add((r + i) * stride + t));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = by.multiply_add(p, value, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                by.store(out.as_mut_ptr().add(place(i, j)), *sum);
            }
        }
    }
}
