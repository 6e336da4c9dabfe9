//! Keys that turn, 32 channels at a time: what of a block is turned back and not yet encoded stays in the nearest cache.

use super::{
    super::{Bf16, F16, F32, StoredNumber, Vector},
    Packs, StoreNumbers, WIDE, are_finite, ask_for_next, fits,
};
use crate::{
    cpu::Dtype,
    rope::RopePairs,
    wire::{self, BELOW, BLOCK, BlockRows, BlockShape, Groups, KeyRotation, KeyScratch, LEAST},
};
use std::arch::x86_64::*;

/// Channels that lie one behind the other in a strip.
const RUN: usize = WIDE / 2;

/// How channels of a strip turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StripTurn {
    /// Those of the one run with those of the other.
    Halves,
    /// Each with its neighbour.
    Neighbours,
    /// Not at all.
    Still,
}

/// 32 channels that turn among themselves: two runs of 16.
#[derive(Clone, Copy)]
struct ChannelStrip {
    turn: StripTurn,
    /// Where the runs begin.
    runs: [usize; 2],
    /// Its first pair.
    pair: usize,
}

/// A block's turns.
#[derive(Clone, Copy)]
struct KeyTurns<'a> {
    turn: &'a KeyRotation,
    dim: usize,
}

impl<'a> KeyTurns<'a> {
    /// Of keys that are whole strips.
    fn new(turn: &'a KeyRotation, form: BlockShape) -> Option<Self> {
        assert!(form.tokens <= BLOCK && turn.half() * 2 <= form.dim, "a turn of other keys");
        let whole = turn.half().is_multiple_of(RUN) && form.dim.is_multiple_of(WIDE);
        whole.then_some(Self { turn, dim: form.dim })
    }

    fn strip(&self, n: usize) -> ChannelStrip {
        let (c, half) = (n * WIDE, self.turn.half());
        match self.turn.pairs() {
            _ if c >= 2 * half => ChannelStrip { turn: StripTurn::Still, runs: [c, c + RUN], pair: 0 },
            RopePairs::Halves => ChannelStrip { turn: StripTurn::Halves, runs: [c / 2, half + c / 2], pair: c / 2 },
            RopePairs::Neighbours => ChannelStrip { turn: StripTurn::Neighbours, runs: [c, c + RUN], pair: c / 2 },
        }
    }

    fn strips(self) -> impl Iterator<Item = ChannelStrip> {
        (0..self.dim / WIDE).map(move |n| self.strip(n))
    }

    /// Where the cosines of a strip's first token begin; its sines are `half` further on, the next token's twice that.
    fn angles(&self, strip: ChannelStrip) -> *const f32 {
        self.turn.all_angles()[strip.pair..].as_ptr()
    }
}

/// See [`wire::pack_keys`].
#[inline(always)]
pub(in super::super::super) fn pack_keys<V: Packs<N>, const N: usize>(
    by: V,
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    mut scratch: KeyScratch<'_>,
    head: &mut [u8],
    cells: &mut [u8],
) {
    let done = match rows.dtype {
        Dtype::F32 => packed::<V, F32, N>(by, turn, form, rows, &mut scratch, head, cells),
        Dtype::F16 => packed::<V, F16, N>(by, turn, form, rows, &mut scratch, head, cells),
        Dtype::Bf16 => packed::<V, Bf16, N>(by, turn, form, rows, &mut scratch, head, cells),
    };
    if done.is_none() {
        wire::pack_keys(turn, form, rows, scratch, head, cells);
    }
}

/// None where the definition has to do it.
#[inline(always)]
fn packed<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    scratch: &mut KeyScratch<'_>,
    head: &mut [u8],
    cells: &mut [u8],
) -> Option<()> {
    const { assert!(N * V::COUNT == WIDE) }
    let turns = if fits::<S>(form, rows) { KeyTurns::new(turn, form) } else { None }?;
    assert!(cells.len() == form.cell_bytes() && scratch.groups.factor.len() == form.dim, "codes of another form");
    let mut base = LEAST;
    for (n, strip) in turns.strips().enumerate() {
        let needed = pack_strip::<V, S, N>(by, (turns, strip, n), form, rows, (scratch, i32::MIN), cells)?;
        base = needed.into_iter().fold(base, i32::max);
    }
    // What the largest step of the block is only known now. Channels whose own are too far below it have larger ones.
    let least = base - BELOW;
    for (n, strip) in turns.strips().enumerate() {
        let needed = strip.runs.map(|c| scratch.groups.needed[c..][..RUN].iter().fold(i32::MAX, |a, b| a.min(*b)));
        if needed[0].min(needed[1]) < least {
            pack_strip::<V, S, N>(by, (turns, strip, n), form, rows, (scratch, least), cells)?;
        }
    }
    wire::write_keys(base, &scratch.groups.needed, &scratch.groups.offset, head);
    if form.tokens % 2 == 1 {
        wire::pack_key_alone(turn, form, rows, scratch, cells);
    }
    Some(())
}

