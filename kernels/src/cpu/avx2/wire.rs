//! KV packed for links, 32 channels at a time: the bytes and the bits that `wire/plain.rs` defines.
//!
//! What a block holds that is no whole 32 channels wide, or has no partner, goes the plain way.

use super::{Bf16, F16, F32, Stored};
use crate::{
    cpu::Dtype,
    pages::Side,
    wire::{self, Cell, Form, GROUP, Rows},
};
use std::arch::x86_64::*;
use std::ops::Range;

/// Channels worked on at once: a group of values.
const WIDE: usize = GROUP;
/// Registers of eight that they fill.
const FOURS: usize = WIDE / 8;

/// How eight lanes become eight stored numbers.
pub(super) trait StoreNumbers: Stored {
    /// # Safety
    /// `at` points to eight writable numbers, and the processor has AVX2, FMA and F16C.
    unsafe fn store(at: *mut u8, x: __m256);
}

impl StoreNumbers for F32 {
    #[inline(always)]
    unsafe fn store(at: *mut u8, x: __m256) {
        // SAFETY: the caller promises 32 writable bytes; the store needs no alignment.
        unsafe { _mm256_storeu_ps(at.cast(), x) }
    }
}

impl StoreNumbers for F16 {
    #[inline(always)]
    unsafe fn store(at: *mut u8, x: __m256) {
        // SAFETY: the caller promises 16 writable bytes; the store needs no alignment.
        unsafe {
            let most = _mm256_set1_ps(65504.0);
            let x = _mm256_min_ps(_mm256_max_ps(x, _mm256_sub_ps(_mm256_setzero_ps(), most)), most);
            _mm_storeu_si128(at.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
    }
}

impl StoreNumbers for Bf16 {
    #[inline(always)]
    unsafe fn store(at: *mut u8, x: __m256) {
        // SAFETY: the caller promises 16 writable bytes. To the nearest, the even one of two: half of what is cut off,
        // and the last bit that stays, are added. Steps are finite, so that nothing here is none.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
            let words = _mm256_srli_epi32::<16>(up);
            let both = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(at.cast(), both);
        }
    }
}

/// See [`wire::choose`]: plain Rust, compiled for AVX2.
pub(in super::super) fn choose(
    form: Form,
    low: &[f32],
    high: &[f32],
    head: &mut [u8],
    inverse: &mut [f32],
    zero: &mut [f32],
) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fast(form: Form, low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
        wire::choose(form, low, high, head, inverse, zero);
    }
    // SAFETY: `Simd::detect` chose this file only after `is_available`.
    unsafe { fast(form, low, high, head, inverse, zero) }
}

/// Rows that all functions below may read `form.dim` numbers of, in whole groups of 32.
fn fits(form: Form, rows: Rows<'_>) -> bool {
    let row = form.dim * rows.dtype.bytes();
    assert!(rows.rows.len() == form.tokens && rows.rows.iter().all(|r| r.len() == row), "rows of another form");
    form.dim.is_multiple_of(WIDE)
}

/// See [`wire::low_high`].
pub(in super::super) fn low_high(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) {
    assert!(low.len() == form.groups() && high.len() == low.len());
    if !fits(form, rows) {
        return wire::low_high(form, rows, low, high);
    }
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the lines above are what `ranges` asks for.
    let finite = unsafe {
        match rows.dtype {
            Dtype::F32 => ranges::<F32>(form, rows, low, high),
            Dtype::F16 => ranges::<F16>(form, rows, low, high),
            Dtype::Bf16 => ranges::<Bf16>(form, rows, low, high),
        }
    };
    if !finite {
        wire::low_high(form, rows, low, high);
    }
}

/// Ranges of all groups; whether they are finite. A number that is none never replaces one.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; rows hold `form.dim` numbers, whole groups of 32; there is a range for each group.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn ranges<S: Stored>(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        match form.side {
            Side::Keys => key_ranges::<S>(form, rows, low, high),
            Side::Values => value_ranges::<S>(form, rows, low, high),
        }
    }
    are_finite(low, high)
}

/// Whether ranges are.
#[inline(always)]
pub(super) fn are_finite(low: &[f32], high: &[f32]) -> bool {
    // The exponent of what is infinite is all ones.
    let beyond = |x: &f32| u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    low.iter().chain(high).fold(0, |bad, x| bad | beyond(x)) == 0
}

