//! Codes of three bits. They are written and read in half bytes, whose upper bits are free: into those of the first three
//! quarters of bytes goes the last quarter, so that four bytes become three. All of it is the same for every byte, which
//! any processor does many at a time.

/// The upper bit of either half is free.
const CODES: u8 = 0x77;
/// The lowest bit of either.
const ONES: u8 = 0x11;

/// Bytes that so many bytes of codes in halves become.
pub(super) fn bytes(halves: usize) -> usize {
    halves - halves / 4
}

/// Squeezes codes of 0 to 15, of which those above 7 become 7. `threes` is as long as [`bytes`] says.
pub(super) fn squeeze(halves: &[u8], threes: &mut [u8]) {
    let quarter = halves.len() / 4;
    let (kept, carried) = halves.split_at(halves.len() - quarter);
    for (three, half) in threes.iter_mut().zip(kept) {
        *three = capped(*half);
    }
    for (bit, carriers) in threes[..3 * quarter].chunks_exact_mut(quarter.max(1)).enumerate() {
        for (carrier, half) in carriers.iter_mut().zip(carried) {
            *carrier |= ((capped(*half) >> bit) & ONES) << 3;
        }
    }
}

/// Both codes at most 7.
#[inline(always)]
fn capped(half: u8) -> u8 {
    (half | (((half >> 3) & ONES) * 7)) & CODES
}

/// Turns them into codes in half bytes again, as many bytes as `halves` has.
pub(super) fn widen(threes: &[u8], halves: &mut [u8]) {
    let quarter = halves.len() / 4;
    let (kept, carried) = halves.split_at_mut(halves.len() - quarter);
    for (half, three) in kept.iter_mut().zip(threes) {
        *half = three & CODES;
    }
    carried.fill(0);
    for (bit, carriers) in threes[..3 * quarter].chunks_exact(quarter.max(1)).enumerate() {
        for (half, carrier) in carried.iter_mut().zip(carriers) {
            *half |= ((carrier >> 3) & ONES) << bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Codes come back as they were, none above seven, and nothing of any byte is left unused.
        #[test]
        fn codes_come_back(halves in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut threes = vec![0xaa; bytes(halves.len())];
            squeeze(&halves, &mut threes);
            let mut again = vec![0xaa; halves.len()];
            widen(&threes, &mut again);
            let most = |half: &u8| (half & 15).min(7) | (half >> 4).min(7) << 4;
            prop_assert_eq!(&again, &halves.iter().map(most).collect::<Vec<_>>());
            let mut once_more = vec![0xaa; threes.len()];
            squeeze(&again, &mut once_more);
            prop_assert_eq!(threes, once_more);
        }
    }

    #[test]
    fn the_last_quarter_lies_in_the_others_free_bits() {
        let mut threes = [0; 3];
        squeeze(&[0x12, 0x34, 0x56, 0x70], &mut threes);
        // 7 in the upper half: a bit in each upper bit; 0 in the lower.
        assert_eq!(threes, [0x92, 0xb4, 0xd6]);
        squeeze(&[0x00, 0x0f, 0x80, 0x02], &mut threes);
        assert_eq!(threes, [0x00, 0x0f, 0x70]);
        assert_eq!([0, 1, 3, 4, 5, 1056].map(bytes), [0, 1, 3, 3, 4, 792]);
    }
}
