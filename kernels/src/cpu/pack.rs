//! KV packed for links, 32 channels at a time, whatever the instruction set: the bytes and the bits that `wire/plain.rs` defines.
//!
//! What a block holds that is no whole 32 channels wide, or has no partner, goes the plain way.

use super::isa::{
    Bf16, F16, F32, Stored, each,
    pack::{Pack, Store, TOGETHER},
    some, some_mut,
};
use super::matrix::Dtype;
use crate::{
    pages::Side,
    wire::{self, Cell, Form, GROUP, Rows},
};
use std::ops::Range;

const _: () = assert!(TOGETHER == GROUP, "32 channels of values are a group");

/// Rows that all functions below may read `form.dim` numbers of, in whole groups of 32.
fn fits(form: Form, rows: Rows<'_>) -> bool {
    let row = form.dim * rows.dtype.bytes();
    assert!(rows.rows.len() == form.tokens && rows.rows.iter().all(|r| r.len() == row), "rows of another form");
    form.dim.is_multiple_of(TOGETHER)
}

/// See [`wire::low_high`].
#[inline(always)]
pub(super) fn low_high<I: Pack<W, N>, const W: usize, const N: usize>(
    isa: I,
    form: Form,
    rows: Rows<'_>,
    low: &mut [f32],
    high: &mut [f32],
) {
    assert!(low.len() == form.groups() && high.len() == low.len());
    if !fits(form, rows) {
        return wire::low_high(form, rows, low, high);
    }
    match (rows.dtype, form.side) {
        (Dtype::F32, Side::Keys) => key_ranges::<I, F32, W, N>(isa, form, rows, low, high),
        (Dtype::F16, Side::Keys) => key_ranges::<I, F16, W, N>(isa, form, rows, low, high),
        (Dtype::Bf16, Side::Keys) => key_ranges::<I, Bf16, W, N>(isa, form, rows, low, high),
        (Dtype::F32, Side::Values) => value_ranges::<I, F32, W, N>(isa, form, rows, low, high),
        (Dtype::F16, Side::Values) => value_ranges::<I, F16, W, N>(isa, form, rows, low, high),
        (Dtype::Bf16, Side::Values) => value_ranges::<I, Bf16, W, N>(isa, form, rows, low, high),
    }
    if !are_finite(low, high) {
        wire::low_high(form, rows, low, high);
    }
}

/// Whether ranges are.
#[inline(always)]
pub(super) fn are_finite(low: &[f32], high: &[f32]) -> bool {
    // The exponent of what is infinite is all ones.
    let beyond = |x: &f32| u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    low.iter().chain(high).fold(0, |bad, x| bad | beyond(x)) == 0
}

/// Ranges of all channels. A number that is none never replaces one.
#[inline(always)]
fn key_ranges<I: Pack<W, N>, S: Stored, const W: usize, const N: usize>(
    isa: I,
    form: Form,
    rows: Rows<'_>,
    low: &mut [f32],
    high: &mut [f32],
) {
    for c in (0..form.dim).step_by(TOGETHER) {
        let (mut lows, mut highs) = ([isa.splat(f32::INFINITY); N], [isa.splat(f32::NEG_INFINITY); N]);
        for row in rows.rows {
            let numbers: &[_; TOGETHER] = some(S::numbers(row), c);
            for (i, x) in numbers.as_chunks::<W>().0.iter().enumerate() {
                let x = S::load(isa, x);
                lows[i] = isa.smaller(x, lows[i]);
                highs[i] = isa.larger(x, highs[i]);
            }
        }
        for i in 0..N {
            isa.store(lows[i], some_mut(low, c + W * i));
            isa.store(highs[i], some_mut(high, c + W * i));
        }
    }
}

