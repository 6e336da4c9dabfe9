//! What came of a run, for people and programs; names are those of vLLM's `bench serve`.

use super::{
    client::{RequestOutcome, Run},
    timed_answer::TimedAnswer,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tsnode_simulator::{
    percentile::Sorted,
    plot::{Plot, Scale},
};

/// Percentiles that are drawn.
pub(in crate::cli) const DRAWN: [f64; 11] = [1.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 99.0];
/// Reasons of failures that are told apart.
const REASONS: usize = 8;

/// What is measured of a request: the time to its first token, per token after it, from piece to piece, and to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) enum Metric {
    Ttft,
    Tpot,
    Itl,
    E2el,
}

impl Metric {
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::E2el];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2el => "e2el",
        }
    }

    pub(in crate::cli) fn words(self) -> &'static str {
        match self {
            Self::Ttft => "first token (ttft)",
            Self::Tpot => "each token after it (tpot)",
            Self::Itl => "between pieces (itl)",
            Self::E2el => "whole answer (e2el)",
        }
    }
}

/// A target of `--goodput`: `ttft:500`, in milliseconds, or with a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct GoodputTarget {
    metric: Metric,
    most: Duration,
}

impl GoodputTarget {
    /// Whether an answer keeps it.
    pub fn is_kept(&self, answer: &TimedAnswer) -> bool {
        self.is_kept_by(answer, Duration::ZERO)
    }

    /// The same of a request that was sent so long after it was due.
    pub fn is_kept_by(&self, answer: &TimedAnswer, late: Duration) -> bool {
        match self.metric {
            Metric::Ttft => late + answer.first <= self.most,
            Metric::E2el => late + answer.whole <= self.most,
            Metric::Tpot | Metric::Itl => answer.per_token().is_none_or(|time| time <= self.most),
        }
    }
}

impl FromStr for GoodputTarget {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write ttft:, tpot: or e2el: and milliseconds, as in ttft:500 tpot:50 e2el:10000".to_owned();
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let metric = match name.trim() {
            "ttft" => Metric::Ttft,
            "tpot" => Metric::Tpot,
            "e2el" | "e2e" => Metric::E2el,
            _ => return Err(wrong()),
        };
        let value = value.trim();
        let (number, unit) = match (value.strip_suffix("ms"), value.strip_suffix('s')) {
            (Some(ms), _) => (ms, 1e-3),
            (None, Some(seconds)) => (seconds, 1.0),
            (None, None) => (value, 1e-3),
        };
        let seconds = number.parse::<f64>().ok().filter(|n| *n > 0.0).map(|n| n * unit).ok_or_else(wrong)?;
        let most = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
        Ok(Self { metric, most })
    }
}

impl fmt::Display for GoodputTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.metric.name(), self.most.as_secs_f64() * 1e3)
    }
}

/// The figures of a run.
pub(in crate::cli) struct Report {
    /// Seconds, in order; what was not measured is missing.
    times: BTreeMap<Metric, Sorted>,
    pub duration: Duration,
    pub completed: usize,
    pub failed: usize,
    pub cut: usize,
    pub unsent: usize,
    peak: usize,
    input_tokens: u64,
    output_tokens: u64,
    /// Whether the server said how many tokens they are.
    has_usage: bool,
    /// How late requests were sent (s).
    late: Sorted,
    targets: Vec<GoodputTarget>,
    /// Requests that kept all targets.
    good: usize,
    /// Why requests failed, the likeliest first.
    pub reasons: Vec<(String, usize)>,
}

impl Report {
    pub fn new(run: &Run, planned_tokens: impl Fn(usize) -> u32, targets: Vec<GoodputTarget>) -> Self {
        let answers = || run.outcomes.iter().filter_map(|o| o.answer.as_ref().ok().map(|answer| (o.index, answer)));
        let seconds = |metric: Metric| {
            let all = answers().flat_map(|(_, answer)| match metric {
                Metric::Ttft => vec![answer.first],
                Metric::Tpot => answer.per_token().into_iter().collect(),
                Metric::Itl => answer.gaps.clone(),
                Metric::E2el => vec![answer.whole],
            });
            let all: Vec<f64> = all.map(|time| time.as_secs_f64()).collect();
            (!all.is_empty()).then(|| (metric, Sorted::new(all.into_iter())))
        };
        let keeps = |answer: &TimedAnswer| targets.iter().all(|target| target.is_kept(answer));
        Self {
            times: Metric::ALL.into_iter().filter_map(seconds).collect(),
            duration: run.took,
            completed: answers().count(),
            failed: run.outcomes.len() - answers().count(),
            cut: run.cut,
            unsent: run.unsent,
            peak: run.peak,
            input_tokens: answers().map(|(n, a)| a.prompt_tokens.unwrap_or(u64::from(planned_tokens(n)))).sum(),
            output_tokens: answers().map(|(_, answer)| answer.tokens()).sum(),
            has_usage: answers().all(|(_, answer)| answer.prompt_tokens.is_some() && answer.answer_tokens.is_some()),
            late: Sorted::new(run.outcomes.iter().map(|o| o.late.as_secs_f64())),
            good: answers().filter(|(_, answer)| keeps(answer)).count(),
            targets,
            reasons: reasons(&run.outcomes),
        }
    }

