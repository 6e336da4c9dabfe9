//! Prompt flow 3, 4 and 8: forms a group's batches. Requests join and leave between iterations (continuous batching).
//!
//! The machine runs in the leader of a group and speaks to its stages through the ring ([`RingFrame`]). One path
//! serves prefill, decode and mixed groups alike: what a sequence needs is its [`Kind`]. Pages are reserved at
//! admission for the whole of a sequence, so nothing that runs is ever pushed out.

mod events;
mod sequence;
mod steps;

pub use events::{Action, Event};
pub use sequence::{Kind, NewSequence};

use crate::{Time, policy::choice::Batches};
use sequence::{Sequence, State};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use steps::{Done, Steps};
use tsnode_protocol::{
    Load, RequestId, Sampled, Seconds, Token,
    ring::{Admit, RingFrame, Step},
    stream::End,
};

/// How a group batches.
#[derive(Clone, Debug, PartialEq)]
pub struct BatcherConfig {
    /// Stages of the group: as many steps may be on their way at once.
    pub stages: usize,
    /// How steps are formed.
    pub batches: Batches,
    /// Sequences with pages.
    pub max_running: usize,
    /// Sequences waiting for pages.
    pub max_waiting: usize,
    /// How long one waits for pages before it is refused.
    pub admission_patience: Duration,
    /// How long pages wait for KV from elsewhere.
    pub kv_patience: Duration,
}

impl Default for BatcherConfig {
    fn default() -> Self {
        Self {
            stages: 1,
            batches: Batches::default(),
            max_running: 256,
            max_waiting: 1024,
            admission_patience: Duration::from_secs(30),
            kv_patience: Duration::from_secs(15),
        }
    }
}

/// Forms the batches of one group.
#[derive(Debug)]
pub struct Batcher {
    config: BatcherConfig,
    sequences: BTreeMap<RequestId, Sequence>,
    /// Sequences without pages, first come first.
    waiting: VecDeque<RequestId>,
    /// Sequences with pages that compute.
    steps: Steps,
    /// Pages were refused and none has come back since.
    full: bool,
}

impl Batcher {
    /// A batcher with nothing to do.
    #[must_use]
    pub fn new(config: BatcherConfig) -> Self {
        let steps = steps(&config);
        Self { config, sequences: BTreeMap::new(), waiting: VecDeque::new(), steps, full: false }
    }