/// Ranges of all groups of values. A number that is none never replaces one.
#[inline(always)]
fn value_ranges<I: Pack<W, N>, S: Stored, const W: usize, const N: usize>(
    isa: I,
    form: Form,
    rows: Rows<'_>,
    low: &mut [f32],
    high: &mut [f32],
) {
    let each = form.dim / TOGETHER;
    for (t, row) in rows.rows.iter().enumerate() {
        let (low, high) = (&mut low[t * each..][..each], &mut high[t * each..][..each]);
        for ((group, low), high) in S::numbers(row).as_chunks::<TOGETHER>().0.iter().zip(low).zip(high) {
            let (mut least, mut most) = (isa.splat(f32::INFINITY), isa.splat(f32::NEG_INFINITY));
            for x in group.as_chunks::<W>().0 {
                let x = S::load(isa, x);
                least = isa.smaller(x, least);
                most = isa.larger(x, most);
            }
            (*low, *high) = isa.least_and_largest(least, most);
        }
    }
}

/// What a block is encoded or decoded with: inverses and zeros, or steps and shifts.
#[derive(Clone, Copy)]
struct Scales<'a> {
    side: Side,
    /// Groups of a token's values.
    each: usize,
    first: &'a [f32],
    second: &'a [f32],
}

impl Scales<'_> {
    /// Those of 32 channels of a row from `c` on.
    #[inline(always)]
    fn of<I: Pack<W, N>, const W: usize, const N: usize>(self, isa: I, row: usize, c: usize) -> [[I::Floats; N]; 2] {
        match self.side {
            Side::Keys => {
                [each(|i| isa.load(some(self.first, c + W * i))), each(|i| isa.load(some(self.second, c + W * i)))]
            }
            Side::Values => {
                let [first, second] = self.of_group(row, c);
                [[isa.splat(first); N], [isa.splat(second); N]]
            }
        }
    }

    /// The one of a row's values that is shared by the 32 from `c` on.
    #[inline(always)]
    fn of_group(self, row: usize, c: usize) -> [f32; 2] {
        let group = row * self.each + c / TOGETHER;
        [self.first[group], self.second[group]]
    }
}

/// See [`wire::encode`].
#[inline(always)]
pub(super) fn encode<I: Pack<W, N>, const W: usize, const N: usize>(
    isa: I,
    form: Form,
    rows: Rows<'_>,
    inverse: &[f32],
    zero: &[f32],
    codes: &mut [u8],
) {
    let groups = form.groups();
    assert!(inverse.len() == groups && zero.len() == groups && codes.len() == form.cell_bytes());
    if !fits(form, rows) || form.tokens == 0 {
        return wire::encode(form, rows, inverse, zero, codes);
    }
    let scales = Scales { side: form.side, each: form.dim / TOGETHER, first: inverse, second: zero };
    match rows.dtype {
        Dtype::F32 => all_codes::<I, F32, W, N>(isa, form, rows, scales, codes),
        Dtype::F16 => all_codes::<I, F16, W, N>(isa, form, rows, scales, codes),
        Dtype::Bf16 => all_codes::<I, Bf16, W, N>(isa, form, rows, scales, codes),
    }
    if form.cell() == Cell::Half && form.tokens % 2 == 1 {
        wire::encode_from(form.tokens - 1, form, rows, inverse, zero, codes);
    }
}

/// All codes but those of a last row without a partner.
#[inline(always)]
fn all_codes<I: Pack<W, N>, S: Stored, const W: usize, const N: usize>(
    isa: I,
    form: Form,
    rows: Rows<'_>,
    scales: Scales<'_>,
    codes: &mut [u8],
) {
    for c in (0..form.dim).step_by(TOGETHER) {
        let mut wide = scales.of(isa, 0, c);
        match form.cell() {
            Cell::Half => {
                let pairs = rows.rows.as_chunks::<2>().0.iter().zip(codes.chunks_exact_mut(form.dim));
                for (pair, ([row, next_row], out)) in pairs.enumerate() {
                    let mut next = wide;
                    if form.side == Side::Values {
                        (wide, next) = (scales.of(isa, 2 * pair, c), scales.of(isa, 2 * pair + 1, c));
                    }
                    let [row, next_row] =
                        [round::<I, S, W, N>(isa, row, c, wide), round::<I, S, W, N>(isa, next_row, c, next)];
                    isa.store_codes(isa.in_halves(row, next_row), some_mut(out, c));
                }
            }
            Cell::Byte => {
                for (t, (row, out)) in rows.rows.iter().zip(codes.chunks_exact_mut(form.dim)).enumerate() {
                    if form.side == Side::Values {
                        wide = scales.of(isa, t, c);
                    }
                    isa.store_codes(isa.in_bytes(round::<I, S, W, N>(isa, row, c, wide)), some_mut(out, c));
                }
            }
        }
    }
}