/// # Safety
/// As for [`ranges`].
#[inline(always)]
unsafe fn key_ranges<S: Stored>(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) {
    for c in (0..form.dim).step_by(WIDE) {
        // SAFETY: 32 numbers behind `c` of every row and of the ranges exist.
        unsafe {
            let (mut lows, mut highs) =
                ([_mm256_set1_ps(f32::INFINITY); FOURS], [_mm256_set1_ps(f32::NEG_INFINITY); FOURS]);
            for row in rows.rows {
                for i in 0..FOURS {
                    let x = S::load(row.as_ptr().add((c + 8 * i) * S::BYTES));
                    lows[i] = _mm256_min_ps(x, lows[i]);
                    highs[i] = _mm256_max_ps(x, highs[i]);
                }
            }
            for i in 0..FOURS {
                _mm256_storeu_ps(low.as_mut_ptr().add(c + 8 * i), lows[i]);
                _mm256_storeu_ps(high.as_mut_ptr().add(c + 8 * i), highs[i]);
            }
        }
    }
}

/// # Safety
/// As for [`ranges`].
#[inline(always)]
unsafe fn value_ranges<S: Stored>(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) {
    let each = form.dim / WIDE;
    for (t, row) in rows.rows.iter().enumerate() {
        for g in 0..each {
            // SAFETY: 32 numbers of group `g` of the row exist.
            let (least, most) = unsafe {
                let at = row.as_ptr().add(g * WIDE * S::BYTES);
                let (mut least, mut most) = (_mm256_set1_ps(f32::INFINITY), _mm256_set1_ps(f32::NEG_INFINITY));
                for i in 0..FOURS {
                    let x = S::load(at.add(8 * i * S::BYTES));
                    least = _mm256_min_ps(x, least);
                    most = _mm256_max_ps(x, most);
                }
                // Both as largest numbers, in the two halves of one register.
                let least = _mm256_sub_ps(_mm256_set1_ps(-0.0), least);
                let swapped = _mm256_permute2f128_ps::<0x21>(least, most);
                let both = _mm256_max_ps(swapped, _mm256_blend_ps::<0xf0>(least, most));
                let both = _mm256_max_ps(both, _mm256_permute_ps::<0b01_00_11_10>(both));
                let both = _mm256_max_ps(both, _mm256_permute_ps::<0b10_11_00_01>(both));
                (-_mm256_cvtss_f32(both), _mm_cvtss_f32(_mm256_extractf128_ps::<1>(both)))
            };
            low[t * each + g] = least;
            high[t * each + g] = most;
        }
    }
}