/// One strip, by steps no smaller than the `least`. What steps it needs, or none where its numbers have no range.
#[inline(always)]
fn pack_strip<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    (turns, strip, n): (KeyTurns<'_>, ChannelStrip, usize),
    form: BlockShape,
    rows: BlockRows<'_>,
    (scratch, least): (&mut KeyScratch<'_>, i32),
    cells: &mut [u8],
) -> Option<[i32; WIDE]> {
    let back = scratch.turned.fit(BLOCK * WIDE);
    let [mut low, mut high, mut factor, mut offset] = [[0.0; WIDE]; 4];
    let mut needed = [0; WIDE];
    // SAFETY: rows have the strip's runs, and `back` room for as many rows of them.
    unsafe { turn_back::<V, S, N>(by, (turns, strip, n), rows, back.as_mut_ptr(), [&mut low, &mut high]) };
    if !are_finite(&low, &high) {
        return None;
    }
    wire::needed_by_keys(form.most(), &low, &high, &mut needed);
    wire::scale_keys(form.most(), (&low, &high), (&needed, least), &mut factor, &mut offset);
    let Groups { needed: all_needed, factor: all_factors, offset: all_offsets, .. } = &mut *scratch.groups;
    for (n, c) in strip.runs.into_iter().enumerate() {
        let run = n * RUN..(n + 1) * RUN;
        all_needed[c..][..RUN].copy_from_slice(&needed[run.clone()]);
        all_factors[c..][..RUN].copy_from_slice(&factor[run.clone()]);
        all_offsets[c..][..RUN].copy_from_slice(&offset[run]);
    }
    // SAFETY: there are bytes for two runs of codes in each pair of rows.
    unsafe { encode::<V, N>(by, form, strip, back.as_ptr(), [&factor, &offset], cells.as_mut_ptr()) };
    Some(needed)
}

/// All rows of a strip in single precision, turned back, and their ranges.
///
/// # Safety
/// Rows hold the strip's runs of numbers of `S`, and `back` points to room for as many rows of 32 numbers.
#[inline(always)]
unsafe fn turn_back<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    (turns, strip, n): (KeyTurns<'_>, ChannelStrip, usize),
    rows: BlockRows<'_>,
    back: *mut f32,
    [low, high]: [&mut [f32; WIDE]; 2],
) {
    let (mut lows, mut highs) = ([by.all(f32::INFINITY); N], [by.all(f32::NEG_INFINITY); N]);
    let (angles, half) = (turns.angles(strip), turns.turn.half());
    for (t, row) in rows.as_slice().iter().enumerate() {
        ask_for_next::<S>(rows, t, n * WIDE);
        // SAFETY: the caller's promise; there are angles for all tokens of a block.
        unsafe {
            let mut x = [by.all(0.0); N];
            for (i, x) in x.iter_mut().enumerate() {
                *x = S::load(by, row.as_ptr().add(strip.channel::<V, N>(i) * S::BYTES));
            }
            let x = turned::<V, true, N>(by, strip.turn, x, (angles.add(2 * half * t), half));
            for i in 0..N {
                lows[i] = by.smaller(x[i], lows[i]);
                highs[i] = by.larger(x[i], highs[i]);
                by.store(back.add(t * WIDE + i * V::COUNT), x[i]);
            }
        }
    }
    for i in 0..N {
        // SAFETY: 32 numbers are N registers.
        unsafe {
            by.store(low.as_mut_ptr().add(i * V::COUNT), lows[i]);
            by.store(high.as_mut_ptr().add(i * V::COUNT), highs[i]);
        }
    }
}

/// Codes of rows that have been turned back, but of a last one without a partner.
///
/// # Safety
/// `back` points to a block's rows of 32 numbers, `cells` to its cells.
#[inline(always)]
unsafe fn encode<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    strip: ChannelStrip,
    back: *const f32,
    [factor, offset]: [&[f32; WIDE]; 2],
    cells: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut wide = [[by.all(0.0); 2]; N];
        for (i, wide) in wide.iter_mut().enumerate() {
            *wide = [by.load(factor.as_ptr().add(i * V::COUNT)), by.load(offset.as_ptr().add(i * V::COUNT))];
        }
        for pair in 0..form.tokens / 2 {
            let mut codes = [[by.none(); N]; 2];
            for (row, codes) in codes.iter_mut().enumerate() {
                for (i, (code, [inverse, zero])) in codes.iter_mut().zip(&wide).enumerate() {
                    let x = by.load(back.add((2 * pair + row) * WIDE + i * V::COUNT));
                    *code = by.code(x, *inverse, *zero);
                }
            }
            let both = by.halves(codes[0], codes[1]);
            let at = cells.add(pair * form.dim);
            _mm_storeu_si128(at.add(strip.runs[0]).cast(), _mm256_castsi256_si128(both));
            _mm_storeu_si128(at.add(strip.runs[1]).cast(), _mm256_extracti128_si256::<1>(both));
        }
    }
}