/// Rounded codes of 32 channels from `c` on, not yet within their bounds.
#[inline(always)]
fn round<I: Pack<W, N>, S: Stored, const W: usize, const N: usize>(
    isa: I,
    row: &[u8],
    c: usize,
    [inverse, zero]: [[I::Floats; N]; 2],
) -> [I::Ints; N] {
    let numbers: &[_; TOGETHER] = some(S::numbers(row), c);
    let numbers: &[[_; W]; N] = some(numbers.as_chunks::<W>().0, 0);
    each(|i| isa.nearest(S::load(isa, &numbers[i]), inverse[i], zero[i]))
}

/// See [`wire::decode`].
#[inline(always)]
pub(super) fn decode<I: Pack<W, N>, const W: usize, const N: usize>(
    isa: I,
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
    if !form.dim.is_multiple_of(TOGETHER) || first == end {
        return wire::decode(form, codes, first, (step, shift), dtype, out);
    }
    let alone = form.cell() == Cell::Half && form.tokens % 2 == 1 && end == form.tokens;
    let end = end - usize::from(alone);
    let (out, last) = out.split_at_mut((end - first) * row);
    let scales = Scales { side: form.side, each: form.dim / TOGETHER, first: step, second: shift };
    match dtype {
        Dtype::F32 => numbers::<I, F32, W, N>(isa, form, codes, first..end, scales, out),
        Dtype::F16 => numbers::<I, F16, W, N>(isa, form, codes, first..end, scales, out),
        Dtype::Bf16 => numbers::<I, Bf16, W, N>(isa, form, codes, first..end, scales, out),
    }
    if alone {
        wire::decode(form, codes, end, (step, shift), dtype, last);
    }
}

/// 32 channels at a time, down all rows: a channel's step is read once.
#[inline(always)]
fn numbers<I: Pack<W, N>, S: Store, const W: usize, const N: usize>(
    isa: I,
    form: Form,
    codes: &[u8],
    rows: Range<usize>,
    scales: Scales<'_>,
    out: &mut [u8],
) {
    let dim = form.dim;
    for c in (0..dim).step_by(TOGETHER) {
        let wide = scales.of(isa, 0, c);
        for (row, out) in rows.clone().zip(S::numbers_mut(out).chunks_exact_mut(dim)) {
            let out: &mut [S::Bytes; TOGETHER] = some_mut(out, c);
            if form.cell() == Cell::Byte {
                let wide = if form.side == Side::Values { scales.of(isa, row, c) } else { wide };
                spread::<I, S, W, N>(isa, isa.load_codes(some(codes, row * dim + c)), wide, out);
                continue;
            }
            let both = isa.load_codes(some(codes, row / 2 * dim + c));
            let own = if row % 2 == 1 { isa.upper(both) } else { isa.lower(both) };
            if form.side == Side::Values {
                let [step, shift] = scales.of_group(row, c);
                isa.store_group::<S>(own, step, shift, out);
            } else {
                spread::<I, S, W, N>(isa, own, wide, out);
            }
        }
    }
}

/// 32 signed bytes as stored numbers. Codes of four bits have no sign to extend.
#[inline(always)]
fn spread<I: Pack<W, N>, S: Store, const W: usize, const N: usize>(
    isa: I,
    codes: I::Codes,
    [step, shift]: [[I::Floats; N]; 2],
    out: &mut [S::Bytes; TOGETHER],
) {
    for (i, (code, out)) in isa.numbers(codes).into_iter().zip(out.as_chunks_mut::<W>().0).enumerate() {
        S::store(isa, isa.mul_add(code, step[i], shift[i]), out);
    }
}
