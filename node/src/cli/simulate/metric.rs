//! What policies are compared by, and how its values are written.

use std::str::FromStr;
use tsnode_simulator::summary::Summary;

/// What policies are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparedMetric {
    /// Share of requests that keep their deadlines.
    InTime,
    /// P99 of the time to the first token.
    Ttft,
    /// P99 of the time between tokens.
    Tbt,
    /// P99 of the time to the last token.
    E2e,
}

const METRICS: [(&str, ComparedMetric, &str); 4] = [
    ("in-time", ComparedMetric::InTime, "requests in time"),
    ("ttft", ComparedMetric::Ttft, "P99 of the time to the first token"),
    ("tbt", ComparedMetric::Tbt, "P99 of the time between tokens"),
    ("e2e", ComparedMetric::E2e, "P99 of the time to the last token"),
];

impl FromStr for ComparedMetric {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = METRICS.iter().find(|m| m.0 == text).map(|m| m.1);
        found.ok_or_else(|| format!("--metric {text:?}: there are {}", METRICS.map(|m| m.0).join(", ")))
    }
}

impl ComparedMetric {
    pub(super) fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::InTime => summary.attainment,
            Self::Ttft => summary.ttft.p99,
            Self::Tbt => summary.tbt.map_or(f64::NAN, |t| t.p99),
            Self::E2e => summary.e2e.p99,
        }
    }

    pub(super) fn title(self) -> &'static str {
        METRICS.iter().find(|m| m.1 == self).map_or("", |m| m.2)
    }

    pub(super) fn shown(self, value: f64) -> String {
        if self == Self::InTime { format!("{:.1} %", value * 100.0) } else { time(value) }
    }
}

/// Seconds, as people read them.
pub(super) fn time(s: f64) -> String {
    if s < 10.0 { format!("{:.0} ms", s * 1e3) } else { format!("{s:.1} s") }
}
