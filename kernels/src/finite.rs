//! Whether weights are numbers at all: the first NaN or infinity of a tensor, at the speed memory is read.
//!
//! One such weight makes every later activation NaN, and an answer of nothing but one token, with no sign of why. So
//! each is looked at once, while its stage is loaded. Of quantised blocks only scales can be bad: quants are whole numbers.

use crate::{
    cpu::{Cpu, Dtype},
    quant::{QuantType, k_quants::scale_of_iq1_m, small::half_power},
    stored::Stored,
};
use std::fmt;

/// MXFP4's power of two from which on a weight would be beyond half precision, or none.
const TOO_LARGE: u8 = 140;

/// Bytes that one thread looks at in one go.
const PART: usize = 1 << 20;

/// Something in a tensor that nothing can be computed with.
#[derive(Clone, Copy, Debug)]
pub struct NonFinite {
    /// NaN or an infinity.
    pub value: f32,
    /// The number's place in the tensor, row after row; of a block's scale, that of the block's first number.
    pub index: usize,
    /// Numbers that share it: one, or those of a block whose scale it is.
    pub numbers: usize,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, index, numbers } = self;
        match numbers {
            1 => write!(f, "{value} at number {index}"),
            _ => write!(f, "{value} as a scale of numbers {index} to {}", index + numbers - 1),
        }
    }
}

impl NonFinite {
    /// The first of `numbers` that is not finite.
    pub(crate) fn of(numbers: &[f32]) -> Option<Self> {
        let index = numbers.iter().position(|x| !x.is_finite())?;
        Some(Self { value: numbers[index], index, numbers: 1 })
    }
}

/// The first bad number of a tensor's `bytes`, or the first block with a bad scale.
pub(crate) fn first_bad(cpu: &Cpu, bytes: &[u8], stored: Stored) -> Option<NonFinite> {
    let unit = match stored {
        Stored::Dense(dtype) => dtype.bytes(),
        Stored::Quantised(kind) => kind.bytes(),
    };
    let part = PART / unit * unit;
    let parts: Vec<&[u8]> = bytes.chunks(part).collect();
    let first = cpu.first_part(parts.len(), |i| any_bad(parts[i], stored))?;
    let (at, mut bad) =
        parts[first].chunks_exact(unit).enumerate().find_map(|(at, one)| Some((at, bad(one, stored)?)))?;
    bad.index = (first * (part / unit) + at) * bad.numbers;
    Some(bad)
}

/// The first power of two of MXFP4 that is none, of those that lie by themselves.
pub(crate) fn first_bad_power(powers: &[u8]) -> Option<NonFinite> {
    let at = powers.iter().position(|power| *power >= TOO_LARGE)?;
    let numbers = QuantType::Mxfp4.numbers();
    Some(NonFinite { value: 2.0 * half_power(powers[at]), index: at * numbers, numbers })
}

/// Numbers are bad whose exponent is all ones. No branch inside: compilers make vector instructions of it.
fn any_bad(bytes: &[u8], stored: Stored) -> bool {
    match stored {
        Stored::Dense(Dtype::F32) => {
            let ones = |x: &[u8; 4]| u32::from_le_bytes(*x) & 0x7f80_0000 == 0x7f80_0000;
            bytes.as_chunks().0.iter().fold(0_u32, |bad, x| bad | u32::from(ones(x))) != 0
        }
        Stored::Dense(Dtype::F16) => any_of_two_bytes(bytes, 0x7c00),
        Stored::Dense(Dtype::Bf16) => any_of_two_bytes(bytes, 0x7f80),
        Stored::Quantised(kind) => bytes.chunks_exact(kind.bytes()).any(|block| bad_scale(block, kind).is_some()),
    }
}

fn any_of_two_bytes(bytes: &[u8], exponent: u16) -> bool {
    let ones = |x: &[u8; 2]| u16::from_le_bytes(*x) & exponent == exponent;
    bytes.as_chunks().0.iter().fold(0_u16, |bad, x| bad | u16::from(ones(x))) != 0
}

/// A block's scale that is not finite.
fn bad_scale(block: &[u8], kind: QuantType) -> Option<f32> {
    let scale = |at: &usize| Dtype::F16.get(&block[*at..], 0);
    if kind == QuantType::Mxfp4 && block[0] >= TOO_LARGE {
        return Some(2.0 * half_power(block[0]));
    }
    if kind == QuantType::Iq1M {
        return Some(scale_of_iq1_m(block)).filter(|scale| !scale.is_finite());
    }
    kind.scales().iter().map(scale).find(|scale| !scale.is_finite())
}

