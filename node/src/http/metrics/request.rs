//! One request of a client, counted from when it arrives until it ends, whichever way it does.

use super::{
    ByEnd, ByModel, JudgedRequest, Metrics, attainment::AttainmentCounters, overflows::Overflows,
    services::ServiceMonitors,
};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use std::sync::Arc;
use std::time::Instant;
use tsnode_coordinator::{
    gateway::Trace,
    service_monitor::{AnsweredRequest, Event},
};
use tsnode_protocol::Seconds;

/// Counts one request. Dropping it before an end was noted counts it as cancelled: its client has gone.
#[derive(Debug)]
pub(in crate::http) struct RequestStats {
    of: ModelMetrics,
    by: ByModel,
    judged: JudgedRequest,
    kept: Arc<AttainmentCounters>,
    overflows: Arc<Overflows>,
    services: Arc<ServiceMonitors>,
    arrived: Instant,
    /// When the first token of all came, if it came while its client waited.
    first: Option<Instant>,
    state: State,
    prompt_tokens: usize,
    /// Answers to each prompt.
    each: usize,
    choices: Vec<MeteredChoice>,
    is_traced: bool,
    /// What the longest of its answers would have taken alone, as far as that is known.
    alone: Option<Seconds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Ended,
}

#[derive(Clone, Copy, Debug, Default)]
struct MeteredChoice {
    /// Given to the client.
    tokens: usize,
    /// When the last token came.
    last: Option<Instant>,
}

/// Metrics of one model.
#[derive(Debug)]
struct ModelMetrics {
    accepted: Counter,
    unserved: Counter,
    finished: Counter,
    cancelled: Counter,
    failed: Counter,
    choices: Family<ByEnd, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generation_tokens: Counter,
    first_tokens: Counter,
    waiting: Gauge,
    running: Gauge,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_latency: Histogram,
    inference_time: Histogram,
    time_per_output_token: Histogram,
    normalised_latency: Histogram,
    prompt_lengths: Histogram,
    generation_lengths: Histogram,
    longest_choices: Histogram,
}

impl ModelMetrics {
    fn of(all: &Metrics, by: &ByModel) -> Self {
        Self {
            accepted: all.accepted.get_or_create_owned(by),
            unserved: all.unserved.get_or_create_owned(by),
            finished: all.finished.get_or_create_owned(by),
            cancelled: all.cancelled.get_or_create_owned(by),
            failed: all.failed.get_or_create_owned(by),
            choices: all.choices.clone(),
            prompt_tokens: all.prompt_tokens.get_or_create_owned(by),
            cached_tokens: all.cached_tokens.get_or_create_owned(by),
            generation_tokens: all.generation_tokens.get_or_create_owned(by),
            first_tokens: all.first_tokens.get_or_create_owned(by),
            waiting: all.waiting.get_or_create_owned(by),
            running: all.running.get_or_create_owned(by),
            queue_time: all.queue_time.get_or_create_owned(by),
            prefill_time: all.prefill_time.get_or_create_owned(by),
            decode_time: all.decode_time.get_or_create_owned(by),
            time_to_first_token: all.time_to_first_token.get_or_create_owned(by),
            inter_token_latency: all.inter_token_latency.get_or_create_owned(by),
            e2e_latency: all.e2e_latency.get_or_create_owned(by),
            inference_time: all.inference_time.get_or_create_owned(by),
            time_per_output_token: all.time_per_output_token.get_or_create_owned(by),
            normalised_latency: all.normalised_latency.get_or_create_owned(by),
            prompt_lengths: all.prompt_lengths.get_or_create_owned(by),
            generation_lengths: all.generation_lengths.get_or_create_owned(by),
            longest_choices: all.longest_choices.get_or_create_owned(by),
        }
    }
}

impl RequestStats {
    pub(super) fn new(all: &Metrics, by: ByModel, judged: JudgedRequest, arrived: Instant) -> Self {
        let of = ModelMetrics::of(all, &by);
        of.waiting.inc();
        all.services.on_event(&by.model_name, Event::Arrived);
        Self {
            of,
            by,
            judged,
            kept: all.kept.clone(),
            overflows: all.overflows.clone(),
            services: all.services.clone(),
            arrived,
            first: None,
            state: State::Waiting,
            prompt_tokens: 0,
            each: 1,
            choices: Vec::new(),
            is_traced: false,
            alone: None,
        }
    }

    /// Nobody serves it.
    pub fn unserved(&mut self) {
        self.end();
        self.of.unserved.inc();
        self.lost();
    }