    /// The time that a share of the requests does not pass (s), where it was measured.
    pub fn at(&self, metric: Metric, share: f64) -> Option<f64> {
        self.times.get(&metric).map(|times| times.at(share))
    }

    /// The same on average (s).
    pub fn mean(&self, metric: Metric) -> Option<f64> {
        self.times.get(&metric).map(Sorted::mean)
    }

    /// Requests and tokens of answers, in a second.
    pub fn throughput(&self) -> (f64, f64) {
        (self.per_second(self.completed as f64), self.per_second(self.output_tokens as f64))
    }

    fn per_second(&self, amount: f64) -> f64 {
        amount / self.duration.as_secs_f64().max(1e-9)
    }

    fn sent(&self) -> usize {
        self.completed + self.failed + self.cut
    }

    /// Part of the requests that kept all targets; those that failed or were cut short kept none.
    fn attainment(&self) -> f64 {
        self.good as f64 / self.sent().max(1) as f64
    }

    pub fn json(&self, about: &Value) -> Value {
        let ms = |seconds: f64| seconds * 1e3;
        let mut all = Map::new();
        all.extend(about.as_object().cloned().unwrap_or_default());
        let figures = json!({
            "duration": self.duration.as_secs_f64(),
            "completed": self.completed, "failed": self.failed, "cut_short": self.cut, "not_sent": self.unsent,
            "total_input_tokens": self.input_tokens, "total_output_tokens": self.output_tokens,
            "tokens_by_usage": self.has_usage,
            "request_throughput": self.per_second(self.completed as f64),
            "output_throughput": self.per_second(self.output_tokens as f64),
            "total_token_throughput": self.per_second((self.input_tokens + self.output_tokens) as f64),
            "max_concurrent_requests": self.peak, "p99_sent_late_ms": ms(self.late.at(0.99)),
        });
        all.extend(figures.as_object().cloned().unwrap_or_default());
        if !self.targets.is_empty() {
            all.insert("goodput".into(), json!(self.targets.iter().map(ToString::to_string).collect::<Vec<_>>()));
            all.insert("request_goodput".into(), json!(self.per_second(self.good as f64)));
            all.insert("attainment".into(), json!(self.attainment()));
        }
        for (metric, times) in self.times.iter() {
            let name = metric.name();
            all.insert(format!("mean_{name}_ms"), json!(ms(times.mean())));
            for (what, share) in [("median", 0.5), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
                all.insert(format!("{what}_{name}_ms"), json!(ms(times.at(share))));
            }
        }
        let reasons = self.reasons.iter().map(|(why, count)| json!({ "reason": why, "requests": count }));
        all.insert("errors".into(), reasons.collect());
        Value::Object(all)
    }

    /// Lines of what was done, before the table.
    pub fn lines(&self) -> Vec<String> {
        let unfinished = [(self.failed, "failed"), (self.cut, "cut short"), (self.unsent, "not sent")];
        let unfinished =
            unfinished.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
        let mut lines = vec![format!(
            "{} requests answered in {:.2} s{}; at most {} at once, sent {} late at P99",
            self.completed,
            self.duration.as_secs_f64(),
            unfinished.collect::<String>(),
            self.peak,
            time(self.late.at(0.99)),
        )];
        lines.extend(self.reasons.iter().map(|(why, count)| format!("  {count} failed: {why}")));
        let by = if self.has_usage { "" } else { " (counted by pieces: the server does not say)" };
        lines.push(format!(
            "{:.2} requests/s, {:.1} tokens/s of answers, {:.1} tokens/s with prompts{by}",
            self.per_second(self.completed as f64),
            self.per_second(self.output_tokens as f64),
            self.per_second((self.input_tokens + self.output_tokens) as f64),
        ));
        if !self.targets.is_empty() {
            let targets: Vec<String> = self.targets.iter().map(ToString::to_string).collect();
            lines.push(format!(
                "goodput {:.2} requests/s: {:.1} % within {} (ms)",
                self.per_second(self.good as f64),
                self.attainment() * 100.0,
                targets.join(" "),
            ));
        }
        lines
    }

    /// Times, a row for each metric.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["", "P50", "P90", "P99", "MEAN"].map(String::from).to_vec()];
        for (metric, times) in self.times.iter() {
            let cells = [times.at(0.5), times.at(0.9), times.at(0.99), times.mean()].map(time);
            rows.push(std::iter::once(metric.words().to_owned()).chain(cells).collect());
        }
        rows
    }

    /// Times over the part of requests that they are not passed by.
    pub fn svg(&self, title: &str) -> String {
        let line = |times: &Sorted| DRAWN.map(|percent| times.at(percent / 100.0)).to_vec();
        let series: Vec<(String, Vec<f64>)> =
            self.times.iter().map(|(m, times)| (m.name().to_owned(), line(times))).collect();
        let (across, up) = ("percentile of requests", "time");
        Plot { title, across, up, rates: &DRAWN, scale: Scale::Seconds, series: &series }.svg()
    }
}

