//! When to place anew (SeaLLM §4.3, Equation 8): sooner where traffic is not what it was expected to be, later where it is.
//!
//! Beyond the paper, where the rule says so: an interval also ends when the services' rates are plainly not those it was
//! planned for, and a new placement is only taken if it gains.

use tsnode_coordinator::{
    replacement_interval::{Bounds, ReplacementInterval},
    service_monitor::Performance,
};
use tsnode_protocol::Seconds;

/// How often, and how much of a difference matters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// I₀: the first interval.
    pub start: Seconds,
    /// No interval is shorter: a placement must last longer than getting to it takes. The paper has no such bound.
    pub least: Seconds,
    /// No interval is longer.
    pub most: Seconds,
    /// β: the part by which performance may differ from what was expected, and by which the interval changes then.
    pub beta: f64,
    /// What a new placement must be better by to be worth the change.
    pub worth: Worth,
    /// How often rates are looked at on the way; never, as in the paper, if that is not said.
    pub look: Option<Seconds>,
}

/// When a new placement is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// Always: the paper's rule.
    Always,
    /// If on the last interval's requests it is better by β than the present one.
    Better,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            start: Seconds(120.0),
            least: Seconds(30.0),
            most: Seconds(3600.0),
            beta: 0.1,
            worth: Worth::Better,
            look: Some(Seconds(30.0)),
        }
    }
}

/// Squared variation of gaps between requests that is taken for the same traffic: bursts are no shift.
const BURSTS: f64 = 4.0;
/// Standard deviations by which counts must be off.
const DEVIATIONS: f64 = 4.0;

/// Requests of each service in a part of the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestCounts {
    /// How long that was.
    pub time: Seconds,
    /// How many, by service.
    pub requests: Vec<u32>,
}

impl RequestCounts {
    /// Whether these rates are others than those: Pearson's sum of squares, with the variance that bursts give counts and
    /// that what is expected has itself, against its mean and deviation if nothing had changed.
    #[must_use]
    pub fn differ(&self, expected: &Self) -> bool {
        let scale = self.time / expected.time;
        let square = |(n, before): (&u32, &u32)| {
            let mean = f64::from(*before) * scale;
            // Nobody may have asked for it before.
            (f64::from(*n) - mean).powi(2) / (BURSTS * (mean * (1.0 + scale)).max(1.0))
        };
        let services = expected.requests.len() as f64;
        let sum: f64 = self.requests.iter().zip(&expected.requests).map(square).sum();
        sum > services + DEVIATIONS * (2.0 * services).sqrt()
    }
}

/// |M − M_est|/M_est, of the metric in which that is most.
fn differs(real: &Performance, expected: &Performance) -> f64 {
    let of = |real: f64, expected: f64| (real - expected).abs() / expected.max(1e-9);
    of(real.attainment, expected.attainment).max(of(real.normalised, expected.normalised))
}

/// Whether one is better by a part: more deadlines kept, or as many and less latency.
fn is_better_by(part: f64, found: &Performance, than: &Performance) -> bool {
    let kept = found.attainment / than.attainment.max(1e-9);
    kept > 1.0 + part || (kept >= 1.0 && found.normalised < than.normalised * (1.0 - part))
}

/// What is known when an interval is over.
#[derive(Clone, Debug, PartialEq)]
pub struct IntervalSeen {
    /// Its requests, as far as they were planned for.
    pub counts: RequestCounts,
    /// How its requests were served.
    pub real: Performance,
    /// How the present placement serves them in simulation.
    pub kept: Performance,
    /// How the placement found for them does.
    pub found: Performance,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Get to the placement that was found.
    Replace,
    /// Stay.
    Wait,
}

/// The interval and what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    rule: Rule,
    interval: ReplacementInterval,
    began: Seconds,
    due: Seconds,
    looks: Seconds,
    expected: Option<Performance>,
    counts: RequestCounts,
}

impl Replacement {
    /// The first interval begins now, with a placement for these requests; what is expected of it may be known.
    #[must_use]
    pub fn new(rule: Rule, now: Seconds, expected: Option<Performance>, counts: RequestCounts) -> Self {
        let Rule { start, least, most, beta, .. } = rule;
        let interval = ReplacementInterval::new(Bounds { start, least, most, beta });
        let mut new = Self { rule, interval, began: now, due: now, looks: now, expected, counts };
        new.begin(now);
        new
    }

    fn begin(&mut self, now: Seconds) {
        (self.began, self.due) = (now, now + self.interval.length());
        self.looks = self.rule.look.map_or(self.due, |look| now + look).min(self.due);
    }

    /// When something is to be decided: rates are to be looked at, or the interval is over.
    #[must_use]
    pub fn deadline(&self) -> Seconds {
        self.looks
    }

