//! Keys turned back and on for links, eight channels at a time: the bits that `wire/key_rotation.rs` defines.
//!
//! Where the channels that turn are no multiple of sixteen it is done the plain way.

use super::super::vector::{
    Bf16, F16, F32, StoredNumber, Vector,
    wire::{Narrow, StoreNumbers, are_finite},
};
use super::Avx2;
use crate::{
    cpu::Dtype,
    rope::RopePairs,
    wire::{self, BLOCK, BlockRows, BlockShape, KeyRotation},
};
use std::arch::x86_64::*;

/// Registers of eight pairs worked on at once: with their ranges, all that there are.
const PAIRS: usize = 2;

/// See [`wire::turn_back`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn turn_back(
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    out: &mut [u8],
    low: &mut [f32],
    high: &mut [f32],
) {
    match rows.dtype {
        Dtype::F32 => back::<F32>(turn, form, rows, out, low, high),
        Dtype::F16 => back::<F16>(turn, form, rows, out, low, high),
        Dtype::Bf16 => back::<Bf16>(turn, form, rows, out, low, high),
    }
    if !are_finite(low, high) {
        wire::turn_back(turn, form, rows, out, low, high);
    }
}

/// See [`wire::turn_on`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn turn_on(
    turn: &KeyRotation,
    dim: usize,
    first: usize,
    numbers: &[u8],
    dtype: Dtype,
    out: &mut [u8],
) {
    match dtype {
        Dtype::F32 => on::<F32>(turn, dim, first, numbers, out),
        Dtype::F16 => on::<F16>(turn, dim, first, numbers, out),
        Dtype::Bf16 => on::<Bf16>(turn, dim, first, numbers, out),
    }
}

/// Whether channels come in eights. A block of more tokens than there are angles for is a mistake.
fn fits(turn: &KeyRotation, dim: usize, tokens: usize) -> bool {
    assert!(tokens <= BLOCK && turn.half() * 2 <= dim, "a turn of other keys");
    turn.half().is_multiple_of(8) && dim.is_multiple_of(8)
}

/// Down all rows, some channels at a time, whose ranges stay in registers. A number that is none never replaces one.
#[target_feature(enable = "avx2,fma,f16c")]
fn back<S: StoredNumber>(
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    out: &mut [u8],
    low: &mut [f32],
    high: &mut [f32],
) {
    let (dim, row) = (form.dim, form.dim * S::BYTES);
    assert!(rows.rows.iter().all(|r| r.len() == row) && out.len() == rows.rows.len() * dim * 4, "rows of another form");
    assert!(low.len() == dim && high.len() == dim);
    if !fits(turn, dim, rows.rows.len()) {
        return wire::turn_back(turn, form, rows, out, low, high);
    }
    let (by, half, rows, out) = (Avx2::here(), turn.half(), rows.rows, out.as_mut_ptr());
    let ranges = (low.as_mut_ptr(), high.as_mut_ptr());
    let mut i = 0;
    // SAFETY: pairs are of the first `2 * half` channels, in eights; the others follow, in eights. Rows, ranges, angles and `out` have
    // as many by the lines above.
    unsafe {
        while i + 8 * PAIRS <= half {
            down::<S, PAIRS, { 2 * PAIRS }>(by, turn, dim, rows, out, ranges, i);
            i += 8 * PAIRS;
        }
        if i < half {
            down::<S, 1, 2>(by, turn, dim, rows, out, ranges, i);
        }
        for c in (2 * half..dim).step_by(8) {
            let mut range = ChannelRange::<1>::new(by);
            for (t, row) in rows.iter().enumerate() {
                let x = S::load(by, row.as_ptr().add(c * S::BYTES));
                range.add(by, 0, x);
                F32::store(by, out.add((t * dim + c) * 4), x);
            }
            range.put(by, ranges, [c]);
        }
    }
}

/// `P` registers of pairs from pair `i` on, `C` of channels.
///
/// # Safety
/// Rows hold `dim` numbers, and `out` has room for as many in single precision of all rows; there are ranges for `dim` channels, and
/// angles for all rows. There are so many pairs, and `C` is twice `P`.
#[inline(always)]
unsafe fn down<S: StoredNumber, const P: usize, const C: usize>(
    by: Avx2,
    turn: &KeyRotation,
    dim: usize,
    rows: &[&[u8]],
    out: *mut u8,
    ranges: (*mut f32, *mut f32),
    i: usize,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let (half, angles) = (turn.half(), turn.all_angles().as_ptr());
        let neighbours = turn.pairs() == RopePairs::Neighbours;
        let mut range = ChannelRange::<C>::new(by);
        for (t, row) in rows.iter().enumerate() {
            let (angles, from, to) = (angles.add(2 * half * t), row.as_ptr(), out.add(t * dim * 4));
            for p in 0..P {
                let pair = turned::<S, true>(by, (angles, half, neighbours), from, i + 8 * p);
                let (first, second) = channels(half, neighbours, i + 8 * p);
                F32::store(by, to.add(first * 4), pair.0);
                F32::store(by, to.add(second * 4), pair.1);
                range.add(by, 2 * p, pair.0);
                range.add(by, 2 * p + 1, pair.1);
            }
        }
        let at = |n: usize| {
            let both = channels(half, neighbours, i + 8 * (n / 2));
            if n.is_multiple_of(2) { both.0 } else { both.1 }
        };
        range.put(by, ranges, std::array::from_fn(at));
    }
}

