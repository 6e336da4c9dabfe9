//! Has a number changed? A two-sided CUSUM chart that learns what is usual while it watches (D. M. Hawkins,
//! "Self-starting CUSUM charts for location and scale", The Statistician 36, 1987).
//!
//! Each value is held against all before it: the standardised difference follows Student's t exactly, and becomes a
//! normal score; scores of what has not changed are independent and standard normal, however little was learnt. Sums of
//! scores beyond a rate limit then pass a threshold as rarely as Siegmund's formula says (D. Siegmund, "Sequential
//! Analysis", 1985): a sum that starts again from 0 whenever it would be negative takes
//! (exp(2kb) − 2kb − 1) / (2k²) values on average, b = h + 1.166.

/// k: scores beyond this are summed up. Half of the change, in standard deviations of a value, that is found soonest.
const RATE_LIMIT: f64 = 0.5;
/// What a sum passes a threshold by, on average.
const OVERSHOOT: f64 = 1.166;
/// Scores are cut here, and values where they would have it: no single one is an alarm.
const MOST: f64 = 4.0;
/// Values are logarithms: what spreads less counts as spreading so much, so that changes of a few hundredths, in which no
/// plan is worth changing, are none.
const SMALLEST: f64 = 0.1;
/// Values that are only learnt from.
const LEARNT: u32 = 8;

/// The threshold at which one chart, both its sides together, takes so many values to a false alarm on average.
#[must_use]
pub fn threshold(values: f64) -> f64 {
    let k = RATE_LIMIT;
    let one_side = |b: f64| ((2.0 * k * b).exp() - 2.0 * k * b - 1.0) / (2.0 * k * k);
    let (mut low, mut high) = (OVERSHOOT, 100.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if one_side(middle) < 2.0 * values { low = middle } else { high = middle }
    }
    high - OVERSHOOT
}

/// A cumulative-sum (CUSUM) chart: raises an alarm when values have moved from what is usual.
#[derive(Clone, Debug)]
pub struct Chart {
    threshold: f64,
    /// Values so far, their mean, and the sum of their squared differences from it.
    count: u32,
    mean: f64,
    squares: f64,
    above: ChartSide,
    below: ChartSide,
}

/// Scores on one side of what is usual, summed up since the sum was last 0.
#[derive(Clone, Copy, Debug, Default)]
struct ChartSide {
    sum: f64,
    /// Values since then.
    since: u32,
    /// Their sum.
    values: f64,
    /// Mean of the values before them.
    usual: f64,
}

/// A value is no longer what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// Values since it is thought to have changed.
    pub since: u32,
    /// Mean of the values before that.
    pub usual: f64,
    /// Mean of the values since.
    pub now: f64,
}

impl Chart {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(threshold: f64) -> Self {
        Self { threshold, count: 0, mean: 0.0, squares: 0.0, above: ChartSide::default(), below: ChartSide::default() }
    }

    /// The next value; whether with it there are too many unusual ones.
    pub fn add(&mut self, value: f64) -> Option<Alarm> {
        let usual = self.mean;
        let score = if self.count < LEARNT { 0.0 } else { self.score(value) };
        self.learn(if score.abs() < MOST { value } else { self.at_most(value) });
        if self.count <= LEARNT {
            return None;
        }
        self.above.add(score, value, usual);
        self.below.add(-score, value, usual);
        let passed = [self.above, self.below].into_iter().find(|side| side.sum > self.threshold);
        passed.map(|s| Alarm { since: s.since, usual: s.usual, now: s.values / f64::from(s.since) })
    }

    /// The normal score of a value against those before it. Of Student's t with ν degrees, Wallace's approximation: within
    /// 0.01 for the ν that occur (D. L. Wallace, Ann. Math. Stat. 30, 1959).
    fn score(&self, value: f64) -> f64 {
        let n = f64::from(self.count);
        let spread = self.spread() * (1.0 + 1.0 / n).sqrt();
        let (t, v) = ((value - self.mean) / spread, n - 1.0);
        let score = (8.0 * v + 1.0) / (8.0 * v + 3.0) * (v * (t * t / v).ln_1p()).sqrt();
        score.min(MOST).copysign(t)
    }

    /// As far from the mean as a value may be that is learnt from.
    fn at_most(&self, value: f64) -> f64 {
        self.mean + (MOST * self.spread()).copysign(value - self.mean)
    }

    fn spread(&self) -> f64 {
        (self.squares / f64::from(self.count.max(2) - 1)).sqrt().max(SMALLEST)
    }

    fn learn(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        let before = value - self.mean;
        self.mean += before / f64::from(self.count);
        self.squares += before * (value - self.mean);
    }
}

impl ChartSide {
    fn add(&mut self, score: f64, value: f64, usual: f64) {
        let sum = self.sum + score - RATE_LIMIT;
        let begins = self.since == 0;
        *self = if sum > 0.0 {
            let usual = if begins { usual } else { self.usual };
            Self { sum, since: self.since + 1, values: self.values + value, usual }
        } else {
            Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Sum of twelve even numbers, less six: nearly normal.
    fn normal(rng: &mut Rng) -> f64 {
        (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
    }

    /// Tables of CUSUM charts have k = 0.5, h = 4 at 168 values and h = 5 at 465 (two-sided).
    #[test]
    fn thresholds_are_those_of_the_tables() {
        assert!((threshold(168.0) - 4.0).abs() < 0.03, "{}", threshold(168.0));
        assert!((threshold(465.0) - 5.0).abs() < 0.03, "{}", threshold(465.0));
    }

    #[test]
    fn false_alarms_are_as_rare_as_stated() {
        let (mut rng, mut alarms, values) = (Rng::new(1), 0u32, 4_000_000u32);
        let mut chart = Chart::new(threshold(2000.0));
        for _ in 0..values {
            if chart.add(7.0 + 3.0 * normal(&mut rng)).is_some() {
                alarms += 1;
                chart = Chart::new(threshold(2000.0));
            }
        }
        // 2,000 on average; three standard deviations of a Poisson number.
        assert!(alarms < 2000 + 135, "{alarms}");
        assert!(alarms > 1000, "so careful that changes take longer than they must: {alarms}");
    }

    #[test]
    fn a_change_is_found_where_it_began() {
        let mut rng = Rng::new(2);
        let mut chart = Chart::new(threshold(100_000.0));
        for _ in 0..100 {
            assert_eq!(chart.add(normal(&mut rng)), None);
        }
        let alarm = (1..50).find_map(|n| chart.add(2.0 + normal(&mut rng)).map(|a| (n, a)));
        let (after, alarm) = alarm.unwrap();
        assert!(after <= 15 && alarm.since.abs_diff(after) <= 4, "after {after}, {alarm:?}");
        assert!(alarm.usual.abs() < 0.6 && (alarm.now - 2.0).abs() < 1.0);
    }
}
