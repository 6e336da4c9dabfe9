//! Which of several KV transfers on one link goes first.
//!
//! The one with least left to send does: it frees its prefill side soonest, and the mean wait is least that way. One whose
//! receiver is about to give up goes before all others, whatever is left of it, so that none is starved.

use std::time::Duration;

/// From this part of the patience on, waiting counts more than size.
const LATE: f64 = 0.5;
/// What is left of size says more by its doublings than by its bytes.
const EACH_DOUBLING: f64 = 4.0;
const SMALLEST: f64 = 4096.0;

/// Of a KV transfer with `left` bytes to send, for which somebody has waited so long and will wait so long in all. Higher goes
/// first.
#[must_use]
pub fn of_kv(left: u64, waited: Duration, patience: Duration) -> u8 {
    let part = waited.as_secs_f64() / patience.as_secs_f64().max(1e-3);
    if part >= LATE {
        let late = ((part - LATE) / (1.0 - LATE)).min(1.0);
        return 128 + (late * 127.0) as u8;
    }
    let doublings = (left as f64 / SMALLEST).max(1.0).log2();
    (127.0 - EACH_DOUBLING * doublings).max(0.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn at(left: u64, waited: u64) -> u8 {
        of_kv(left, Duration::from_secs(waited), PATIENCE)
    }

    #[test]
    fn less_goes_before_more() {
        let left = [1 << 10, 1 << 16, 1 << 20, 1 << 26, 1 << 30, u64::MAX];
        assert!(left.is_sorted_by(|a, b| at(*a, 0) > at(*b, 0) || *b == u64::MAX));
    }

    #[test]
    fn who_has_waited_long_goes_before_everybody_who_has_not() {
        assert!(at(1 << 30, 6) > at(1, 4));
        assert!(at(1 << 30, 9) > at(1, 6), "and before who has waited less");
        assert_eq!(at(1, 1000), u8::MAX);
        assert_eq!(of_kv(1, Duration::ZERO, Duration::ZERO), 127);
    }
}
