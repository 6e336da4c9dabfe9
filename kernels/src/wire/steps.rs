//! Which step a group's codes count, and where they begin.
//!
//! A step is a float with five bits of mantissa, the upper bits of a single-precision number, so that whole numbers name
//! them in order: 32 to an octave, each at most 1/32 larger than the one before. Products with a zero and a code, 12 bits
//! at most, are then exact. A group gets a step that covers its range: steps that minimise the mean error
//! instead cut off the largest keys, which are those that attention looks for, and were worse for what matters
//! (docs/design/decisions/four-bits.md). For the same reason the ends of a channel of keys lie near codes: its step is the nearest one, not the
//! next larger, and its zero counts sixteenths of a step.

use super::{BlockShape, CodeBits, Groups, Side};

/// Mantissa bits of a single-precision number that a step does not have.
const CUT: u32 = 18;
/// Steps from 2^-60 to 2^60: what is smaller is zero beside anything that attention mixes, and nothing overflows.
pub(crate) const LEAST: i32 = (127 - 60) << 5;
const MOST: i32 = (127 + 60) << 5;
/// The furthest that a step of keys or of eight bits lies below the base.
pub(crate) const BELOW: i32 = 255;
/// Largest spread of the scales of values: with it the smallest of 16 is 2^-60 of the largest.
const SPREAD: i32 = 128;
/// Parts of a step that a zero of keys counts.
const PARTS: f32 = 16.0;

/// The smallest step that is not below `x`, which is no less than zero.
#[inline(always)]
fn step_for(x: f32) -> i32 {
    ((x.to_bits() as i32 + (1 << CUT) - 1) >> CUT).clamp(LEAST, MOST)
}

/// The step nearest to `x`, which is no less than zero.
#[inline(always)]
fn step_near(x: f32) -> i32 {
    ((x.to_bits() as i32 + (1 << (CUT - 1))) >> CUT).clamp(LEAST, MOST)
}

/// A step by its name.
#[inline(always)]
fn step(name: i32) -> f32 {
    f32::from_bits((name.clamp(LEAST, MOST) as u32) << CUT)
}

/// Chooses steps and zeros for groups of known ranges, and writes them down; what rows are encoded with follows.
#[inline(always)]
pub(crate) fn choose(form: BlockShape, groups: &mut Groups, head: &mut [u8]) {
    match (form.bits, form.side) {
        (CodeBits::Eight, _) => eight(groups, head),
        (_, Side::Keys) => keys(form.most(), groups, head),
        (_, Side::Values) => values(form.most(), groups, head),
    }
}

/// Codes are 0 to `most`.
#[inline(always)]
fn keys(most: f32, groups: &mut Groups, head: &mut [u8]) {
    let Groups { low, high, needed, factor, offset } = groups;
    needed_by_keys(most, low, high, needed);
    let base = needed.iter().fold(LEAST, |base, needed| base.max(*needed));
    scale_keys(most, (low, high), (needed, base - BELOW), factor, offset);
    write_keys(base, needed, offset, head);
}

/// Steps that channels of keys need.
#[inline(always)]
pub(crate) fn needed_by_keys(most: f32, low: &[f32], high: &[f32], needed: &mut [i32]) {
    // A channel far from zero needs a step that a zero of at most 128 steps reaches it with, be it the next smaller one.
    for ((needed, low), high) in needed.iter_mut().zip(low).zip(high) {
        *needed = step_near(((high - low) * (1.0 / most)).max((-low).max(*high) * (1.0 / 126.0)));
    }
}

