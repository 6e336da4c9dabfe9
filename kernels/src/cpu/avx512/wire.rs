//! KV packed for links, 32 channels at a time in two registers: the bytes and the bits that `wire/plain.rs` defines.
//!
//! What a block holds that is no whole 32 channels wide, or has no partner, goes the plain way.

use crate::{
    cpu::Dtype,
    pages::Side,
    wire::{self, Cell, Form, GROUP, Rows},
};
use std::arch::x86_64::*;
use std::ops::Range;

/// Channels worked on at once: a group of values.
const WIDE: usize = GROUP;
/// Registers of sixteen that they fill.
const TWO: usize = WIDE / 16;
/// Of one of them.
const LANES: usize = 16;

/// How sixteen stored numbers become lanes, and lanes stored numbers.
trait Stored {
    const BYTES: usize;
    /// # Safety
    /// `at` points to sixteen readable numbers, and the processor has AVX-512 (F, BW, VL).
    unsafe fn load(at: *const u8) -> __m512;
    /// Lanes as they are stored, in the lower half if of two bytes each.
    ///
    /// # Safety
    /// The processor has AVX-512 (F, BW, VL).
    unsafe fn bits(x: __m512) -> __m512i;
    /// # Safety
    /// `at` points to sixteen writable numbers, and the processor has AVX-512 (F, BW, VL).
    #[inline(always)]
    unsafe fn store(at: *mut u8, x: __m512) {
        // SAFETY: the caller promises the room; stores need no alignment.
        unsafe { _mm256_storeu_si256(at.cast(), _mm512_castsi512_si256(Self::bits(x))) }
    }
    /// What the codes 0 to 15 of a group are, as they are stored, in the lower half for two bytes each.
    ///
    /// # Safety
    /// The processor has AVX-512 (F, BW, VL).
    #[inline(always)]
    unsafe fn table(step: __m512, shift: __m512) -> __m512i {
        // SAFETY: register arithmetic only.
        unsafe {
            let codes = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            Self::bits(_mm512_fmadd_ps(codes, step, shift))
        }
    }
    /// 32 codes of four bits as their table has them: of two bytes 32 numbers are one permutation.
    ///
    /// # Safety
    /// `at` points to 32 writable numbers, and the processor has AVX-512 (F, BW, VL).
    #[inline(always)]
    unsafe fn look_up(codes: __m256i, table: __m512i, at: *mut u8) {
        // SAFETY: the caller promises the room.
        unsafe { _mm512_storeu_si512(at.cast(), _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(codes), table)) }
    }
}

struct F32;
struct F16;
struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 64 readable bytes; the load needs no alignment.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }
    #[inline(always)]
    unsafe fn bits(x: __m512) -> __m512i {
        // SAFETY: register arithmetic only.
        unsafe { _mm512_castps_si512(x) }
    }
    #[inline(always)]
    unsafe fn store(at: *mut u8, x: __m512) {
        // SAFETY: the caller promises 64 writable bytes; the store needs no alignment.
        unsafe { _mm512_storeu_ps(at.cast(), x) }
    }
    #[inline(always)]
    unsafe fn look_up(codes: __m256i, table: __m512i, at: *mut u8) {
        // SAFETY: the caller promises the room.
        unsafe {
            let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
            for (i, half) in halves.into_iter().enumerate() {
                let numbers = _mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(half), table);
                _mm512_storeu_si512(at.add(64 * i).cast(), numbers);
            }
        }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
    #[inline(always)]
    unsafe fn bits(x: __m512) -> __m512i {
        // SAFETY: register arithmetic only.
        unsafe {
            let x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-65504.0)), _mm512_set1_ps(65504.0));
            _mm512_castsi256_si512(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
        }
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller promises 32 readable bytes. A bfloat16 is the upper half of the single-precision number.
        unsafe {
            let words = _mm256_loadu_si256(at.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
        }
    }
    #[inline(always)]
    unsafe fn bits(x: __m512) -> __m512i {
        // SAFETY: register arithmetic only. To the nearest, the even one of two: half of what is cut off,
        // and the last bit that stays, are added. Steps are finite, so that nothing here is none.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(up)))
        }
    }
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
/// The processor has AVX-512 (F, BW, DQ, VL); rows hold `form.dim` numbers, whole groups of 32; there is a range for each group.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn ranges<S: Stored>(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        match form.side {
            Side::Keys => key_ranges::<S>(form, rows, low, high),
            Side::Values => value_ranges::<S>(form, rows, low, high),
        }
    }
    // The exponent of what is infinite is all ones.
    let beyond = |x: &f32| u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    low.iter().chain(high.iter()).fold(0, |bad, x| bad | beyond(x)) == 0
}