    /// Rates since the last look: since when the requests are to be planned for, if the interval is over. `None` if it goes
    /// on.
    pub fn look(&mut self, now: Seconds, counts: &RequestCounts) -> Option<Seconds> {
        if now >= self.due {
            return Some(self.began);
        }
        if counts.differ(&self.counts) {
            // What was before the shift is nothing to plan for, and what came since is little: sooner again.
            self.interval.cut();
            return Some(now - counts.time);
        }
        self.looks = self.rule.look.map_or(self.due, |look| now + look).min(self.due);
        None
    }

    /// How long intervals are now.
    #[must_use]
    pub fn interval(&self) -> Seconds {
        self.interval.length()
    }

    /// An interval is over: how long the next one is, and whether it begins with another placement.
    pub fn over(&mut self, now: Seconds, seen: IntervalSeen) -> Decision {
        if let Some(expected) = self.expected {
            self.interval.over(differs(&seen.real, &expected));
        }
        self.counts = seen.counts;
        self.begin(now);
        let replaces = match self.rule.worth {
            Worth::Always => true,
            Worth::Better => is_better_by(self.rule.beta, &seen.found, &seen.kept),
        };
        self.expected = Some(if replaces { seen.found } else { seen.kept });
        if replaces { Decision::Replace } else { Decision::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn performance(attainment: f64, normalised: f64) -> Performance {
        Performance { attainment, normalised }
    }

    fn rule(worth: Worth) -> Rule {
        Rule { start: Seconds(100.0), least: Seconds(85.0), most: Seconds(115.0), beta: 0.1, worth, look: None }
    }

    fn counts(time: f64, requests: &[u32]) -> RequestCounts {
        RequestCounts { time: Seconds(time), requests: requests.to_vec() }
    }

    fn new(worth: Worth, now: f64, expected: Option<Performance>) -> Replacement {
        Replacement::new(rule(worth), Seconds(now), expected, counts(100.0, &[400, 50]))
    }

    fn seen(real: Performance, kept: Performance, found: Performance) -> IntervalSeen {
        IntervalSeen { counts: counts(100.0, &[400, 50]), real, kept, found }
    }

    #[test]
    fn intervals_follow_equation_8_within_bounds() {
        let expected = performance(0.9, 2.0);
        let mut replacement = new(Worth::Always, 0.0, Some(expected));
        let mut over = |attainment, normalised| {
            let real = performance(attainment, normalised);
            let now = replacement.deadline();
            assert_eq!(replacement.over(now, seen(real, expected, expected)), Decision::Replace);
            replacement.interval().0
        };
        assert!((over(0.9, 2.1) - 110.0).abs() < 1e-9, "as expected: longer");
        assert!((over(0.85, 2.1) - 115.0).abs() < 1e-9, "no longer than allowed");
        assert!((over(0.9, 2.3) - 103.5).abs() < 1e-9, "slower: shorter");
        assert!((over(0.9, 1.5) - 93.15).abs() < 1e-9, "faster is a difference, too");
        assert!((over(0.5, 2.0) - 85.0).abs() < 1e-9, "no shorter than allowed");
    }

    #[test]
    fn a_change_that_gains_little_is_not_made() {
        let (now, kept) = (Seconds(100.0), performance(0.9, 2.0));
        let decide = |worth, found| {
            let mut replacement = new(worth, 0.0, None);
            replacement.over(now, seen(kept, kept, found))
        };
        assert_eq!(decide(Worth::Always, kept), Decision::Replace);
        assert_eq!(decide(Worth::Better, performance(0.9, 1.9)), Decision::Wait);
        assert_eq!(decide(Worth::Better, performance(0.9, 1.7)), Decision::Replace);
        assert_eq!(decide(Worth::Better, performance(0.8, 1.0)), Decision::Wait);
        assert_eq!(decide(Worth::Better, performance(1.0, 3.0)), Decision::Replace);
    }

    #[test]
    fn the_first_interval_without_an_estimate_keeps_its_length() {
        let mut replacement = new(Worth::Always, 50.0, None);
        assert_eq!(replacement.deadline(), Seconds(150.0));
        let same = performance(0.9, 2.0);
        replacement.over(Seconds(150.0), seen(same, same, same));
        assert_eq!(replacement.deadline(), Seconds(250.0));
    }

    #[test]
    fn a_shift_of_rates_ends_an_interval_and_a_burst_does_not() {
        let rule = Rule { look: Some(Seconds(20.0)), ..rule(Worth::Better) };
        let mut replacement = Replacement::new(rule, Seconds(0.0), None, counts(100.0, &[400, 50]));
        assert_eq!(replacement.deadline(), Seconds(20.0));
        assert_eq!(replacement.look(Seconds(20.0), &counts(20.0, &[110, 5])), None, "80 and 10 were expected");
        assert_eq!(replacement.look(Seconds(40.0), &counts(20.0, &[10, 80])), Some(Seconds(20.0)));
        assert_eq!(replacement.look(Seconds(100.0), &counts(20.0, &[80, 10])), Some(Seconds(0.0)), "it is over anyway");
    }
}
