//! Keys turned back and on for links, eight channels at a time: the bits that `wire/turn.rs` defines.
//!
//! Where the channels that turn are no multiple of sixteen it is done the plain way.

use super::super::{
    isa::{
        Bf16, F16, F32, Isa, Stored,
        avx2::Avx2,
        each, entries, instructions,
        pack::{Pack, Store},
        some, some_mut,
    },
    pack::are_finite,
};
use crate::{
    cpu::Dtype,
    rope::RopePairs,
    wire::{self, BLOCK, Form, Rows, Turn},
};
use std::arch::x86_64::*;

/// Registers of eight pairs worked on at once: with their ranges, all that there are.
const PAIRS: usize = 2;

entries! { Avx2, "avx2,fma,f16c",
    pub(in super::super) fn turn_back(
        turn: &Turn, form: Form, rows: Rows<'_>, out: &mut [u8], low: &mut [f32], high: &mut [f32]
    ) = all_back;
    pub(in super::super) fn turn_on(
        turn: &Turn, dim: usize, first: usize, numbers: &[u8], dtype: Dtype, out: &mut [u8]
    ) = all_on;
}

/// See [`wire::turn_back`].
#[inline(always)]
fn all_back(isa: Avx2, turn: &Turn, form: Form, rows: Rows<'_>, out: &mut [u8], low: &mut [f32], high: &mut [f32]) {
    let (dim, row) = (form.dim, form.dim * rows.dtype.bytes());
    assert!(rows.rows.iter().all(|r| r.len() == row) && out.len() == rows.rows.len() * dim * 4, "rows of another form");
    assert!(low.len() == dim && high.len() == dim);
    if !fits(turn, dim, rows.rows.len()) {
        return wire::turn_back(turn, form, rows, out, low, high);
    }
    let to = F32::numbers_mut(out);
    match rows.dtype {
        Dtype::F32 => back::<F32>(isa, turn, dim, rows.rows, to, (low, high)),
        Dtype::F16 => back::<F16>(isa, turn, dim, rows.rows, to, (low, high)),
        Dtype::Bf16 => back::<Bf16>(isa, turn, dim, rows.rows, to, (low, high)),
    }
    if !are_finite(low, high) {
        wire::turn_back(turn, form, rows, out, low, high);
    }
}

/// See [`wire::turn_on`].
#[inline(always)]
fn all_on(isa: Avx2, turn: &Turn, dim: usize, first: usize, numbers: &[u8], dtype: Dtype, out: &mut [u8]) {
    let rows = numbers.len() / (dim * 4);
    assert!(numbers.len() == rows * dim * 4 && out.len() == rows * dim * dtype.bytes(), "rows of another form");
    if !fits(turn, dim, first + rows) {
        return wire::turn_on(turn, dim, first, numbers, dtype, out);
    }
    match dtype {
        Dtype::F32 => on::<F32>(isa, turn, dim, first, numbers, out),
        Dtype::F16 => on::<F16>(isa, turn, dim, first, numbers, out),
        Dtype::Bf16 => on::<Bf16>(isa, turn, dim, first, numbers, out),
    }
}

/// Whether channels come in eights. A block of more tokens than there are angles for is a mistake.
fn fits(turn: &Turn, dim: usize, tokens: usize) -> bool {
    assert!(tokens <= BLOCK && turn.half() * 2 <= dim, "a turn of other keys");
    turn.half().is_multiple_of(8) && dim.is_multiple_of(8)
}

/// Down all rows, some channels at a time, whose ranges stay in registers. A number that is none never replaces one.
#[inline(always)]
fn back<S: Stored>(
    isa: Avx2,
    turn: &Turn,
    dim: usize,
    rows: &[&[u8]],
    out: &mut [[u8; 4]],
    mut ranges: (&mut [f32], &mut [f32]),
) {
    let (half, mut i) = (turn.half(), 0);
    while i + 8 * PAIRS <= half {
        down::<S, PAIRS, { 2 * PAIRS }>(isa, turn, dim, rows, out, &mut ranges, i);
        i += 8 * PAIRS;
    }
    if i < half {
        down::<S, 1, 2>(isa, turn, dim, rows, out, &mut ranges, i);
    }
    for c in (2 * half..dim).step_by(8) {
        let mut range = Range::<1>::new(isa);
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(dim)) {
            let x = S::load(isa, some(S::numbers(row), c));
            range.add(isa, 0, x);
            isa.store_bytes(x, some_mut(out, c));
        }
        range.put(isa, &mut ranges, [c]);
    }
}

