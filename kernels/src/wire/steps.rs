//! Which step a group's codes count, and where they begin.
//!
//! A step is a float with five bits of mantissa, the upper bits of a single-precision number, so that whole numbers name
//! them in order: 32 to an octave, each at most 1/32 larger than the one before. Products with a zero and a code, 12 bits
//! at most, are then exact. A group gets a step that covers its range: steps that minimise the mean error
//! instead cut off the largest keys, which are those that attention looks for, and were worse for what matters
//! (docs/design/decisions/four-bits.md). For the same reason the ends of a channel of keys lie near codes: its step is the nearest one, not the
//! next larger, and its zero counts sixteenths of a step.

use super::{BlockShape, CodeBits, Side};

/// Mantissa bits of a single-precision number that a step does not have.
const CUT: u32 = 18;
/// Steps from 2^-60 to 2^60: what is smaller is zero beside anything that attention mixes, and nothing overflows.
const LEAST: i32 = (127 - 60) << 5;
const MOST: i32 = (127 + 60) << 5;
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

/// Chooses steps and zeros for groups of these ranges, and writes them down. `inverse` and `zero` are what rows are
/// encoded with: a number's code is `x · inverse - zero`, rounded.
#[inline(always)]
pub(crate) fn choose(
    form: BlockShape,
    low: &[f32],
    high: &[f32],
    head: &mut [u8],
    inverse: &mut [f32],
    zero: &mut [f32],
) {
    match (form.bits, form.side) {
        (CodeBits::Three, Side::Keys) => keys(7.0, low, high, head, inverse, zero),
        (CodeBits::Three, Side::Values) => values(7.0, low, high, head, inverse, zero),
        (CodeBits::Four, Side::Keys) => keys(15.0, low, high, head, inverse, zero),
        (CodeBits::Four, Side::Values) => values(15.0, low, high, head, inverse, zero),
        (CodeBits::Eight, _) => eight(low, high, head, inverse, zero),
    }
}

/// Codes are 0 to `most`.
#[inline(always)]
fn keys(most: f32, low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
    // A channel far from zero needs a step that a zero of at most 128 steps reaches it with, be it the next smaller one.
    let needed = |low: f32, high: f32| step_near(((high - low) * (1.0 / most)).max((-low).max(high) * (1.0 / 126.0)));
    let base = low.iter().zip(high).fold(LEAST, |base, (low, high)| base.max(needed(*low, *high)));
    let (first, rest) = head.split_at_mut(2);
    first.copy_from_slice(&(base as u16).to_le_bytes());
    let (scales, rest) = rest.split_at_mut(low.len());
    let (lower, upper) = rest.split_at_mut(low.len());
    upper.fill(0);
    for i in 0..low.len() {
        let below = (base - needed(low[i], high[i])).min(255);
        inverse[i] = 1.0 / step(base - below);
        let parts = ((low[i] + high[i]) * 0.5).mul_add(inverse[i] * PARTS, -0.5 * most * PARTS).round_ties_even();
        let parts = parts.clamp(-128.0 * PARTS, 128.0 * PARTS - 1.0);
        zero[i] = parts * (1.0 / PARTS);
        scales[i] = below as u8;
        lower[i] = parts as i16 as u8;
    }
    // Two channels share a byte as they do in a last token's codes.
    let half = upper.len();
    for (i, zero) in zero.iter().enumerate() {
        let bits = ((*zero * PARTS) as i16 >> 8) as u8;
        upper[if i < half { i } else { i - half }] |= if i < half { bits & 15 } else { bits << 4 };
    }
}

/// Codes are 0 to `most`.
#[inline(always)]
fn values(most: f32, low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
    // Ranges include zero: then a zero takes four bits.
    let range = |i: usize| high[i].max(0.0) - low[i].min(0.0);
    let needed = |i: usize| step_for(range(i) * (1.0 / most));
    let (mut base, mut least) = (LEAST, MOST);
    for i in 0..low.len() {
        base = base.max(needed(i));
        // All zeros fit any step.
        least = least.min(if range(i) > 0.0 { needed(i) } else { MOST });
    }
    let spread = ((base - least + 14) / 15).clamp(1, SPREAD);
    // Division by the spread as a multiplication: exact for all that 15 spreads are, as SPREAD² · 15 < 2^18.
    let part = (1 << 18) / spread + 1;
    head[..2].copy_from_slice(&(base as u16).to_le_bytes());
    head[2] = spread as u8;
    for i in 0..low.len() {
        let below = (((base - needed(i)).min(15 * SPREAD) * part) >> 18).min(15);
        inverse[i] = 1.0 / step(base - below * spread);
        zero[i] = centred(most, low[i].min(0.0), high[i].max(0.0), inverse[i]).clamp(-most, 0.0);
        head[3 + i] = below as u8 | ((-zero[i]) as u8 * 16);
    }
}

#[inline(always)]
fn eight(low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
    let needed = |low: f32, high: f32| step_for((-low).max(high).max(0.0) * (1.0 / 127.0));
    let base = low.iter().zip(high).fold(LEAST, |base, (low, high)| base.max(needed(*low, *high)));
    let (first, scales) = head.split_at_mut(2);
    first.copy_from_slice(&(base as u16).to_le_bytes());
    for i in 0..low.len() {
        let below = (base - needed(low[i], high[i])).min(255);
        inverse[i] = 1.0 / step(base - below);
        zero[i] = 0.0;
        scales[i] = below as u8;
    }
}

/// The zero that puts codes of 0 to `most` evenly over a range, so that both ends are at most half a step from one.
#[inline(always)]
fn centred(most: f32, low: f32, high: f32, inverse: f32) -> f32 {
    ((low + high) * 0.5).mul_add(inverse, -0.5 * most).round_ties_even()
}

/// Reads what [`choose`] wrote: a number is `code · step + shift`.
pub(crate) fn read(form: BlockShape, head: &[u8], steps: &mut [f32], shifts: &mut [f32]) {
    let base = i32::from(u16::from_le_bytes([head[0], head[1]]));
    let groups = steps.iter_mut().zip(shifts).enumerate();
    match (form.bits, form.side) {
        (CodeBits::Three | CodeBits::Four, Side::Keys) => {
            let (scales, zeros) = head[2..].split_at(form.dim);
            let (lower, upper) = zeros.split_at(form.dim);
            let half = upper.len();
            for (i, (s, shift)) in groups {
                *s = step(base - i32::from(scales[i]));
                let bits = if i < half { upper[i] << 4 } else { upper[i - half] & 0xf0 };
                // The sign is the upper bits' own.
                let parts = i16::from_le_bytes([lower[i] << 4, bits | lower[i] >> 4]) >> 4;
                *shift = f32::from(parts) * (*s * (1.0 / PARTS));
            }
        }
        (CodeBits::Three | CodeBits::Four, Side::Values) => {
            let spread = i32::from(head[2]);
            for (i, (s, shift)) in groups {
                *s = step(base - i32::from(head[3 + i] & 15) * spread);
                *shift = -f32::from(head[3 + i] >> 4) * *s;
            }
        }
        (CodeBits::Eight, _) => {
            for (i, (s, shift)) in groups {
                *s = step(base - i32::from(head[2 + i]));
                *shift = 0.0;
            }
        }
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
