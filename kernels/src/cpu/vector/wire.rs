//! KV packed for links, 32 channels at a time: the bytes and the bits that `wire/plain.rs` defines.
//!
//! What a block holds that is no whole 32 channels wide, or has no partner, goes the plain way.

use super::{Bf16, F16, F32, StoredNumber, Vector};
use crate::{
    cpu::Dtype,
    pages::Side,
    wire::{self, BlockRows, BlockShape, Cell, GROUP},
};
use std::arch::x86_64::*;

/// Channels worked on at once: a group of values.
pub(in super::super) const WIDE: usize = GROUP;

/// What packing and turning do with a register of numbers.
pub(in super::super) trait Narrow: Vector {
    /// The smaller of two numbers, lane by lane; the second where one is none.
    fn smaller(self, x: Self::Numbers, than: Self::Numbers) -> Self::Numbers;

    /// The larger of two numbers, lane by lane; the second where one is none.
    fn larger(self, x: Self::Numbers, than: Self::Numbers) -> Self::Numbers;

    /// Writes numbers in half precision; what is too large for it becomes its largest number.
    ///
    /// # Safety
    /// `at` points to [`Vector::COUNT`] writable numbers; they need no alignment.
    unsafe fn store_f16(self, at: *mut u8, x: Self::Numbers);

    /// Writes numbers as bfloat16, each the nearest, the even one of two. All are numbers.
    ///
    /// # Safety
    /// As for [`Self::store_f16`].
    unsafe fn store_bf16(self, at: *mut u8, x: Self::Numbers);
}

/// What packing does with 32 channels, which fill `N` registers. Processors that have this have AVX2.
pub(in super::super) trait Packs<const N: usize>: Narrow {
    /// A register of whole numbers.
    type Whole: Copy;
    /// 32 codes of four bits.
    type Sixteen: Copy;

    /// Zeros.
    fn none(self) -> Self::Whole;

    /// The least of all lanes of `least`, and the largest of all of `most`.
    fn range(self, least: Self::Numbers, most: Self::Numbers) -> (f32, f32);

    /// `x · inverse - zero`, rounded.
    fn code(self, x: Self::Numbers, inverse: Self::Numbers, zero: Self::Numbers) -> Self::Whole;

    /// Codes held within 0 to 15.
    fn sixteen(self, codes: [Self::Whole; N]) -> Self::Sixteen;

    /// Codes of two rows, the first one's in the lower halves of bytes.
    fn put_halves(self, first: Self::Sixteen, second: Self::Sixteen, out: &mut [u8; WIDE]);

    /// Codes held within -127 to 127, as signed bytes.
    fn put_bytes(self, codes: [Self::Whole; N], out: &mut [u8; WIDE]);

    /// 32 signed bytes as numbers.
    fn numbers(self, codes: __m256i) -> [Self::Numbers; N];

    /// 32 codes of four bits of one group as stored numbers.
    ///
    /// # Safety
    /// `at` points to 32 writable numbers.
    #[inline(always)]
    unsafe fn put_group<S: StoreNumbers>(self, codes: __m256i, step: f32, shift: f32, at: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { spread::<Self, S, N>(self, codes, &[[self.all(step), self.all(shift)]; N], at) }
    }
}

/// How lanes become stored numbers.
pub(in super::super) trait StoreNumbers: StoredNumber {
    const DTYPE: Dtype;
    /// # Safety
    /// `at` points to [`Vector::COUNT`] writable numbers; they need no alignment.
    unsafe fn store<V: Narrow>(by: V, at: *mut u8, x: V::Numbers);
}

macro_rules! store_numbers {
    ($($dtype:ident by $store:ident;)*) => {$(
        impl StoreNumbers for $dtype {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline(always)]
            unsafe fn store<V: Narrow>(by: V, at: *mut u8, x: V::Numbers) {
                // SAFETY: the caller's promise.
                unsafe { by.$store(at.cast(), x) }
            }
        }
    )*};
}

store_numbers! {
    F32 by store;
    F16 by store_f16;
    Bf16 by store_bf16;
}

