//! Blocks of 32: numbers `scale · q + least`.

use super::{IQ4, QuantType, half_at, nibbles};

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
            QuantType::Iq4Nl => Self { q: nibbles(&bytes[2..18]).map(|q| IQ4[q as usize]), scale, least: 0.0 },
            QuantType::Mxfp4 => {
                let q = nibbles(&bytes[1..17]).map(|q| FP4[q as usize]);
                Self { q, scale: half_power(bytes[0]), least: 0.0 }
            }
            _ => return None,
        })
    }

    /// Its numbers.
    pub fn widen(&self, out: &mut [f32]) {
        for (out, q) in out.iter_mut().zip(self.q) {
            *out = self.scale * f32::from(q) + self.least;
        }
    }
}

/// Twice what four bits stand for by OCP's MX formats: a sign, an exponent of two bits and one bit behind the point.
const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that eight bits stand for; the last stands for none.
pub(crate) fn half_power(exponent: u8) -> f32 {
    if exponent == u8::MAX { f32::NAN } else { libm::ldexpf(1.0, i32::from(exponent) - 128) }
}

/// Four bytes of fifth bits, then 16 bytes of nibbles.
fn fives(bytes: &[u8]) -> [i8; NUMBERS] {
    let four = nibbles(&bytes[4..20]);
    std::array::from_fn(|i| four[i] | (((bytes[i / 8] >> (i % 8)) & 1) << 4) as i8)
}
