//! One request of a client, counted from when it arrives until it ends, whichever way it does.

use super::{ByEnd, ByModel, Judged, Metrics, attainment::Kept};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use std::sync::Arc;
use std::time::Instant;
use tsnode_coordinator::gateway::Trace;
use tsnode_protocol::Seconds;

/// Counts one request. Dropping it before an end was noted counts it as cancelled: its client has gone.
#[derive(Debug)]
pub(in crate::http) struct RequestStats {
    of: Row,
    by: ByModel,
    judged: Judged,
    kept: Arc<Kept>,
    arrived: Instant,
    /// When the first token of all came, if it came while its client waited.
    first: Option<Instant>,
    state: State,
    prompt_tokens: usize,
    /// Answers to each prompt.
    each: usize,
    choices: Vec<Choice>,
    is_traced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Ended,
}

#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    /// Given to the client.
    tokens: usize,
    /// When the last token came.
    last: Option<Instant>,
}

/// Metrics of one model.
#[derive(Debug)]
struct Row {
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
    prompt_lengths: Histogram,
    generation_lengths: Histogram,
    longest_choices: Histogram,
}

impl Row {
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
            prompt_lengths: all.prompt_lengths.get_or_create_owned(by),
            generation_lengths: all.generation_lengths.get_or_create_owned(by),
            longest_choices: all.longest_choices.get_or_create_owned(by),
        }
    }
}

impl RequestStats {
    pub(super) fn new(all: &Metrics, by: ByModel, judged: Judged, arrived: Instant) -> Self {
        let of = Row::of(all, &by);
        of.waiting.inc();
        Self {
            of,
            by,
            judged,
            kept: all.kept.clone(),
            arrived,
            first: None,
            state: State::Waiting,
            prompt_tokens: 0,
            each: 1,
            choices: Vec::new(),
            is_traced: false,
        }
    }

    /// Nobody serves it.
    pub fn unserved(&mut self) {
        self.end();
        self.of.unserved.inc();
        self.judge(false);
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
        self.choices = vec![Choice::default(); prompts * self.each];
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
        if !std::mem::replace(&mut self.is_traced, true) {
            self.of.queue_time.observe(trace.parts.queue.0);
            self.of.prefill_time.observe(trace.parts.prefill.0);
            self.of.decode_time.observe(trace.parts.decode.0);
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
        self.of.e2e_latency.observe(self.arrived.elapsed().as_secs_f64());
        let lengths = || self.choices.iter().map(|choice| choice.tokens);
        self.of.prompt_lengths.observe(self.prompt_tokens as f64);
        self.of.generation_lengths.observe(lengths().sum::<usize>() as f64);
        self.of.longest_choices.observe(lengths().max().unwrap_or(0) as f64);
        self.judge(self.was_in_time());
    }

    /// Whether all targets were kept. An answer that another gateway began has none of its times here, and counts as late.
    fn was_in_time(&self) -> bool {
        let (Some(targets), Some(first)) = (self.judged.targets, self.first) else { return false };
        let seconds = |from: Instant, to: Instant| Seconds(to.saturating_duration_since(from).as_secs_f64());
        let slowest = |choice: &Choice| {
            let steps = choice.tokens.saturating_sub(1);
            choice.last.filter(|_| steps > 0).map(|last| Seconds(seconds(first, last).0 / steps as f64))
        };
        let tpot = self.choices.iter().filter_map(slowest).max_by(|a, b| a.0.total_cmp(&b.0));
        targets.are_kept(seconds(self.arrived, first), tpot, Seconds(self.arrived.elapsed().as_secs_f64()))
    }

    /// It ended well or badly, while there were targets for it.
    fn judge(&self, in_time: bool) {
        if self.judged.targets.is_some() {
            self.kept.ended(&self.by.model_name, self.judged.class, in_time);
        }
    }

    /// One broke off, and with it the request.
    pub fn failed(&mut self) {
        self.end();
        self.of.failed.inc();
        self.judge(false);
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

impl Drop for RequestStats {
    fn drop(&mut self) {
        if self.state != State::Ended {
            self.end();
            self.of.cancelled.inc();
        }
    }
}
