//! Dense products of several rows: two rows side by side in a register, so that both have their eight lanes, and the same
//! eight weights for both.

use super::super::{Dtype, LANES, Lanes, avx2, dense::Block};
use std::arch::x86_64::*;

/// How eight stored numbers become eight lanes, twice.
trait Stored {
    const BYTES: usize;
    /// # Safety
    /// `at` points to eight readable numbers, and the processor has AVX-512 (F, BW, DQ).
    unsafe fn load(at: *const u8) -> __m512;
}

struct F32;
struct F16;
struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(at.cast())) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast()))) }
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // A bfloat16 is the upper half of the single-precision number: bytes 0 and 1 to bytes 2 and 3, in each quarter of
        // the register four numbers.
        const NONE: i32 = 0x80;
        const fn number(i: i32) -> i32 {
            NONE | NONE << 8 | (2 * i) << 16 | (2 * i + 1) << 24
        }
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe {
            let (low, high) =
                ([number(0), number(1), number(2), number(3)], [number(4), number(5), number(6), number(7)]);
            #[rustfmt::skip]
            let places = _mm512_setr_epi32(
                low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
                low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
            );
            let four_times = _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast()));
            _mm512_castsi512_ps(_mm512_shuffle_epi8(four_times, places))
        }
    }
}

/// See [`super::super::plain::lanes`].
pub(in super::super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    if block.pairs.is_empty() {
        return avx2::lanes(block, acc);
    }
    block.check(acc);
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the block lies inside its matrices, and there are
    // pairs of its rows.
    unsafe {
        match block.w.dtype {
            Dtype::F32 => all::<F32>(block, acc),
            Dtype::F16 => all::<F16>(block, acc),
            Dtype::Bf16 => all::<Bf16>(block, acc),
        }
    }
}

/// # Safety
/// The processor has AVX-512 (F, BW, DQ, VL), `block.check(acc)` holds, and there are pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn all<S: Stored>(block: Block<'_>, acc: &mut [Lanes]) {
    let pairs = block.rows().div_ceil(2);
    let mut p = 0;
    // SAFETY: every tile below stays within the pairs and outputs counted here.
    unsafe {
        while p + 8 <= pairs {
            outputs::<S, 8, 3>(block, acc, p);
            p += 8;
        }
        if p + 4 <= pairs {
            outputs::<S, 4, 6>(block, acc, p);
            p += 4;
        }
        match pairs - p {
            3 => outputs::<S, 3, 6>(block, acc, p),
            2 => outputs::<S, 2, 6>(block, acc, p),
            1 => outputs::<S, 1, 8>(block, acc, p),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`all`], and pairs `p..p + P` exist.
#[inline(always)]
unsafe fn outputs<S: Stored, const P: usize, const C: usize>(block: Block<'_>, acc: &mut [Lanes], p: usize) {
    let mut o = 0;
    // SAFETY: outputs `o..o + C` (then single ones) exist.
    unsafe {
        while o + C <= block.w.rows {
            tile::<S, P, C>(block, acc, p, o);
            o += C;
        }
        while o < block.w.rows {
            tile::<S, P, 1>(block, acc, p, o);
            o += 1;
        }
    }
}

/// `P` pairs of rows by `C` outputs, a register of lanes for each; asks for weights ahead as AVX2's does.
///
/// # Safety
/// As for [`all`]; pairs `p..p + P` and outputs `o..o + C` exist.
#[inline(always)]
unsafe fn tile<S: Stored, const P: usize, const C: usize>(block: Block<'_>, acc: &mut [Lanes], p: usize, o: usize) {
    let Block { pairs, w, from, len, .. } = block;
    let each = 2 * (w.cols - w.cols % LANES);
    let rows = block.rows();
    // SAFETY: loads read eight numbers of each row of a pair, and of outputs, at `k + 8 <= len` behind `from`; the last
    // pair's second row may have no sums.
    unsafe {
        let at = |row: usize, j: usize| row * w.rows + o + j;
        let xs: [*const f32; P] = std::array::from_fn(|i| pairs.as_ptr().add((p + i) * each + 2 * from));
        let ws: [*const u8; C] = std::array::from_fn(|j| w.bytes.as_ptr().add(((o + j) * w.cols + from) * S::BYTES));
        let mut sums = [[_mm512_setzero_ps(); C]; P];
        for (i, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                let row = 2 * (p + i);
                let first = _mm512_castps256_ps512(_mm256_loadu_ps(acc[at(row, j)].as_ptr()));
                let second = if row + 1 < rows { acc[at(row + 1, j)] } else { [0.0; LANES] };
                *sum = _mm512_insertf32x8::<1>(first, _mm256_loadu_ps(second.as_ptr()));
            }
        }
        let next = C * w.cols * S::BYTES;
        let mut k = 0;
        while k < len {
            let wk: [__m512; C] = std::array::from_fn(|j| {
                let at = ws[j].add(k * S::BYTES);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(next).cast());
                S::load(at)
            });
            for i in 0..P {
                let xk = _mm512_loadu_ps(xs[i].add(2 * k));
                for j in 0..C {
                    sums[i][j] = _mm512_fmadd_ps(xk, wk[j], sums[i][j]);
                }
            }
            k += LANES;
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                let row = 2 * (p + i);
                _mm256_storeu_ps(acc[at(row, j)].as_mut_ptr(), _mm512_castps512_ps256(*sum));
                if row + 1 < rows {
                    _mm256_storeu_ps(acc[at(row + 1, j)].as_mut_ptr(), _mm512_extractf32x8_ps::<1>(*sum));
                }
            }
        }
    }
}
