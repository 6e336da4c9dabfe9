//! What came of a simulation, for people and programs: percentiles, attainment, throughput, and each machine's part.

use super::{
    kv_memory::{HeldKv, PagedKv, held},
    percentile::Sorted,
};
use serde::Serialize;
use tsnode_coordinator::{
    replay::{
        machines::{Outcome, ReplayTrace},
        timeline::Gaps,
    },
    scheduler::{
        slo::{self, Reference, Slo},
        workload::WorkloadRequest,
    },
    service_monitor,
};
use tsnode_protocol::{Bytes, BytesPerToken, Seconds, Tokens};

/// Percentiles of a time (s).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimePercentiles {
    /// Half are no longer.
    pub p50: f64,
    /// Nine in ten.
    pub p90: f64,
    /// Ninety-nine in a hundred.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
}

impl TimePercentiles {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let sorted = Sorted::new(values);
        Self { p50: sorted.at(0.5), p90: sorted.at(0.9), p99: sorted.at(0.99), mean: sorted.mean() }
    }

    fn of_gaps(gaps: &Gaps) -> Self {
        let at = |share| gaps.at(share).0;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), mean: gaps.mean().0 }
    }
}

/// A machine's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MachineSummary {
    /// Part of the time it was busy.
    pub busy: f64,
    /// Prompts it computed.
    pub prompts: usize,
    /// Answers it generated.
    pub answers: usize,
    /// KV it sent to others (bytes).
    pub sent_bytes: f64,
    /// Of the requests whose prompts it computed, to the first token.
    pub ttft: TimePercentiles,
    /// Of the requests whose answers it generated, per token after the first.
    pub tpot: TimePercentiles,
    /// Of the requests whose answers it generated, to the last token.
    pub e2e: TimePercentiles,
    /// Most KV it held at once (bytes).
    pub most_kv_bytes: f64,
    /// KV it held on average over the whole time (bytes).
    pub mean_kv_bytes: f64,
    /// Most pages of KV at once, of 64 KiB as nodes have them.
    pub most_kv_pages: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests that came.
    pub requests: usize,
    /// Requests whose answers ended.
    pub ended: usize,
    /// Requests that no route took.
    pub turned_away: usize,
    /// Share of all that kept their deadlines.
    pub attainment: f64,
    /// From the first arrival to the last token (s).
    pub took: f64,
    /// Requests ended a second.
    pub requests_per_second: f64,
    /// Tokens generated a second.
    pub tokens_per_second: f64,
    /// To the first token.
    pub ttft: TimePercentiles,
    /// Per token after it, by request.
    pub tpot: TimePercentiles,
    /// Between a token of an answer and the next, all tokens alike, within a hundredth; where that was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tbt: Option<TimePercentiles>,
    /// The longest of these gaps (s).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap: Option<f64>,
    /// To the last token.
    pub e2e: TimePercentiles,
    /// From arrival until the prompt begins.
    pub queued: TimePercentiles,
    /// From the first token until the second's iteration begins.
    pub second_token_gap: TimePercentiles,
    /// The machines, in order.
    pub machines: Vec<MachineSummary>,
    /// Events simulated.
    pub events: u64,
}

impl Summary {
    /// Sums up. `kv` is what a token's KV takes on the wire.
    #[must_use]
    pub fn new(outcome: &Outcome, slo: &Slo, reference: &Reference, kv: BytesPerToken) -> Self {
        let ended: Vec<&ReplayTrace> = outcome.traces.iter().filter(|t| t.end.is_finite()).collect();
        let times = |f: &dyn Fn(&ReplayTrace) -> f64| TimePercentiles::of(ended.iter().map(|t| f(t)));
        let steps = |t: &ReplayTrace| f64::from(t.arrival.asked.answer - 1);
        let several = || ended.iter().filter(|t| t.arrival.asked.answer > 1);
        let start = outcome.traces.first().map_or(0.0, |t| t.arrival.at.0);
        let took = (outcome.end.0 - start).max(1e-9);
        let tokens: f64 = ended.iter().map(|t| f64::from(t.arrival.asked.answer)).sum();
        let kept = ended.iter().filter(|t| keeps(t, slo, reference)).count();
        let gaps = outcome.timeline.as_ref().map(|t| t.gaps());
        Self {
            requests: outcome.traces.len(),
            ended: ended.len(),
            turned_away: outcome.turned_away,
            attainment: kept as f64 / outcome.traces.len().max(1) as f64,
            took,
            requests_per_second: ended.len() as f64 / took,
            tokens_per_second: tokens / took,
            ttft: times(&|t| (t.first - t.arrival.at).0),
            tpot: TimePercentiles::of(several().map(|t| (t.end - t.first).0 / steps(t))),
            tbt: gaps.map(TimePercentiles::of_gaps),
            longest_gap: gaps.map(|g| g.longest().0),
            e2e: times(&|t| (t.end - t.arrival.at).0),
            queued: times(&|t| (t.prompt_start - t.arrival.at).0),
            second_token_gap: TimePercentiles::of(several().map(|t| (t.answer_start - t.first).0)),
            machines: parts(outcome, kv),
            events: outcome.events,
        }
    }

