//! The service monitor (SeaLLM §4): what one model's requests were like of late, and how well they were served. Time comes in
//! with events, memory is bounded. The simulator judges placements by the same figures.

use crate::Time;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use tsnode_protocol::Seconds;

/// Over which requests are shown.
pub const WINDOW: Duration = Duration::from_secs(600);
/// Over which they are counted for the rate: a burst is seen within a minute, and so is its end.
pub const RATE_WINDOW: Duration = Duration::from_secs(60);
/// Requests that are remembered, the last ones: of a model that is asked more often, figures are of a shorter time.
const REMEMBERED: usize = 4096;

/// Normalised latency (SeaLLM Equation 1): a request's whole time over the mean time that its service's requests take alone.
#[must_use]
pub fn normalised(whole: Seconds, mean_alone: Seconds) -> f64 {
    whole.0 / mean_alone.0
}

/// How well requests were served, or would be: what a placement is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Performance {
    /// Share that kept its deadlines.
    pub attainment: f64,
    /// Mean normalised latency.
    pub normalised: f64,
}

/// What a monitor is told of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// It came to the gateway.
    Arrived,
    /// It was answered to the end.
    Answered(AnsweredRequest),
    /// It was not: nobody served it, or its answer broke off.
    Lost {
        /// Whether there were targets for it.
        had_targets: bool,
    },
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnsweredRequest {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens of its answer.
    pub answer: u32,
    /// To the first token; none where the client had it before.
    pub first: Option<Seconds>,
    /// From each token to the next, on average; none of an answer of one token.
    pub between: Option<Seconds>,
    /// To the end.
    pub whole: Seconds,
    /// What it would have taken alone; none where that was not measured.
    pub alone: Option<Seconds>,
    /// Whether it kept its targets; none where there were none.
    pub in_time: Option<bool>,
}

/// Watches the requests for one model.
#[derive(Clone, Debug)]
pub struct ServiceMonitor {
    since: Time,
    arrived: VecDeque<Time>,
    ended: VecDeque<(Time, EndedRequest)>,
}

#[derive(Clone, Copy, Debug)]
enum EndedRequest {
    Answered(AnsweredRequest),
    Lost { had_targets: bool },
}

/// What a monitor has seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Requests that came in the last minute, a second.
    pub rate: f64,
    /// Requests that were answered to the end. This and what follows is of the last ten minutes.
    pub answered: usize,
    /// Requests that were not.
    pub lost: usize,
    /// Of answered requests: tokens of prompts.
    pub prompt_tokens: Option<Distribution>,
    /// Tokens of answers.
    pub answer_tokens: Option<Distribution>,
    /// To the first token (seconds).
    pub ttft: Option<Distribution>,
    /// Between tokens, each request's mean (seconds).
    pub tpot: Option<Distribution>,
    /// To the end (seconds).
    pub e2e: Option<Distribution>,
    /// What requests would have taken alone, on average.
    pub mean_alone: Option<Seconds>,
    /// Normalised latency, of all answered requests.
    pub normalised: Option<Distribution>,
    /// Requests, answered or lost, for which there were targets.
    pub with_targets: usize,
    /// Of those, requests that kept them.
    pub in_time: usize,
}

impl ServiceReport {
    /// What a placement is held against; nothing where there were no targets, or nothing is known to normalise by.
    #[must_use]
    pub fn performance(&self) -> Option<Performance> {
        let attainment = (self.with_targets > 0).then(|| self.in_time as f64 / self.with_targets as f64)?;
        Some(Performance { attainment, normalised: self.normalised?.mean })
    }
}

/// Of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Their sum over their number.
    pub mean: f64,
    /// Half of them are no more.
    pub p50: f64,
    /// 99 of 100 are no more.
    pub p99: f64,
}

impl Distribution {
    /// None of nothing; what is no number is left out.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all.get((share * all.len() as f64).ceil() as usize - 1).copied();
        (!all.is_empty()).then_some(())?;
        Some(Self { mean: all.iter().sum::<f64>() / all.len() as f64, p50: at(0.5)?, p99: at(0.99)? })
    }
}