/// See [`wire::encode`].
pub(in super::super) fn encode(form: Form, rows: Rows<'_>, inverse: &[f32], zero: &[f32], codes: &mut [u8]) {
    let groups = form.groups();
    assert!(inverse.len() == groups && zero.len() == groups && codes.len() == form.cell_bytes());
    if !fits(form, rows) {
        return wire::encode(form, rows, inverse, zero, codes);
    }
    // SAFETY: as in `low_high`.
    unsafe {
        match rows.dtype {
            Dtype::F32 => all_codes::<F32>(form, rows, inverse, zero, codes),
            Dtype::F16 => all_codes::<F16>(form, rows, inverse, zero, codes),
            Dtype::Bf16 => all_codes::<Bf16>(form, rows, inverse, zero, codes),
        }
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C; rows hold `form.dim` numbers, whole groups of 32; there is an inverse and a zero
/// for each group, and room for all codes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all_codes<S: Stored>(form: Form, rows: Rows<'_>, inverse: &[f32], zero: &[f32], codes: &mut [u8]) {
    let dim = form.dim;
    // SAFETY: rows `t` (and `t + 1`) and 32 channels behind `c` exist, and bytes for their codes.
    unsafe {
        match (form.cell(), form.side) {
            (Cell::Half, Side::Keys) => {
                for c in (0..dim).step_by(WIDE) {
                    let scale = ChannelScale::by_channel(inverse, zero, c);
                    for t in (0..form.tokens & !1).step_by(2) {
                        let out = codes.as_mut_ptr().add(t / 2 * dim + c);
                        four::<S>([rows.rows[t], rows.rows[t + 1]], c, [scale, scale], out);
                    }
                }
            }
            (Cell::Half, Side::Values) => {
                let each = dim / WIDE;
                for t in (0..form.tokens & !1).step_by(2) {
                    for g in 0..each {
                        // Written out: vector code in closures is called, not inlined.
                        let (at, next) = (t * each + g, (t + 1) * each + g);
                        let scales = [
                            ChannelScale::of_group(inverse[at], zero[at]),
                            ChannelScale::of_group(inverse[next], zero[next]),
                        ];
                        let out = codes.as_mut_ptr().add(t / 2 * dim + g * WIDE);
                        four::<S>([rows.rows[t], rows.rows[t + 1]], g * WIDE, scales, out);
                    }
                }
            }
            (Cell::Byte, side) => {
                for (t, row) in rows.rows.iter().enumerate() {
                    for c in (0..dim).step_by(WIDE) {
                        let scale = match side {
                            Side::Keys => ChannelScale::by_channel(inverse, zero, c),
                            Side::Values => {
                                let g = (t * dim + c) / WIDE;
                                ChannelScale::of_group(inverse[g], zero[g])
                            }
                        };
                        let least = _mm256_set1_epi8(-127);
                        let bytes = _mm256_max_epi8(in_bytes(scale.round::<S>(row, c)), least);
                        _mm256_storeu_si256(codes.as_mut_ptr().add(t * dim + c).cast(), in_order(bytes));
                    }
                }
            }
        }
    }
    if form.cell() == Cell::Half && form.tokens % 2 == 1 {
        wire::encode_from(form.tokens - 1, form, rows, inverse, zero, codes);
    }
}

/// What 32 channels of a row are encoded with.
#[derive(Clone, Copy)]
struct ChannelScale {
    inverse: [__m256; FOURS],
    zero: [__m256; FOURS],
}

impl ChannelScale {
    /// # Safety
    /// The processor has AVX2, and there are 32 numbers behind `c`.
    #[inline(always)]
    unsafe fn by_channel(inverse: &[f32], zero: &[f32], c: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                inverse: std::array::from_fn(|i| _mm256_loadu_ps(inverse.as_ptr().add(c + 8 * i))),
                zero: std::array::from_fn(|i| _mm256_loadu_ps(zero.as_ptr().add(c + 8 * i))),
            }
        }
    }

    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn of_group(inverse: f32, zero: f32) -> Self {
        // SAFETY: register arithmetic only.
        unsafe { Self { inverse: [_mm256_set1_ps(inverse); FOURS], zero: [_mm256_set1_ps(zero); FOURS] } }
    }

    /// Rounded codes, not yet within their bounds.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and the row has 32 numbers behind `c`.
    #[inline(always)]
    unsafe fn round<S: Stored>(&self, row: &[u8], c: usize) -> [__m256i; FOURS] {
        // SAFETY: as the caller promises.
        unsafe {
            std::array::from_fn(|i| {
                let x = S::load(row.as_ptr().add((c + 8 * i) * S::BYTES));
                _mm256_cvtps_epi32(_mm256_fmsub_ps(x, self.inverse[i], self.zero[i]))
            })
        }
    }
}

/// Codes of two rows, the first one's in the lower halves of bytes.
///
/// # Safety
/// The processor has AVX2, FMA and F16C, rows have 32 numbers behind `c`, and `out` is 32 writable bytes.
#[inline(always)]
unsafe fn four<S: Stored>(rows: [&[u8]; 2], c: usize, scales: [ChannelScale; 2], out: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let first = in_sixteen(scales[0].round::<S>(rows[0], c));
        let second = in_sixteen(scales[1].round::<S>(rows[1], c));
        // Codes are below 16: nothing moves from one byte into the next.
        let both = _mm256_or_si256(first, _mm256_slli_epi16::<4>(second));
        _mm256_storeu_si256(out.cast(), in_order(both));
    }
}

/// Four registers of whole numbers as bytes of 0 to 15, in the order that packing leaves.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn in_sixteen([a, b, c, d]: [__m256i; FOURS]) -> __m256i {
    // SAFETY: register arithmetic only.
    unsafe {
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        _mm256_min_epu8(bytes, _mm256_set1_epi8(15))
    }
}

/// Four registers of whole numbers as signed bytes, in the order that packing leaves.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn in_bytes([a, b, c, d]: [__m256i; FOURS]) -> __m256i {
    // SAFETY: register arithmetic only.
    unsafe { _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)) }
}

/// Undoes that packing works on halves of registers.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn in_order(bytes: __m256i) -> __m256i {
    // SAFETY: register arithmetic only.
    unsafe { _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)) }
}

