//! Inputs side by side: padded on the right to the longest, with a mask that says what is padding.

use candle_core::{DType, Device, Result, Tensor};

/// Tokens of one batch, padding counted in.
const TOKENS: usize = 4096;
/// Inputs up to here are alike, whatever their lengths (tokens).
const SHORT: usize = 64;
/// What attention may take for one batch and layer (bytes): scores of all heads, as 32-bit numbers. A step holds about three.
pub(super) const SCORES: usize = 256 << 20;

/// One input as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tokenised {
    pub ids: Vec<u32>,
    /// Which of a pair each token is of.
    pub types: Vec<u32>,
}

/// Inputs as tensors.
pub(super) struct EncoderBatch {
    /// (inputs, longest).
    pub ids: Tensor,
    pub types: Tensor,
    /// 1 for a token, 0 for padding.
    pub mask: Tensor,
    pub lengths: Vec<usize>,
}

impl EncoderBatch {
    pub fn of(inputs: &[&Tokenised], pad: u32) -> Result<Self> {
        let lengths: Vec<usize> = inputs.iter().map(|input| input.ids.len()).collect();
        let (rows, longest) = (inputs.len(), lengths.iter().copied().max().unwrap_or(0));
        let padded = |of: fn(&Tokenised) -> &[u32], with: u32| {
            let row = |input: &&Tokenised| {
                let own = of(input);
                own.iter().copied().chain(std::iter::repeat_n(with, longest - own.len())).collect::<Vec<_>>()
            };
            Tensor::from_vec(inputs.iter().flat_map(row).collect::<Vec<u32>>(), (rows, longest), &Device::Cpu)
        };
        let mask = lengths.iter().flat_map(|length| (0..longest).map(move |at| u32::from(at < *length)));
        Ok(Self {
            ids: padded(|input| &input.ids, pad)?,
            types: padded(|input| &input.types, 0)?,
            mask: Tensor::from_vec(mask.collect::<Vec<u32>>(), (rows, longest), &Device::Cpu)?,
            lengths,
        })
    }

    /// The mask as numbers to multiply with: (inputs, longest, 1).
    pub fn weights(&self) -> Result<Tensor> {
        self.mask.to_dtype(DType::F32)?.unsqueeze(2)
    }
}

/// Which inputs are computed together, by their places: the longest first, so that little is padding, as many as fit.
pub(super) fn together(inputs: &[Tokenised], heads: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(inputs[*at].ids.len()));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for at in order {
        let length = inputs[at].ids.len();
        let fits = |batch: &Vec<usize>| {
            let (longest, rows) = (inputs[batch[0]].ids.len(), batch.len() + 1);
            let is_alike = 2 * length >= longest || longest <= SHORT;
            is_alike && rows * longest <= TOKENS && rows * scores(longest, heads) <= SCORES
        };
        match batches.last_mut().filter(|batch| fits(batch)) {
            Some(batch) => batch.push(at),
            None => batches.push(vec![at]),
        }
    }
    batches
}

/// What attention takes for one input (bytes).
fn scores(length: usize, heads: usize) -> usize {
    4 * heads * length * length
}

/// The longest input whose attention fits.
pub(super) fn longest(heads: usize) -> usize {
    (SCORES / (4 * heads.max(1))).isqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(length: usize) -> Tokenised {
        Tokenised { ids: vec![7; length], types: vec![0; length] }
    }

    #[test]
    fn inputs_of_like_length_go_together_and_all_go() {
        let inputs = [input(3), input(2000), input(5), input(2000), input(2000), input(4)];
        assert_eq!(together(&inputs, 2), [vec![1, 3], vec![4], vec![2, 5, 0]]);
        assert_eq!(together(&[], 2), Vec::<Vec<usize>>::new());
        let most = longest(12);
        assert!(scores(most, 12) <= SCORES && scores(most + 1, 12) > SCORES);
        assert_eq!(together(&[input(most), input(most)], 12).len(), 2, "attention of one is all there is room for");
    }

    #[test]
    fn what_is_shorter_is_padded() {
        let batch = EncoderBatch::of(&[&input(3), &input(1)], 9).unwrap();
        assert_eq!(batch.ids.to_vec2::<u32>().unwrap(), [[7, 7, 7], [7, 9, 9]]);
        assert_eq!(batch.mask.to_vec2::<u32>().unwrap(), [[1, 1, 1], [1, 0, 0]]);
    }
}
