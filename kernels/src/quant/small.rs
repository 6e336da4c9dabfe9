//! Blocks of 32: numbers `scale · q + least`.

use super::{QuantType, half_at};

/// Numbers in a block.
pub const NUMBERS: usize = 32;

/// One block, its numbers unpacked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Small {
    /// Quants.
    pub q: [i8; NUMBERS],
    /// What a quant is worth.
    pub scale: f32,
    /// What is added.
    pub least: f32,
}

impl Small {
    /// The block stored in `bytes`; `None` for the kinds with blocks of 256.
    ///
    /// # Panics
    /// When `bytes` is shorter than the kind's block.
    #[must_use]
    pub fn decode(kind: QuantType, bytes: &[u8]) -> Option<Self> {
        let scale = half_at(bytes, 0);
        Some(match kind {
            QuantType::Q4_0 => Self { q: nibbles(&bytes[2..18]).map(|q| q - 8), scale, least: 0.0 },
            QuantType::Q4_1 => Self { q: nibbles(&bytes[4..20]), scale, least: half_at(bytes, 2) },
            QuantType::Q5_0 => Self { q: fives(&bytes[2..22]).map(|q| q - 16), scale, least: 0.0 },
            QuantType::Q5_1 => Self { q: fives(&bytes[4..24]), scale, least: half_at(bytes, 2) },
            QuantType::Q8_0 => {
                Self { q: std::array::from_fn(|i| i8::from_le_bytes([bytes[2 + i]])), scale, least: 0.0 }
            }
            QuantType::Q2K | QuantType::Q3K | QuantType::Q4K | QuantType::Q5K | QuantType::Q6K => return None,
        })
    }

    /// Its numbers.
    pub fn widen(&self, out: &mut [f32]) {
        for (out, q) in out.iter_mut().zip(self.q) {
            *out = self.scale * f32::from(q) + self.least;
        }
    }
}

/// 16 bytes: the lower halves are the first numbers, the upper ones the last.
fn nibbles(bytes: &[u8]) -> [i8; NUMBERS] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 } as i8)
}

/// Four bytes of fifth bits, then 16 bytes of nibbles.
fn fives(bytes: &[u8]) -> [i8; NUMBERS] {
    let four = nibbles(&bytes[4..20]);
    std::array::from_fn(|i| four[i] | (((bytes[i / 8] >> (i % 8)) & 1) << 4) as i8)
}
