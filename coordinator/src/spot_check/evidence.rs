//! Checks that an honest group fails now and then, added up until only a byzantine one fails so many: a cumulative sum (Page 1954).
//!
//! Each failed check adds the logarithm of how much likelier a byzantine group fails it than an honest one, each passed one takes
//! off that of how much likelier an honest group passes it; below nothing it does not fall. Before the sum of an honest group is
//! above `LIMIT` a million checks pass on average (Lorden 1971): it is blamed falsely once in so many, and cut off only if it
//! fails the next ones as well. Who answers wrongly in a part `d` of its checks is found after some `16 / (2.3 d - 0.1 (1 - d))`.

/// An honest group fails at most this part of its checks: at so few places of a text rounding moves logits by more than is let pass,
/// and the draw falls there besides.
const HONEST: f64 = 0.01;
/// A byzantine group that is to be found fails at least this part.
const BYZANTINE: f64 = 0.1;
/// The logarithm of checks between false accusations of a group: a million.
const LIMIT: f64 = 13.8;

/// What has come together against a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EvidenceScore(f64);

impl EvidenceScore {
    /// A check was passed.
    pub fn passed(&mut self) {
        self.0 = (self.0 + ((1.0 - BYZANTINE) / (1.0 - HONEST)).ln()).max(0.0);
    }

    /// A check was failed, as an honest group may; whether that is one too many.
    pub fn failed(&mut self) -> bool {
        self.0 += (BYZANTINE / HONEST).ln();
        let is_enough = self.0 >= LIMIT;
        self.0 = self.0.min(LIMIT);
        is_enough
    }

    /// Whether there is any.
    pub fn is_there(self) -> bool {
        self.0 > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Checks until one is too many, of a group that fails this part of them.
    fn until_found(fails: f64, rng: &mut Rng) -> usize {
        let mut evidence = EvidenceScore::default();
        for check in 1..1_000_000 {
            if rng.unit() >= fails {
                evidence.passed();
            } else if evidence.failed() {
                return check;
            }
        }
        1_000_000
    }

    #[test]
    fn honest_groups_are_not_found_in_a_million_checks_and_byzantine_ones_in_few() {
        let mut rng = Rng::new(5);
        let honest = (0..10).filter(|_| until_found(HONEST, &mut rng) < 1_000_000).count();
        assert!(honest <= 5, "{honest} of ten in ten million checks");
        for (fails, bound) in [(1.0, 6.0), (0.6, 14.0), (0.3, 32.0), (0.1, 180.0)] {
            let mean = (0..200).map(|_| until_found(fails, &mut rng) as f64).sum::<f64>() / 200.0;
            assert!(mean <= bound, "{fails}: {mean}");
        }
    }

    #[test]
    fn who_was_found_is_found_again_by_its_next_failure_and_not_if_it_passes_for_long() {
        let mut evidence = EvidenceScore::default();
        assert_eq!((0..7).map(|_| evidence.failed()).position(|found| found), Some(5));
        assert!(evidence.failed());
        (0..200).for_each(|_| evidence.passed());
        assert!(!evidence.is_there() && !evidence.failed());
    }
}
