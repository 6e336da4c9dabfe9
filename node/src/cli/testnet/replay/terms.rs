//! Where a request's time goes on average, live by what its gateway counts and in the simulator: of a figure that is off, which of
//! these it is most likely off by.

use crate::cli::bench::serve::report::Metric;
use tsnode_coordinator::replay::machines::{Outcome, ReplayTrace};
use tsnode_protocol::Seconds;

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyTerm {
    Queue,
    Prompt,
    Kv,
    Answer,
    Beside,
}

impl LatencyTerm {
    pub const ALL: [Self; 5] = [Self::Queue, Self::Prompt, Self::Kv, Self::Answer, Self::Beside];

    pub fn words(self) -> &'static str {
        match self {
            Self::Queue => "queueing",
            Self::Prompt => "steps of prompts",
            Self::Kv => "KV transfer",
            Self::Answer => "steps of answers",
            Self::Beside => "what is beside groups",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queueing",
            Self::Prompt => "prompt_steps",
            Self::Kv => "kv_transfer",
            Self::Answer => "answer_steps",
            Self::Beside => "beside",
        }
    }

    /// Whether a figure is made of it.
    fn is_in(self, metric: Metric) -> bool {
        match metric {
            Metric::Ttft => matches!(self, Self::Queue | Self::Prompt | Self::Beside),
            Metric::Tpot | Metric::Itl => matches!(self, Self::Kv | Self::Answer),
            Metric::E2el => true,
        }
    }
}

/// What a gateway has counted of all its requests: how many, and their times (s).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct GatewayTotals {
    requests: f64,
    queue: f64,
    prompt: f64,
    answer: f64,
    /// From its turn to its end.
    inference: f64,
}

impl GatewayTotals {
    /// By its metrics, as text.
    pub fn of(metrics: &str) -> Self {
        let sum = |name: &str| sum(metrics, &format!("tsnode_request_{name}"));
        Self {
            requests: sum("inference_time_seconds_count"),
            queue: sum("queue_time_seconds_sum"),
            prompt: sum("prefill_time_seconds_sum"),
            answer: sum("decode_time_seconds_sum"),
            inference: sum("inference_time_seconds_sum"),
        }
    }
}

/// A metric's values, of all its labels together.
fn sum(metrics: &str, name: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    };
    metrics.lines().filter_map(value).sum()
}

/// The mean of each term (s).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LatencyTerms {
    queue: f64,
    prompt: f64,
    kv: f64,
    answer: f64,
    beside: f64,
}

impl LatencyTerms {
    /// Of the requests that a gateway has counted since, which took their clients so long on average (s); `None` if it has none.
    pub fn live(before: GatewayTotals, after: GatewayTotals, whole: f64) -> Option<Self> {
        let requests = after.requests - before.requests;
        let mean = |of: fn(&GatewayTotals) -> f64| ((of(&after) - of(&before)) / requests).max(0.0);
        let (queue, prompt, answer) = (mean(|c| c.queue), mean(|c| c.prompt), mean(|c| c.answer));
        let inference = mean(|c| c.inference);
        let (kv, beside) = ((inference - prompt - answer).max(0.0), (whole - queue - inference).max(0.0));
        (requests > 0.0).then_some(Self { queue, prompt, kv, answer, beside })
    }

    /// Of simulated requests that ended; so much (s) is added to each beside its steps.
    pub fn simulated(outcome: &Outcome, beside: f64) -> Self {
        let ended: Vec<&ReplayTrace> = outcome.traces.iter().filter(|t| t.end.is_finite()).collect();
        let mean = |of: fn(&ReplayTrace) -> f64| ended.iter().map(|t| of(t)).sum::<f64>() / ended.len().max(1) as f64;
        Self {
            queue: mean(|t| (t.prompt_start - t.arrival.at).0),
            prompt: mean(|t| (t.first - t.prompt_start).0),
            kv: mean(|t| sent_behind(t).0),
            answer: mean(|t| (t.end - t.first - sent_behind(t)).0),
            beside,
        }
    }

    pub fn of(&self, term: LatencyTerm) -> f64 {
        match term {
            LatencyTerm::Queue => self.queue,
            LatencyTerm::Prompt => self.prompt,
            LatencyTerm::Kv => self.kv,
            LatencyTerm::Answer => self.answer,
            LatencyTerm::Beside => self.beside,
        }
    }

