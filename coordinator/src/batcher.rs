//! Prompt flow 3, 4 and 8: forms a group's batches. Requests join and leave between iterations (continuous batching).
//!
//! The machine runs in the leader of a group and speaks to its stages through the ring ([`RingFrame`]). One path
//! serves prefill, decode and mixed groups alike: what a sequence needs is its [`SequenceKind`]. Pages are reserved for a part of
//! an answer at a time; where they run out the youngest sequence gives its pages back and computes its tokens anew later
//! (`growth.rs`). Sequences that begin alike share pages (`prefixes.rs`).

mod admission;
mod asking;
mod events;
mod giving_way;
mod growth;
mod pace;
mod policy_change;
mod prefixes;
mod prompt_logprobs;
mod sequence;
mod speculation;
mod state;
mod steps;
mod strategy;

pub use events::{Action, Event};
pub use sequence::{NewSequence, SequenceKind};
pub use speculation::{Checked, DraftRequest, Speculation, SpeculationTally};

use crate::{
    Time,
    batcher::{
        admission::AdmissionQueue,
        pace::Pace,
        prefixes::Prefixes,
        sequence::{Sequence, SequenceRole},
        state::{Admission, PageWait, State},
        steps::{SequenceStep, Steps},
        strategy::StrategyTuner,
    },
    policy::choice::Batches,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{Load, RequestId, Sampled, Seconds, Token, kv::Delivery, ring::RingFrame, stream::End};

/// How long pages wait for KV from elsewhere, unless told otherwise.
pub const KV_PATIENCE: Duration = Duration::from_secs(15);

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
    /// Tokens of an answer that pages are reserved for at a time.
    pub growth: u32,
    /// Sequences kept after their end, for others that begin alike.
    pub max_kept: usize,
    /// Whether other models have pages of the same pools, so that some may come back that none of this group's gave.
    pub shares_pages: bool,
    /// Whether answers' next tokens are proposed.
    pub speculation: Speculation,
    /// Whether a sequence may begin with a part of another, and of its own tokens some may be taken back: where layers keep a state
    /// of it, neither is so.
    pub cuts: bool,
}

impl Default for BatcherConfig {
    fn default() -> Self {
        Self {
            stages: 1,
            batches: Batches::default(),
            max_running: 256,
            max_waiting: 1024,
            admission_patience: Duration::from_secs(30),
            kv_patience: KV_PATIENCE,
            growth: 256,
            max_kept: 64,
            shares_pages: false,
            speculation: Speculation::default(),
            cuts: true,
        }
    }
}

/// Forms the batches of one group.
#[derive(Debug)]
pub struct Batcher {
    config: BatcherConfig,
    sequences: BTreeMap<RequestId, Sequence>,
    /// How often the stages have yet to answer for one that is gone: another of its name may ask them meanwhile.
    unanswered: BTreeMap<RequestId, u32>,
    /// Sequences without pages.
    queue: AdmissionQueue,
    /// Sequences with pages that compute.
    steps: Steps,
    /// How steps are to be formed once none is on its way.
    wanted: Option<Batches>,
    prefixes: Prefixes,
    /// An answer that was refused more room while it had some: of those that have, it alone asks.
    lacks_room: Option<RequestId>,
    strategies: StrategyTuner,
    pace: Pace,
    /// Steps that wait for the draft model.
    asked: BTreeSet<u64>,
    /// Draft tokens checked that nobody has been told of.
    checked: SpeculationTally,
}