/// See [`wire::decode`].
pub(in super::super) fn decode(
    form: Form,
    codes: &[u8],
    first: usize,
    (step, shift): (&[f32], &[f32]),
    dtype: Dtype,
    out: &mut [u8],
) {
    let row = form.dim * dtype.bytes();
    let end = first + out.len() / row;
    assert!(end <= form.tokens && out.len().is_multiple_of(row) && codes.len() == form.cell_bytes());
    assert!(step.len() == form.groups() && shift.len() == step.len());
    if !form.dim.is_multiple_of(WIDE) {
        return wire::decode(form, codes, first, (step, shift), dtype, out);
    }
    let alone = form.cell() == Cell::Half && form.tokens % 2 == 1 && end == form.tokens && first < end;
    let end = end - usize::from(alone);
    let (out, last) = out.split_at_mut((end - first) * row);
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the lines above are what `numbers` asks for.
    unsafe {
        let scales = Scales { side: form.side, each: form.dim / WIDE, step: step.as_ptr(), shift: shift.as_ptr() };
        match dtype {
            Dtype::F32 => numbers::<F32>(form, codes, first..end, scales, out),
            Dtype::F16 => numbers::<F16>(form, codes, first..end, scales, out),
            Dtype::Bf16 => numbers::<Bf16>(form, codes, first..end, scales, out),
        }
    }
    if alone {
        wire::decode(form, codes, end, (step, shift), dtype, last);
    }
}

/// Steps and shifts of a block.
#[derive(Clone, Copy)]
struct Scales {
    side: Side,
    /// Groups of a token's values.
    each: usize,
    step: *const f32,
    shift: *const f32,
}

/// What 32 channels of a row are decoded with.
type Wide = [[__m256; FOURS]; 2];

impl Scales {
    /// Of 32 channels of a row from `c` on.
    ///
    /// # Safety
    /// The processor has AVX2; the block has such a row, and as many channels.
    #[inline(always)]
    unsafe fn of(self, row: usize, c: usize) -> Wide {
        // SAFETY: there is a step and a shift for each channel of keys, or for each group of a row's values.
        unsafe {
            match self.side {
                Side::Keys => {
                    [self.step, self.shift].map(|at| std::array::from_fn(|i| _mm256_loadu_ps(at.add(c + 8 * i))))
                }
                Side::Values => {
                    [self.step, self.shift].map(|at| [_mm256_set1_ps(*at.add(row * self.each + c / WIDE)); FOURS])
                }
            }
        }
    }
}

/// 32 channels at a time, down all rows: a channel's step is read once, and the codes that two rows share.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `codes` and `scales` are the block's, of whole groups of 32 channels; `out` has
/// room for the rows, none of which shares its bytes with itself.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn numbers<S: StoreNumbers>(form: Form, codes: &[u8], rows: Range<usize>, scales: Scales, out: &mut [u8]) {
    let (dim, fifteen) = (form.dim, _mm256_set1_epi8(15));
    for c in (0..dim).step_by(WIDE) {
        let mut row = rows.start;
        // SAFETY: 32 channels behind `c` exist in every row of codes, scales and `out`.
        unsafe {
            let to = out.as_mut_ptr();
            let at = |row: usize| to.add(((row - rows.start) * dim + c) * S::BYTES);
            let mut wide = scales.of(row, c);
            while row < rows.end {
                if scales.side == Side::Values {
                    wide = scales.of(row, c);
                }
                let place = if form.cell() == Cell::Half { row / 2 } else { row };
                let bytes = _mm256_loadu_si256(codes.as_ptr().add(place * dim + c).cast());
                if form.cell() == Cell::Byte {
                    spread::<S>(bytes, wide, at(row));
                } else {
                    let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), fifteen);
                    if row % 2 == 1 {
                        spread::<S>(upper, wide, at(row));
                    } else {
                        spread::<S>(_mm256_and_si256(bytes, fifteen), wide, at(row));
                        if row + 1 < rows.end {
                            row += 1;
                            if scales.side == Side::Values {
                                wide = scales.of(row, c);
                            }
                            spread::<S>(upper, wide, at(row));
                        }
                    }
                }
                row += 1;
            }
        }
    }
}

/// 32 signed bytes as stored numbers. Codes of four bits have no sign to extend.
///
/// # Safety
/// The processor has AVX2, FMA and F16C, and `out` is room for 32 numbers.
#[inline(always)]
unsafe fn spread<S: StoreNumbers>(bytes: __m256i, [step, shift]: Wide, out: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let (first, second) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        let eights = [first, _mm_srli_si128::<8>(first), second, _mm_srli_si128::<8>(second)];
        for i in 0..FOURS {
            let code = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eights[i]));
            S::store(out.add(8 * i * S::BYTES), _mm256_fmadd_ps(code, step[i], shift[i]));
        }
    }
}
