//! Matrices of four-bit numbers as GPTQ, AWQ and compressed-tensors lay them down: eight numbers in a word, inputs in groups
//! that share a scale and what number is zero.
//!
//! A number is `scale · (code − zero)`. Where groups are whole blocks of 32 that is a block of [`QuantType::Q4_0`], or of
//! [`QuantType::Q5_0`] where zero is no 8 everywhere: the difference has five bits at most, and the scale is the same.

use super::QuantType;
use half::{bf16, f16};

/// Numbers in a word.
pub(crate) const EIGHT: usize = 8;
/// What is zero where nothing else is said.
const MIDDLE: u8 = 8;
/// Numbers in a block.
const BLOCK: usize = 32;
/// Which of a word's numbers is that of an output, by AWQ.
const AWQ: [usize; EIGHT] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A block of the longer kind.
pub(super) type Joined = [u8; 22];

/// How words lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordPacking {
    /// `[inputs / 8][output]`, inputs in their order; zeros by outputs.
    Gptq,
    /// `[input][outputs / 8]`, outputs in an order of its own.
    Awq,
    /// `[output][inputs / 8]`; zeros by outputs too.
    Compressed,
}

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfFormat {
    F16,
    Bf16,
}

impl HalfFormat {
    fn get(self, bytes: &[u8], at: usize) -> f32 {
        let two = [bytes[2 * at], bytes[2 * at + 1]];
        match self {
            Self::F16 => f16::from_le_bytes(two).to_f32(),
            Self::Bf16 => bf16::from_le_bytes(two).to_f32(),
        }
    }
}

/// A whole matrix, `[output][input]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fours<'a> {
    pub packing: WordPacking,
    /// Words of numbers.
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub halves: HalfFormat,
    /// Words of zeros; 8 is zero everywhere where there are none.
    pub zeros: Option<&'a [u8]>,
    /// Whether zeros are stored less one.
    pub less_one: bool,
    /// Group of each input, four bytes; without it groups are inputs side by side.
    pub index: Option<&'a [u8]>,
    pub outputs: usize,
    pub inputs: usize,
    /// Inputs that share a scale.
    pub group: usize,
}

/// Word number `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(4 * at..4 * at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The number at `place` of a word.
fn nibble(word: u32, place: usize) -> u8 {
    (word >> (4 * place)) as u8 & 15
}