impl ServiceMonitor {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self { since: now, arrived: VecDeque::new(), ended: VecDeque::new() }
    }

    /// Counts what happened to a request.
    pub fn on_event(&mut self, now: Time, event: Event) {
        self.forget(now);
        match event {
            Event::Arrived => push(&mut self.arrived, now),
            Event::Answered(answered) => push(&mut self.ended, (now, EndedRequest::Answered(answered))),
            Event::Lost { had_targets } => push(&mut self.ended, (now, EndedRequest::Lost { had_targets })),
        }
    }

    /// What has been seen; none where that is long ago.
    pub fn report(&mut self, now: Time) -> Option<ServiceReport> {
        self.forget(now);
        (!self.arrived.is_empty() || !self.ended.is_empty()).then(|| self.reported(now))
    }

    fn reported(&self, now: Time) -> ServiceReport {
        let spread = |of: &dyn Fn(&AnsweredRequest) -> Option<f64>| Distribution::of(self.answered().filter_map(of));
        let mean_alone = self.mean_alone();
        let judged = self.ended.iter().filter_map(|(_, ended)| match ended {
            EndedRequest::Answered(answered) => answered.in_time,
            EndedRequest::Lost { had_targets } => had_targets.then_some(false),
        });
        let answered = self.answered().count();
        ServiceReport {
            rate: self.rate(now),
            answered,
            lost: self.ended.len() - answered,
            prompt_tokens: spread(&|a| Some(f64::from(a.prompt))),
            answer_tokens: spread(&|a| Some(f64::from(a.answer))),
            ttft: spread(&|a| Some(a.first?.0)),
            tpot: spread(&|a| Some(a.between?.0)),
            e2e: spread(&|a| Some(a.whole.0)),
            mean_alone,
            normalised: spread(&|a| Some(normalised(a.whole, mean_alone?))),
            with_targets: judged.clone().count(),
            in_time: judged.filter(|in_time| *in_time).count(),
        }
    }

    /// What the answered requests would have taken alone, on average: what latencies are normalised by.
    #[must_use]
    pub fn mean_alone(&self) -> Option<Seconds> {
        let alone = || self.answered().filter_map(|a| a.alone).filter(|alone| alone.0 > 0.0);
        let count = alone().count();
        (count > 0).then(|| alone().sum::<Seconds>() / count as f64)
    }

    fn answered(&self) -> impl Iterator<Item = &AnsweredRequest> {
        self.ended.iter().filter_map(|(_, ended)| match ended {
            EndedRequest::Answered(answered) => Some(answered),
            EndedRequest::Lost { .. } => None,
        })
    }

    /// Of a window that begins later where the monitor does, or where no more is remembered.
    fn rate(&self, now: Time) -> f64 {
        let from = now.saturating_sub(RATE_WINDOW).max(self.since);
        let full = self.arrived.len() >= REMEMBERED;
        let from = self.arrived.front().filter(|_| full).map_or(from, |oldest| from.max(*oldest));
        let count = self.arrived.iter().filter(|at| **at >= from).count();
        // Of the first moments nothing can be said: one request in a millisecond is not a thousand a second.
        count as f64 / now.saturating_sub(from).as_secs_f64().max(1.0)
    }

    fn forget(&mut self, now: Time) {
        while self.arrived.front().is_some_and(|at| *at + RATE_WINDOW < now) {
            self.arrived.pop_front();
        }
        while self.ended.front().is_some_and(|(at, _)| *at + WINDOW < now) {
            self.ended.pop_front();
        }
    }
}

