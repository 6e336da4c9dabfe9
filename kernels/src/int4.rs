//! Prompt flow 5: packs KV in 4 bits for the wire, and unpacks it at once on arrival (ThunderServe §4, after KIVI).
//!
//! Keys are quantised per channel, over groups of [`KEY_GROUP`] tokens: a channel of keys keeps its scale from token to
//! token. Values are quantised per token, over groups of [`VALUE_GROUP`] channels. Each group has its own minimum and
//! step, both 16-bit floats: `x ≈ minimum + step · code`, code 0 to 15. A group may be partial; nothing is padded but
//! the last nibble of a group with an odd number of codes.
//!
//! A side of a head of a tile is its groups one after the other; a group is minimum, step, codes, two to a byte, low
//! nibble first. Keys go group by group, channel by channel in it; values token by token, group by group in it.

use crate::pages::Side;
use half::f16;
use tsnode_protocol::KvCodec;

/// Tokens that share a key channel's scale.
pub const KEY_GROUP: usize = 64;
const _: () = assert!((KvCodec::Int4.tile_step() as usize).is_multiple_of(KEY_GROUP));
/// Channels that share a value token's scale.
pub const VALUE_GROUP: usize = 32;
/// Bytes of minimum and step.
const SCALE_BYTES: usize = 4;
const LEVELS: f32 = 15.0;

/// A payload of another size than its tile needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{found} bytes where the tile needs {expected}")]
pub struct Int4Error {
    /// Given.
    pub found: usize,
    /// Needed.
    pub expected: usize,
}

/// Bytes of a tile of `tokens` × `heads` × `dim`, keys and values.
#[must_use]
pub fn tile_bytes(tokens: usize, heads: usize, dim: usize) -> usize {
    heads * (side_bytes(Side::Keys, tokens, dim) + side_bytes(Side::Values, tokens, dim))
}

/// Bytes of the keys or the values of one head of a tile.
#[must_use]
pub fn side_bytes(side: Side, tokens: usize, dim: usize) -> usize {
    match side {
        Side::Keys => dim * split_bytes(tokens, KEY_GROUP),
        Side::Values => tokens * split_bytes(dim, VALUE_GROUP),
    }
}

/// Bits of an element of such a tile, scales included.
#[must_use]
pub fn bits_per_element(tokens: usize, dim: usize) -> f64 {
    tile_bytes(tokens, 1, dim) as f64 * 8.0 / (2 * tokens * dim) as f64
}

/// Bytes of `n` numbers cut into groups.
fn split_bytes(n: usize, group: usize) -> usize {
    (n / group) * group_bytes(group) + if n.is_multiple_of(group) { 0 } else { group_bytes(n % group) }
}

fn group_bytes(n: usize) -> usize {
    SCALE_BYTES + n.div_ceil(2)
}

/// Appends the packed form of `rows` (`[token][channel]`, `dim` channels) to `out`.
pub fn pack(side: Side, rows: &[f32], dim: usize, out: &mut Vec<u8>) {
    let mut group = [0.0; if KEY_GROUP > VALUE_GROUP { KEY_GROUP } else { VALUE_GROUP }];
    match side {
        Side::Keys => {
            for tokens in rows.chunks(KEY_GROUP * dim) {
                let n = tokens.len() / dim;
                for channel in 0..dim {
                    for (slot, row) in group.iter_mut().zip(tokens.chunks_exact(dim)) {
                        *slot = row[channel];
                    }
                    pack_group(&group[..n], out);
                }
            }
        }
        Side::Values => {
            for row in rows.chunks_exact(dim) {
                for channels in row.chunks(VALUE_GROUP) {
                    pack_group(channels, out);
                }
            }
        }
    }
}

fn pack_group(values: &[f32], out: &mut Vec<u8>) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Rounded first, so that codes are chosen for the numbers the receiver will use.
    let minimum = f16::from_f32(low);
    let step = f16::from_f32((high - minimum.to_f32()) / LEVELS);
    let (base, scale) = (minimum.to_f32(), step.to_f32());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    out.extend_from_slice(&minimum.to_le_bytes());
    out.extend_from_slice(&step.to_le_bytes());
    // A cast of a number that is none gives 0: hostile values cannot leave the range.
    let code = |v: f32| ((v - base) * inverse).round_ties_even().clamp(0.0, LEVELS) as u8;
    for pair in values.chunks(2) {
        let high = pair.get(1).map_or(0, |v| code(*v));
        out.push(code(pair[0]) | high << 4);
    }
}