/// What channels of keys are encoded with by the steps that they need, or the `least` there may be.
#[inline(always)]
pub(crate) fn scale_keys(
    most: f32,
    (low, high): (&[f32], &[f32]),
    (needed, least): (&[i32], i32),
    inverse: &mut [f32],
    zero: &mut [f32],
) {
    let scales = inverse.iter_mut().zip(zero).zip(needed);
    for (((inverse, zero), needed), (low, high)) in scales.zip(low.iter().zip(high)) {
        *inverse = 1.0 / step((*needed).max(least));
        let parts = ((low + high) * 0.5).mul_add(*inverse * PARTS, -0.5 * most * PARTS).round_ties_even();
        *zero = parts.clamp(-128.0 * PARTS, 128.0 * PARTS - 1.0) * (1.0 / PARTS);
    }
}

/// Writes down the steps and the zeros of keys. No step is more than [`BELOW`] below the base.
#[inline(always)]
pub(crate) fn write_keys(base: i32, needed: &[i32], zero: &[f32], head: &mut [u8]) {
    let (first, rest) = head.split_at_mut(2);
    first.copy_from_slice(&(base as u16).to_le_bytes());
    let (scales, rest) = rest.split_at_mut(needed.len());
    let (lower, upper) = rest.split_at_mut(needed.len());
    for (scale, needed) in scales.iter_mut().zip(needed) {
        *scale = base.wrapping_sub(*needed).min(BELOW) as u8;
    }
    let parts = |zero: &f32| whole(zero * PARTS);
    for (lower, zero) in lower.iter_mut().zip(zero) {
        *lower = parts(zero) as u8;
    }
    // Two channels share a byte as they do in a last token's codes.
    let (firsts, seconds) = zero.split_at(upper.len());
    for (upper, zero) in upper.iter_mut().zip(firsts) {
        *upper = (parts(zero) >> 8) as u8 & 15;
    }
    for (upper, zero) in upper.iter_mut().zip(seconds) {
        *upper |= ((parts(zero) >> 8) as u8) << 4;
    }
}

/// Codes are 0 to `most`.
#[inline(always)]
fn values(most: f32, groups: &mut Groups, head: &mut [u8]) {
    let Groups { low, high, needed, factor, offset } = groups;
    let (mut base, mut least) = (LEAST, MOST);
    for ((needed, low), high) in needed.iter_mut().zip(&*low).zip(&*high) {
        *needed = step_for((high - low) * (1.0 / most));
        base = base.max(*needed);
        // All zeros fit any step.
        least = least.min(if high > low { *needed } else { MOST });
    }
    let spread = ((base - least + 14) / 15).clamp(1, SPREAD);
    // Division by the spread as a multiplication: exact for all that 15 spreads are, as SPREAD² · 15 < 2^18.
    let part = (1 << 18) / spread + 1;
    head[..2].copy_from_slice(&(base as u16).to_le_bytes());
    head[2] = spread as u8;
    let scales = factor.iter_mut().zip(offset).zip(&mut head[3..]);
    for (((inverse, zero), head), ((needed, low), high)) in scales.zip(needed.iter().zip(&*low).zip(&*high)) {
        let below = (base.wrapping_sub(*needed).min(15 * SPREAD).wrapping_mul(part) >> 18).min(15);
        *inverse = 1.0 / step(base.wrapping_sub(below.wrapping_mul(spread)));
        *zero = centred(most, *low, *high, *inverse).clamp(-most, 0.0);
        *head = (below | whole(-*zero) << 4) as u8;
    }
}

#[inline(always)]
fn eight(groups: &mut Groups, head: &mut [u8]) {
    let Groups { low, high, needed, factor, offset } = groups;
    let mut base = LEAST;
    for ((needed, low), high) in needed.iter_mut().zip(&*low).zip(&*high) {
        *needed = step_for((-low).max(*high).max(0.0) * (1.0 / 127.0));
        base = base.max(*needed);
    }
    let (first, scales) = head.split_at_mut(2);
    first.copy_from_slice(&(base as u16).to_le_bytes());
    for ((inverse, scale), needed) in factor.iter_mut().zip(scales).zip(&*needed) {
        let below = base.wrapping_sub(*needed).min(BELOW);
        *inverse = 1.0 / step(base.wrapping_sub(below));
        *scale = below as u8;
    }
    offset.fill(0.0);
}