/// One more; the oldest goes if there is no place.
fn push<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() >= REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::from_secs_f64(seconds)
    }

    fn answered(whole: f64, alone: f64) -> AnsweredRequest {
        AnsweredRequest {
            prompt: 10,
            answer: 5,
            whole: Seconds(whole),
            alone: Some(Seconds(alone)),
            ..AnsweredRequest::default()
        }
    }

    #[test]
    fn latencies_are_normalised_by_what_a_services_requests_take_alone_on_average() {
        let mut monitor = ServiceMonitor::new(at(0.0));
        // A short request that waited behind a long one: five times its own time, and 5/3 of its service's mean.
        for (whole, alone) in [(5.0, 1.0), (5.0, 5.0)] {
            monitor.on_event(at(1.0), Event::Arrived);
            monitor.on_event(at(6.0), Event::Answered(answered(whole, alone)));
        }
        let report = monitor.report(at(10.0)).unwrap();
        assert_eq!(report.mean_alone, Some(Seconds(3.0)));
        let normalised = report.normalised.unwrap();
        assert!((normalised.mean - 5.0 / 3.0).abs() < 1e-12 && normalised.p99 == normalised.p50, "{normalised:?}");
        assert_eq!((report.answered, report.lost, report.prompt_tokens.unwrap().mean), (2, 0, 10.0));
        assert_eq!((report.ttft, report.tpot, report.performance()), (None, None, None));
    }

    #[test]
    fn what_is_lost_kept_no_target_and_has_no_latency() {
        let mut monitor = ServiceMonitor::new(at(0.0));
        let kept = |in_time| Event::Answered(AnsweredRequest { in_time: Some(in_time), ..answered(2.0, 1.0) });
        for event in [kept(true), kept(true), kept(false), Event::Lost { had_targets: true }] {
            monitor.on_event(at(1.0), event);
        }
        monitor.on_event(at(1.0), Event::Lost { had_targets: false });
        monitor.on_event(at(1.0), Event::Answered(answered(2.0, 1.0)));
        let report = monitor.report(at(2.0)).unwrap();
        assert_eq!((report.answered, report.lost, report.with_targets, report.in_time), (4, 2, 4, 2));
        assert_eq!(report.performance(), Some(Performance { attainment: 0.5, normalised: 2.0 }));
    }

    #[test]
    fn the_rate_is_of_the_last_minute_and_ends_with_the_requests() {
        let mut monitor = ServiceMonitor::new(at(100.0));
        monitor.on_event(at(100.0), Event::Arrived);
        assert_eq!(monitor.report(at(100.001)).unwrap().rate, 1.0, "not a thousand");
        for n in 1..40 {
            monitor.on_event(at(100.0 + f64::from(n) / 2.0), Event::Arrived);
        }
        let rate = |monitor: &mut ServiceMonitor, now| monitor.report(at(now)).map(|report| report.rate);
        assert_eq!(rate(&mut monitor, 120.0), Some(2.0));
        assert_eq!(rate(&mut monitor, 160.0), Some(40.0 / 60.0));
        assert_eq!(rate(&mut monitor, 181.0), None);
        monitor.on_event(at(181.0), Event::Answered(answered(1.0, 1.0)));
        assert_eq!(rate(&mut monitor, 182.0), Some(0.0), "it is shown as long as its answers are");
        assert_eq!(rate(&mut monitor, 782.0), None);
    }

    #[test]
    fn memory_is_bounded_and_the_rate_of_what_is_remembered_is_right() {
        let mut monitor = ServiceMonitor::new(at(0.0));
        for n in 0..50_000 {
            let now = at(100.0 + f64::from(n) / 1000.0);
            monitor.on_event(now, Event::Arrived);
            monitor.on_event(now, Event::Answered(answered(1.0, f64::NAN)));
        }
        let report = monitor.report(at(150.0)).unwrap();
        assert_eq!((monitor.arrived.len(), monitor.ended.len()), (REMEMBERED, REMEMBERED));
        assert!((report.rate - 1000.0).abs() < 1.0, "{}", report.rate);
        assert_eq!((report.mean_alone, report.normalised), (None, None), "nobody measured what they take alone");
    }
}
