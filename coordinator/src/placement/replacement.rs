//! When to place anew (SeaLLM §4.3, Equation 8): sooner where traffic is not what it was expected to be, later where it is.

use super::judge::Judged;
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
        Self { start: Seconds(300.0), least: Seconds(60.0), most: Seconds(3600.0), beta: 0.1, worth: Worth::Better }
    }
}

/// How well requests were served, or would be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Performance {
    /// Share that kept its deadlines.
    pub attainment: f64,
    /// Mean normalised latency.
    pub normalised: f64,
}

impl From<&Judged> for Performance {
    fn from(judged: &Judged) -> Self {
        Self { attainment: judged.attainment(), normalised: judged.normalised() }
    }
}

impl Performance {
    /// |M − M_est|/M_est, of the metric in which that is most.
    fn differs(&self, expected: &Self) -> f64 {
        let of = |real: f64, expected: f64| (real - expected).abs() / expected.max(1e-9);
        of(self.attainment, expected.attainment).max(of(self.normalised, expected.normalised))
    }

    /// Whether it is better by a part: more deadlines kept, or as many and less latency.
    fn is_better_by(&self, part: f64, than: &Self) -> bool {
        let kept = self.attainment / than.attainment.max(1e-9);
        kept > 1.0 + part || (kept >= 1.0 && self.normalised < than.normalised * (1.0 - part))
    }
}

/// What is known when an interval is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replacement {
    rule: Rule,
    interval: Seconds,
    due: Seconds,
    expected: Option<Performance>,
}

impl Replacement {
    /// The first interval begins now; what is expected of it may be known.
    #[must_use]
    pub fn new(rule: Rule, now: Seconds, expected: Option<Performance>) -> Self {
        let interval = rule.start.max(rule.least).min(rule.most);
        Self { rule, interval, due: now + interval, expected }
    }

    /// When the present interval is over.
    #[must_use]
    pub fn due(&self) -> Seconds {
        self.due
    }

    /// How long intervals are now.
    #[must_use]
    pub fn interval(&self) -> Seconds {
        self.interval
    }

    /// An interval is over: how long the next one is, and whether it begins with another placement.
    pub fn over(&mut self, now: Seconds, seen: Seen) -> Decision {
        if let Some(expected) = self.expected {
            let factor = if seen.real.differs(&expected) > self.rule.beta { -self.rule.beta } else { self.rule.beta };
            self.interval = (self.interval * (1.0 + factor)).max(self.rule.least).min(self.rule.most);
        }
        self.due = now + self.interval;
        let replaces = match self.rule.worth {
            Worth::Always => true,
            Worth::Better => seen.found.is_better_by(self.rule.beta, &seen.kept),
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
        Rule { start: Seconds(100.0), least: Seconds(85.0), most: Seconds(115.0), beta: 0.1, worth }
    }

    #[test]
    fn intervals_follow_equation_8_within_bounds() {
        let expected = performance(0.9, 2.0);
        let mut replacement = Replacement::new(rule(Worth::Always), Seconds(0.0), Some(expected));
        let mut over = |attainment, normalised| {
            let real = performance(attainment, normalised);
            let now = replacement.due();
            assert_eq!(replacement.over(now, Seen { real, kept: expected, found: expected }), Decision::Replace);
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
            let mut replacement = Replacement::new(rule(worth), Seconds(0.0), None);
            replacement.over(now, Seen { real: kept, kept, found })
        };
        assert_eq!(decide(Worth::Always, kept), Decision::Replace);
        assert_eq!(decide(Worth::Better, performance(0.9, 1.9)), Decision::Wait);
        assert_eq!(decide(Worth::Better, performance(0.9, 1.7)), Decision::Replace);
        assert_eq!(decide(Worth::Better, performance(0.8, 1.0)), Decision::Wait);
        assert_eq!(decide(Worth::Better, performance(1.0, 3.0)), Decision::Replace);
    }

    #[test]
    fn the_first_interval_without_an_estimate_keeps_its_length() {
        let mut replacement = Replacement::new(rule(Worth::Always), Seconds(50.0), None);
        assert_eq!(replacement.due(), Seconds(150.0));
        let seen = performance(0.9, 2.0);
        replacement.over(Seconds(150.0), Seen { real: seen, kept: seen, found: seen });
        assert_eq!(replacement.due(), Seconds(250.0));
    }
}