    /// Groups have taken all of it: its prompts have so many tokens together, and each of them so many answers.
    pub fn accepted(&mut self, prompt_tokens: usize, prompts: usize, each: usize) {
        if self.state != State::Waiting {
            return;
        }
        self.state = State::Running;
        self.of.waiting.dec();
        self.of.running.inc();
        self.of.accepted.inc();
        self.of.prompt_tokens.inc_by(prompt_tokens as u64);
        self.prompt_tokens = prompt_tokens;
        self.each = each.max(1);
        self.choices = vec![MeteredChoice::default(); prompts * self.each];
    }

    /// The next token of an answer, which its client has not had before, has just come.
    pub fn token(&mut self, choice: usize) {
        let (now, first) = (Instant::now(), self.choices.iter().all(|choice| choice.tokens == 0));
        if first {
            self.first = Some(now);
            self.of.time_to_first_token.observe((now - self.arrived).as_secs_f64());
        }
        let before = self.choices.get_mut(choice).and_then(|choice| choice.last.replace(now));
        if let Some(before) = before {
            self.of.inter_token_latency.observe((now - before).as_secs_f64());
        }
        self.token_at_hand(choice);
    }

    /// The next token of an answer that came some time ago.
    pub fn token_at_hand(&mut self, choice: usize) {
        let Some(choice) = self.choices.get_mut(choice) else { return };
        choice.tokens += 1;
        self.of.generation_tokens.inc();
        if choice.tokens == 1 {
            self.of.first_tokens.inc();
        }
    }

    /// Where the time of an answer went. A request's is that of the first that ends.
    pub fn trace(&mut self, choice: usize, trace: &Trace) {
        if choice.is_multiple_of(self.each) {
            self.of.cached_tokens.inc_by(trace.cached_tokens.into());
        }
        trace.overflow.iter().for_each(|overflow| self.overflows.note(&self.by.model_name, *overflow));
        // Answers of one request are computed side by side.
        self.alone = [self.alone, trace.alone].into_iter().flatten().max_by(|a, b| a.0.total_cmp(&b.0));
        if !std::mem::replace(&mut self.is_traced, true) {
            self.of.queue_time.observe(trace.parts.queue.0);
            self.of.prefill_time.observe(trace.parts.prefill.0);
            self.of.decode_time.observe(trace.parts.decode.0);
            self.of.inference_time.observe((trace.total - trace.parts.queue.0).max(0.0));
        }
    }

    /// One of its answers has come to its end.
    pub fn choice_finished(&self, finished_reason: &'static str) {
        let by = ByEnd { model_name: self.by.model_name.clone(), finished_reason };
        self.of.choices.get_or_create(&by).inc();
    }

    /// All have.
    pub fn finished(&mut self) {
        self.end();
        self.of.finished.inc();
        let whole = Seconds(self.arrived.elapsed().as_secs_f64());
        self.of.e2e_latency.observe(whole.0);
        let lengths = || self.choices.iter().map(|choice| choice.tokens);
        let longest = lengths().max().unwrap_or(0);
        self.of.prompt_lengths.observe(self.prompt_tokens as f64);
        self.of.generation_lengths.observe(lengths().sum::<usize>() as f64);
        self.of.longest_choices.observe(longest as f64);
        let between = self.tpot();
        between.iter().for_each(|tpot| self.of.time_per_output_token.observe(tpot.0));
        let in_time = self.was_in_time(whole);
        let answered = AnsweredRequest {
            prompt: self.prompt_tokens as u32,
            answer: longest as u32,
            first: self.first.map(|first| seconds(self.arrived, first)),
            between,
            whole,
            alone: self.alone,
            in_time,
        };
        let normalised = self.services.answered(&self.by.model_name, answered);
        normalised.iter().for_each(|times| self.of.normalised_latency.observe(*times));
        self.judge(in_time);
    }