/// Whether rows are whole groups of 32 channels; they hold `form.dim` numbers of `S` each.
fn fits<S: StoredNumber>(form: BlockShape, rows: BlockRows<'_>) -> bool {
    let row = form.dim * S::BYTES;
    assert!(rows.rows.len() == form.tokens && rows.rows.iter().all(|r| r.len() == row), "rows of another form");
    form.dim.is_multiple_of(WIDE)
}

/// Whether ranges are finite.
#[inline(always)]
pub(in super::super) fn are_finite(low: &[f32], high: &[f32]) -> bool {
    // The exponent of what is infinite is all ones.
    let beyond = |x: &f32| u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    low.iter().chain(high).fold(0, |bad, x| bad | beyond(x)) == 0
}

/// See [`wire::low_high`].
#[inline(always)]
pub(in super::super) fn low_high<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    low: &mut [f32],
    high: &mut [f32],
) {
    match rows.dtype {
        Dtype::F32 => ranges::<V, F32, N>(by, form, rows, low, high),
        Dtype::F16 => ranges::<V, F16, N>(by, form, rows, low, high),
        Dtype::Bf16 => ranges::<V, Bf16, N>(by, form, rows, low, high),
    }
    if !are_finite(low, high) {
        wire::low_high(form, rows, low, high);
    }
}

/// Ranges of all groups. A number that is none never replaces one, but one that is infinite may.
#[inline(always)]
fn ranges<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    low: &mut [f32],
    high: &mut [f32],
) {
    const { assert!(N * V::COUNT == WIDE) }
    assert!(low.len() == form.groups() && high.len() == low.len());
    if !fits::<S>(form, rows) {
        return wire::low_high(form, rows, low, high);
    }
    let (least, most) = (by.all(f32::INFINITY), by.all(f32::NEG_INFINITY));
    // SAFETY: 32 numbers behind `c` of every row exist, and of keys so many ranges, of values one.
    unsafe {
        match form.side {
            Side::Keys => {
                for c in (0..form.dim).step_by(WIDE) {
                    let (mut lows, mut highs) = ([least; N], [most; N]);
                    for row in rows.rows {
                        for i in 0..N {
                            let x = S::load(by, row.as_ptr().add((c + V::COUNT * i) * S::BYTES));
                            lows[i] = by.smaller(x, lows[i]);
                            highs[i] = by.larger(x, highs[i]);
                        }
                    }
                    for i in 0..N {
                        by.store(low.as_mut_ptr().add(c + V::COUNT * i), lows[i]);
                        by.store(high.as_mut_ptr().add(c + V::COUNT * i), highs[i]);
                    }
                }
            }
            Side::Values => {
                let each = form.dim / WIDE;
                for (t, row) in rows.rows.iter().enumerate() {
                    for g in 0..each {
                        let at = row.as_ptr().add(g * WIDE * S::BYTES);
                        let (mut lows, mut highs) = (least, most);
                        for i in 0..N {
                            let x = S::load(by, at.add(V::COUNT * i * S::BYTES));
                            lows = by.smaller(x, lows);
                            highs = by.larger(x, highs);
                        }
                        (low[t * each + g], high[t * each + g]) = by.range(lows, highs);
                    }
                }
            }
        }
    }
}

/// See [`wire::encode`].
#[inline(always)]
pub(in super::super) fn encode<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    inverse: &[f32],
    zero: &[f32],
    codes: &mut [u8],
) {
    match rows.dtype {
        Dtype::F32 => all_codes::<V, F32, N>(by, form, rows, (inverse, zero), codes),
        Dtype::F16 => all_codes::<V, F16, N>(by, form, rows, (inverse, zero), codes),
        Dtype::Bf16 => all_codes::<V, Bf16, N>(by, form, rows, (inverse, zero), codes),
    }
}