/// # Safety
/// As for [`ranges`].
#[inline(always)]
unsafe fn key_ranges<S: Stored>(form: Form, rows: Rows<'_>, low: &mut [f32], high: &mut [f32]) {
    for c in (0..form.dim).step_by(WIDE) {
        // SAFETY: 32 numbers behind `c` of every row and of the ranges exist.
        unsafe {
            let (mut lows, mut highs) =
                ([_mm512_set1_ps(f32::INFINITY); TWO], [_mm512_set1_ps(f32::NEG_INFINITY); TWO]);
            for row in rows.rows {
                for i in 0..TWO {
                    let x = S::load(row.as_ptr().add((c + LANES * i) * S::BYTES));
                    lows[i] = _mm512_min_ps(x, lows[i]);
                    highs[i] = _mm512_max_ps(x, highs[i]);
                }
            }
            for i in 0..TWO {
                _mm512_storeu_ps(low.as_mut_ptr().add(c + LANES * i), lows[i]);
                _mm512_storeu_ps(high.as_mut_ptr().add(c + LANES * i), highs[i]);
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
                let (mut least, mut most) = (_mm512_set1_ps(f32::INFINITY), _mm512_set1_ps(f32::NEG_INFINITY));
                for i in 0..TWO {
                    let x = S::load(at.add(LANES * i * S::BYTES));
                    least = _mm512_min_ps(x, least);
                    most = _mm512_max_ps(x, most);
                }
                // Both as largest numbers, in the two halves of one register.
                let least = _mm512_sub_ps(_mm512_set1_ps(-0.0), least);
                let firsts = _mm512_shuffle_f32x4::<0b01_00_01_00>(least, most);
                let seconds = _mm512_shuffle_f32x4::<0b11_10_11_10>(least, most);
                let both = _mm512_max_ps(firsts, seconds);
                let both = _mm512_max_ps(both, _mm512_shuffle_f32x4::<0b10_11_00_01>(both, both));
                let both = _mm512_max_ps(both, _mm512_permute_ps::<0b01_00_11_10>(both));
                let both = _mm512_max_ps(both, _mm512_permute_ps::<0b10_11_00_01>(both));
                (-_mm512_cvtss_f32(both), _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(both)))
            };
            low[t * each + g] = least;
            high[t * each + g] = most;
        }
    }
}

/// See [`wire::choose`]: plain Rust, compiled for AVX-512.
pub(in super::super) fn choose(
    form: Form,
    low: &[f32],
    high: &[f32],
    head: &mut [u8],
    inverse: &mut [f32],
    zero: &mut [f32],
) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn fast(form: Form, low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
        wire::choose(form, low, high, head, inverse, zero);
    }
    // SAFETY: `Simd::detect` chose this file only after `is_available`.
    unsafe { fast(form, low, high, head, inverse, zero) }
}

