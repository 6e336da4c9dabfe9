//! How much of something somebody may have: so many at once, so many a second after that.

use crate::Time;

/// A rate and a reserve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// How many a second, in the long run.
    pub per_second: f64,
    /// How many at once.
    pub burst: f64,
}

/// What is left of a rate limit.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate_limit: RateLimit,
    left: f64,
    at: Time,
}

impl TokenBucket {
    /// A full one.
    #[must_use]
    pub fn new(rate_limit: RateLimit, now: Time) -> Self {
        Self { rate_limit, left: rate_limit.burst, at: now }
    }

    /// Takes one, if there is one.
    ///
    /// # Errors
    /// How long until there is.
    pub fn take(&mut self, now: Time) -> Result<(), Time> {
        let RateLimit { per_second, burst } = self.rate_limit;
        let earned = now.saturating_sub(self.at).as_secs_f64() * per_second;
        (self.left, self.at) = ((self.left + earned).min(burst), now);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.left) / per_second;
        Err(Time::try_from_secs_f64(wait).unwrap_or(Time::MAX))
    }

    /// Whether it is as full as at first: then it need not be remembered.
    #[must_use]
    pub fn is_full(&self, now: Time) -> bool {
        let earned = now.saturating_sub(self.at).as_secs_f64() * self.rate_limit.per_second;
        self.left + earned >= self.rate_limit.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_and_then_a_rate() {
        let mut bucket = TokenBucket::new(RateLimit { per_second: 2.0, burst: 3.0 }, Duration::ZERO);
        let taken = |bucket: &mut TokenBucket, ms| bucket.take(Duration::from_millis(ms));
        assert_eq!([0, 0, 0].map(|at| taken(&mut bucket, at)), [Ok(()); 3]);
        assert_eq!(taken(&mut bucket, 0), Err(Duration::from_millis(500)));
        assert_eq!((taken(&mut bucket, 500), taken(&mut bucket, 500).is_err()), (Ok(()), true));
        // An hour of silence is worth the burst and no more.
        assert!(bucket.is_full(Duration::from_secs(3600)));
        assert_eq!((0..10).filter(|_| bucket.take(Duration::from_secs(3600)).is_ok()).count(), 3);
    }

    #[test]
    fn nothing_a_second_is_nothing() {
        let mut bucket = TokenBucket::new(RateLimit { per_second: 0.0, burst: 0.0 }, Duration::ZERO);
        assert_eq!(bucket.take(Duration::from_secs(9)), Err(Duration::MAX));
    }
}
