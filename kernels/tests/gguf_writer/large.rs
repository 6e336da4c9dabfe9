//! Blocks of 256, encoded the plain way: each part's scale and least value as its numbers have them, and no search for
//! better ones as llama.cpp's.

use half::f16;
use tsnode_kernels::quant::{Blocks, QuantType};

/// Numbers in a block.
pub const NUMBERS: usize = 256;

/// llama.cpp's number for a kind.
pub fn number(kind: QuantType) -> u32 {
    match kind {
        QuantType::Q4K => 12,
        QuantType::Q5K => 13,
        QuantType::Q6K => 14,
        QuantType::Iq2Xxs => 16,
        QuantType::Iq2Xs => 17,
        QuantType::Iq3Xxs => 18,
        QuantType::Iq1S => 19,
        QuantType::Iq3S => 21,
        QuantType::Iq2S => 22,
        QuantType::Iq1M => 29,
        other => panic!("{other:?} is not written"),
    }
}

/// Whole blocks of numbers.
pub fn encode(kind: QuantType, numbers: &[f32]) -> Vec<u8> {
    let block = |numbers| match kind {
        QuantType::Q4K => with_least(numbers, 4),
        QuantType::Q5K => with_least(numbers, 5),
        QuantType::Q6K => signed(numbers),
        other => drawn(other, numbers),
    };
    numbers.chunks_exact(NUMBERS).flat_map(block).collect()
}

/// A block of drawn bits as wide as the numbers are: for kinds whose nearest numbers are long to look for.
fn drawn(kind: QuantType, numbers: &[f32]) -> Vec<u8> {
    let mut state = numbers.iter().fold(kind as u64, |all, x| all.rotate_left(7) ^ u64::from(x.to_bits()));
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    let mut block: Vec<u8> = (0..kind.bytes()).map(|_| byte()).collect();
    let width = |x: &[f32]| (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
    put_scale(kind, &mut block, f16::ONE);
    let scale = f16::from_f32(width(numbers) / width(&widened(kind, &block)));
    put_scale(kind, &mut block, scale);
    block
}

fn put_scale(kind: QuantType, block: &mut [u8], scale: f16) {
    if kind != QuantType::Iq1M {
        return block[..2].copy_from_slice(&scale.to_le_bytes());
    }
    // Four bits of it are uppermost in each of the last four words.
    for at in 0..4 {
        let byte = &mut block[49 + 2 * at];
        *byte = *byte & 15 | ((scale.to_bits() >> (4 * at)) as u8) << 4;
    }
}

/// The numbers that blocks stand for.
pub fn widened(kind: QuantType, blocks: &[u8]) -> Vec<f32> {
    let mut numbers = vec![0.0; blocks.len() / kind.bytes() * NUMBERS];
    let len = numbers.len();
    Blocks::new(blocks, kind, 1, len).widen_row(0, &mut numbers);
    numbers
}

/// Q4_K and Q5_K: `scale · scales[j] · q − step · least[j]` for each 32 numbers `j`, with scales and least values of 6 bits.
fn with_least(numbers: &[f32], bits: u32) -> Vec<u8> {
    let most = f32::from((1_u8 << bits) - 1);
    let parts: Vec<(f32, f32)> = numbers
        .chunks_exact(32)
        .map(|part| {
            let least = part.iter().fold(0.0_f32, |a, b| a.min(*b));
            let largest = part.iter().fold(least, |a, b| a.max(*b));
            ((largest - least) / most, -least)
        })
        .collect();
    let unit = |largest: f32| f16::from_f32(largest / 63.0);
    let scale = unit(parts.iter().fold(0.0, |a, part| a.max(part.0)));
    let step = unit(parts.iter().fold(0.0, |a, part| a.max(part.1)));
    let whole = |x: f32, unit: f16| if unit.to_f32() == 0.0 { 0 } else { (x / unit.to_f32()).round().min(63.0) as u8 };
    let codes: Vec<(u8, u8)> = parts.iter().map(|part| (whole(part.0, scale), whole(part.1, step))).collect();
    let quant = |i: usize| {
        let (part, least) = (codes[i / 32].0, codes[i / 32].1);
        let (part, least) = (scale.to_f32() * f32::from(part), step.to_f32() * f32::from(least));
        if part == 0.0 { 0 } else { ((numbers[i] + least) / part).round().clamp(0.0, most) as u8 }
    };
    let quants: Vec<u8> = (0..NUMBERS).map(quant).collect();
    let mut out = [scale.to_le_bytes(), step.to_le_bytes()].concat();
    out.extend(six_bits(&codes));
    if bits == 5 {
        // The fifth bits: of number `i` bit `i / 32` of byte `i % 32`.
        out.extend((0..32).map(|byte| (0..8).map(|bit| (quants[bit * 32 + byte] >> 4) << bit).sum::<u8>()));
    }
    out.extend((0..128).map(|at| {
        // Of each 64 numbers, 32 bytes hold numbers 32 apart.
        let low = at / 32 * 64 + at % 32;
        quants[low] & 15 | (quants[low + 32] & 15) << 4
    }));
    out
}

/// Eight pairs of 6 bits in 12 bytes: of the last four the upper two bits lie above the first four.
fn six_bits(codes: &[(u8, u8)]) -> [u8; 12] {
    let mut out = [0; 12];
    for (j, (scale, least)) in codes.iter().enumerate() {
        if j < 4 {
            (out[j], out[j + 4]) = (*scale, *least);
        } else {
            out[j + 4] = scale & 15 | (least & 15) << 4;
            out[j - 4] |= scale >> 4 << 6;
            out[j] |= least >> 4 << 6;
        }
    }
    out
}

/// Q6_K: `scale · scales[j] · q` for each 16 numbers `j`, with signed scales of 8 bits.
fn signed(numbers: &[f32]) -> Vec<u8> {
    let parts: Vec<f32> =
        numbers.chunks_exact(16).map(|p| p.iter().fold(0.0_f32, |a, b| a.max(b.abs())) / 31.0).collect();
    let scale = f16::from_f32(parts.iter().fold(0.0_f32, |a, b| a.max(*b)) / 127.0);
    let whole = |x: &f32| if scale.to_f32() == 0.0 { 0 } else { (x / scale.to_f32()).round().min(127.0) as i8 };
    let codes: Vec<i8> = parts.iter().map(whole).collect();
    let quant = |i: usize| {
        let part = scale.to_f32() * f32::from(codes[i / 16]);
        (if part == 0.0 { 0 } else { (numbers[i] / part).round().clamp(-32.0, 31.0) as i8 } + 32) as u8
    };
    let quants: Vec<u8> = (0..NUMBERS).map(quant).collect();
    // Of each 128 numbers, 64 bytes hold the lower halves of numbers 64 apart, and 32 the upper two bits of numbers 32 apart.
    let low = |at: usize| {
        let first = at / 64 * 128 + at % 64;
        quants[first] & 15 | (quants[first + 64] & 15) << 4
    };
    let high = |at: usize| (0..4).map(|n| quants[at / 32 * 128 + n * 32 + at % 32] >> 4 << (n * 2)).sum::<u8>();
    let mut out: Vec<u8> = (0..128).map(low).chain((0..64).map(high)).collect();
    out.extend(codes.iter().map(|code| code.to_le_bytes()[0]));
    out.extend(scale.to_le_bytes());
    out
}