    /// From each token to the next on average, of the choice in which that is most.
    fn tpot(&self) -> Option<Seconds> {
        let first = self.first?;
        let slowest = |choice: &MeteredChoice| {
            let steps = choice.tokens.saturating_sub(1);
            choice.last.filter(|_| steps > 0).map(|last| Seconds(seconds(first, last).0 / steps as f64))
        };
        self.choices.iter().filter_map(slowest).max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Whether all targets were kept, where there are some. An answer that another gateway began has none of its times here, and
    /// counts as late.
    fn was_in_time(&self, whole: Seconds) -> Option<bool> {
        let targets = self.judged.targets?;
        let kept = |first| targets.are_kept(seconds(self.arrived, first), self.tpot(), whole);
        Some(self.first.is_some_and(kept))
    }

    /// Nobody served it, or its answer broke off.
    fn lost(&self) {
        let had_targets = self.judged.targets.is_some();
        self.services.on_event(&self.by.model_name, Event::Lost { had_targets });
        self.judge(had_targets.then_some(false));
    }

    /// It ended; where there were targets for it, in time or not.
    fn judge(&self, in_time: Option<bool>) {
        in_time.iter().for_each(|kept| self.kept.ended(&self.by.model_name, self.judged.class, *kept));
    }

    /// One broke off, and with it the request.
    pub fn failed(&mut self) {
        self.end();
        self.of.failed.inc();
        self.lost();
    }

    fn end(&mut self) {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Waiting => {
                self.of.waiting.dec();
            }
            State::Running => {
                self.of.running.dec();
            }
            State::Ended => {}
        }
    }
}

fn seconds(from: Instant, to: Instant) -> Seconds {
    Seconds(to.saturating_duration_since(from).as_secs_f64())
}

impl Drop for RequestStats {
    fn drop(&mut self) {
        if self.state != State::Ended {
            self.end();
            self.of.cancelled.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::gateway::LatencyBreakdown;
    use tsnode_protocol::{KvCodec, ModelId, PeerId, RequestClass, RequestId, Targets};

    fn trace(alone: f64) -> Trace {
        let parts = LatencyBreakdown { queue: Seconds(0.5), ..LatencyBreakdown::default() };
        Trace {
            request: RequestId([1; 16]),
            model: ModelId([1; 16]),
            prefill: PeerId([1; 32]),
            decode: PeerId([1; 32]),
            prefill_stages: vec![],
            decode_stages: vec![],
            reason: String::new(),
            predicted: None,
            prompt_tokens: 7,
            cached_tokens: 0,
            new_tokens: 2,
            codec: KvCodec::Raw,
            kv_codec: None,
            kv_bytes: 0,
            ttft: 0.1,
            total: 0.75,
            alone: Some(Seconds(alone)),
            first_part: None,
            overflow: None,
            parts,
            deliveries: vec![],
            moves: vec![],
            slowest: None,
            peers: Default::default(),
        }
    }

    #[test]
    fn a_request_is_told_to_its_models_monitor_when_it_comes_and_when_it_ends() {
        let metrics = Metrics::default();
        let slow = Targets { e2e: Some(Seconds(3600.0)), ..Targets::default() };
        let judged = |targets| JudgedRequest { class: RequestClass::Interactive, targets };
        let mut answered = metrics.arrived("tiny", judged(Some(slow)));
        answered.accepted(7, 1, 2);
        // Of two choices the longer one is what it takes.
        [0, 1, 1].into_iter().for_each(|choice| answered.token(choice));
        answered.trace(0, &trace(1e-9));
        answered.trace(1, &trace(2e-9));
        answered.finished();
        metrics.arrived("tiny", judged(Some(slow))).unserved();
        metrics.arrived("tiny", judged(None)).failed();
        drop(metrics.arrived("tiny", judged(None)));
        let services = metrics.services();
        let report = &services[0].report;
        assert_eq!((services.len(), services[0].model.as_str()), (1, "tiny"));
        assert_eq!((report.rate > 0.0, report.answered, report.lost), (true, 1, 2), "whose client goes is neither");
        assert_eq!((report.with_targets, report.in_time, report.mean_alone), (2, 1, Some(Seconds(2e-9))));
        assert_eq!((report.prompt_tokens.unwrap().mean, report.answer_tokens.unwrap().mean), (7.0, 2.0));
        let (whole, normalised) = (report.e2e.unwrap().mean, report.normalised.unwrap().mean);
        assert!(report.ttft.unwrap().mean <= whole && report.tpot.is_some());
        assert!((normalised * 2e-9 / whole - 1.0).abs() < 1e-9, "{normalised}");
        let text = metrics.render(
            &crate::view::tests::view(),
            super::super::ExpositionFormat::Text,
            super::super::MetricNames::Both,
        );
        for (name, sum) in [("normalised_latency_ratio", normalised), ("inference_time_seconds", 0.25)] {
            let row = format!("tsnode_request_{name}_sum{{model_name=\"tiny\"}} ");
            let said: f64 = text.lines().find_map(|line| line.strip_prefix(&row)).unwrap().parse().unwrap();
            assert!((said / sum - 1.0).abs() < 1e-6, "{name} {said}");
        }
        assert!(text.contains("vllm:request_time_per_output_token_seconds_count{model_name=\"tiny\"} 1\n"), "{text}");
    }
}