impl Fours<'_> {
    /// Groups of inputs.
    pub fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group.max(1))
    }

    /// The numbers of eight inputs from `from` on.
    fn eight(&self, output: usize, from: usize) -> [u8; EIGHT] {
        let whole = |at| std::array::from_fn(|i| nibble(word(self.codes, at), i));
        match self.packing {
            WordPacking::Gptq => whole(from / EIGHT * self.outputs + output),
            WordPacking::Compressed => whole(output * (self.inputs / EIGHT) + from / EIGHT),
            WordPacking::Awq => {
                let (words, at) = (self.outputs / EIGHT, output / EIGHT);
                let place = AWQ[output % EIGHT];
                std::array::from_fn(|i| nibble(word(self.codes, (from + i) * words + at), place))
            }
        }
    }

    /// What is zero.
    fn zero(&self, output: usize, group: usize) -> u8 {
        let Some(zeros) = self.zeros else { return MIDDLE };
        let words = self.outputs / EIGHT;
        let stored = match self.packing {
            WordPacking::Gptq => nibble(word(zeros, group * words + output / EIGHT), output % EIGHT),
            WordPacking::Awq => nibble(word(zeros, group * words + output / EIGHT), AWQ[output % EIGHT]),
            WordPacking::Compressed => nibble(word(zeros, output / EIGHT * self.groups() + group), output % EIGHT),
        };
        stored + u8::from(self.less_one)
    }

    fn scale_at(&self, output: usize, group: usize) -> usize {
        match self.packing {
            WordPacking::Gptq | WordPacking::Awq => group * self.outputs + output,
            WordPacking::Compressed => output * self.groups() + group,
        }
    }

    /// The group of an input; one that is none was refused when the tensor was looked at.
    fn group_of(&self, input: usize) -> usize {
        match self.index {
            Some(index) => (word(index, input) as usize).min(self.groups() - 1),
            None => input / self.group,
        }
    }

    /// Writes the numbers of an output.
    pub fn widen_row(&self, output: usize, out: &mut [f32]) {
        let mut known = (usize::MAX, 0.0, 0);
        for (from, out) in (0..).step_by(EIGHT).zip(out.chunks_mut(EIGHT)) {
            for ((input, code), out) in (from..).zip(self.eight(output, from)).zip(out) {
                let group = self.group_of(input);
                if group != known.0 {
                    let scale = self.halves.get(self.scales, self.scale_at(output, group));
                    known = (group, scale, i32::from(self.zero(output, group)));
                }
                *out = known.1 * (i32::from(code) - known.2) as f32;
            }
        }
    }

    /// The kind that blocks are of, where groups are whole blocks.
    pub fn kind(&self) -> Option<QuantType> {
        let whole = self.index.is_none() && self.group.is_multiple_of(BLOCK) && self.inputs.is_multiple_of(BLOCK);
        whole.then_some(if self.zeros.is_some() { QuantType::Q5_0 } else { QuantType::Q4_0 })
    }

    /// Block number `block` of an output, as GGUF files have that kind; its bytes are the first of those that are given.
    pub(super) fn block(&self, kind: QuantType, output: usize, block: usize) -> Joined {
        let mut out = [0; 22];
        let group = block * BLOCK / self.group;
        let at = self.scale_at(output, group);
        out[..2].copy_from_slice(&f16::from_f32(self.halves.get(self.scales, at)).to_le_bytes());
        let (five, zero) = (kind == QuantType::Q5_0, self.zero(output, group));
        // Of Q5_0, what is zero is 16; of Q4_0, as here, 8.
        let lift = if five { 16 - zero } else { 0 };
        let quants = if five { 6 } else { 2 };
        for from in (0..BLOCK).step_by(EIGHT) {
            for (i, code) in (from..).zip(self.eight(output, block * BLOCK + from)) {
                let code = code + lift;
                out[quants + i % 16] |= (code & 15) << (i / 16 * 4);
                if five {
                    out[2 + i / 8] |= (code >> 4) << (i % 8);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Blocks;
    use proptest::prelude::*;

    proptest! {
        /// Blocks stand for the same numbers, to the bit, as those of the tensors: whatever they hold.
        #[test]
        fn blocks_are_the_same_numbers(seed in any::<u64>(), zeros in any::<bool>(), less_one in any::<bool>()) {
            let mut n = seed;
            let mut next = || { n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (n >> 33) as u8 };
            let (outputs, inputs, group) = (16, 96, 32);
            let codes: Vec<u8> = (0..outputs * inputs / 2).map(|_| next()).collect();
            let stored: Vec<u8> = (0..outputs * 3 / 2).map(|_| next()).collect();
            let scales: Vec<u8> =
                (0..outputs * 3).flat_map(|_| f16::from_f32(f32::from(next()) / 77.0 - 1.0).to_le_bytes()).collect();
            for packing in [WordPacking::Gptq, WordPacking::Awq, WordPacking::Compressed] {
                let zeros = zeros.then_some(&stored[..]);
                let fours = Fours {
                    packing, codes: &codes, scales: &scales, halves: HalfFormat::F16, zeros, less_one, index: None, outputs,
                    inputs, group,
                };
                let kind = fours.kind().unwrap();
                let blocks = Blocks::of_fours(fours, kind, 3, outputs - 3);
                for output in 3..outputs {
                    let (mut theirs, mut ours) = (vec![0.0; inputs], vec![1.0; inputs]);
                    fours.widen_row(output, &mut theirs);
                    blocks.widen_row(output - 3, &mut ours);
                    prop_assert_eq!(&theirs, &ours, "{:?} {:?}", packing, kind);
                }
            }
        }
    }
}