/// Unpacks one side of one head into `rows` (`[token][channel]`).
///
/// # Errors
/// When `packed` is not exactly as long as `rows` needs.
pub fn unpack(side: Side, packed: &[u8], dim: usize, rows: &mut [f32]) -> Result<(), Int4Error> {
    let expected = side_bytes(side, rows.len() / dim.max(1), dim);
    if packed.len() != expected || !rows.len().is_multiple_of(dim.max(1)) {
        return Err(Int4Error { found: packed.len(), expected });
    }
    let mut rest = packed;
    match side {
        Side::Keys => {
            for tokens in rows.chunks_mut(KEY_GROUP * dim) {
                let n = tokens.len() / dim;
                for channel in 0..dim {
                    let (group, after) = rest.split_at(group_bytes(n));
                    rest = after;
                    unpack_group(group, n, |token, value| tokens[token * dim + channel] = value);
                }
            }
        }
        Side::Values => {
            for row in rows.chunks_exact_mut(dim) {
                for channels in row.chunks_mut(VALUE_GROUP) {
                    let (group, after) = rest.split_at(group_bytes(channels.len()));
                    rest = after;
                    unpack_group(group, channels.len(), |channel, value| channels[channel] = value);
                }
            }
        }
    }
    Ok(())
}

fn unpack_group(group: &[u8], n: usize, mut put: impl FnMut(usize, f32)) {
    let base = f16::from_le_bytes([group[0], group[1]]).to_f32();
    let step = f16::from_le_bytes([group[2], group[3]]).to_f32();
    for i in 0..n {
        let byte = group[SCALE_BYTES + i / 2];
        let code = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
        put(i, f32::from(code).mul_add(step, base));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Half a step and the rounding of the scales is all that is lost, and sizes are exact.
        #[test]
        fn error_is_bounded(tokens in 1usize..150, dim in 1usize..70, seed in any::<u64>(), spread in 0.01f32..50.0) {
            let mut n = seed;
            let mut next = || { n = n.wrapping_mul(6364136223846793005).wrapping_add(1); ((n >> 40) as f32 / 8388608.0 - 1.0) * spread };
            let rows: Vec<f32> = (0..tokens * dim).map(|_| next()).collect();
            for side in [Side::Keys, Side::Values] {
                let mut packed = Vec::new();
                pack(side, &rows, dim, &mut packed);
                prop_assert_eq!(packed.len(), side_bytes(side, tokens, dim));
                let mut back = vec![0.0; rows.len()];
                unpack(side, &packed, dim, &mut back).unwrap();
                // A group spans at most 2 * spread; scales carry 11 bits.
                let bound = spread * (2.0 / 15.0 / 2.0 + 2.0 / 15.0 * 15.0 / 2048.0 + 1.0 / 1024.0);
                for (a, b) in rows.iter().zip(&back) {
                    prop_assert!((a - b).abs() <= bound, "{} became {} (spread {})", a, b, spread);
                }
            }
        }

        /// Whatever bytes come, unpacking gives numbers or an error.
        #[test]
        fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400), tokens in 1usize..20) {
            let mut rows = vec![0.0; tokens * 8];
            let fits = bytes.len() == side_bytes(Side::Keys, tokens, 8);
            prop_assert_eq!(unpack(Side::Keys, &bytes, 8, &mut rows).is_ok(), fits);
        }
    }

    #[test]
    fn a_constant_survives() {
        let mut packed = Vec::new();
        pack(Side::Keys, &[0.25; 12], 4, &mut packed);
        let mut back = [0.0; 12];
        unpack(Side::Keys, &packed, 4, &mut back).unwrap();
        assert_eq!(back, [0.25; 12]);
    }

    #[test]
    fn size_is_as_documented() {
        // Llama-3-8B heads: 4.5 bits for keys in groups of 64, 5 for values in groups of 32.
        assert!((bits_per_element(4096, 128) - 4.75).abs() < 1e-9);
    }
}