/// Least and largest numbers of `C` registers of channels.
struct ChannelRange<const C: usize> {
    low: [__m256; C],
    high: [__m256; C],
}

impl<const C: usize> ChannelRange<C> {
    #[inline(always)]
    fn new(by: Avx2) -> Self {
        Self { low: [by.all(f32::INFINITY); C], high: [by.all(f32::NEG_INFINITY); C] }
    }

    #[inline(always)]
    fn add(&mut self, by: Avx2, n: usize, x: __m256) {
        self.low[n] = by.smaller(x, self.low[n]);
        self.high[n] = by.larger(x, self.high[n]);
    }

    /// # Safety
    /// There are eight ranges behind each of the channels.
    #[inline(always)]
    unsafe fn put(&self, by: Avx2, (low, high): (*mut f32, *mut f32), channels: [usize; C]) {
        for (n, c) in channels.into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe {
                by.store(low.add(c), self.low[n]);
                by.store(high.add(c), self.high[n]);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn on<S: StoreNumbers>(turn: &KeyRotation, dim: usize, first: usize, numbers: &[u8], out: &mut [u8]) {
    let rows = numbers.len() / (dim * 4);
    assert!(numbers.len() == rows * dim * 4 && out.len() == rows * dim * S::BYTES, "rows of another form");
    if !fits(turn, dim, first + rows) {
        return wire::turn_on(turn, dim, first, numbers, S::DTYPE, out);
    }
    let (by, half, neighbours) = (Avx2::here(), turn.half(), turn.pairs() == RopePairs::Neighbours);
    for n in 0..rows {
        // SAFETY: rows, angles and `out` have as many channels by the lines above.
        unsafe {
            let (from, to) = (numbers.as_ptr().add(n * dim * 4), out.as_mut_ptr().add(n * dim * S::BYTES));
            let angles = turn.all_angles().as_ptr().add(2 * half * (first + n));
            for i in (0..half).step_by(8) {
                let pair = turned::<F32, false>(by, (angles, half, neighbours), from, i);
                let (first, second) = channels(half, neighbours, i);
                S::store(by, to.add(first * S::BYTES), pair.0);
                S::store(by, to.add(second * S::BYTES), pair.1);
            }
            for c in (2 * half..dim).step_by(8) {
                S::store(by, to.add(c * S::BYTES), F32::load(by, from.add(c * 4)));
            }
        }
    }
}

/// Where the two registers are that pairs `i` to `i + 7` lie in.
#[inline(always)]
fn channels(half: usize, neighbours: bool, i: usize) -> (usize, usize) {
    if neighbours { (2 * i, 2 * i + 8) } else { (i, half + i) }
}

/// Pairs `i` to `i + 7` of a row.
///
/// # Safety
/// The row has so many pairs, and the token's cosines and sines lie behind `angles`.
#[inline(always)]
unsafe fn turned<S: StoredNumber, const BACK: bool>(
    by: Avx2,
    (angles, half, neighbours): (*const f32, usize, bool),
    row: *const u8,
    i: usize,
) -> (__m256, __m256) {
    // SAFETY: as the caller promises.
    unsafe {
        let (cos, sin) = (by.load(angles.add(i)), by.load(angles.add(half + i)));
        let (first, second) = channels(half, neighbours, i);
        let pair = (S::load(by, row.add(first * S::BYTES)), S::load(by, row.add(second * S::BYTES)));
        if neighbours { together(point::<BACK>(apart(pair), cos, sin)) } else { point::<BACK>(pair, cos, sin) }
    }
}

/// Eight points, turned back or on.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn point<const BACK: bool>((a, b): (__m256, __m256), cos: __m256, sin: __m256) -> (__m256, __m256) {
    let (as_, bs) = (_mm256_mul_ps(a, sin), _mm256_mul_ps(b, sin));
    if BACK {
        (_mm256_fmadd_ps(a, cos, bs), _mm256_fmsub_ps(b, cos, as_))
    } else {
        (_mm256_fmsub_ps(a, cos, bs), _mm256_fmadd_ps(b, cos, as_))
    }
}

/// The even and the odd ones of sixteen numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn apart((low, high): (__m256, __m256)) -> (__m256, __m256) {
    let (first, second) = (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high));
    // Numbers 0 to 3 and 8 to 11, then the others.
    (_mm256_shuffle_ps::<0b10_00_10_00>(first, second), _mm256_shuffle_ps::<0b11_01_11_01>(first, second))
}

/// Undoes [`apart`].
#[inline]
#[target_feature(enable = "avx2")]
fn together((even, odd): (__m256, __m256)) -> (__m256, __m256) {
    let (first, second) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
    (_mm256_permute2f128_ps::<0x20>(first, second), _mm256_permute2f128_ps::<0x31>(first, second))
}
