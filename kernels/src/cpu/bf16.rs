//! Products with bfloat16 matrices, the definition: rows are rounded to bfloat16 too, and numbers are taken two at a time.
//!
//! Numbers `2i` and `2i + 1` of a row belong to lane `i mod 8`. A lane takes the second of the two first, by one fused
//! multiply-add each; numbers next to zero (subnormal ones) are zero, and a row's end is filled with zeros to a whole sixteen.
//! That is what x86's instruction for it does (`VDPBF16PS`, two multiply-adds for each of its lanes), and what ordinary
//! multiply-adds can do as well. These leave numbers next to zero as they are, which shows in no sum of 1e-30 or more: products
//! of two bfloat16 numbers have sixteen digits, so that a lane that holds one has no place for what was next to zero.

use super::{LANES, Lanes, Matrix, dense::Block};
use half::bf16;

/// Numbers that a lane of each takes two of.
pub(super) const SIXTEEN: usize = 2 * LANES;

/// Rounds numbers to the nearest, the even one of two.
#[inline(always)]
pub(super) fn round(x: &[f32], out: &mut [bf16]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = bf16::from_bits(rounded(*x));
    }
}

/// Bits of the nearest bfloat16: half of what is cut off is added, and one less where that would leave an odd number.
#[inline(always)]
pub(super) fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    let size = bits & 0x7fff_ffff;
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // Of what is no number the lower half may be all that says so.
    let kept = if size > 0x7f80_0000 { bits | 0x40_0000 } else { nearest };
    (if size < 0x80_0000 { bits & 0x8000_0000 } else { kept } >> 16) as u16
}

/// Goes on with the lanes of every row and output, over the block's columns. `acc` is `[row][output]`.
pub(super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    let Block { x, w, from, len } = block;
    for (x, acc) in x.chunks_exact(w.cols).zip(acc.chunks_exact_mut(w.rows)) {
        for (o, lanes) in acc.iter_mut().enumerate() {
            for k in 0..len / 2 {
                let lane = &mut lanes[k % LANES];
                for at in [from + 2 * k + 1, from + 2 * k] {
                    *lane = multiply_add(x[at].to_f32(), w.dtype.get(w.bytes, o * w.cols + at), *lane);
                }
            }
        }
    }
}

/// The columns after the last whole sixteen, and zeros after these.
pub(super) fn last_lanes_of_two(x: &[bf16], w: Matrix<'_>, acc: &mut [Lanes]) {
    let whole = w.cols - w.cols % SIXTEEN;
    for (x, acc) in x.chunks_exact(w.cols).zip(acc.chunks_exact_mut(w.rows)) {
        for (o, lanes) in acc.iter_mut().enumerate() {
            for (k, lane) in lanes.iter_mut().enumerate() {
                for at in [whole + 2 * k + 1, whole + 2 * k] {
                    let there = at < w.cols;
                    let x = if there { x[at].to_f32() } else { 0.0 };
                    let w = if there { w.dtype.get(w.bytes, o * w.cols + at) } else { 0.0 };
                    *lane = multiply_add(x, w, *lane);
                }
            }
        }
    }
}

fn multiply_add(x: f32, w: f32, sum: f32) -> f32 {
    flushed(x.mul_add(flushed(w), flushed(sum)))
}

fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rounding_is_to_the_nearest_even(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            let expected = if x.is_subnormal() { bf16::from_f32(0.0_f32.copysign(x)) } else { bf16::from_f32(x) };
            prop_assert_eq!(rounded(x), expected.to_bits());
        }
    }

    #[test]
    fn a_lane_takes_the_second_of_two_first() {
        // The second's product is lost beside the first's, unless it comes before.
        let x = [1.0, 1.0].map(bf16::from_f32);
        let w: Vec<u8> = [-(2.0_f32.powi(24)), 1.0].iter().flat_map(|w| bf16::from_f32(*w).to_le_bytes()).collect();
        let w = Matrix::new(&w, super::super::Dtype::Bf16, 1, 2);
        let mut acc = [[2.0_f32.powi(24); LANES]];
        last_lanes_of_two(&x, w, &mut acc);
        assert_eq!(acc[0][0], 0.0, "2^24 + 1 is 2^24, then nothing is left");
    }
}