    /// The same with the KV that each machine held.
    #[must_use]
    pub fn with_kv(mut self, outcome: &Outcome, kv: BytesPerToken, pages: PagedKv) -> Self {
        for (part, HeldKv { most_tokens, most_pages, mean_tokens }) in
            self.machines.iter_mut().zip(held(outcome, pages))
        {
            let Bytes(most) = kv * Tokens(most_tokens as f64);
            let Bytes(mean) = kv * Tokens(mean_tokens);
            (part.most_kv_bytes, part.mean_kv_bytes, part.most_kv_pages) = (most, mean, most_pages);
        }
        self
    }
}

/// Normalised latencies (SeaLLM Equation 1): each request's whole time over the mean time that its service's requests take
/// alone, `means` by service; infinite for those that never ended.
#[must_use]
pub fn normalised(traces: &[ReplayTrace], means: &[Seconds]) -> Sorted {
    let mean = |t: &ReplayTrace| means.get(usize::from(t.arrival.asked.service.0)).map_or(Seconds(f64::NAN), |m| *m);
    Sorted::new(traces.iter().map(|t| service_monitor::normalised(t.end - t.arrival.at, mean(t))))
}

/// Times of one machine's requests.
#[derive(Clone, Default)]
struct MachineTimes {
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
}

fn parts(outcome: &Outcome, kv: BytesPerToken) -> Vec<MachineSummary> {
    let mut parts: Vec<MachineSummary> =
        outcome.busy.iter().map(|b| MachineSummary { busy: *b, ..MachineSummary::default() }).collect();
    let mut times = vec![MachineTimes::default(); parts.len()];
    for trace in &outcome.traces {
        let Some(route) = trace.route.filter(|_| trace.first.is_finite()) else { continue };
        let (asked, arrived) = (trace.arrival.asked, trace.arrival.at);
        let (prompt, answer) = (route.prompt.0 as usize, route.answer.0 as usize);
        parts[prompt].prompts += 1;
        times[prompt].ttft.push((trace.first - arrived).0);
        if route.split.is_some() || (prompt != answer && asked.answer > 1) {
            let Bytes(sent) = kv * Tokens(f64::from(route.sent(asked)));
            parts[prompt].sent_bytes += sent;
        }
        if trace.end.is_finite() {
            times[answer].e2e.push((trace.end - arrived).0);
        }
        if trace.end.is_finite() && asked.answer > 1 {
            parts[answer].answers += 1;
            times[answer].tpot.push((trace.end - trace.first).0 / f64::from(asked.answer - 1));
        }
    }
    for (part, MachineTimes { ttft, tpot, e2e }) in parts.iter_mut().zip(times) {
        let spread = |all: Vec<f64>| TimePercentiles::of(all.into_iter());
        (part.ttft, part.tpot, part.e2e) = (spread(ttft), spread(tpot), spread(e2e));
    }
    parts
}

/// Whether a request kept its deadlines.
#[must_use]
pub fn keeps(trace: &ReplayTrace, slo: &Slo, reference: &Reference) -> bool {
    let asked = trace.arrival.asked;
    let request = WorkloadRequest { prompt: Tokens(f64::from(asked.prompt)), answer: Tokens(f64::from(asked.answer)) };
    let deadline = slo::deadline(slo, reference, &request);
    trace.first - trace.arrival.at <= deadline.ttft
        && trace.end - trace.first <= deadline.answer(request.steps())
        && trace.end - trace.arrival.at <= deadline.e2e
}
