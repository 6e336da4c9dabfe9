//! AVX2 + FMA + F16C: several rows and outputs at a time, each sum in the order `plain` defines.
#![allow(unsafe_code)] // Vector instructions; each block says why it is sound.

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{dots, is_available, silu_mul, softmax, weighted_rows};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use super::plain::{dots, silu_mul, softmax, weighted_rows};

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_available() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::{Dtype, LANES, Matrix, plain};
    use std::arch::x86_64::*;

    pub(in super::super) fn is_available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
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
            // SAFETY: the caller promises 16 readable bytes; the load needs no alignment. A bfloat16 is the upper
            // half of the single-precision number.
            unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))) }
        }
    }

    pub(in super::super) fn dots(x: &[f32], w: Matrix<'_>, out: &mut [f32]) {
        if w.cols == 0 || w.rows == 0 {
            return out.fill(0.0);
        }
        let rows = x.len() / w.cols;
        assert_eq!(out.len(), rows * w.rows);
        // SAFETY: `Simd::detect` chose this file only after `is_available`; `Matrix` holds rows * cols numbers.
        unsafe {
            match w.dtype {
                Dtype::F32 => all::<F32>(x, w, out, rows),
                Dtype::F16 => all::<F16>(x, w, out, rows),
                Dtype::Bf16 => all::<Bf16>(x, w, out, rows),
            }
        }
    }

    /// # Safety
    /// The processor has AVX2, FMA and F16C; `x` holds `rows` rows of `w.cols` numbers, `out` `rows` of `w.rows`.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn all<S: Stored>(x: &[f32], w: Matrix<'_>, out: &mut [f32], rows: usize) {
        let mut r = 0;
        // SAFETY: every tile below stays within the rows and outputs counted here.
        unsafe {
            while r + 4 <= rows {
                outputs::<S, 4, 3>(x, w, out, r);
                r += 4;
            }
            match rows - r {
                3 => outputs::<S, 3, 4>(x, w, out, r),
                2 => outputs::<S, 2, 6>(x, w, out, r),
                1 => outputs::<S, 1, 8>(x, w, out, r),
                _ => {}
            }
        }
    }

    /// # Safety
    /// As for [`all`], and rows `r..r + R` exist.
    #[inline(always)]
    unsafe fn outputs<S: Stored, const R: usize, const C: usize>(x: &[f32], w: Matrix<'_>, out: &mut [f32], r: usize) {
        let mut o = 0;
        // SAFETY: outputs `o..o + C` (then single ones) exist.
        unsafe {
            while o + C <= w.rows {
                tile::<S, R, C>(x, w, out, r, o);
                o += C;
            }
            while o < w.rows {
                tile::<S, R, 1>(x, w, out, r, o);
                o += 1;
            }
        }
    }

    /// `R` rows by `C` outputs, a register of lanes for each.
    ///
    /// # Safety
    /// As for [`all`]; rows `r..r + R` and outputs `o..o + C` exist.
    #[inline(always)]
    unsafe fn tile<S: Stored, const R: usize, const C: usize>(
        x: &[f32],
        w: Matrix<'_>,
        out: &mut [f32],
        r: usize,
        o: usize,
    ) {
        let cols = w.cols;
        let whole = cols - cols % LANES;
        // SAFETY: loads read eight numbers at `k + 8 <= cols` of rows and outputs that exist; the last, partial
        // group is copied into arrays of eight first.
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); C]; R];
            let xs: [*const f32; R] = std::array::from_fn(|i| x.as_ptr().add((r + i) * cols));
            let ws: [*const u8; C] = std::array::from_fn(|i| w.bytes.as_ptr().add((o + i) * cols * S::BYTES));
            let mut k = 0;
            while k < whole {
                let wk: [__m256; C] = std::array::from_fn(|i| S::load(ws[i].add(k * S::BYTES)));
                for i in 0..R {
                    let xk = _mm256_loadu_ps(xs[i].add(k));
                    for j in 0..C {
                        sums[i][j] = _mm256_fmadd_ps(xk, wk[j], sums[i][j]);
                    }
                }
                k += LANES;
            }
            if whole < cols {
                let rest = cols - whole;
                for i in 0..R {
                    let mut xk = [0.0f32; LANES];
                    xk[..rest].copy_from_slice(&x[(r + i) * cols + whole..][..rest]);
                    for (j, kept) in sums[i].iter_mut().enumerate() {
                        let mut wk = [0u8; 4 * LANES];
                        let at = ((o + j) * cols + whole) * S::BYTES;
                        wk[..rest * S::BYTES].copy_from_slice(&w.bytes[at..][..rest * S::BYTES]);
                        let product = (_mm256_loadu_ps(xk.as_ptr()), S::load(wk.as_ptr()));
                        // Lanes past the end keep their sum: adding 0 * 0 could turn -0 into 0.
                        let sum = _mm256_fmadd_ps(product.0, product.1, *kept);
                        *kept = keep_first(sum, *kept, rest);
                    }
                }
            }
            for i in 0..R {
                for j in 0..C {
                    let mut lanes = [0.0; LANES];
                    _mm256_storeu_ps(lanes.as_mut_ptr(), sums[i][j]);
                    out[(r + i) * w.rows + o + j] = plain::reduce(lanes);
                }
            }
        }
    }

    /// The first `n` lanes of `new`, the others of `old`.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn keep_first(new: __m256, old: __m256, n: usize) -> __m256 {
        // SAFETY: register arithmetic only.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane);
            _mm256_blendv_ps(old, new, _mm256_castsi256_ps(mask))
        }
    }

    pub(in super::super) fn weighted_rows(p: &[f32], v: Matrix<'_>, out: &mut [f32]) {
        assert!(p.len() <= v.rows && out.len() == v.cols);
        // SAFETY: as in `dots`.
        unsafe {
            match v.dtype {
                Dtype::F32 => weighted::<F32>(p, v, out),
                Dtype::F16 => weighted::<F16>(p, v, out),
                Dtype::Bf16 => weighted::<Bf16>(p, v, out),
            }
        }
    }

    /// # Safety
    /// The processor has AVX2, FMA and F16C; `v` has at least `p.len()` rows of `out.len()` numbers.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn weighted<S: Stored>(p: &[f32], v: Matrix<'_>, out: &mut [f32]) {
        let cols = v.cols;
        let whole = cols - cols % LANES;
        for d in (0..whole).step_by(LANES) {
            // SAFETY: eight numbers at `d + 8 <= cols` of each of the first `p.len()` rows, and of `out`.
            unsafe {
                let mut sum = _mm256_loadu_ps(out.as_ptr().add(d));
                for (t, p) in p.iter().enumerate() {
                    let v = S::load(v.bytes.as_ptr().add((t * cols + d) * S::BYTES));
                    sum = _mm256_fmadd_ps(_mm256_set1_ps(*p), v, sum);
                }
                _mm256_storeu_ps(out.as_mut_ptr().add(d), sum);
            }
        }
        for (d, out) in out.iter_mut().enumerate().skip(whole) {
            for (t, p) in p.iter().enumerate() {
                *out = p.mul_add(v.dtype.get(v.bytes, t * cols + d), *out);
            }
        }
    }

    pub(in super::super) fn softmax(x: &mut [f32]) {
        #[target_feature(enable = "avx2,fma")]
        unsafe fn fast(x: &mut [f32]) {
            plain::softmax(x);
        }
        // SAFETY: `Simd::detect` chose this file only after `is_available`. The code is plain Rust, compiled for AVX2.
        unsafe { fast(x) }
    }

    pub(in super::super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
        #[target_feature(enable = "avx2,fma")]
        unsafe fn fast(gate: &mut [f32], up: &[f32]) {
            plain::silu_mul(gate, up);
        }
        // SAFETY: as in `softmax`.
        unsafe { fast(gate, up) }
    }
}