impl Batcher {
    /// A batcher with nothing to do.
    #[must_use]
    pub fn new(config: BatcherConfig) -> Self {
        let speculation = if config.cuts { config.speculation } else { Speculation::Never };
        let config = BatcherConfig { speculation, ..config };
        let (steps, prefixes) = (steps(&config), Prefixes::new(config.max_kept, config.cuts));
        Self {
            config,
            sequences: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            queue: AdmissionQueue::default(),
            steps,
            wanted: None,
            prefixes,
            lacks_room: None,
            strategies: StrategyTuner::default(),
            pace: Pace::default(),
            asked: BTreeSet::new(),
            checked: SpeculationTally::default(),
        }
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
            Event::Admitted { request, refused: Some(why) } => self.not_admitted(request, why, &mut out),
            Event::Grown { request, refused: None } => self.grown(request, &mut out),
            Event::Grown { request, refused: Some(why) } => self.not_grown(now, request, why, &mut out),
            Event::Sampled { step, tokens, busy } => {
                self.pace.done(step, now, busy);
                self.pace.chose(&tokens);
                self.step_done(now, step, tokens, &mut out);
            }
            Event::PromptLogprobs { request, from, logprobs } => {
                self.prompt_logprobs(request, from, logprobs, &mut out);
            }
            Event::KvArrived { request, position, arrived } => {
                self.kv_arrived(now, request, position, arrived, &mut out)
            }
            Event::KvSent { request, position, bytes, failed } => {
                self.kv_sent(now, request, (position, bytes, failed), &mut out);
            }
            Event::Failed { request, reason } => self.fail(request, reason, &mut out),
            Event::Drafted { step, drafts } => self.drafted(now, step, drafts, &mut out),
            Event::RingBroken { reason } => self.ring_broken(&reason, &mut out),
            Event::BatchBy(batches) => self.batch_by(batches),
            Event::Deadline => self.expire(now, &mut out),
        }
        self.admit_waiting(now, &mut out);
        self.see_to_retry(now);
        self.form_steps(now, &mut out);
        out
    }

    /// When to wake if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let sequences = self.sequences.values().filter_map(|s| s.deadline(&self.config)).min();
        sequences.into_iter().chain(self.queue.retry_at()).min()
    }

    /// What waits and runs, for heartbeats; pages are the engine's to count.
    #[must_use]
    pub fn load(&self) -> Load {
        let pending = |s: &Sequence| match &s.state {
            State::Waiting(_) | State::Admitting(_) if !s.awaits_kv() => s.len(),
            State::Prefilling { done, .. } => s.len() - done,
            State::AwaitingKv { .. } => s.len() - s.first_part(),
            _ => 0,
        };
        Load {
            running: (self.sequences.len() - self.queue.len()) as u32,
            waiting: self.queue.len() as u32,
            pending_tokens: self.sequences.values().map(pending).sum(),
            free_pages: 0,
            total_pages: 0,
            step: self.pace.mean(),
            chosen: self.pace.chosen(),
            quickest: self.pace.quickest(),
        }
    }

    /// Draft tokens that were checked since the last call.
    pub fn take_checked(&mut self) -> SpeculationTally {
        std::mem::take(&mut self.checked)
    }

    fn begin(&mut self, request: RequestId, token: Token, out: &mut Vec<Action>) {
        let waits_for_it = |s: &&mut Sequence| !s.exports() && s.generated() == 0 && s.first.is_none();
        if let Some(sequence) = self.sequences.get_mut(&request).filter(waits_for_it) {
            sequence.first = Some(token);
            self.start_if_ready(request, out);
        }
    }

    fn kv_arrived(
        &mut self,
        now: Time,
        request: RequestId,
        position: u16,
        deliveries: Result<Vec<Delivery>, String>,
        out: &mut Vec<Action>,
    ) {
        let stages = self.config.stages;
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::AwaitingKv { since, arrived, .. } = &mut sequence.state else { return };
        match deliveries {
            Err(reason) => return self.fall_back(now, request, None, Some(reason), out),
            Ok(deliveries) => drop(arrived.insert(position, deliveries)),
        }
        if arrived.len() == stages {
            let after = Seconds(now.saturating_sub(*since).as_secs_f64());
            let deliveries = arrived.values().flatten().copied().collect();
            out.push(Action::KvArrived { request, after, deliveries });
            self.start_if_ready(request, out);
        }
    }

    /// Decodes once both the KV and the first token are here; an answer that was begun elsewhere, and what the KV lacks of the
    /// prompt, is computed after it.
    fn start_if_ready(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::AwaitingKv { arrived, .. } = &sequence.state else { return };
        if arrived.len() < self.config.stages {
            return;
        }
        let there = sequence.first_part();
        if sequence.len() > there {
            self.compute_from(request, there);
        } else if let Some(first) = sequence.first.take() {
            self.decode_from(request, first, out);
        }
    }

    /// The answer has one more token: decodes on, or ends.
    fn decode_from(&mut self, request: RequestId, token: Token, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        sequence.tokens.push(token);
        let begins = sequence.state.decode();
        if let Some(end) = sequence.end() {
            self.drop_sequence(request, out);
            return out.push(Action::End { request, end });
        }
        if begins {
            self.steps.answer(request, sequence.len(), sequence.left());
        }
        self.make_room(request, out);
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
        let Some(sequence) = self.sequences.get_mut(&request).filter(|s| s.awaits_kv()) else { return };
        sequence.role = SequenceRole::Local;
        if sequence.generated() == 0 {
            sequence.first = sequence.first.or(known);
        }
        if let Some(reason) = reason {
            out.push(Action::KvFailed { request, reason });
        }
        match sequence.state {
            // The admission under way expects KV: its answer is overtaken by the release that follows it.
            State::Admitting(Admission { wait, .. }) => {
                sequence.overtaken.admissions += 1;
                sequence.state = State::Waiting(PageWait { since: now, ..wait });
            }
            State::AwaitingKv { .. } => sequence.state = State::waiting(now),
            _ => return,
        }
        let place = sequence.place(request);
        out.push(Action::Ring(RingFrame::Release(request)));
        self.queue.pages_came_back();
        self.queue.push(place);
    }

    fn step_done(&mut self, now: Time, step: u64, tokens: Vec<(RequestId, Sampled)>, out: &mut Vec<Action>) {
        self.strategies.done(step, now, tokens.len() as u32);
        for SequenceStep { share, sampled } in self.steps.done(step, tokens) {
            let request = share.request;
            let Some(sequence) = self.sequences.get_mut(&request) else { continue };
            let all = sequence.len();
            match &mut sequence.state {
                State::Prefilling { done, .. } => {
                    *done += share.tokens;
                    let there = *done;
                    self.fake_quantise(request, there, out);
                    if there == all {
                        self.prompt_done(now, request, sampled.into_iter().next(), out);
                    }
                }
                State::Decoding { .. } => self.answered(request, sampled, out),
                _ => {}
            }
        }
    }

    /// A prompt whose KV goes through a codec, all of it or its first part, does so once that is computed, before anything is
    /// computed after it.
    fn fake_quantise(&mut self, request: RequestId, there: u32, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let State::Prefilling { pages, .. } = &mut sequence.state else { return };
        if pages.through_codec || there < sequence.codec.tokens(sequence.prompt) {
            return;
        }
        pages.through_codec = true;
        let (tokens, codec) = (sequence.first_part(), sequence.codec.codec);
        let rest = sequence.len() - tokens;
        out.push(Action::Ring(RingFrame::FakeQuantise { request, tokens, codec }));
        if rest > 0 {
            self.steps.leave(request);
            self.compute_from(request, tokens);
        }
    }

    /// An answer's next token, and those after it that were accepted; no more than were asked for.
    fn answered(&mut self, request: RequestId, sampled: Vec<Sampled>, out: &mut Vec<Action>) {
        let Some((drafted, by)) = self.sequences.get(&request).map(|s| (s.drafts.checked as usize, s.drafts.by)) else {
            return;
        };
        let most = drafted + 1;
        self.checked.add(by, drafted as u64, sampled.len().clamp(1, most) as u64 - 1);
        for sampled in sampled.into_iter().take(most) {
            let Some(sequence) = self.sequences.get(&request).filter(|s| matches!(s.state, State::Decoding { .. }))
            else {
                return;
            };
            let (token, index) = (sampled.token, sequence.generated());
            out.push(Action::Token { request, index, sampled });
            self.decode_from(request, token, out);
        }
    }

    fn prompt_done(&mut self, now: Time, request: RequestId, sampled: Option<Sampled>, out: &mut Vec<Action>) {
        self.prefixes.is_ready(request);
        self.queue.go_on_behind(request);
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        if let Some(first) = sequence.first.take() {
            return self.decode_from(request, first, out);
        }
        if let Some(end) = sequence.end_of_prompt() {
            // Only log-probabilities of the prompt were wanted: what would follow was chosen for nobody.
            out.push(Action::Computed { request, computed: sequence.computed(now) });
            self.drop_sequence(request, out);
            return out.push(Action::End { request, end });
        }
        let Some(sampled) = sampled else {
            self.drop_sequence(request, out);
            let end = End::Failed("the last stage chose no token".into());
            return out.push(Action::End { request, end });
        };
        if let (true, Some(pages)) = (sequence.exports(), sequence.state.pages()) {
            sequence.state = State::Sending { pages };
            self.steps.leave(request);
            let (computed, cached) = (sequence.computed(now), sequence.granted.unwrap_or_default());
            out.push(Action::First { request, sampled, computed, cached });
            // A stage may have sent everything before the leader hears of the first token.
            self.finish_export(now, request, out);
        } else {
            let (token, index) = (sampled.token, sequence.generated());
            if index == 0 {
                out.push(Action::Computed { request, computed: sequence.computed(now) });
            }
            out.push(Action::Token { request, index, sampled });
            self.decode_from(request, token, out);
        }
    }

    fn kv_sent(
        &mut self,
        now: Time,
        request: RequestId,
        (position, bytes, failed): (u16, u64, Option<String>),
        out: &mut Vec<Action>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        if let Some(reason) = failed {
            return self.fail(request, reason, out);
        }
        if let SequenceRole::Export { sent, .. } = &mut sequence.role {
            sent.insert(position, bytes);
        }
        self.finish_export(now, request, out);
    }

    fn fail(&mut self, request: RequestId, reason: String, out: &mut Vec<Action>) {
        if self.sequences.contains_key(&request) {
            self.drop_sequence(request, out);
            out.push(Action::End { request, end: End::Failed(reason) });
        }
    }

    fn finish_export(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.get(&request) else { return };
        let (SequenceRole::Export { sent, .. }, State::Sending { .. }) = (&sequence.role, &sequence.state) else {
            return;
        };
        if sent.len() == self.config.stages {
            let (bytes, after) = (sent.values().copied().fold(0, u64::saturating_add), sequence.age(now));
            self.drop_sequence(request, out);
            out.push(Action::KvSent { request, bytes, after });
        }
    }

    /// Forgets a sequence; its pages go back, or are kept for others, if it has any.
    fn drop_sequence(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let Some(sequence) = self.sequences.remove(&request) else { return };
        self.note_unanswered(request, &sequence);
        self.lacks_no_room(request);
        self.steps.leave(request);
        self.let_go(request, &sequence, out);
        if matches!(sequence.state, State::Waiting(_)) {
            self.queue.remove(request);
        }
    }

    fn ring_broken(&mut self, reason: &str, out: &mut Vec<Action>) {
        for (request, sequence) in std::mem::take(&mut self.sequences) {
            // One that was granted nothing has lost nothing. What exports is told of no grant, nor of a refusal.
            let granted = sequence.granted.is_some() || sequence.exports();
            out.push(admission::no_room(request, granted, reason.to_owned()));
        }
        self.unanswered.clear();
        self.queue = AdmissionQueue::default();
        self.lacks_room = None;
        self.steps = steps(&self.config);
        self.prefixes = Prefixes::new(self.config.max_kept, self.config.cuts);
        // Steps are counted anew: what was on its way is not to be taken for one of those.
        self.strategies.lose_steps();
        self.pace.lose_steps();
        self.asked.clear();
    }

    fn expire(&mut self, now: Time, out: &mut Vec<Action>) {
        self.queue.retry(now);
        let is_due = |s: &Sequence| s.deadline(&self.config).is_some_and(|at| at <= now);
        let due = self.sequences.iter().filter(|(_, s)| is_due(s));
        let due: Vec<RequestId> = due.map(|(request, _)| *request).collect();
        for request in due {
            let Some(sequence) = self.sequences.get(&request) else { continue };
            let granted = sequence.granted.is_some();
            match &sequence.state {
                State::Waiting(_) => {
                    self.drop_sequence(request, out);
                    out.push(admission::no_room(request, granted, "no KV pages became free in time".into()));
                }
                State::AwaitingKv { .. } => {
                    self.fall_back(now, request, None, Some("KV did not arrive in time".into()), out);
                }
                _ => {}
            }
        }
    }
}

fn steps(config: &BatcherConfig) -> Steps {
    Steps::new(config.batches, config.max_running, config.stages)
}