    /// One event, and what follows from it.
    pub fn on_event(&mut self, now: Time, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::Submit(new) => self.submit(now, new, &mut out),
            Event::Begin { request, first } => self.begin(request, first, &mut out),
            Event::PrefillHere { request, first } => self.fall_back(now, request, first, None, &mut out),
            Event::Cancel { request } => self.drop_sequence(request, &mut out),
            Event::Admitted { request, refused: None } => self.admitted(now, request, &mut out),
            Event::Admitted { request, refused: Some(reason) } => self.not_admitted(request, reason, &mut out),
            Event::Sampled { step, tokens } => self.step_done(now, step, tokens, &mut out),
            Event::KvArrived { request, position, failed } => self.kv_arrived(now, request, position, failed, &mut out),
            Event::KvSent { request, position, bytes, failed } => {
                self.kv_sent(now, request, (position, bytes, failed), &mut out);
            }
            Event::RingBroken { reason } => self.ring_broken(&reason, &mut out),
            Event::Deadline => self.expire(now, &mut out),
        }
        self.admit_waiting(&mut out);
        self.form_steps(&mut out);
        out
    }

    /// When to wake if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.sequences.values().filter_map(|s| s.deadline(&self.config)).min()
    }

    /// What waits and runs, for heartbeats; pages are the engine's to count.
    #[must_use]
    pub fn load(&self) -> Load {
        let pending = |s: &Sequence| match &s.state {
            State::Waiting { .. } | State::Admitting { .. } if !s.awaits_kv() => s.prompt.len() as u32,
            State::Prefilling { done, .. } => s.prompt.len() as u32 - done,
            _ => 0,
        };
        Load {
            running: (self.sequences.len() - self.waiting.len()) as u32,
            waiting: self.waiting.len() as u32,
            pending_tokens: self.sequences.values().map(pending).sum(),
            free_pages: 0,
            total_pages: 0,
        }
    }

    fn submit(&mut self, now: Time, new: NewSequence, out: &mut Vec<Action>) {
        let request = new.request;
        let refuse = |reason: &str| Action::Refused { request, reason: reason.to_owned() };
        if self.sequences.contains_key(&request) {
            return out.push(refuse("a request of that name runs already"));
        }
        if self.waiting.len() >= self.config.max_waiting {
            return out.push(refuse("too many requests wait here"));
        }
        if new.prompt.is_empty() || new.prompt.len() > new.max_tokens as usize {
            return out.push(refuse("the prompt is empty or too long"));
        }
        self.sequences.insert(request, Sequence::new(now, new));
        self.waiting.push_back(request);
    }

    fn admit_waiting(&mut self, out: &mut Vec<Action>) {
        while !self.full && self.sequences.len() - self.waiting.len() < self.config.max_running {
            let Some(request) = self.waiting.pop_front() else { return };
            let Some(sequence) = self.sequences.get_mut(&request) else { continue };
            let State::Waiting { first } = sequence.state else { continue };
            sequence.state = State::Admitting { first };
            out.push(Action::Ring(RingFrame::Admit(admit_frame(sequence, request, &self.config))));
        }
    }

    fn admitted(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::Admitting { first } = sequence.state else { return };
        if sequence.overtaken > 0 {
            sequence.overtaken -= 1;
            return;
        }
        if !sequence.granted {
            sequence.granted = true;
            if !matches!(sequence.kind, Kind::Export(_)) {
                out.push(Action::Granted { request });
            }
        }
        if sequence.awaits_kv() {
            sequence.state = State::AwaitingKv { since: now, arrived: Default::default(), first };
        } else {
            sequence.state = State::Prefilling { sent: 0, done: 0, first };
            let answer = (!matches!(sequence.kind, Kind::Export(_))).then(|| sequence.left(1));
            self.steps.prompt(request, sequence.prompt.len() as u32, answer);
        }
    }

    fn not_admitted(&mut self, request: RequestId, reason: String, out: &mut Vec<Action>) {
        if let Some(sequence) = self.sequences.get_mut(&request).filter(|s| s.overtaken > 0) {
            sequence.overtaken -= 1;
            return;
        }
        // Stages before the one that refused hold pages already.
        out.push(Action::Ring(RingFrame::Release(request)));
        let others = self.sequences.len() > self.waiting.len() + 1;
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::Admitting { first } = sequence.state else { return };
        if others {
            sequence.state = State::Waiting { first };
            self.waiting.push_front(request);
            self.full = true;
        } else {
            // Nothing here will ever give pages back for it.
            let granted = sequence.granted;
            self.sequences.remove(&request);
            out.push(no_room(request, granted, reason));
        }
    }

    fn begin(&mut self, request: RequestId, token: Token, out: &mut Vec<Action>) {
        let answers = |s: &&mut Sequence| !matches!(s.kind, Kind::Export(_));
        let Some(sequence) = self.sequences.get_mut(&request).filter(answers) else { return };
        match &mut sequence.state {
            State::AwaitingKv { first, .. } | State::Prefilling { first, .. } => *first = Some(token),
            State::Waiting { first } | State::Admitting { first } => *first = Some(token),
            State::Decoding { .. } | State::Sending => return,
        }
        self.start_if_ready(request, out);
    }

    fn kv_arrived(
        &mut self,
        now: Time,
        request: RequestId,
        position: u16,
        failed: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let stages = self.config.stages;
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::AwaitingKv { since, arrived, first } = &mut sequence.state else { return };
        if let Some(reason) = failed {
            let first = *first;
            return self.fall_back(now, request, first, Some(reason), out);
        }
        arrived.insert(position);
        if arrived.len() == stages {
            let after = Seconds(now.saturating_sub(*since).as_secs_f64());
            out.push(Action::KvArrived { request, after });
            self.start_if_ready(request, out);
        }
    }

    /// Decodes once both the KV and the first token are here.
    fn start_if_ready(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::AwaitingKv { arrived, first: Some(first), .. } = &sequence.state else { return };
        if arrived.len() == self.config.stages {
            let first = *first;
            self.decode_from(request, first, 1, out);
        }
    }

    /// The answer has `generated` tokens, `last` being the last of them: decodes on, or ends.
    fn decode_from(&mut self, request: RequestId, last: Token, generated: u32, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        match sequence.end_after(last, generated) {
            Some(end) => {
                self.drop_sequence(request, out);
                out.push(Action::End { request, end });
            }
            None => {
                if !matches!(sequence.state, State::Decoding { .. }) {
                    self.steps.answer(request, sequence.prompt.len() as u32 + generated, sequence.left(generated));
                }
                sequence.state = State::Decoding { last, generated };
            }
        }
    }

    /// Gives up on KV from elsewhere: the prompt is computed here. Pages go back and are taken anew, so that no late
    /// tile can touch them.
    fn fall_back(
        &mut self,
        now: Time,
        request: RequestId,
        known: Option<Token>,
        reason: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        if !sequence.awaits_kv() {
            return;
        }
        sequence.kind = Kind::Local;
        if let Some(reason) = reason {
            out.push(Action::KvFailed { request, reason });
        }
        match &mut sequence.state {
            State::Waiting { first } => *first = first.or(known),
            State::Admitting { first } => {
                // The admission under way expects KV: its answer is overtaken by the release that follows it.
                let first = first.or(known);
                sequence.state = State::Waiting { first };
                sequence.overtaken += 1;
                self.again(now, request, out);
            }
            State::AwaitingKv { first, .. } => {
                let first = first.or(known);
                sequence.state = State::Waiting { first };
                self.again(now, request, out);
            }
            State::Prefilling { .. } | State::Decoding { .. } | State::Sending => {}
        }
    }

    /// Back to the head of the queue, without pages.
    fn again(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.waits_since = now;
        }
        out.push(Action::Ring(RingFrame::Release(request)));
        self.full = false;
        self.waiting.push_front(request);
    }

    fn step_done(&mut self, now: Time, step: u64, tokens: Vec<(RequestId, Sampled)>, out: &mut Vec<Action>) {
        for Done { share, sampled } in self.steps.done(step, tokens) {
            let request = share.request;
            let Some(sequence) = self.sequences.get_mut(&request) else { continue };
            match &mut sequence.state {
                State::Prefilling { done, first, .. } => {
                    *done += share.tokens;
                    if *done as usize == sequence.prompt.len() {
                        let known = *first;
                        self.prompt_done(now, request, known, sampled, out);
                    }
                }
                State::Decoding { generated, .. } => {
                    let index = *generated;
                    if let Some(sampled) = sampled {
                        let token = sampled.token;
                        out.push(Action::Token { request, index, sampled });
                        self.decode_from(request, token, index + 1, out);
                    }
                }
                _ => {}
            }
        }
    }

    fn prompt_done(
        &mut self,
        now: Time,
        request: RequestId,
        known: Option<Token>,
        sampled: Option<Sampled>,
        out: &mut Vec<Action>,
    ) {
        if let Some(first) = known {
            return self.decode_from(request, first, 1, out);
        }
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let Some(sampled) = sampled else {
            self.drop_sequence(request, out);
            let end = End::Failed("the last stage chose no token".into());
            return out.push(Action::End { request, end });
        };
        let token = sampled.token;
        if matches!(sequence.kind, Kind::Export(_)) {
            sequence.state = State::Sending;
            self.steps.leave(request);
            let after = sequence.age(now);
            out.push(Action::First { request, sampled, after });
            out.push(Action::Ring(RingFrame::ReleaseWhenSent(request)));
        } else {
            out.push(Action::Token { request, index: 0, sampled });
            self.decode_from(request, token, 1, out);
        }
    }

    fn kv_sent(
        &mut self,
        now: Time,
        request: RequestId,
        (position, bytes, failed): (u16, u64, Option<String>),
        out: &mut Vec<Action>,
    ) {
        let stages = self.config.stages;
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        if let Some(reason) = failed {
            self.drop_sequence(request, out);
            return out.push(Action::End { request, end: End::Failed(reason) });
        }
        // A stage may have sent everything before the leader hears of the first token.
        sequence.sent.insert(position, bytes);
        self.finish_export(now, request, stages, out);
    }

    fn finish_export(&mut self, now: Time, request: RequestId, stages: usize, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get(&request) else { return };
        if sequence.sent.len() == stages && matches!(sequence.state, State::Sending) {
            let (bytes, after) = (sequence.sent.values().sum(), sequence.age(now));
            // Its pages went with `ReleaseWhenSent`.
            self.sequences.remove(&request);
            self.full = false;
            out.push(Action::KvSent { request, bytes, after });
        }
    }

    /// Forgets a sequence; its pages go back if it has any.
    fn drop_sequence(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.remove(&request) else { return };
        self.steps.leave(request);
        match sequence.state {
            State::Waiting { .. } => self.waiting.retain(|r| *r != request),
            _ => {
                out.push(Action::Ring(RingFrame::Release(request)));
                self.full = false;
            }
        }
    }

    fn ring_broken(&mut self, reason: &str, out: &mut Vec<Action>) {
        for request in std::mem::take(&mut self.sequences).into_keys() {
            out.push(Action::End { request, end: End::Failed(reason.to_owned()) });
        }
        self.waiting.clear();
        self.steps = steps(&self.config);
        self.full = false;
    }

    fn expire(&mut self, now: Time, out: &mut Vec<Action>) {
        let due: Vec<RequestId> = self
            .sequences
            .iter()
            .filter(|(_, s)| s.deadline(&self.config).is_some_and(|at| at <= now))
            .map(|(request, _)| *request)
            .collect();
        for request in due {
            let Some(sequence) = self.sequences.get(&request) else { continue };
            let granted = sequence.granted;
            match &sequence.state {
                State::Waiting { .. } => {
                    self.drop_sequence(request, out);
                    out.push(no_room(request, granted, "no KV pages became free in time".into()));
                }
                State::AwaitingKv { first, .. } => {
                    let first = *first;
                    self.fall_back(now, request, first, Some("KV did not arrive in time".into()), out);
                }
                _ => {}
            }
        }
    }

    /// Sets off the steps that may.
    fn form_steps(&mut self, out: &mut Vec<Action>) {
        while let Some((step, shares)) = self.steps.next() {
            let sequences = &mut self.sequences;
            let entry = |s: &steps::Share| sequences.get_mut(&s.request)?.entry(s);
            let entries = shares.iter().filter_map(entry).collect();
            out.push(Action::Ring(RingFrame::Step(Step { step, entries, rows: 0 })));
        }
    }
}

fn steps(config: &BatcherConfig) -> Steps {
    Steps::new(config.batches, config.max_running, config.stages)
}

/// A sequence without pages is refused, or ends if it had been granted some before.
fn no_room(request: RequestId, granted: bool, reason: String) -> Action {
    if granted { Action::End { request, end: End::Failed(reason) } } else { Action::Refused { request, reason } }
}

fn admit_frame(sequence: &Sequence, request: RequestId, config: &BatcherConfig) -> Admit {
    Admit {
        request,
        prompt: sequence.prompt.clone(),
        max_tokens: sequence.max_tokens,
        sampling: sequence.generation.sampling.clone(),
        await_kv_ms: sequence.awaits_kv().then_some(config.kv_patience.as_millis() as u32),
        export: match &sequence.kind {
            Kind::Export(export) => Some(export.clone()),
            _ => None,
        },
        refused: None,
    }
}
