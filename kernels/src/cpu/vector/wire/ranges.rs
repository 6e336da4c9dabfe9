//! Least and largest numbers of groups.
//!
//! Of values in 16 bits they are those of whole numbers: in half precision and in bfloat16 a sign and a magnitude. A group's 32 are two
//! registers then, and a processor has an instruction for the least of eight.

use super::{
    super::{Bf16, F16, F32, StoredNumber},
    Packs, WIDE, are_finite, ask_for_next, fits,
};
use crate::{
    cpu::Dtype,
    pages::Side,
    wire::{self, BlockRows, BlockShape, Groups},
};
use std::arch::x86_64::*;

/// See [`wire::low_high`].
#[inline(always)]
pub(in super::super::super) fn low_high<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    groups: &mut Groups,
) {
    const { assert!(N * V::COUNT == WIDE) }
    let is_whole = match rows.dtype {
        Dtype::F32 => fits::<F32>(form, rows),
        Dtype::F16 => fits::<F16>(form, rows),
        Dtype::Bf16 => fits::<Bf16>(form, rows),
    };
    if !is_whole {
        return wire::low_high(form, rows, groups);
    }
    assert!(groups.low.len() == form.groups() && groups.high.len() == groups.low.len());
    // SAFETY: rows have `dim` numbers of their type, and groups so many ranges.
    unsafe {
        match (form.side, rows.dtype) {
            (Side::Keys, Dtype::F32) => of_channels::<V, F32, N>(by, form, rows, groups),
            (Side::Keys, Dtype::F16) => of_channels::<V, F16, N>(by, form, rows, groups),
            (Side::Keys, Dtype::Bf16) => of_channels::<V, Bf16, N>(by, form, rows, groups),
            (Side::Values, Dtype::F32) => of_tokens::<V, N>(by, form, rows, groups),
            (Side::Values, Dtype::F16) => of_words::<F16>(form, rows, groups),
            (Side::Values, Dtype::Bf16) => of_words::<Bf16>(form, rows, groups),
        }
    }
    if !are_finite(&groups.low, &groups.high) {
        wire::low_high(form, rows, groups);
    }
}

/// Down all rows. A number that is none never replaces one, but one that is infinite may.
///
/// # Safety
/// Rows hold `dim` numbers of `S`, a multiple of 32, and there are as many ranges.
#[inline(always)]
unsafe fn of_channels<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    groups: &mut Groups,
) {
    let (low, high) = (groups.low.as_mut_ptr(), groups.high.as_mut_ptr());
    for c in (0..form.dim).step_by(WIDE) {
        let (mut lows, mut highs) = ([by.all(f32::INFINITY); N], [by.all(f32::NEG_INFINITY); N]);
        for (t, row) in rows.as_slice().iter().enumerate() {
            ask_for_next::<S>(rows, t, c);
            for i in 0..N {
                // SAFETY: the caller's promise.
                let x = unsafe { S::load(by, row.as_ptr().add((c + V::COUNT * i) * S::BYTES)) };
                lows[i] = by.smaller(x, lows[i]);
                highs[i] = by.larger(x, highs[i]);
            }
        }
        for i in 0..N {
            // SAFETY: the caller's promise.
            unsafe {
                by.store(low.add(c + V::COUNT * i), lows[i]);
                by.store(high.add(c + V::COUNT * i), highs[i]);
            }
        }
    }
}

/// Of values in single precision.
///
/// # Safety
/// Rows hold `dim` such numbers, a multiple of 32, and there is a range for each 32 of each row.
#[inline(always)]
unsafe fn of_tokens<V: Packs<N>, const N: usize>(by: V, form: BlockShape, rows: BlockRows<'_>, groups: &mut Groups) {
    let each = form.dim / WIDE;
    for (t, row) in rows.as_slice().iter().enumerate() {
        for g in 0..each {
            let (mut lows, mut highs) = (by.all(0.0), by.all(0.0));
            for i in 0..N {
                // SAFETY: the caller's promise.
                let x = unsafe { by.load(row.as_ptr().add((g * WIDE + V::COUNT * i) * 4).cast()) };
                lows = by.smaller(x, lows);
                highs = by.larger(x, highs);
            }
            (groups.low[t * each + g], groups.high[t * each + g]) = by.range(lows, highs);
        }
    }
}

/// Of values in 16 bits. What is infinite or none has the largest magnitude of all, and is found where it has a say.
///
/// # Safety
/// Rows hold `dim` such numbers, a multiple of 32, and there is a range for each 32 of each row. AVX2 and F16C.
#[inline(always)]
unsafe fn of_words<S: StoredNumber>(form: BlockShape, rows: BlockRows<'_>, groups: &mut Groups) {
    let Groups { low, high, .. } = groups;
    let each = form.dim / WIDE;
    // SAFETY: the caller's promise.
    unsafe {
        let (mut low, mut high) = (low.as_mut_ptr().cast::<i32>(), high.as_mut_ptr().cast::<i32>());
        for (t, row) in rows.as_slice().iter().enumerate() {
            for g in 0..each {
                if t % 2 == 0 {
                    ask_for_next::<S>(rows, t, g * WIDE);
                }
                [*low, *high] = word_range(row.as_ptr().add(g * WIDE * 2));
                (low, high) = (low.add(1), high.add(1));
            }
        }
    }
    let is_half = S::DTYPE == Dtype::F16;
    // SAFETY: as the caller promises.
    unsafe {
        widen_words(is_half, low);
        widen_words(is_half, high);
    }
    // Not `min` and `max`, which would hide what is no number.
    low.iter_mut().for_each(|x| *x = if *x > 0.0 { 0.0 } else { *x });
    high.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
}

/// Of 32 numbers in 16 bits the negative one and the positive one of the largest magnitude, where there are such, in the lower 16 bits.
///
/// # Safety
/// `at` points to 32 readable numbers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn word_range(at: *const u8) -> [i32; 2] {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) };
    // Without their signs the largest ones are negative, with them positive.
    let (low, high) = (_mm256_max_epu16(a, b), _mm256_max_epi16(a, b));
    let low = _mm_max_epu16(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
    let high = _mm_max_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
    // The instruction is for the least without signs.
    let low = _mm_minpos_epu16(_mm_xor_si128(low, _mm_set1_epi16(-1)));
    let high = _mm_minpos_epu16(_mm_xor_si128(high, _mm_set1_epi16(0x7fff)));
    [!_mm_cvtsi128_si32(low), _mm_cvtsi128_si32(high) ^ 0x7fff]
}

/// Numbers of 16 bits in the lower halves of words as numbers.
///
/// # Safety
/// AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_words(is_half: bool, numbers: &mut [f32]) {
    let (eights, rest) = numbers.as_chunks_mut::<8>();
    for eight in eights {
        // SAFETY: eight numbers.
        unsafe {
            let words = _mm256_loadu_si256(eight.as_ptr().cast());
            let wide = if is_half {
                let words = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
                let packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
                _mm256_cvtph_ps(packed)
            } else {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
            };
            _mm256_storeu_ps(eight.as_mut_ptr(), wide);
        }
    }
    for x in rest {
        let word = x.to_bits() as u16;
        *x = if is_half { half::f16::from_bits(word).to_f32() } else { half::bf16::from_bits(word).to_f32() };
    }
}
