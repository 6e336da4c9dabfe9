//! Eight lanes of a dot product as two registers, and how stored numbers become them.

use super::super::{Dtype, LANES, Matrix, plain};
use std::arch::{aarch64::*, asm};

/// Eight lanes.
pub(super) type Eight = [float32x4_t; 2];

/// How eight stored numbers become eight lanes.
pub(super) trait Stored {
    const BYTES: usize;
    /// # Safety
    /// `at` points to eight readable numbers.
    unsafe fn load(at: *const u8) -> Eight;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> Eight {
        // SAFETY: the caller promises 32 readable bytes; the loads need no alignment.
        unsafe { load(at.cast()) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> Eight {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment.
        unsafe {
            let halves = vld1q_u16(at.cast());
            [four_halves(vget_low_u16(halves)), upper_halves(halves)]
        }
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> Eight {
        // SAFETY: the caller promises 16 readable bytes; the load needs no alignment. A bfloat16 is the upper half of
        // the single-precision number.
        unsafe {
            let (upper, zero) = (vld1q_u16(at.cast()), vdupq_n_u16(0));
            [vreinterpretq_f32_u16(vzip1q_u16(zero, upper)), vreinterpretq_f32_u16(vzip2q_u16(zero, upper))]
        }
    }
}

/// Four numbers of half precision, widened. Its intrinsic is newer than the oldest compiler this is for.
#[inline(always)]
pub(super) fn four_halves(halves: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: registers only; every aarch64 processor has the instruction.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// The same of the upper four of eight.
#[inline(always)]
fn upper_halves(halves: uint16x8_t) -> float32x4_t {
    let wide;
    // SAFETY: as in `four_halves`.
    unsafe {
        asm!("fcvtl2 {wide:v}.4s, {halves:v}.8h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// # Safety
/// Eight readable numbers.
#[inline(always)]
pub(super) unsafe fn load(at: *const f32) -> Eight {
    // SAFETY: the caller's promise.
    unsafe { [vld1q_f32(at), vld1q_f32(at.add(4))] }
}

/// # Safety
/// Eight writable numbers.
#[inline(always)]
pub(super) unsafe fn store(at: *mut f32, eight: Eight) {
    // SAFETY: the caller's promise.
    unsafe {
        vst1q_f32(at, eight[0]);
        vst1q_f32(at.add(4), eight[1]);
    }
}

#[inline(always)]
pub(super) fn zero() -> Eight {
    // SAFETY: registers only.
    unsafe { [vdupq_n_f32(0.0); 2] }
}

/// `sum + x · w`, each lane rounded once.
#[inline(always)]
pub(super) fn multiply_add(sum: Eight, x: Eight, w: Eight) -> Eight {
    // SAFETY: registers only.
    unsafe { [vfmaq_f32(sum[0], x[0], w[0]), vfmaq_f32(sum[1], x[1], w[1])] }
}

/// Four sums of lanes, by the tree of [`plain::reduce`].
#[inline(always)]
pub(super) fn reduce_four(lanes: [Eight; 4]) -> float32x4_t {
    // SAFETY: registers only.
    unsafe {
        // `a + e`, `b + f`, `c + g`, `d + h` of each.
        let [p, q, r, s] = lanes.map(|l| vaddq_f32(l[0], l[1]));
        // Of two side by side: what is even in the first two places, what is odd in the last.
        let both = |p, q| vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(p, q), vzip2q_f32(p, q)));
        let (first, last) = (both(p, q), both(r, s));
        let (even, odd) = (vzip1q_f64(first, last), vzip2q_f64(first, last));
        vaddq_f32(vreinterpretq_f32_f64(even), vreinterpretq_f32_f64(odd))
    }
}

/// See [`plain::widen`].
pub(in super::super) fn widen(w: Matrix<'_>, out: &mut [f32]) {
    fn all<S: Stored>(bytes: &[u8], out: &mut [f32]) {
        for (bytes, out) in bytes.chunks_exact(LANES * S::BYTES).zip(out.as_chunks_mut::<LANES>().0) {
            // SAFETY: eight numbers each.
            unsafe { store(out.as_mut_ptr(), S::load(bytes.as_ptr())) };
        }
    }
    if !w.cols.is_multiple_of(LANES) {
        return plain::widen(w, out);
    }
    match w.dtype {
        Dtype::F32 => all::<F32>(w.bytes, out),
        Dtype::F16 => all::<F16>(w.bytes, out),
        Dtype::Bf16 => all::<Bf16>(w.bytes, out),
    }
}
