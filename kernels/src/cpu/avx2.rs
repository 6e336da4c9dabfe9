//! AVX2 + FMA + F16C: several rows and outputs at a time, each sum in the order `plain` defines.
//!
//! | file | what it holds |
//! |---|---|
//! | `dense.rs` | dense products |
//! | `packed.rs` | quantised products |
//! | `simple.rs` | norms, gates and turns |
//! | `bytes.rs` | what they are made of: products of bytes, with and without instructions for them (AVX-VNNI) |
//! | `turn.rs` | keys turned back and on for links |
//! | `wire.rs` | KV packed for links |
//!
//! The rest is here.
#![allow(unsafe_code)] // Vector instructions; each block says why it is sound.

mod bytes;
pub(super) mod dense;
mod packed;
mod row_block;
mod simple;
mod turn;
mod wire;

use super::{Dtype, LANES, Lanes, Matrix, packed::Layout, plain, rounded::Filled};
pub(super) use dense::{lanes, lanes_of_two};
use half::bf16;
pub(super) use packed::{wide, wide_by_dots};
pub(super) use simple::{add_rms_norm, gelu_mul, layer_norm, rms_norm, soft_cap, turn_heads};
use std::arch::x86_64::*;
pub(super) use turn::{turn_back, turn_on};
pub(super) use wire::{choose, decode, encode, low_high};

/// Bytes that weights are asked for before they are needed: the processor's own guesses end where a page of 4 KiB does.
pub(super) const AHEAD: usize = 3072;

/// Asks for a part's share of the lines of a block further on, into the second-level cache: the first is asked for by loads
/// early enough, and waits for fewer lines at a time. Those of a whole block of 256 at once would be more than a processor waits
/// for, and what it needs now would wait behind them.
///
/// # Safety
/// SSE.
#[inline(always)]
pub(super) unsafe fn ask_for_part(layout: Layout, block: *const u8, part: usize) {
    let (lines, parts) = (layout.block().div_ceil(64), layout.parts());
    for line in part * lines / parts..(part + 1) * lines / parts {
        // SAFETY: the caller's promise; asking for what is not there does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(block.wrapping_add(2 * AHEAD + 64 * line).cast()) };
    }
}

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Whether there are products of bytes that add up four at a time.
pub(super) fn has_dots() -> bool {
    is_x86_feature_detected!("avxvnni")
}

/// How eight stored numbers become eight lanes.
trait Stored {
    const BYTES: usize;
    /// # Safety
    /// `at` points to eight readable numbers, and the processor has AVX2, FMA and F16C.
    unsafe fn load(at: *const u8) -> __m256;
}

struct F32;
struct F16;
struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment. A bfloat16 is the upper half of
        // the single-precision number.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))) }
    }
}

/// Four sums of lanes, by the tree of [`plain::reduce`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn reduce_four(lanes: [__m256; 4]) -> __m128 {
    // SAFETY: register arithmetic only.
    unsafe {
        let halves = lanes.map(|l| _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps::<1>(l)));
        let (a, b) = (_mm_unpacklo_ps(halves[0], halves[1]), _mm_unpacklo_ps(halves[2], halves[3]));
        let (c, d) = (_mm_unpackhi_ps(halves[0], halves[1]), _mm_unpackhi_ps(halves[2], halves[3]));
        let even = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movelh_ps(c, d));
        let odd = _mm_add_ps(_mm_movehl_ps(b, a), _mm_movehl_ps(d, c));
        _mm_add_ps(even, odd)
    }
}

/// See [`plain::reduce_all`].
pub(super) fn reduce_all(acc: &[Lanes], sums: &mut [f32]) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fast(acc: &[Lanes], sums: &mut [f32]) {
        let (fours, rest) = acc.as_chunks::<4>();
        for (lanes, out) in fours.iter().zip(sums.as_chunks_mut::<4>().0) {
            // SAFETY: every load and store is of whole arrays of eight and four numbers.
            unsafe {
                let lanes = std::array::from_fn(|i| _mm256_loadu_ps(lanes[i].as_ptr()));
                _mm_storeu_ps(out.as_mut_ptr(), reduce_four(lanes));
            }
        }
        plain::reduce_all(rest, &mut sums[4 * fours.len()..]);
    }
    assert!(sums.len() >= acc.len());
    // SAFETY: `Simd::detect` chose this file only after `is_available`.
    unsafe { fast(acc, sums) }
}