/// See [`wire::encode`].
pub(in super::super) fn encode(form: Form, rows: Rows<'_>, inverse: &[f32], zero: &[f32], codes: &mut [u8]) {
    let groups = form.groups();
    assert!(inverse.len() == groups && zero.len() == groups && codes.len() == form.cell_bytes());
    if !fits(form, rows) || form.tokens == 0 {
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
    if form.cell() == Cell::Half && form.tokens % 2 == 1 {
        wire::encode_from(form.tokens - 1, form, rows, inverse, zero, codes);
    }
}

/// All codes but those of a last row without a partner.
///
/// # Safety
/// The processor has AVX-512 (F, BW, VL); rows hold `form.dim` numbers, whole groups of 32; there is an inverse and a zero
/// for each group, and room for all codes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn all_codes<S: Stored>(form: Form, rows: Rows<'_>, inverse: &[f32], zero: &[f32], codes: &mut [u8]) {
    let dim = form.dim;
    let scales = Scales { side: form.side, each: dim / WIDE, first: inverse.as_ptr(), second: zero.as_ptr() };
    for c in (0..dim).step_by(WIDE) {
        // SAFETY: rows `t` (and `t + 1`) and 32 channels behind `c` exist, and bytes for their codes.
        unsafe {
            let mut wide = scales.of(0, c);
            match form.cell() {
                Cell::Half => {
                    for t in (0..form.tokens & !1).step_by(2) {
                        let mut next = wide;
                        if form.side == Side::Values {
                            (wide, next) = (scales.of(t, c), scales.of(t + 1, c));
                        }
                        let out = codes.as_mut_ptr().add(t / 2 * dim + c);
                        four::<S>([rows.rows[t], rows.rows[t + 1]], c, [wide, next], out);
                    }
                }
                Cell::Byte => {
                    for (t, row) in rows.rows.iter().enumerate() {
                        if form.side == Side::Values {
                            wide = scales.of(t, c);
                        }
                        eight::<S>(row, c, wide, codes.as_mut_ptr().add(t * dim + c));
                    }
                }
            }
        }
    }
}

/// What a block is encoded or decoded with: inverses and zeros, or steps and shifts.
#[derive(Clone, Copy)]
struct Scales {
    side: Side,
    /// Groups of a token's values.
    each: usize,
    first: *const f32,
    second: *const f32,
}

/// That of 32 channels of a row.
type Wide = [[__m512; TWO]; 2];

impl Scales {
    /// Of 32 channels of a row from `c` on.
    ///
    /// # Safety
    /// The processor has AVX-512 (F); the block has such a row, and as many channels.
    #[inline(always)]
    unsafe fn of(self, row: usize, c: usize) -> Wide {
        let Self { first, second, .. } = self;
        // SAFETY: there is one of each for each channel of keys, or for each group of a row's values.
        unsafe {
            match self.side {
                Side::Keys => [
                    [_mm512_loadu_ps(first.add(c)), _mm512_loadu_ps(first.add(c + LANES))],
                    [_mm512_loadu_ps(second.add(c)), _mm512_loadu_ps(second.add(c + LANES))],
                ],
                Side::Values => self.of_group(row, c).map(|number| [number; TWO]),
            }
        }
    }

    /// The one of a row's values that is shared by the 32 from `c` on.
    ///
    /// # Safety
    /// As for [`Self::of`], of a block of values.
    #[inline(always)]
    unsafe fn of_group(self, row: usize, c: usize) -> [__m512; 2] {
        // SAFETY: there is one of each for each group of a row's values.
        unsafe { [self.first, self.second].map(|of| _mm512_set1_ps(*of.add(row * self.each + c / WIDE))) }
    }
}

/// A register of rounded codes, not yet within their bounds.
///
/// # Safety
/// The processor has AVX-512 (F, BW, VL), and the row has sixteen numbers behind `c`.
#[inline(always)]
unsafe fn round<S: Stored>(row: &[u8], c: usize, inverse: __m512, zero: __m512) -> __m512i {
    // SAFETY: as the caller promises.
    unsafe { _mm512_cvtps_epi32(_mm512_fmsub_ps(S::load(row.as_ptr().add(c * S::BYTES)), inverse, zero)) }
}

/// Codes of two rows, the first one's in the lower halves of bytes.
///
/// # Safety
/// The processor has AVX-512 (F, BW, VL), rows have 32 numbers behind `c`, and `out` is 32 writable bytes.
#[inline(always)]
unsafe fn four<S: Stored>(rows: [&[u8]; 2], c: usize, scales: [Wide; 2], out: *mut u8) {
    let [[inverse, zero], [next_inverse, next_zero]] = scales;
    // SAFETY: as the caller promises.
    unsafe {
        let (least, most) = (_mm512_setzero_si512(), _mm512_set1_epi32(15));
        for i in 0..TWO {
            let at = c + LANES * i;
            let first = round::<S>(rows[0], at, inverse[i], zero[i]);
            let second = round::<S>(rows[1], at, next_inverse[i], next_zero[i]);
            let first = _mm512_min_epi32(_mm512_max_epi32(first, least), most);
            let second = _mm512_min_epi32(_mm512_max_epi32(second, least), most);
            let both = _mm512_or_si512(first, _mm512_slli_epi32::<4>(second));
            _mm_storeu_si128(out.add(LANES * i).cast(), _mm512_cvtepi32_epi8(both));
        }
    }
}

