//! The layout that four bits on a link are measured against: after KIVI, simple and larger.

use crate::engine::{Engine, EngineError, StageKey};
use half::f16;
use tsnode_protocol::{KvCodec, RequestId, TileHeader};

/// Numbers that share a minimum and a step: tokens of a key channel, channels of a token's values.
const GROUP: usize = 32;

/// Leaves the first `tokens` in pages of half precision as groups of 32 would that have four bits a number and a minimum and a
/// step of 16 bits: keys by channel, values by token.
///
/// # Errors
/// When the tokens are not present, or no codec may leave them otherwise.
pub fn as_reference(
    engine: &mut Engine,
    stage: StageKey,
    request: RequestId,
    tokens: u32,
    dim: usize,
) -> Result<(), EngineError> {
    let (layers, head_end) = engine.extent(stage)?;
    let mut payload = Vec::new();
    for layer in layers.iter() {
        let mut tile = TileHeader { layer, head_start: 0, head_end, token_start: 0, token_end: tokens, bytes: 0 };
        engine.export(stage, request, &tile, KvCodec::Raw, &mut payload)?;
        tile.bytes = payload.len() as u32;
        let mut numbers: Vec<f32> = payload.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect();
        let (keys, values) = numbers.split_at_mut(payload.len() / 4);
        for head in keys.chunks_mut(tokens as usize * dim) {
            head.chunks_mut(GROUP * dim).for_each(|block| (0..dim).for_each(|c| round(block, c, dim)));
        }
        values.chunks_mut(dim).for_each(|row| row.chunks_mut(GROUP).for_each(|group| round(group, 0, 1)));
        for (bytes, x) in payload.as_chunks_mut().0.iter_mut().zip(&numbers) {
            *bytes = f16::from_f32(*x).to_le_bytes();
        }
        engine.import(stage, request, &tile, KvCodec::Raw, &payload)?;
    }
    Ok(())
}

/// Every `stride`th number from `first` on becomes the nearest of 16 from their least to their largest.
fn round(numbers: &mut [f32], first: usize, stride: usize) {
    let group = || numbers[first..].iter().step_by(stride).copied();
    let low = f16::from_f32(group().fold(f32::INFINITY, f32::min)).to_f32();
    let step = f16::from_f32((group().fold(f32::NEG_INFINITY, f32::max) - low) / 15.0).to_f32();
    if step > 0.0 {
        for x in numbers[first..].iter_mut().step_by(stride) {
            *x = ((*x - low) / step).round().clamp(0.0, 15.0).mul_add(step, low);
        }
    }
}

/// Bits that so many tokens of one head take, keys and values.
#[must_use]
pub fn reference_bits(tokens: usize, dim: usize) -> usize {
    let groups = tokens.div_ceil(GROUP) * dim + tokens * dim.div_ceil(GROUP);
    2 * tokens * dim * 4 + groups * 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_stay_and_what_lies_between_is_at_most_half_a_step_off() {
        let mut numbers: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { (i * i % 61) as f32 } else { 1e4 }).collect();
        let before = numbers.clone();
        round(&mut numbers, 0, 2);
        assert!(numbers.iter().zip(&before).all(|(a, b)| (a - b).abs() <= 60.0 / 15.0 / 2.0));
        assert_eq!(numbers.iter().zip(&before).filter(|(a, b)| a != b && **b == 1e4).count(), 0);
        let mut same = [0.5; 32];
        round(&mut same, 0, 1);
        assert_eq!(same, [0.5; 32]);
    }

    #[test]
    fn whole_groups_take_five_bits_a_number() {
        assert_eq!(reference_bits(64, 128), 5 * 2 * 64 * 128);
    }
}