#[inline(always)]
fn all_codes<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    (inverse, zero): (&[f32], &[f32]),
    codes: &mut [u8],
) {
    const { assert!(N * V::COUNT == WIDE) }
    let (dim, groups) = (form.dim, form.groups());
    assert!(inverse.len() == groups && zero.len() == groups && codes.len() == form.cell_bytes());
    if !fits::<S>(form, rows) || form.tokens == 0 {
        return wire::encode(form, rows, inverse, zero, codes);
    }
    let scales = BlockScales::new(form, inverse, zero);
    for c in (0..dim).step_by(WIDE) {
        // SAFETY: rows `t` (and `t + 1`) and 32 channels behind `c` exist, and bytes for their codes.
        unsafe {
            let mut wide = scales.of::<V, N>(by, 0, c);
            match form.cell() {
                Cell::Half => {
                    for t in (0..form.tokens & !1).step_by(2) {
                        let mut next = wide;
                        if form.side == Side::Values {
                            (wide, next) = (scales.of::<V, N>(by, t, c), scales.of::<V, N>(by, t + 1, c));
                        }
                        let out = codes.as_mut_ptr().add(t / 2 * dim + c).cast::<[u8; WIDE]>();
                        let first = by.sixteen(rounded::<V, S, N>(by, rows.rows[t], c, &wide));
                        let second = by.sixteen(rounded::<V, S, N>(by, rows.rows[t + 1], c, &next));
                        by.put_halves(first, second, &mut *out);
                    }
                }
                Cell::Byte => {
                    for (t, row) in rows.rows.iter().enumerate() {
                        if form.side == Side::Values {
                            wide = scales.of::<V, N>(by, t, c);
                        }
                        let out = codes.as_mut_ptr().add(t * dim + c).cast::<[u8; WIDE]>();
                        by.put_bytes(rounded::<V, S, N>(by, row, c, &wide), &mut *out);
                    }
                }
            }
        }
    }
    if form.cell() == Cell::Half && form.tokens % 2 == 1 {
        wire::encode_from(form.tokens - 1, form, rows, inverse, zero, codes);
    }
}

/// Rounded codes of 32 channels, not yet within their bounds. No closure: vector code in one might be called, not inlined.
///
/// # Safety
/// The row has 32 numbers of `S` behind `c`.
#[inline(always)]
unsafe fn rounded<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    row: &[u8],
    c: usize,
    wide: &ChannelPairs<V, N>,
) -> [V::Whole; N] {
    let mut codes = [by.none(); N];
    for (i, (code, [inverse, zero])) in codes.iter_mut().zip(wide).enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe { S::load(by, row.as_ptr().add((c + V::COUNT * i) * S::BYTES)) };
        *code = by.code(x, *inverse, *zero);
    }
    codes
}

/// What a block is encoded or decoded with: inverses and zeros, or steps and shifts. One of each for every channel of keys, or for
/// every group of a token's values.
#[derive(Clone, Copy)]
struct BlockScales<'a> {
    side: Side,
    /// Groups of a token's values.
    each: usize,
    first: &'a [f32],
    second: &'a [f32],
}

/// What 32 channels of a row are encoded or decoded with.
type ChannelPairs<V, const N: usize> = [[<V as Vector>::Numbers; 2]; N];

impl<'a> BlockScales<'a> {
    fn new(form: BlockShape, first: &'a [f32], second: &'a [f32]) -> Self {
        Self { side: form.side, each: form.dim / WIDE, first, second }
    }

    /// Of 32 channels of a row from `c` on.
    ///
    /// # Safety
    /// The block has such a row, and as many channels; there are scales for all.
    #[inline(always)]
    unsafe fn of<V: Packs<N>, const N: usize>(self, by: V, row: usize, c: usize) -> ChannelPairs<V, N> {
        // SAFETY: the caller's promise.
        unsafe {
            if self.side == Side::Values {
                let [first, second] = self.of_group(row, c);
                return [[by.all(first), by.all(second)]; N];
            }
            let mut wide = [[by.all(0.0); 2]; N];
            for (i, pair) in wide.iter_mut().enumerate() {
                let at = c + V::COUNT * i;
                *pair = [by.load(self.first.as_ptr().add(at)), by.load(self.second.as_ptr().add(at))];
            }
            wide
        }
    }

    /// That of a row's values which the 32 from `c` on share.
    ///
    /// # Safety
    /// As for [`Self::of`], of a block of values.
    #[inline(always)]
    unsafe fn of_group(self, row: usize, c: usize) -> [f32; 2] {
        let at = row * self.each + c / WIDE;
        // SAFETY: there is one of each for each group of a row's values.
        unsafe { [*self.first.get_unchecked(at), *self.second.get_unchecked(at)] }
    }
}

