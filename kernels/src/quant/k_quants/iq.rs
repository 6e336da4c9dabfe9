//! Blocks of GGUF's IQ kinds whose numbers lie in tables by eights or fours, with signs or a shift beside them.

mod grids;

use super::{Large, NUMBERS, PARTS, half_at};
use half::f16;

/// Sizes of numbers in the tables of two bits, and in those of three.
const TWO: [i8; 4] = [8, 25, 43, 0];
const THREE: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const ODD: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Eight times what the tables of one bit and a half hold, which are shifted by an eighth.
const ONE: [i8; 4] = [-8, 0, 8, 0];

/// Two bytes.
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes.
fn four(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Number `i` of a line of eight.
fn of_eight(line: u16, i: usize, values: [i8; 4]) -> i8 {
    values[usize::from(line >> (2 * i) & 3)]
}

/// Number `i` of a line of four.
fn of_four(line: u16, i: usize, values: [i8; 8]) -> i8 {
    values[usize::from(line >> (3 * i) & 7)]
}

fn signed(number: i8, signs: u8, i: usize) -> i8 {
    if signs >> (i % 8) & 1 == 1 { -number } else { number }
}

/// Eight signs by seven bits: an even number of them is negative.
fn even(seven: u8) -> u8 {
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// Four bits of byte `at / 2`, the lower half first.
fn half_byte(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 15
}

/// A block of numbers `number` and parts' scales `scale`, an odd number each of steps of `worth`.
fn block(worth: f32, scale: impl Fn(usize) -> u8, number: impl Fn(usize) -> i8) -> Large {
    let q: [i8; NUMBERS] = std::array::from_fn(number);
    let scales = std::array::from_fn(|part| (2 * scale(part) + 1) as i8);
    Large { q, scales, least: [0; PARTS], scale: worth, step: 0.0 }
}

/// For each 32 numbers four bytes of lines, then seven bits of signs for each line and a scale.
pub(super) fn iq2_xxs(bytes: &[u8]) -> Large {
    let signs = |i: usize| four(bytes, 2 + i / 32 * 8 + 4);
    let number = |i: usize| {
        let (line, of) = (i / 8 % 4, i / 32);
        let entry = grids::IQ2_XXS[usize::from(bytes[2 + of * 8 + line])];
        signed(of_eight(entry, i % 8, TWO), even((signs(i) >> (7 * line) & 127) as u8), i)
    };
    block(half_at(bytes, 0) / 8.0, |part| (signs(16 * part) >> 28) as u8, number)
}

/// For each eight numbers nine bits of a line and seven of signs; scales of four bits for each 16.
pub(super) fn iq2_xs(bytes: &[u8]) -> Large {
    let number = |i: usize| {
        let both = word(bytes, 2 + i / 8 * 2);
        signed(of_eight(grids::IQ2_XS[usize::from(both & 511)], i % 8, TWO), even((both >> 9) as u8), i)
    };
    block(half_at(bytes, 0) / 8.0, |part| half_byte(&bytes[66..], part), number)
}

/// For each eight numbers ten bits of a line, the upper two by themselves, and eight of signs; scales as above.
pub(super) fn iq2_s(bytes: &[u8]) -> Large {
    let number = |i: usize| {
        let line = i / 8;
        let upper = usize::from(bytes[66 + line / 4] >> (line % 4 * 2) & 3);
        let entry = grids::IQ2_S[usize::from(bytes[2 + line]) | upper << 8];
        signed(of_eight(entry, i % 8, TWO), bytes[34 + line], i)
    };
    block(half_at(bytes, 0) / 8.0, |part| half_byte(&bytes[74..], part), number)
}

/// A byte of a line for each four numbers; then for each 32 seven bits of signs for each eight, and a scale.
pub(super) fn iq3_xxs(bytes: &[u8]) -> Large {
    let signs = |i: usize| four(bytes, 66 + i / 32 * 4);
    let number = |i: usize| {
        let entry = grids::IQ3_XXS[usize::from(bytes[2 + i / 4])];
        signed(of_four(entry, i % 4, THREE), even((signs(i) >> (7 * (i / 8 % 4)) & 127) as u8), i)
    };
    block(half_at(bytes, 0) / 4.0, |part| (signs(16 * part) >> 28) as u8, number)
}

/// Nine bits of a line for each four numbers, the upper one by itself; eight of signs; scales of four bits for each 32.
pub(super) fn iq3_s(bytes: &[u8]) -> Large {
    let number = |i: usize| {
        let line = i / 4;
        let upper = usize::from(bytes[66 + line / 8] >> (line % 8) & 1);
        let entry = grids::IQ3_S[usize::from(bytes[2 + line]) | upper << 8];
        signed(of_four(entry, i % 4, ODD), bytes[74 + i / 8], i)
    };
    block(half_at(bytes, 0), |part| half_byte(&bytes[106..], part / 2), number)
}

/// Eleven bits of a line for each eight numbers, the upper three of four of them together with a scale and the sign of the
/// shift.
pub(super) fn iq1_s(bytes: &[u8]) -> Large {
    let more = |i: usize| word(bytes, 34 + i / 32 * 2);
    let number = |i: usize| {
        let line = i / 8;
        let upper = usize::from(more(i) >> (line % 4 * 3) & 7);
        let entry = grids::IQ1[usize::from(bytes[2 + line]) | upper << 8];
        of_eight(entry, i % 8, ONE) + if more(i) & 0x8000 == 0 { 1 } else { -1 }
    };
    block(half_at(bytes, 0) / 8.0, |part| (more(16 * part) >> 12 & 7) as u8, number)
}

/// The same with a shift for each eight numbers, and scales of three bits for each 16.
pub(super) fn iq1_m(bytes: &[u8]) -> Large {
    let number = |i: usize| {
        let line = i / 8;
        let more = half_byte(&bytes[32..], line);
        let entry = grids::IQ1[usize::from(bytes[line]) | usize::from(more & 7) << 8];
        of_eight(entry, i % 8, ONE) + if more & 8 == 0 { 1 } else { -1 }
    };
    let scale = |part: usize| (word(bytes, 48 + part / 4 * 2) >> (part % 4 * 3) & 7) as u8;
    block(scale_of_iq1_m(bytes) / 8.0, scale, number)
}

/// The scale of a block of IQ1_M, of which each word of scales has four bits.
pub(crate) fn scale_of_iq1_m(bytes: &[u8]) -> f32 {
    let bits = (0..4).fold(0, |all, at| all | (word(bytes, 48 + 2 * at) >> 12) << (4 * at));
    f16::from_bits(bits).to_f32()
}
