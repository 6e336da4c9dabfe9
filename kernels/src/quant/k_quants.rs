//! Blocks of 256, llama.cpp's K-quants and IQ kinds: numbers `scale · scales[j] · q − step · least[j]` for each 16 numbers `j`.

mod iq;

pub(crate) use iq::scale_of_iq1_m;

use super::{IQ4, QuantType, half_at, nibbles};

/// Numbers in a block.
pub const NUMBERS: usize = 256;
/// Numbers that share a part's scale.
pub const PART: usize = 16;
/// Parts of a block.
pub const PARTS: usize = NUMBERS / PART;

/// One block, its numbers unpacked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Large {
    /// Quants.
    pub q: [i8; NUMBERS],
    /// Scales of the parts.
    pub scales: [i8; PARTS],
    /// Least values of the parts, in steps below zero.
    pub least: [u8; PARTS],
    /// What a quant times its part's scale is worth.
    pub scale: f32,
    /// What a step of the least values is worth.
    pub step: f32,
}

impl Large {
    /// The block stored in `bytes`; `None` for the kinds with blocks of 32.
    ///
    /// # Panics
    /// When `bytes` is shorter than the kind's block.
    #[must_use]
    pub fn decode(kind: QuantType, bytes: &[u8]) -> Option<Self> {
        match kind {
            QuantType::Q2K => Some(q2(bytes)),
            QuantType::Q3K => Some(q3(bytes)),
            QuantType::Q4K => Some(q4(bytes)),
            QuantType::Q5K => Some(q5(bytes)),
            QuantType::Q6K => Some(q6(bytes)),
            QuantType::Iq4Xs => Some(iq4_xs(bytes)),
            QuantType::Iq2Xxs => Some(iq::iq2_xxs(bytes)),
            QuantType::Iq2Xs => Some(iq::iq2_xs(bytes)),
            QuantType::Iq2S => Some(iq::iq2_s(bytes)),
            QuantType::Iq3Xxs => Some(iq::iq3_xxs(bytes)),
            QuantType::Iq3S => Some(iq::iq3_s(bytes)),
            QuantType::Iq1S => Some(iq::iq1_s(bytes)),
            QuantType::Iq1M => Some(iq::iq1_m(bytes)),
            QuantType::Q4_0
            | QuantType::Q4_1
            | QuantType::Q5_0
            | QuantType::Q5_1
            | QuantType::Q8_0
            | QuantType::Iq4Nl
            | QuantType::Mxfp4 => None,
        }
    }

    /// Its numbers.
    pub fn widen(&self, out: &mut [f32]) {
        for (j, (out, q)) in out.chunks_exact_mut(PART).zip(self.q.chunks_exact(PART)).enumerate() {
            let (scale, least) = (self.scale * f32::from(self.scales[j]), self.step * f32::from(self.least[j]));
            for (out, q) in out.iter_mut().zip(q) {
                *out = scale * f32::from(*q) - least;
            }
        }
    }
}

/// Two bits of number `i`: of each 128 numbers, 32 bytes hold numbers 32 apart.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3
}

/// Four bits of number `i`: of each 64 numbers, 32 bytes hold numbers 32 apart.
fn four_bits(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 15
}

/// Scale and least value of 6 bits each for 32 numbers `j`, packed in 12 bytes.
fn six_bits(bytes: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (bytes[j] & 63, bytes[j + 4] & 63)
    } else {
        let (low, scale, least) = (bytes[j + 4], bytes[j - 4] >> 6, bytes[j] >> 6);
        (low & 15 | scale << 4, low >> 4 | least << 4)
    }
}

fn q2(bytes: &[u8]) -> Large {
    let (parts, quants) = (&bytes[..16], &bytes[16..80]);
    Large {
        q: std::array::from_fn(|i| two_bits(quants, i) as i8),
        scales: std::array::from_fn(|j| (parts[j] & 15) as i8),
        least: std::array::from_fn(|j| parts[j] >> 4),
        scale: half_at(bytes, 80),
        step: half_at(bytes, 82),
    }
}

fn q3(bytes: &[u8]) -> Large {
    let (high, quants, parts) = (&bytes[..32], &bytes[32..96], &bytes[96..108]);
    let scale = |j: usize| {
        let low = if j < 8 { parts[j] & 15 } else { parts[j - 8] >> 4 };
        (low | ((parts[8 + j % 4] >> (j / 4 * 2)) & 3) << 4) as i8 - 32
    };
    // The third bit is stored inverted: without it a number is four less.
    let number = |i: usize| two_bits(quants, i) as i8 - if (high[i % 32] >> (i / 32)) & 1 == 1 { 0 } else { 4 };
    Large {
        q: std::array::from_fn(number),
        scales: std::array::from_fn(scale),
        least: [0; PARTS],
        scale: half_at(bytes, 108),
        step: 0.0,
    }
}

fn q4(bytes: &[u8]) -> Large {
    let (parts, quants) = (&bytes[4..16], &bytes[16..144]);
    Large { q: std::array::from_fn(|i| four_bits(quants, i) as i8), ..with_parts(bytes, parts) }
}

fn q5(bytes: &[u8]) -> Large {
    let (parts, high, quants) = (&bytes[4..16], &bytes[16..48], &bytes[48..176]);
    let number = |i: usize| (four_bits(quants, i) | ((high[i % 32] >> (i / 32)) & 1) << 4) as i8;
    Large { q: std::array::from_fn(number), ..with_parts(bytes, parts) }
}

/// What Q4_K and Q5_K share: everything but the quants.
fn with_parts(bytes: &[u8], parts: &[u8]) -> Large {
    Large {
        q: [0; NUMBERS],
        scales: std::array::from_fn(|j| six_bits(parts, j / 2).0 as i8),
        least: std::array::from_fn(|j| six_bits(parts, j / 2).1),
        scale: half_at(bytes, 0),
        step: half_at(bytes, 2),
    }
}

fn iq4_xs(bytes: &[u8]) -> Large {
    let (high, low, quants) = (u16::from_le_bytes([bytes[2], bytes[3]]), &bytes[4..8], &bytes[8..136]);
    // Scales of 6 bits for 32 numbers each: four bits of two of them share a byte, the upper two lie together.
    let scale = |j: usize| {
        let low = (low[j / 2] >> (j % 2 * 4)) & 15;
        (low | (((high >> (2 * j)) & 3) as u8) << 4) as i8 - 32
    };
    let mut q = [0; NUMBERS];
    for (out, bytes) in q.chunks_exact_mut(32).zip(quants.chunks_exact(16)) {
        out.copy_from_slice(&nibbles(bytes).map(|q| IQ4[q as usize]));
    }
    Large { q, scales: std::array::from_fn(|j| scale(j / 2)), least: [0; PARTS], scale: half_at(bytes, 0), step: 0.0 }
}

fn q6(bytes: &[u8]) -> Large {
    let (low, high, parts) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let number = |i: usize| {
        // Of each 128 numbers, 64 bytes hold the lower halves of numbers 64 apart.
        let four = (low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 15;
        (four | two_bits(high, i) << 4) as i8 - 32
    };
    Large {
        q: std::array::from_fn(number),
        scales: std::array::from_fn(|j| i8::from_le_bytes([parts[j]])),
        least: [0; PARTS],
        scale: half_at(bytes, 208),
        step: 0.0,
    }
}