/// Why requests failed, the likeliest first.
pub(in crate::cli) fn reasons(outcomes: &[RequestOutcome]) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for failure in outcomes.iter().filter_map(|o| o.answer.as_ref().err()) {
        let why = failure.to_string();
        let is_known = counts.contains_key(&why) || counts.len() < REASONS;
        *counts.entry(if is_known { why } else { "other reasons".into() }).or_default() += 1;
    }
    let mut reasons: Vec<(String, usize)> = counts.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons
}

pub(in crate::cli) fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::serve::timed_answer::Failure;

    const MS: Duration = Duration::from_millis(1);

    fn outcome(index: u32, answer: Result<TimedAnswer, Failure>) -> RequestOutcome {
        RequestOutcome { index: index as usize, late: index * MS, answer }
    }

    /// 100 answers: the n-th has its first token after n ms, then four more, n/10 ms apart.
    fn hundred() -> Run {
        let answer = |n: u32| TimedAnswer {
            first: n * MS,
            whole: n * MS + 4 * n * MS / 10,
            gaps: vec![n * MS / 10; 4],
            prompt_tokens: Some(10),
            answer_tokens: Some(5),
            request: None,
        };
        let outcomes = (1..=100).map(|n| outcome(n, Ok(answer(n)))).collect();
        Run { outcomes, took: Duration::from_secs(10), peak: 3, ..Run::default() }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let report = Report::new(&hundred(), |_| 0, Vec::new());
        let document = report.json(&json!({ "model": "m" }));
        // As numpy's percentiles of 1 to 100, linear between neighbours.
        for (name, value) in [
            ("mean_ttft_ms", 50.5),
            ("median_ttft_ms", 50.5),
            ("p90_ttft_ms", 90.1),
            ("p99_ttft_ms", 99.01),
            ("p50_tpot_ms", 5.05),
            ("p99_tpot_ms", 9.901),
            ("mean_itl_ms", 5.05),
            ("p90_e2el_ms", 126.14),
            ("p99_sent_late_ms", 99.01),
            ("request_throughput", 10.0),
            ("output_throughput", 50.0),
            ("total_token_throughput", 150.0),
            ("completed", 100.0),
        ] {
            let got = document[name].as_f64().unwrap();
            assert!((got - value).abs() < 1e-6 * value, "{name}: {got}, not {value}");
        }
        assert_eq!((&document["model"], document.get("request_goodput")), (&json!("m"), None));
    }

    #[test]
    fn goodput_counts_what_keeps_every_target_of_all_that_was_sent() {
        let mut run = hundred();
        run.outcomes.push(outcome(0, Err(Failure::NoEnd)));
        run.cut = 24;
        let targets = ["ttft:80", "tpot:6ms", "e2el:1s"].map(|t| t.parse().unwrap()).to_vec();
        let report = Report::new(&run, |_| 0, targets);
        assert_eq!((report.good, report.failed, report.attainment()), (60, 1, 60.0 / 125.0));
        let document = report.json(&Value::Null);
        assert_eq!((&document["request_goodput"], &document["goodput"][2]), (&json!(6.0), &json!("e2el:1000")));
        assert!(
            report.lines().iter().any(|l| l == "goodput 6.00 requests/s: 48.0 % within ttft:80 tpot:6 e2el:1000 (ms)")
        );
    }

    #[test]
    fn targets_are_read_as_vllm_has_them() {
        for wrong in ["ttft", "ttft:", "ttft:-5", "ttft:0", "itl:5", "ttft:1h", "ttft:nan", "tpot:1e300s", "x:1"] {
            let said = wrong.parse::<GoodputTarget>().unwrap_err();
            assert!(said.contains("ttft:500 tpot:50 e2el:10000"), "{wrong}: {said}");
        }
        assert_eq!("e2e:1.5s".parse::<GoodputTarget>().unwrap().most, 1500 * MS);
    }

    #[test]
    fn failures_are_told_apart_and_few() {
        let refused = |status| outcome(0, Err(Failure::Refused { status, said: "no".into() }));
        let mut outcomes: Vec<RequestOutcome> = (400..500).map(refused).collect();
        outcomes.extend((0..5).map(|_| refused(400)));
        let told = reasons(&outcomes);
        assert_eq!(told.len(), REASONS + 1);
        assert_eq!(told[..2], [("other reasons".to_owned(), 92), ("400: no".to_owned(), 6)]);
        let report = Report::new(&Run { outcomes, ..Run::default() }, |_| 0, Vec::new());
        assert_eq!((report.completed, report.rows().len(), report.json(&Value::Null).get("p50_ttft_ms")), (0, 1, None));
    }

    #[test]
    fn a_picture_has_a_line_for_each_metric() {
        let svg = Report::new(&hundred(), |_| 0, Vec::new()).svg("a & b");
        assert_eq!(svg.matches("stroke-width=\"2\" points=").count(), 4, "lines of values: {svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("\ne2el\n"), "{svg}");
    }
}