/// A whole number of at most 22 bits, as one. The numbers from 2^23 to 2^24 are a step of one apart, and what is added keeps sums there.
#[inline(always)]
fn whole(x: f32) -> i32 {
    const MIDDLE: f32 = 1.5 * (1 << 23) as f32;
    (x + MIDDLE).to_bits().wrapping_sub(MIDDLE.to_bits()) as i32
}

/// The zero that puts codes of 0 to `most` evenly over a range, so that both ends are at most half a step from one.
#[inline(always)]
fn centred(most: f32, low: f32, high: f32, inverse: f32) -> f32 {
    ((low + high) * 0.5).mul_add(inverse, -0.5 * most).round_ties_even()
}

/// Reads what [`choose`] wrote: a number is `code · factor + offset`.
#[inline(always)]
pub(crate) fn read(form: BlockShape, head: &[u8], groups: &mut Groups) {
    let base = i32::from(u16::from_le_bytes([head[0], head[1]]));
    let (steps, shifts) = (&mut groups.factor, &mut groups.offset);
    match (form.bits, form.side) {
        (CodeBits::Three | CodeBits::Four, Side::Keys) => read_keys(base, &head[2..], steps, shifts),
        (CodeBits::Three | CodeBits::Four, Side::Values) => {
            let spread = i32::from(head[2]);
            for ((s, shift), head) in steps.iter_mut().zip(shifts).zip(&head[3..]) {
                *s = step(base.wrapping_sub(i32::from(head & 15).wrapping_mul(spread)));
                *shift = -f32::from(head >> 4) * *s;
            }
        }
        (CodeBits::Eight, _) => {
            for (s, below) in steps.iter_mut().zip(&head[2..]) {
                *s = step(base.wrapping_sub(i32::from(*below)));
            }
            shifts.fill(0.0);
        }
    }
}

#[inline(always)]
fn read_keys(base: i32, head: &[u8], steps: &mut [f32], shifts: &mut [f32]) {
    let (scales, zeros) = head.split_at(steps.len());
    let (lower, upper) = zeros.split_at(steps.len());
    for (s, below) in steps.iter_mut().zip(scales) {
        *s = step(base.wrapping_sub(i32::from(*below)));
    }
    let half = upper.len();
    for (i, (shift, lower)) in shifts.iter_mut().zip(lower).enumerate() {
        let bits = if i < half { upper[i] << 4 } else { upper[i - half] & 0xf0 };
        // The sign is the upper bits' own.
        let parts = i16::from_le_bytes([lower << 4, bits | lower >> 4]) >> 4;
        *shift = f32::from(parts) * (steps[i] * (1.0 / PARTS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_and_are_no_larger_than_they_must() {
        for i in 0..100_000 {
            let x = (i as f32 * 0.0007).exp2() * 1e-9;
            let name = step_for(x);
            assert!(step(name) >= x && (step(name - 1) < x || name == LEAST), "{x}");
        }
        assert_eq!((step_for(0.0), step_for(f32::INFINITY)), (LEAST, MOST));
    }

    #[test]
    fn the_nearest_step_is_at_most_a_sixty_fourth_away() {
        for i in 0..100_000 {
            let x = (i as f32 * 0.0007).exp2() * 1e-9;
            assert!((step(step_near(x)) - x).abs() <= x / 64.0, "{x}");
        }
        assert_eq!((step_near(0.0), step_near(f32::INFINITY)), (LEAST, MOST));
    }

    #[test]
    fn spreads_divide_exactly() {
        for spread in 1..=SPREAD {
            for n in 0..=15 * SPREAD {
                assert_eq!(((n * ((1 << 18) / spread + 1)) >> 18).min(15), (n / spread).min(15), "{n} / {spread}");
            }
        }
    }
}