impl ChannelStrip {
    /// Where the channels of a register begin.
    #[inline(always)]
    fn channel<V: Vector, const N: usize>(self, register: usize) -> usize {
        let each = N / 2;
        self.runs[register / each] + register % each * V::COUNT
    }
}

/// A row's strip, turned back or on.
///
/// # Safety
/// The token's cosines and sines lie behind `angles`, as far apart as the second says.
#[inline(always)]
unsafe fn turned<V: Packs<N>, const BACK: bool, const N: usize>(
    by: V,
    turn: StripTurn,
    mut x: [V::Numbers; N],
    (angles, half): (*const f32, usize),
) -> [V::Numbers; N] {
    if turn == StripTurn::Still {
        return x;
    }
    for k in 0..N / 2 {
        // SAFETY: the caller's promise.
        let (cos, sin) = unsafe { (by.load(angles.add(k * V::COUNT)), by.load(angles.add(half + k * V::COUNT))) };
        let (first, second) = if turn == StripTurn::Halves { (k, N / 2 + k) } else { (2 * k, 2 * k + 1) };
        let mut pair = [x[first], x[second]];
        if turn == StripTurn::Neighbours {
            pair = by.apart(pair);
        }
        let [a, b] = pair;
        let (a_sin, b_sin) = (by.product(a, sin), by.product(b, sin));
        pair = if BACK {
            [by.multiply_add(a, cos, b_sin), by.multiply_subtract(b, cos, a_sin)]
        } else {
            [by.multiply_subtract(a, cos, b_sin), by.multiply_add(b, cos, a_sin)]
        };
        if turn == StripTurn::Neighbours {
            pair = by.together(pair);
        }
        [x[first], x[second]] = pair;
    }
    x
}

/// See [`wire::unpack_keys`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a block's codes, what it is unpacked with, and where to")]
pub(in super::super::super) fn unpack_keys<V: Packs<N>, const N: usize>(
    by: V,
    turn: &KeyRotation,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    scratch: KeyScratch<'_>,
    dtype: Dtype,
    out: &mut [u8],
) {
    match dtype {
        Dtype::F32 => unpacked::<V, F32, N>(by, turn, form, codes, first, scratch, out),
        Dtype::F16 => unpacked::<V, F16, N>(by, turn, form, codes, first, scratch, out),
        Dtype::Bf16 => unpacked::<V, Bf16, N>(by, turn, form, codes, first, scratch, out),
    }
}

#[inline(always)]
fn unpacked<V: Packs<N>, S: StoreNumbers, const N: usize>(
    by: V,
    turn: &KeyRotation,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    scratch: KeyScratch<'_>,
    out: &mut [u8],
) {
    const { assert!(N * V::COUNT == WIDE) }
    let row = form.dim * S::BYTES;
    let end = first + out.len() / row;
    assert!(end <= form.tokens && out.len().is_multiple_of(row) && codes.len() == form.cell_bytes());
    let Some(turns) = KeyTurns::new(turn, form) else {
        return wire::unpack_keys(turn, form, codes, first, scratch, S::DTYPE, out);
    };
    let Groups { factor, offset, .. } = &*scratch.groups;
    assert!(factor.len() == form.dim && offset.len() == form.dim, "groups of another form");
    // Its own bytes hold the codes of such a row, in another order.
    let alone = form.tokens % 2 == 1 && end == form.tokens && first < end;
    let rows = first..end - usize::from(alone);
    let (out, last) = out.split_at_mut(rows.len() * row);
    for strip in turns.strips() {
        // SAFETY: codes, steps and `out` have the strip's runs, of all rows.
        unsafe {
            let mut wide = [[by.all(0.0); 2]; N];
            for (i, wide) in wide.iter_mut().enumerate() {
                let c = strip.channel::<V, N>(i);
                *wide = [by.load(factor.as_ptr().add(c)), by.load(offset.as_ptr().add(c))];
            }
            for t in rows.clone() {
                let at = codes.as_ptr().add(t / 2 * form.dim);
                let run = |c: usize| _mm_loadu_si128(at.add(c).cast());
                let both = _mm256_set_m128i(run(strip.runs[1]), run(strip.runs[0]));
                let mut x = if t % 2 == 0 { by.half_codes::<false>(both) } else { by.half_codes::<true>(both) };
                for (x, [step, shift]) in x.iter_mut().zip(&wide) {
                    *x = by.multiply_add(*x, *step, *shift);
                }
                let angles = turns.angles(strip).add(2 * turn.half() * t);
                let x = turned::<V, false, N>(by, strip.turn, x, (angles, turn.half()));
                let to = out.as_mut_ptr().add((t - first) * row);
                for (i, x) in x.into_iter().enumerate() {
                    S::store(by, to.add(strip.channel::<V, N>(i) * S::BYTES), x);
                }
            }
        }
    }
    if alone {
        wire::unpack_keys(turn, form, codes, rows.end, scratch, S::DTYPE, last);
    }
}
