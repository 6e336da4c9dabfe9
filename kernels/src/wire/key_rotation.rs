//! Keys without their places: four bits have them turned back to where their block begins, and turned on when unpacked.
//!
//! Rotary embedding spreads a channel over its whole circle within a block, so that its range is that of both channels of
//! a pair, whatever they were. Turned back by each token's place in its block, a channel keeps to its own numbers. By the
//! place in the block, not by the position: that is the same numbers for every block, so that [`BLOCK`] angles of each
//! frequency are all there is to know of a model, and the turn that is common to a block changes no range much.

use super::{
    BLOCK, BlockRows, BlockShape, GatheredRows, Groups, cache_lines::Lines, choose, decode, encode, low_high,
    plain::store,
};
use crate::{
    cpu::Dtype,
    rope::{Rope, RopePairs},
};

/// How keys turn over a block, by one rope: the same on every host.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRotation {
    pairs: RopePairs,
    /// Channels of a pair's first half, or pairs.
    half: usize,
    /// Of each token of a block, cosines, then sines.
    angles: Lines,
}

impl KeyRotation {
    /// Of keys that a model turns by `rope`. What sines and cosines are multiplied by is left out: it is no turn.
    #[must_use]
    pub fn new(rope: &Rope, pairs: RopePairs) -> Self {
        let (frequencies, _) = rope.frequencies();
        let (half, mut angles) = (frequencies.len(), Lines::default());
        let all = angles.fit(BLOCK * 2 * half);
        for token in 0..BLOCK {
            let (cos, sin) = all[token * 2 * half..][..2 * half].split_at_mut(half);
            for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
                let angle = token as f32 * frequency;
                (*cos, *sin) = (libm::cosf(angle), libm::sinf(angle));
            }
        }
        Self { pairs, half, angles }
    }

    #[cfg(any(target_arch = "x86_64", test))]
    pub(crate) fn pairs(&self) -> RopePairs {
        self.pairs
    }

    /// Pairs of channels that turn.
    #[cfg(any(target_arch = "x86_64", test))]
    pub(crate) fn half(&self) -> usize {
        self.half
    }

    /// Cosines and sines of each token of a block, one after the other.
    pub(crate) fn all_angles(&self) -> &[f32] {
        &self.angles.numbers()[..BLOCK * 2 * self.half]
    }

    /// Cosines and sines of a token of a block.
    pub(crate) fn angles(&self, token: usize) -> (&[f32], &[f32]) {
        self.all_angles()[token * 2 * self.half..][..2 * self.half].split_at(self.half)
    }

    /// The channels that turn together as pair number `i`.
    fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairs {
            RopePairs::Halves => (i, self.half + i),
            RopePairs::Neighbours => (2 * i, 2 * i + 1),
        }
    }
}

/// Memory that keys are turned in, and their groups.
pub(crate) struct KeyScratch<'a> {
    pub groups: &'a mut Groups,
    pub turned: &'a mut Lines,
}

/// Packs a block of keys without their turns. A number that is infinite or none spoils the other of its pair, in its row.
pub(crate) fn pack_keys(
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    KeyScratch { groups, turned }: KeyScratch<'_>,
    head: &mut [u8],
    cells: &mut [u8],
) {
    let back: &mut [u8] = bytemuck::cast_slice_mut(turned.fit(form.tokens * form.dim));
    for (t, (row, back)) in rows.as_slice().iter().zip(back.chunks_exact_mut(form.dim * 4)).enumerate() {
        turn_back(turn, t, (row, rows.dtype), back);
    }
    let back = GatheredRows::gather(form, Dtype::F32, std::iter::once(&*back));
    low_high(form, back.before(None), groups);
    choose(form, groups, head);
    encode(form, back.before(None), groups, cells);
}

/// Codes of a last row of keys that has no partner.
#[cfg(target_arch = "x86_64")]
pub(crate) fn pack_key_alone(
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    scratch: &mut KeyScratch<'_>,
    cells: &mut [u8],
) {
    let t = form.tokens - 1;
    let back = bytemuck::cast_slice_mut(scratch.turned.fit(form.dim));
    turn_back(turn, t, (rows.as_slice()[t], rows.dtype), back);
    super::encode_alone(form, back, Dtype::F32, scratch.groups, cells);
}

/// Unpacks rows of keys from the `first` on, as many as `out` has room for, and turns them on to their places.
pub(crate) fn unpack_keys(
    turn: &KeyRotation,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    KeyScratch { groups, turned }: KeyScratch<'_>,
    dtype: Dtype,
    out: &mut [u8],
) {
    let numbers = bytemuck::cast_slice_mut(turned.fit(out.len() / dtype.bytes()));
    decode(form, codes, first, groups, Dtype::F32, numbers);
    turn_on(turn, form.dim, first, numbers, dtype, out);
}

/// A row of token `t` of its block in single precision, turned back to where that begins.
pub(super) fn turn_back(turn: &KeyRotation, t: usize, from: (&[u8], Dtype), back: &mut [u8]) {
    turn_row(turn, t, |sin| -sin, from, (back, Dtype::F32));
}

/// Rows of a block in single precision from the `first` on, turned on to their places, as pages have them.
pub(super) fn turn_on(turn: &KeyRotation, dim: usize, first: usize, numbers: &[u8], dtype: Dtype, out: &mut [u8]) {
    let rows = numbers.chunks_exact(dim * Dtype::F32.bytes()).zip(out.chunks_exact_mut(dim * dtype.bytes()));
    for (n, (row, out)) in rows.enumerate() {
        turn_row(turn, first + n, |sin| sin, (row, Dtype::F32), (out, dtype));
    }
}

/// One row by a token's angles. Each number is a product and a fused multiply-add.
fn turn_row(turn: &KeyRotation, token: usize, way: fn(f32) -> f32, from: (&[u8], Dtype), to: (&mut [u8], Dtype)) {
    let ((row, stored), (out, dtype)) = (from, to);
    let mut put = |c: usize, x: f32| store(x, dtype, &mut out[c * dtype.bytes()..][..dtype.bytes()]);
    let (cos, sin) = turn.angles(token);
    for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
        let (first, second) = turn.pair(i);
        let (a, b, sin) = (stored.get(row, first), stored.get(row, second), way(*sin));
        put(first, a.mul_add(*cos, -(b * sin)));
        put(second, b.mul_add(*cos, a * sin));
    }
    for c in 2 * turn.half..row.len() / stored.bytes() {
        put(c, stored.get(row, c));
    }
}