    /// By which of its terms a figure is most likely off that the simulator has so many times as large: the one that differs most
    /// the same way. Where requests take longer, fewer are done in a second. `None` where none differs that way.
    pub fn likely(&self, simulated: &Self, metric: Option<Metric>, ratio: f64) -> Option<LatencyTerm> {
        let is_longer = if metric.is_some() { ratio > 1.0 } else { ratio < 1.0 };
        let off = |term: LatencyTerm| (simulated.of(term) - self.of(term)) * if is_longer { 1.0 } else { -1.0 };
        let own = LatencyTerm::ALL.into_iter().filter(|term| metric.is_none_or(|metric| term.is_in(metric)));
        own.max_by(|a, b| off(*a).total_cmp(&off(*b))).filter(|term| off(*term) > 0.0)
    }
}

/// What a request's KV takes after its first token. That of a prompt that was parted goes between its parts, and costs nothing then: so it
/// is counted live.
fn sent_behind(t: &ReplayTrace) -> Seconds {
    let is_parted = t.route.is_some_and(|route| route.split.is_some());
    if is_parted { Seconds(0.0) } else { t.sending }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::{
        policy::routing::{Asked, MachineNo, RoutingDecision},
        replay::machines::Arrival,
    };

    fn terms([queue, prompt, kv, answer, beside]: [f64; 5]) -> LatencyTerms {
        LatencyTerms { queue, prompt, kv, answer, beside }
    }

    fn metrics(requests: u32, each: f64) -> String {
        let row = |(name, times): (&str, f64)| {
            let sum = times * each * f64::from(requests);
            format!(
                "# TYPE tsnode_request_{name} histogram\ntsnode_request_{name}_bucket{{model_name=\"a\",le=\"1.0\"}} 7\n\
                 tsnode_request_{name}_sum{{model_name=\"a\"}} {sum}\ntsnode_request_{name}_count{{model_name=\"a\"}} {requests}\n"
            )
        };
        let all = [("queue_time_seconds", 1.0), ("prefill_time_seconds", 2.0), ("decode_time_seconds", 4.0)];
        all.into_iter().chain([("inference_time_seconds", 7.0)]).map(row).collect()
    }

    #[test]
    fn what_a_gateway_counts_is_cut_into_terms() {
        let (before, after) = (GatewayTotals::of(&metrics(10, 1.0)), GatewayTotals::of(&metrics(30, 1.0)));
        assert_eq!(before.requests, 10.0);
        // 20 requests of a second in the queue, two and four in steps, one for KV, and half a one beside all that.
        let live = LatencyTerms::live(before, after, 8.5).unwrap();
        assert!(
            LatencyTerm::ALL.iter().zip([1.0, 2.0, 1.0, 4.0, 0.5]).all(|(term, s)| (live.of(*term) - s).abs() < 1e-9),
            "{live:?}"
        );
        assert_eq!(LatencyTerms::live(after, after, 8.5), None);
        assert_eq!(GatewayTotals::of("tsnode_request_queue_time_seconds_sums 5\n").queue, 0.0);
    }

    #[test]
    fn simulated_terms_come_to_the_whole_time_where_prompts_are_parted_too() {
        let of = |split: Option<u32>| {
            let [start, first, answered, end] = [1.0, 3.0, 3.5, 7.5].map(Seconds);
            let trace = ReplayTrace {
                arrival: Arrival { at: Seconds(0.0), asked: Asked::new(100, 5) },
                route: Some(RoutingDecision { prompt: MachineNo(0), answer: MachineNo(1), split }),
                prompt_start: start,
                first,
                answer_start: answered,
                end,
                sending: Seconds(0.5),
            };
            LatencyTerms::simulated(&Outcome { traces: vec![trace], ..Outcome::default() }, 0.25)
        };
        assert_eq!(of(None), terms([1.0, 2.0, 0.5, 4.0, 0.25]));
        assert_eq!(of(Some(64)), terms([1.0, 2.0, 0.0, 4.5, 0.25]), "its KV went before its first token");
    }

    #[test]
    fn what_is_off_is_so_by_the_term_that_differs_most_the_same_way() {
        let live = terms([1.0, 2.0, 0.1, 4.0, 0.5]);
        let simulated = terms([1.5, 1.8, 0.9, 4.1, 0.4]);
        let of = |metric, ratio| live.likely(&simulated, metric, ratio);
        assert_eq!(of(Some(Metric::Ttft), 1.2), Some(LatencyTerm::Queue));
        assert_eq!(of(Some(Metric::Ttft), 0.8), Some(LatencyTerm::Prompt));
        assert_eq!(of(Some(Metric::Tpot), 1.2), Some(LatencyTerm::Kv));
        assert_eq!(of(Some(Metric::Tpot), 0.8), None, "neither is shorter");
        assert_eq!(of(Some(Metric::E2el), 1.2), Some(LatencyTerm::Kv));
        assert_eq!(of(None, 0.9), Some(LatencyTerm::Kv), "longer requests are fewer in a second");
    }
}