/// Codes of one row as signed bytes.
///
/// # Safety
/// As for [`four`].
#[inline(always)]
unsafe fn eight<S: Stored>(row: &[u8], c: usize, [inverse, zero]: Wide, out: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        for i in 0..TWO {
            let bytes = _mm512_cvtsepi32_epi8(round::<S>(row, c + LANES * i, inverse[i], zero[i]));
            _mm_storeu_si128(out.add(LANES * i).cast(), _mm_max_epi8(bytes, _mm_set1_epi8(-127)));
        }
    }
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
    if !form.dim.is_multiple_of(WIDE) || first == end {
        return wire::decode(form, codes, first, (step, shift), dtype, out);
    }
    let alone = form.cell() == Cell::Half && form.tokens % 2 == 1 && end == form.tokens;
    let end = end - usize::from(alone);
    let (out, last) = out.split_at_mut((end - first) * row);
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the lines above are what `numbers` asks for.
    unsafe {
        let scales = Scales { side: form.side, each: form.dim / WIDE, first: step.as_ptr(), second: shift.as_ptr() };
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

/// 32 channels at a time, down all rows: a channel's step is read once, and the codes that two rows share.
///
/// # Safety
/// The processor has AVX-512 (F, BW, DQ, VL); `codes` and `scales` are the block's, of whole groups of 32 channels; `out` has
/// room for the rows, none of which shares its bytes with itself.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn numbers<S: Stored>(form: Form, codes: &[u8], rows: Range<usize>, scales: Scales, out: &mut [u8]) {
    let dim = form.dim;
    for c in (0..dim).step_by(WIDE) {
        // SAFETY: 32 channels behind `c` exist in every row of codes, scales and `out`; the first row is one of the block's.
        unsafe {
            let to = out.as_mut_ptr();
            let at = |row: usize| to.add(((row - rows.start) * dim + c) * S::BYTES);
            let read = |place: usize| _mm256_loadu_si256(codes.as_ptr().add(place * dim + c).cast());
            let mut wide = scales.of(rows.start, c);
            for row in rows.clone() {
                match (form.cell(), form.side) {
                    (Cell::Byte, Side::Keys) => spread::<S>(read(row), wide, at(row)),
                    (Cell::Byte, Side::Values) => {
                        wide = scales.of(row, c);
                        spread::<S>(read(row), wide, at(row));
                    }
                    (Cell::Half, Side::Keys) => spread::<S>(half(read(row / 2), row), wide, at(row)),
                    (Cell::Half, Side::Values) => {
                        let [step, shift] = scales.of_group(row, c);
                        S::look_up(half(read(row / 2), row), S::table(step, shift), at(row));
                    }
                }
            }
        }
    }
}

/// The codes of four bits that belong to a row.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn half(bytes: __m256i, row: usize) -> __m256i {
    // SAFETY: register arithmetic only.
    unsafe {
        let own = if row % 2 == 1 { _mm256_srli_epi16::<4>(bytes) } else { bytes };
        _mm256_and_si256(own, _mm256_set1_epi8(15))
    }
}

/// 32 signed bytes as stored numbers. Codes of four bits have no sign to extend.
///
/// # Safety
/// The processor has AVX-512 (F, BW, VL), and `out` is room for 32 numbers.
#[inline(always)]
unsafe fn spread<S: Stored>(bytes: __m256i, [step, shift]: Wide, out: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
        for i in 0..TWO {
            let code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(halves[i]));
            S::store(out.add(LANES * i * S::BYTES), _mm512_fmadd_ps(code, step[i], shift[i]));
        }
    }
}