/// What is bad about one number or block, its index left open.
fn bad(one: &[u8], stored: Stored) -> Option<NonFinite> {
    let (value, numbers) = match stored {
        Stored::Dense(dtype) => (Some(dtype.get(one, 0)).filter(|x| !x.is_finite()), 1),
        Stored::Quantised(kind) => (bad_scale(one, kind), kind.numbers()),
    };
    Some(NonFinite { value: value?, index: 0, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;
    use half::{bf16, f16};

    const WRONG: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

    fn found(bytes: &[u8], stored: Stored) -> Option<(usize, usize, bool)> {
        let both = [1, 3].map(|threads| first_bad(&Cpu::new(Simd::detect(), threads).unwrap(), bytes, stored));
        let [one, three] = both.map(|bad| bad.map(|bad| (bad.index, bad.numbers, bad.value.is_nan())));
        assert_eq!(one, three, "threads change nothing");
        one
    }

    #[test]
    fn the_first_bad_number_is_found_wherever_it_lies() {
        let numbers = 3 * PART / 2 + 7;
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let store = |x: f32| match dtype {
                Dtype::F32 => x.to_le_bytes().to_vec(),
                Dtype::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
                Dtype::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
            };
            // The largest finite number of each kind has an exponent one below.
            let largest = match dtype {
                Dtype::F32 => f32::MAX,
                Dtype::F16 => f16::MAX.to_f32(),
                Dtype::Bf16 => bf16::MAX.to_f32(),
            };
            let fine = [0.0, -0.0, largest, -largest, 1e-30].into_iter().cycle().take(numbers).flat_map(store);
            let fine: Vec<u8> = fine.collect();
            assert_eq!(found(&fine, Stored::Dense(dtype)), None, "{dtype:?}");
            for (at, wrong) in [0, PART, numbers - 1].into_iter().zip(WRONG) {
                let mut bytes = fine.clone();
                let size = dtype.bytes();
                bytes[at * size..][..size].copy_from_slice(&store(wrong));
                bytes[(numbers - 1) * size..].copy_from_slice(&store(f32::INFINITY));
                let nan = wrong.is_nan() && at != numbers - 1;
                assert_eq!(found(&bytes, Stored::Dense(dtype)), Some((at, 1, nan)), "{dtype:?}");
            }
        }
    }

    #[test]
    fn a_bad_scale_is_found_in_every_kind_of_block() {
        for kind in QuantType::ALL {
            let blocks = PART / kind.bytes() + 3;
            // Quants of all ones, so that only scales can be told from numbers.
            let mut fine = vec![0xff; blocks * kind.bytes()];
            for block in fine.chunks_exact_mut(kind.bytes()) {
                if kind == QuantType::Mxfp4 {
                    block[0] = TOO_LARGE - 1;
                }
                if kind == QuantType::Iq1M {
                    block[55] = 0x3f;
                }
                kind.scales().iter().for_each(|at| block[*at..at + 2].copy_from_slice(&f16::MAX.to_le_bytes()));
            }
            assert_eq!(found(&fine, Stored::Quantised(kind)), None, "{kind:?}");
            for scale in kind.scales() {
                for (block, wrong) in [0, 1, blocks - 1].into_iter().zip(WRONG) {
                    let mut bytes = fine.clone();
                    let at = block * kind.bytes() + scale;
                    bytes[at..at + 2].copy_from_slice(&f16::from_f32(wrong).to_le_bytes());
                    let expected = Some((block * kind.numbers(), kind.numbers(), wrong.is_nan()));
                    assert_eq!(found(&bytes, Stored::Quantised(kind)), expected, "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn powers_of_two_that_nothing_holds_are_found() {
        let kind = QuantType::Mxfp4;
        let block = |exponent| [[exponent].as_slice(), &[0x77; 16]].concat();
        let bad = |exponent| first_bad(&Cpu::new(Simd::Plain, 1).unwrap(), &block(exponent), Stored::Quantised(kind));
        assert!(bad(0).is_none() && bad(TOO_LARGE - 1).is_none());
        assert!(bad(u8::MAX).is_some_and(|bad| bad.value.is_nan()));
        assert_eq!(bad(TOO_LARGE).map(|bad| bad.value), Some(8192.0));
    }

    /// The one whose scale lies in four places.
    #[test]
    fn a_scale_in_parts_is_put_together() {
        let mut block = vec![0xff_u8; QuantType::Iq1M.bytes()];
        let found = |block: &[u8]| found(block, Stored::Quantised(QuantType::Iq1M));
        assert_eq!(found(&block), Some((0, 256, true)));
        block[55] = 0x0f;
        assert_eq!(found(&block), None);
    }

    /// Scales are where decoding reads them: a block with a bad one means numbers that are bad.
    #[test]
    fn no_kind_of_block_has_other_scales() {
        for kind in QuantType::ALL {
            for at in 0..kind.bytes() - 1 {
                let mut block = vec![0x11; kind.bytes()];
                block[at..at + 2].copy_from_slice(&f16::INFINITY.to_le_bytes());
                let mut numbers = vec![0.0; kind.numbers()];
                crate::quant::Blocks::new(&block, kind, 1, kind.numbers()).widen_row(0, &mut numbers);
                assert_eq!(bad_scale(&block, kind).is_some(), NonFinite::of(&numbers).is_some(), "{kind:?} at {at}");
            }
        }
    }
}
