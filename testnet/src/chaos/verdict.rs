//! A run in one line: whether all held, what was done, and what became of whom.

use super::{ChaosReport, Deed, Spread};
use crate::client::Difference;
use serde::Serialize;
use std::fmt;

/// A report in a few numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChaosVerdict {
    /// Whether nothing was lost, repeated or changed, nobody was cut off, and all else held that must.
    pub holds: bool,
    /// The seed.
    pub seed: u64,
    /// Faults.
    pub faults: usize,
    /// Of those, how many were kills.
    pub kills: usize,
    /// How many were stops.
    pub stops: usize,
    /// How many hit two peers at once.
    pub of_two: usize,
    /// Answers that came whole and right.
    pub answers: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Answers of which some or all never came.
    pub lost: usize,
    /// Answers of which some came twice.
    pub repeated: usize,
    /// Answers that said something else.
    pub changed: usize,
    /// Pairs of peers, of which one cut the other off.
    pub cut_off: usize,
    /// Of all else that must hold, and of the limits, what did not.
    pub others: usize,
    /// The longest pauses of streams that a fault hit, those at stopped gateways aside.
    pub gaps: Option<Spread>,
    /// The longest pause of any stream, those at stopped gateways aside (seconds).
    pub worst: Option<f64>,
    /// Pauses at gateways that were stopped or cut off.
    pub at_stopped_gateways: Option<Spread>,
    /// The first thing that did not hold.
    pub first: Option<String>,
}

impl ChaosVerdict {
    /// Of a run.
    #[must_use]
    pub fn of(report: &ChaosReport) -> Self {
        let wrongs = report.wrongs();
        let deeds = |deed| report.faults.iter().filter(|f| f.deed == deed).count();
        let wronged = |how: Difference| report.wronged.iter().filter(|w| w.how == how).count();
        let summary = report.summary();
        Self {
            holds: wrongs.is_empty(),
            seed: report.seed,
            faults: report.faults.len(),
            kills: deeds(Deed::Kill),
            stops: deeds(Deed::Stop),
            of_two: report.faults.iter().filter(|f| f.is_of_two()).count(),
            answers: report.streams.len(),
            tokens: report.streams.iter().map(|s| s.tokens).sum(),
            lost: wronged(Difference::Lost),
            repeated: wronged(Difference::Repeated),
            changed: wronged(Difference::Changed),
            cut_off: report.cut_off.len(),
            others: report.violations.len(),
            gaps: summary.pauses,
            worst: summary.pauses_of_all.map(|p| p.most),
            at_stopped_gateways: summary.pauses_at_stopped_gateways,
            first: wrongs.into_iter().next(),
        }
    }
}

impl fmt::Display for ChaosVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed, faults, kills, stops, of_two, answers, tokens, lost, repeated, changed, cut_off, others, ..
        } = self;
        let held = if self.holds { "HOLDS" } else { "DOES NOT HOLD" };
        write!(f, "{held}: seed {seed}, {faults} faults ({kills} kills, {stops} stops; {of_two} of two at once), ")?;
        write!(f, "{answers} answers of {tokens} tokens; {lost} lost, {repeated} repeated, {changed} changed, ")?;
        write!(f, "{cut_off} cut off")?;
        if *others > 0 {
            write!(f, ", {others} of the other checks failed")?;
        }
        if let Some(gaps) = self.gaps {
            write!(f, "; gaps of {} hit p50 {:.2} s, p99 {:.2} s", gaps.of, gaps.median, gaps.ninety_nine)?;
        }
        if let Some(worst) = self.worst {
            write!(f, ", worst {worst:.2} s")?;
        }
        if let Some(Spread { ninety_nine, most, of, .. }) = self.at_stopped_gateways {
            write!(f, "; at stopped gateways {of}, p99 {ninety_nine:.2} s, worst {most:.2} s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::Wronged;

    #[test]
    fn one_line_says_what_became_of_whom() {
        let report = ChaosReport {
            seed: 7,
            seconds: 4.0,
            peers: vec![],
            faults: vec![],
            plans: vec![],
            streams: vec![],
            wronged: vec![],
            cut_off: vec![],
            violations: vec![],
        };
        let line = ChaosVerdict::of(&report).to_string();
        let expected = "HOLDS: seed 7, 0 faults (0 kills, 0 stops; 0 of two at once), 0 answers of 0 tokens; \
                        0 lost, 0 repeated, 0 changed, 0 cut off";
        assert_eq!(line, expected);
        let wronged = [Difference::Lost, Difference::Changed, Difference::Lost, Difference::Repeated];
        let wronged = wronged.map(|how| Wronged { how, what: format!("it was {how}") }).to_vec();
        let cut_off = vec!["a has cut off b".into()];
        let wrong = ChaosReport { wronged, cut_off, violations: vec!["and more".into()], ..report };
        let verdict = ChaosVerdict::of(&wrong);
        assert!(!verdict.holds && verdict.first.as_deref() == Some("it was lost"));
        let line = verdict.to_string();
        assert!(
            line.starts_with("DOES NOT HOLD: ")
                && line.contains("2 lost, 1 repeated, 1 changed, 1 cut off, 1 of the other"),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
    }
}