/// See [`wire::decode`].
#[inline(always)]
pub(in super::super) fn decode<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    scales: (&[f32], &[f32]),
    dtype: Dtype,
    out: &mut [u8],
) {
    match dtype {
        Dtype::F32 => decode_rows::<V, F32, N>(by, form, codes, first, scales, out),
        Dtype::F16 => decode_rows::<V, F16, N>(by, form, codes, first, scales, out),
        Dtype::Bf16 => decode_rows::<V, Bf16, N>(by, form, codes, first, scales, out),
    }
}

/// 32 channels at a time, down all rows, so that a channel's step is read once.
#[inline(always)]
fn decode_rows<V: Packs<N>, S: StoreNumbers, const N: usize>(
    by: V,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    (step, shift): (&[f32], &[f32]),
    out: &mut [u8],
) {
    const { assert!(N * V::COUNT == WIDE) }
    let (dim, row) = (form.dim, form.dim * S::BYTES);
    let end = first + out.len() / row;
    assert!(end <= form.tokens && out.len().is_multiple_of(row) && codes.len() == form.cell_bytes());
    assert!(step.len() == form.groups() && shift.len() == step.len());
    if !dim.is_multiple_of(WIDE) || first == end {
        return wire::decode(form, codes, first, (step, shift), S::DTYPE, out);
    }
    // Its own bytes hold the codes of such a row, in another order.
    let alone = form.cell() == Cell::Half && form.tokens % 2 == 1 && end == form.tokens;
    let rows = first..end - usize::from(alone);
    let (out, last) = out.split_at_mut(rows.len() * row);
    let scales = BlockScales::new(form, step, shift);
    for c in (0..dim).step_by(WIDE) {
        // SAFETY: 32 channels behind `c` exist in every row of codes, scales and `out`.
        unsafe {
            let mut wide = scales.of::<V, N>(by, rows.start, c);
            for row in rows.clone() {
                let at = out.as_mut_ptr().add(((row - rows.start) * dim + c) * S::BYTES);
                let place = if form.cell() == Cell::Half { row / 2 } else { row };
                let bytes = _mm256_loadu_si256(codes.as_ptr().add(place * dim + c).cast());
                match (form.cell(), form.side) {
                    (Cell::Byte, Side::Keys) => spread::<V, S, N>(by, bytes, &wide, at),
                    (Cell::Byte, Side::Values) => {
                        wide = scales.of::<V, N>(by, row, c);
                        spread::<V, S, N>(by, bytes, &wide, at);
                    }
                    (Cell::Half, Side::Keys) => spread::<V, S, N>(by, half(bytes, row), &wide, at),
                    (Cell::Half, Side::Values) => {
                        let [step, shift] = scales.of_group(row, c);
                        by.put_group::<S>(half(bytes, row), step, shift, at);
                    }
                }
            }
        }
    }
    if alone {
        wire::decode(form, codes, rows.end, (scales.first, scales.second), S::DTYPE, last);
    }
}

/// The codes of four bits that belong to a row.
#[inline]
#[target_feature(enable = "avx2")]
fn half(bytes: __m256i, row: usize) -> __m256i {
    let own = if row % 2 == 1 { _mm256_srli_epi16::<4>(bytes) } else { bytes };
    _mm256_and_si256(own, _mm256_set1_epi8(15))
}

/// 32 signed bytes as stored numbers. Codes of four bits have no sign to extend.
///
/// # Safety
/// `at` points to 32 writable numbers.
#[inline(always)]
unsafe fn spread<V: Packs<N>, S: StoreNumbers, const N: usize>(
    by: V,
    codes: __m256i,
    wide: &ChannelPairs<V, N>,
    at: *mut u8,
) {
    for (i, (code, [step, shift])) in by.numbers(codes).iter().zip(wide).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { S::store(by, at.add(V::COUNT * i * S::BYTES), by.multiply_add(*code, *step, *shift)) };
    }
}