/// `P` registers of pairs from pair `i` on, `C` of channels, twice as many.
#[inline(always)]
fn down<S: Stored, const P: usize, const C: usize>(
    isa: Avx2,
    turn: &Turn,
    dim: usize,
    rows: &[&[u8]],
    out: &mut [[u8; 4]],
    ranges: &mut (&mut [f32], &mut [f32]),
    i: usize,
) {
    let (half, neighbours) = (turn.half(), turn.pairs() == RopePairs::Neighbours);
    let mut range = Range::<C>::new(isa);
    let angles = turn.all_angles().chunks_exact(2 * half);
    for ((row, out), angles) in rows.iter().zip(out.chunks_exact_mut(dim)).zip(angles) {
        for p in 0..P {
            let pair = turned::<S, true>(isa, (angles, neighbours), S::numbers(row), i + 8 * p);
            let (first, second) = channels(half, neighbours, i + 8 * p);
            isa.store_bytes(pair.0, some_mut(out, first));
            isa.store_bytes(pair.1, some_mut(out, second));
            range.add(isa, 2 * p, pair.0);
            range.add(isa, 2 * p + 1, pair.1);
        }
    }
    let at = |n: usize| {
        let both = channels(half, neighbours, i + 8 * (n / 2));
        if n.is_multiple_of(2) { both.0 } else { both.1 }
    };
    range.put(isa, ranges, each(at));
}

/// Least and largest numbers of `C` registers of channels.
struct Range<const C: usize> {
    low: [__m256; C],
    high: [__m256; C],
}

impl<const C: usize> Range<C> {
    #[inline(always)]
    fn new(isa: Avx2) -> Self {
        Self { low: [isa.splat(f32::INFINITY); C], high: [isa.splat(f32::NEG_INFINITY); C] }
    }

    #[inline(always)]
    fn add(&mut self, isa: Avx2, n: usize, x: __m256) {
        self.low[n] = isa.smaller(x, self.low[n]);
        self.high[n] = isa.larger(x, self.high[n]);
    }

    #[inline(always)]
    fn put(&self, isa: Avx2, (low, high): &mut (&mut [f32], &mut [f32]), channels: [usize; C]) {
        for (n, c) in channels.into_iter().enumerate() {
            isa.store(self.low[n], some_mut(low, c));
            isa.store(self.high[n], some_mut(high, c));
        }
    }
}

/// Rows from the `first` on.
#[inline(always)]
fn on<S: Store>(isa: Avx2, turn: &Turn, dim: usize, first: usize, numbers: &[u8], out: &mut [u8]) {
    let (half, neighbours) = (turn.half(), turn.pairs() == RopePairs::Neighbours);
    let rows = F32::numbers(numbers).chunks_exact(dim).zip(S::numbers_mut(out).chunks_exact_mut(dim));
    for (n, (from, to)) in rows.enumerate() {
        let angles = &turn.all_angles()[2 * half * (first + n)..][..2 * half];
        for i in (0..half).step_by(8) {
            let pair = turned::<F32, false>(isa, (angles, neighbours), from, i);
            let (first, second) = channels(half, neighbours, i);
            S::store(isa, pair.0, some_mut(to, first));
            S::store(isa, pair.1, some_mut(to, second));
        }
        for c in (2 * half..dim).step_by(8) {
            S::store(isa, isa.load_bytes(some(from, c)), some_mut(to, c));
        }
    }
}

/// Where the two registers are that pairs `i` to `i + 7` lie in.
#[inline(always)]
fn channels(half: usize, neighbours: bool, i: usize) -> (usize, usize) {
    if neighbours { (2 * i, 2 * i + 8) } else { (i, half + i) }
}

/// Pairs `i` to `i + 7` of a row, by a token's cosines and sines.
#[inline(always)]
fn turned<S: Stored, const BACK: bool>(
    isa: Avx2,
    (angles, neighbours): (&[f32], bool),
    row: &[S::Bytes],
    i: usize,
) -> (__m256, __m256) {
    let half = angles.len() / 2;
    let (cos, sin) = (isa.load(some(angles, i)), isa.load(some(angles, half + i)));
    let (first, second) = channels(half, neighbours, i);
    let pair = (S::load(isa, some(row, first)), S::load(isa, some(row, second)));
    if neighbours {
        isa.together(point::<BACK>(isa, isa.apart(pair), cos, sin))
    } else {
        point::<BACK>(isa, pair, cos, sin)
    }
}

/// Eight points, turned back or on.
#[inline(always)]
fn point<const BACK: bool>(isa: Avx2, (a, b): (__m256, __m256), cos: __m256, sin: __m256) -> (__m256, __m256) {
    let (as_, bs) = (isa.mul(a, sin), isa.mul(b, sin));
    if BACK {
        (isa.mul_add(a, cos, bs), isa.mul_sub(b, cos, as_))
    } else {
        (isa.mul_sub(a, cos, bs), isa.mul_add(b, cos, as_))
    }
}

impl Avx2 {
    instructions! { "avx2,fma,f16c",
        fn mul_sub(x: __m256, y: __m256, z: __m256) -> __m256 {
            _mm256_fmsub_ps(x, y, z)
        }
        /// The even and the odd ones of sixteen numbers.
        fn apart(both: (__m256, __m256)) -> (__m256, __m256) {
            let (low, high) = both;
            let (first, second) = (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high));
            // Numbers 0 to 3 and 8 to 11, then the others.
            (_mm256_shuffle_ps::<0b10_00_10_00>(first, second), _mm256_shuffle_ps::<0b11_01_11_01>(first, second))
        }
        /// Undoes [`Self::apart`].
        fn together(both: (__m256, __m256)) -> (__m256, __m256) {
            let (even, odd) = both;
            let (first, second) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            (_mm256_permute2f128_ps::<0x20>(first, second), _mm256_permute2f128_ps::<0x31>(first, second))
        }
    }
}
