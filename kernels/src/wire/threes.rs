//! Codes of three bits: eight in three bytes, where they lie two in a byte while they are written and read.

/// Bytes of codes in half bytes that are squeezed at once, and what they become.
const HALVES: usize = 8;
const THREES: usize = 6;
/// The lowest bit of every four.
const ONES: u64 = 0x1111_1111_1111_1111;

/// Bytes that so many bytes of codes in half bytes become.
pub(super) fn bytes(halves: usize) -> usize {
    (halves * THREES).div_ceil(HALVES)
}

/// Squeezes codes of 0 to 15, of which those above 7 become 7. `threes` is as long as [`bytes`] says.
pub(super) fn squeeze(halves: &[u8], threes: &mut [u8]) {
    let (many, few) = halves.as_chunks::<HALVES>();
    let (out, rest) = threes.split_at_mut(many.len() * THREES);
    for (halves, threes) in many.iter().zip(out.as_chunks_mut::<THREES>().0) {
        threes.copy_from_slice(&squeezed(*halves)[..THREES]);
    }
    let mut last = [0; HALVES];
    last[..few.len()].copy_from_slice(few);
    rest.copy_from_slice(&squeezed(last)[..rest.len()]);
}

/// Turns them into codes in half bytes again, as many bytes as `halves` has.
pub(super) fn widen(threes: &[u8], halves: &mut [u8]) {
    let (many, few) = halves.as_chunks_mut::<HALVES>();
    let (whole, rest) = threes.split_at(many.len() * THREES);
    for (threes, halves) in whole.as_chunks::<THREES>().0.iter().zip(many) {
        let mut bytes = [0; HALVES];
        bytes[..THREES].copy_from_slice(threes);
        *halves = widened(bytes);
    }
    let mut last = [0; HALVES];
    last[..rest.len()].copy_from_slice(rest);
    few.copy_from_slice(&widened(last)[..few.len()]);
}

/// Sixteen codes move together in four rounds: two, four, eight, all.
#[inline(always)]
fn squeezed(halves: [u8; HALVES]) -> [u8; HALVES] {
    let x = u64::from_le_bytes(halves);
    let above = (x >> 3) & ONES;
    let x = (x | above * 7) & (ONES * 7);
    let x = (x & 0x0707_0707_0707_0707) | ((x & 0x7070_7070_7070_7070) >> 1);
    let x = (x & 0x003f_003f_003f_003f) | ((x & 0x3f00_3f00_3f00_3f00) >> 2);
    let x = (x & 0x0000_0fff_0000_0fff) | ((x & 0x0fff_0000_0fff_0000) >> 4);
    let x = (x & 0x0000_0000_00ff_ffff) | ((x & 0x00ff_ffff_0000_0000) >> 8);
    x.to_le_bytes()
}

#[inline(always)]
fn widened(threes: [u8; HALVES]) -> [u8; HALVES] {
    let x = u64::from_le_bytes(threes);
    let x = (x & 0x0000_0000_00ff_ffff) | ((x << 8) & 0x00ff_ffff_0000_0000);
    let x = (x & 0x0000_0fff_0000_0fff) | ((x << 4) & 0x0fff_0000_0fff_0000);
    let x = (x & 0x003f_003f_003f_003f) | ((x << 2) & 0x3f00_3f00_3f00_3f00);
    let x = (x & 0x0707_0707_0707_0707) | ((x << 1) & 0x7070_7070_7070_7070);
    x.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Codes keep their order and their values, and none is more than seven.
        #[test]
        fn codes_come_back(halves in proptest::collection::vec(any::<u8>(), 0..50)) {
            let mut threes = vec![0xaa; bytes(halves.len())];
            squeeze(&halves, &mut threes);
            let code = |halves: &[u8], n: usize| (halves[n / 2] >> (4 * (n % 2))) & 15;
            // One after the other, the lowest bits first.
            for n in 0..2 * halves.len() {
                let bit = |i: usize| threes[i / 8] >> (i % 8) & 1;
                let three = bit(3 * n) | bit(3 * n + 1) << 1 | bit(3 * n + 2) << 2;
                prop_assert_eq!(three, code(&halves, n).min(7));
            }
            let mut again = vec![0xaa; halves.len()];
            widen(&threes, &mut again);
            prop_assert!((0..2 * halves.len()).all(|n| code(&again, n) == code(&halves, n).min(7)));
        }
    }
}