/// Asks memory for some bytes that will be read soon.
pub(super) fn ask_for(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: asking reads nothing; every x86-64 processor can.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

/// See [`plain::scores`].
pub(super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    let rows = x.len() / w.cols.max(1);
    if !w.cols.is_multiple_of(LANES) || rows == 0 {
        return plain::scores(x, w, stride, out);
    }
    assert!(x.len() == rows * w.cols && stride >= w.rows && out.len() >= (rows - 1) * stride + w.rows);
    // SAFETY: as in `lanes`; the line above is what `short` asks for.
    unsafe {
        match w.dtype {
            Dtype::F32 => short::<F32>(x, w, stride, out),
            Dtype::F16 => short::<F16>(x, w, stride, out),
            Dtype::Bf16 => short::<Bf16>(x, w, stride, out),
        }
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C; `x` holds rows of `w.cols` numbers, whole groups of eight, and `out` has
/// `w.rows` numbers at every `stride` for each.
#[target_feature(enable = "avx2,fma,f16c")]
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
        let rest = w.slice(fours, w.rows);
        plain::scores(x, rest, stride, &mut out[fours..]);
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
        let mut sums = [[_mm256_setzero_ps(); 4]; R];
        for k in (0..w.cols).step_by(LANES) {
            let wk: [__m256; 4] = std::array::from_fn(|j| S::load(ws[j].add(k * S::BYTES)));
            for (sums, x) in sums.iter_mut().zip(xs) {
                let xk = _mm256_loadu_ps(x.add(k));
                for (sum, w) in sums.iter_mut().zip(wk) {
                    *sum = _mm256_fmadd_ps(xk, w, *sum);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            _mm_storeu_ps(out.as_mut_ptr().add((r + i) * stride + o), reduce_four(sums));
        }
    }
}

/// See [`plain::weighted_rows`].
pub(super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    let rows = out.len() / v.cols.max(1);
    assert!(stride >= v.rows && rows * v.cols == out.len());
    assert!(rows == 0 || p.len() >= (rows - 1) * stride + v.rows);
    // SAFETY: as in `lanes`; the line above is what `weighted` asks for.
    unsafe {
        match v.dtype {
            Dtype::F32 => weighted::<F32>(p, stride, v, out),
            Dtype::F16 => weighted::<F16>(p, stride, v, out),
            Dtype::Bf16 => weighted::<Bf16>(p, stride, v, out),
        }
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C; `p` has `v.rows` numbers at every `stride` for each row of `out`.
#[target_feature(enable = "avx2,fma,f16c")]
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
            3 => channels::<S, 3, 4>(p, stride, v, out, r),
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
    // SAFETY: eight numbers at `d + 8 * j` of each row of `v`, and of rows `r + i` of `out`; `p` by `weighted`.
    unsafe {
        let place = |i: usize, j: usize| (r + i) * v.cols + d + LANES * j;
        let mut sums: [[__m256; C]; R] =
            std::array::from_fn(|i| std::array::from_fn(|j| _mm256_loadu_ps(out.as_ptr().add(place(i, j)))));
        for t in 0..v.rows {
            let at = v.bytes.as_ptr().add((t * v.cols + d) * S::BYTES);
            let values: [__m256; C] = std::array::from_fn(|j| S::load(at.add(LANES * j * S::BYTES)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let p = _mm256_broadcast_ss(&*p.as_ptr().add((r + i) * stride + t));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = _mm256_fmadd_ps(p, value, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(out.as_mut_ptr().add(place(i, j)), *sum);
            }
        }
    }
}

/// See [`plain::widen`].
pub(super) fn widen(w: Matrix<'_>, out: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn fast<S: Stored>(bytes: &[u8], out: &mut [f32]) {
        for (bytes, out) in bytes.chunks_exact(LANES * S::BYTES).zip(out.as_chunks_mut::<LANES>().0) {
            // SAFETY: eight numbers each.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), S::load(bytes.as_ptr())) };
        }
    }
    if !w.cols.is_multiple_of(LANES) {
        return plain::widen(w, out);
    }
    // SAFETY: as in `softmax`.
    unsafe {
        match w.dtype {
            Dtype::F32 => fast::<F32>(w.bytes, out),
            Dtype::F16 => fast::<F16>(w.bytes, out),
            Dtype::Bf16 => fast::<Bf16>(w.bytes, out),
        }
    }
}

/// See [`plain::sum`]. Asks for lines ahead, as products do: the limit is not to be below what they reach.
pub(super) fn sum(numbers: &[u64]) -> u64 {
    #[target_feature(enable = "avx2")]
    unsafe fn fast(numbers: &[u64]) -> u64 {
        let (lines, rest) = numbers.as_chunks::<8>();
        let mut sums = [_mm256_setzero_si256(); 2];
        for line in lines {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD / 8).cast());
            for (sum, half) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                // SAFETY: half a line is four numbers.
                *sum = _mm256_add_epi64(*sum, unsafe { _mm256_loadu_si256(half.as_ptr().cast()) });
            }
        }
        let mut four = [0; 4];
        // SAFETY: four numbers.
        unsafe { _mm256_storeu_si256(four.as_mut_ptr().cast(), _mm256_add_epi64(sums[0], sums[1])) };
        plain::sum(&four).wrapping_add(plain::sum(rest))
    }
    // SAFETY: as in `softmax`.
    unsafe { fast(numbers) }
}

/// See [`plain::multiply_only`].
pub(super) fn multiply_only(count: usize) -> f32 {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fast(count: usize) -> f32 {
        plain::multiply_only(count)
    }
    // SAFETY: as in `softmax`.
    unsafe { fast(count) }
}

/// See [`super::rounded::round`].
pub(super) fn round(layout: Layout, x: &[f32], out: Filled<'_>) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fast(layout: Layout, x: &[f32], out: Filled<'_>) {
        plain::round(layout, x, out);
    }
    // SAFETY: as in `softmax`.
    unsafe { fast(layout, x, out) }
}

/// See [`plain::round_to_bf16`].
pub(super) fn round_to_bf16(x: &[f32], out: &mut [bf16]) {
    #[target_feature(enable = "avx2")]
    unsafe fn fast(x: &[f32], out: &mut [bf16]) {
        plain::round_to_bf16(x, out);
    }
    // SAFETY: as in `softmax`.
    unsafe { fast(x, out) }
}

pub(super) fn softmax(x: &mut [f32]) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fast(x: &mut [f32]) {
        plain::softmax(x);
    }
    // SAFETY: `Simd::detect` chose this file only after `is_available`. The code is plain Rust, compiled for AVX2.
    unsafe { fast(x) }
}

pub(super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fast(gate: &mut [f32], up: &[f32]) {
        plain::silu_mul(gate, up);
    }
    // SAFETY: as in `softmax`.
    unsafe { fast(gate, up) }
}
