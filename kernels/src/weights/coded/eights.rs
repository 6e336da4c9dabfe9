//! Matrices of 8-bit floating-point numbers (e4m3: a sign, four bits of exponent, three behind the point), and scales that a
//! block of them, an output or the matrix shares.

use crate::cpu::Dtype;

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    Numbers(Dtype),
    /// A power of two in a byte.
    Powers,
}

/// A whole matrix, `[output][input]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eights<'a> {
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub stored: Scales,
    pub inputs: usize,
    /// Outputs and inputs that share a scale.
    pub block: [usize; 2],
}

/// What is none: the largest, of either sign.
pub(crate) const NAN: u8 = 0x7f;
/// The largest number.
pub(crate) const LARGEST: f32 = 448.0;

/// What every byte stands for.
static NUMBERS: [f32; 256] = numbers();

const fn numbers() -> [f32; 256] {
    let mut all = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (exponent, fraction) = ((byte >> 3) & 15, byte & 7);
        // Without a leading one where the exponent is zero; the smallest step is 2^-9.
        let (whole, steps) = if exponent == 0 { (fraction, 0) } else { (8 + fraction, exponent - 1) };
        let size = (whole << steps) as f32 / 512.0;
        all[byte] = if byte & 0x7f == NAN as usize {
            f32::NAN
        } else if byte >= 128 {
            -size
        } else {
            size
        };
        byte += 1;
    }
    all
}

impl Scales {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::Numbers(dtype) => dtype.bytes(),
            Self::Powers => 1,
        }
    }

    /// Number `at`.
    pub fn get(self, bytes: &[u8], at: usize) -> f32 {
        match self {
            Self::Numbers(dtype) => dtype.get(bytes, at),
            Self::Powers if bytes[at] == u8::MAX => f32::NAN,
            Self::Powers => libm::ldexpf(1.0, i32::from(bytes[at]) - 127),
        }
    }
}

impl Eights<'_> {
    /// Writes the numbers of an output.
    pub fn widen_row(&self, output: usize, out: &mut [f32]) {
        let [outputs, inputs] = self.block;
        let codes = &self.codes[output * self.inputs..][..self.inputs];
        let from = output / outputs * self.inputs.div_ceil(inputs);
        for ((at, codes), out) in (from..).zip(codes.chunks(inputs)).zip(out.chunks_mut(inputs)) {
            let scale = self.stored.get(self.scales, at);
            for (out, code) in out.iter_mut().zip(codes) {
                *out = NUMBERS[usize::from(*code)] * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_numbers_of_the_format() {
        for (byte, number) in [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0), (0x7e, LARGEST)] {
            assert_eq!(NUMBERS[byte], number, "{byte:#x}");
            assert_eq!(NUMBERS[byte + 128], -number, "{byte:#x}");
        }
        assert_eq!(NUMBERS.iter().filter(|number| number.is_nan()).count(), 2);
        assert!((1..0x7f).all(|byte| NUMBERS[byte] > NUMBERS[byte - 1]));
    }

    #[test]
    fn blocks_at_the_edge_are_narrower() {
        let codes: Vec<u8> = vec![0x38; 5 * 7];
        let scales: Vec<u8> = (0..6).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let eights =
            Eights { codes: &codes, scales: &scales, stored: Scales::Numbers(Dtype::F32), inputs: 7, block: [2, 4] };
        let mut row = [9.0; 7];
        for output in 0..5 {
            eights.widen_row(output, &mut row);
            let first = (output / 2 * 2) as f32;
            assert_eq!(row, [first, first, first, first, first + 1.0, first + 1.0, first + 1.0]);
        }
    }
}
