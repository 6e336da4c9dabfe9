//! Which step a group's codes count, and where they begin.
//!
//! A step is a float with four bits of mantissa, the upper bits of a single-precision number, so that whole numbers name
//! them in order: 16 to an octave, each at most 1/16 larger than the one before. Products with a zero and a code, 13 bits
//! at most, are then exact. A group gets the smallest step that covers its range: steps that minimise the mean error
//! instead cut off the largest keys, which are those that attention looks for, and were worse for what matters
//! (docs/decisions.md).

use super::{Bits, Form, Side};

/// Mantissa bits of a single-precision number that a step does not have.
const CUT: u32 = 19;
/// Steps from 2^-60 to 2^60: what is smaller is zero beside anything that attention mixes, and nothing overflows.
const LEAST: i32 = (127 - 60) << 4;
const MOST: i32 = (127 + 60) << 4;
/// Largest spread of the scales of values: with it the smallest of 16 is 2^-60 of the largest.
const SPREAD: i32 = 64;

/// The smallest step that is not below `x`, which is no less than zero.
#[inline(always)]
fn step_for(x: f32) -> i32 {
    ((x.to_bits() as i32 + (1 << CUT) - 1) >> CUT).clamp(LEAST, MOST)
}

/// A step by its name.
#[inline(always)]
fn step(name: i32) -> f32 {
    f32::from_bits((name.clamp(LEAST, MOST) as u32) << CUT)
}

/// Chooses steps and zeros for groups of these ranges, and writes them down. `inverse` and `zero` are what rows are
/// encoded with: a number's code is `x · inverse - zero`, rounded.
#[inline(always)]
pub(crate) fn choose(form: Form, low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
    match (form.bits, form.side) {
        (Bits::Four, Side::Keys) => four_keys(low, high, head, inverse, zero),
        (Bits::Four, Side::Values) => four_values(low, high, head, inverse, zero),
        (Bits::Eight, _) => eight(low, high, head, inverse, zero),
    }
}

#[inline(always)]
fn four_keys(low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
    // A channel far from zero needs a step that a zero of eight bits reaches it with.
    let needed = |low: f32, high: f32| step_for(((high - low) * (1.0 / 15.0)).max((-low).max(high) * (1.0 / 128.0)));
    let base = low.iter().zip(high).fold(LEAST, |base, (low, high)| base.max(needed(*low, *high)));
    let (first, rest) = head.split_at_mut(2);
    first.copy_from_slice(&(base as u16).to_le_bytes());
    let (scales, zeros) = rest.split_at_mut(low.len());
    for i in 0..low.len() {
        let below = (base - needed(low[i], high[i])).min(255);
        inverse[i] = 1.0 / step(base - below);
        zero[i] = centred(low[i], high[i], inverse[i]).clamp(-128.0, 127.0);
        scales[i] = below as u8;
        zeros[i] = zero[i] as i8 as u8;
    }
}

#[inline(always)]
fn four_values(low: &[f32], high: &[f32], head: &mut [u8], inverse: &mut [f32], zero: &mut [f32]) {
    // Ranges include zero: then a zero takes four bits.
    let range = |i: usize| high[i].max(0.0) - low[i].min(0.0);
    let needed = |i: usize| step_for(range(i) * (1.0 / 15.0));
    let (mut base, mut least) = (LEAST, MOST);
    for i in 0..low.len() {
        base = base.max(needed(i));
        // All zeros fit any step.
        least = least.min(if range(i) > 0.0 { needed(i) } else { MOST });
    }
    let spread = ((base - least + 14) / 15).clamp(1, SPREAD);
    // Division by the spread as a multiplication: exact for all that 15 spreads are, as SPREAD² · 15 < 2^16.
    let part = (1 << 16) / spread + 1;
    head[..2].copy_from_slice(&(base as u16).to_le_bytes());
    head[2] = spread as u8;
    for i in 0..low.len() {
        let below = (((base - needed(i)).min(15 * SPREAD) * part) >> 16).min(15);
        inverse[i] = 1.0 / step(base - below * spread);
        zero[i] = centred(low[i].min(0.0), high[i].max(0.0), inverse[i]).clamp(-15.0, 0.0);
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

/// The zero that puts 16 codes evenly over a range, so that both ends are at most half a step from one.
#[inline(always)]
fn centred(low: f32, high: f32, inverse: f32) -> f32 {
    ((low + high) * 0.5).mul_add(inverse, -7.5).round_ties_even()
}

/// Reads what [`choose`] wrote: a number is `code · step + shift`.
pub(crate) fn read(form: Form, head: &[u8], steps: &mut [f32], shifts: &mut [f32]) {
    let base = i32::from(u16::from_le_bytes([head[0], head[1]]));
    let groups = steps.iter_mut().zip(shifts).enumerate();
    match (form.bits, form.side) {
        (Bits::Four, Side::Keys) => {
            let (scales, zeros) = head[2..].split_at(form.dim);
            for (i, (s, shift)) in groups {
                *s = step(base - i32::from(scales[i]));
                *shift = f32::from(zeros[i] as i8) * *s;
            }
        }
        (Bits::Four, Side::Values) => {
            let spread = i32::from(head[2]);
            for (i, (s, shift)) in groups {
                *s = step(base - i32::from(head[3 + i] & 15) * spread);
                *shift = -f32::from(head[3 + i] >> 4) * *s;
            }
        }
        (Bits::Eight, _) => {
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
    fn spreads_divide_exactly() {
        for spread in 1..=SPREAD {
            for n in 0..=15 * SPREAD {
                assert_eq!(((n * ((1 << 16) / spread + 1)) >> 16).min(15), (n / spread).min(15), "{n} / {spread}");
            }
        }
    }
}
