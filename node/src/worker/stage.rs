//! Prompt flow 4 and 8: one stage of one ring. Takes frames in, computes its layers, passes frames on.
//!
//! The worker is the same at every place of a ring; only the last stage chooses tokens, and what it passes on goes
//! to the leader.

mod choosing;
mod constrained;
mod counted;
mod incoming;
mod prefix_cache;
mod prompt_logprobs;
mod sequence_pages;

pub(super) use incoming::{Arrived, ROOM, read_ring};

use super::{
    compute::ComputeError,
    context::{AdmissionNo, AdmittedFrame, SideFrames, StageContext},
    export::{self, Exporter, Taps},
    kv_receiver::{ExpectedKv, KvReceiver},
    speculator::SpeculatorGone,
};
use crate::data_plane::links::{FrameSender, LinkError};
use choosing::{Chosen, Sampler};
use constrained::Constrained;
use counted::SequenceTokens;
use prefix_cache::KeptPrefixes;
use prompt_logprobs::{StepResult, Widths, compute_and_judge};
use std::collections::BTreeMap;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::policy::sharing::arbiter::StepShare;
use tsnode_kernels::engine::{Engine, EngineError, Input, Output, Slice, StageKey};
use tsnode_protocol::{
    PromptLogprob, RequestId, Token, limits,
    ring::{Admit, AwaitKv, Refusal, RingFrame, Step, StepEntry},
};

/// Frames on their way into a worker. The leader keeps at most as many steps in flight as there are stages, so only
/// admissions and releases can pile up, and those are bounded by the sequences a leader takes.
pub(super) const FRAMES: usize = 4096;
/// Where a worker passes frames on to.
pub(super) enum Downstream {
    /// The next stage, or the leader from the last stage of several.
    Stream(FrameSender),
    /// The leader of a group of one stage, which is in the same process.
    Leader(mpsc::Sender<RingFrame>),
}

/// Why a ring ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StageError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Compute(#[from] ComputeError),
    #[error(transparent)]
    Speculator(#[from] SpeculatorGone),
    #[error("the stage before closed the ring")]
    Upstream,
    #[error("{0}")]
    Protocol(String),
}

/// What a stage knows of a sequence beside its pages.
struct StageSequence {
    admission: AdmissionNo,
    /// Last stage only.
    sampler: Option<Sampler>,
    export: Option<Exporter>,
    prompt_tokens: u32,
    /// Whether another peer's gateway wants it.
    for_others: bool,
    counted: SequenceTokens,
    _held: CountedSequence,
}

/// Counts a sequence for as long as it is here.
struct CountedSequence(Arc<AtomicUsize>);

impl CountedSequence {
    fn one(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all.clone())
    }
}

impl Drop for CountedSequence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One stage of one ring, for as long as the ring lives.
pub(super) struct Worker {
    context: StageContext,
    kv_receiver: KvReceiver,
    downstream: Downstream,
    sequences: BTreeMap<RequestId, StageSequence>,
    /// What is kept of sequences that ended.
    kept: KeptPrefixes,
    side: SideFrames,
    admissions: AdmissionNo,
    /// Ends the exports and receptions of this ring.
    ring: CancellationToken,
}

impl Worker {
    /// Works until the ring ends, then gives back every page.
    pub async fn run(
        context: StageContext,
        kv_receiver: KvReceiver,
        downstream: Downstream,
        mut upstream: mpsc::Receiver<Arrived>,
    ) -> StageError {
        let (side, mut beside) = mpsc::channel(FRAMES);
        let ring = CancellationToken::new();
        let (sequences, kept) = (BTreeMap::new(), KeptPrefixes::default());
        let mut worker = Self { context, kv_receiver, downstream, sequences, kept, side, admissions: 0, ring };
        let why = loop {
            let arrived = tokio::select! {
                arrived = upstream.recv() => match arrived {
                    Some(arrived) => arrived,
                    None => break StageError::Upstream,
                },
                Some(beside) = beside.recv() => match worker.still_counts(beside) {
                    Some(frame) => Arrived::from(frame),
                    None => continue,
                },
            };
            if let Err(error) = worker.on_frame(arrived).await {
                break error;
            }
        };
        worker.close().await;
        why
    }

    /// What a task beside the ring says, unless it is about an earlier stay of the sequence.
    fn still_counts(&self, AdmittedFrame { admission, frame }: AdmittedFrame) -> Option<RingFrame> {
        let (RingFrame::KvArrived { request, .. } | RingFrame::KvSent { request, .. }) = &frame else { return None };
        self.sequences.get(request).filter(|s| s.admission == admission).map(|_| frame)
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    async fn on_frame(&mut self, arrived: Arrived) -> Result<(), StageError> {
        match arrived.frame {
            RingFrame::Admit(admit) => self.admit(admit).await,
            RingFrame::Step(step) => self.step(step, arrived.hidden).await,
            RingFrame::Release(request) => {
                self.release(request).await?;
                self.pass_unless_last(RingFrame::Release(request)).await
            }
            RingFrame::Grow(grow) => self.grow(grow).await,
            RingFrame::Keep { request, prefix, tokens } => {
                self.keep(request, prefix, tokens).await?;
                self.pass_unless_last(arrived.frame).await
            }
            RingFrame::FakeQuantise { request, tokens, codec } => {
                self.fake_quantise(request, tokens, codec).await?;
                self.pass_unless_last(arrived.frame).await
            }
            RingFrame::Forget(prefix) => {
                self.forget(prefix).await?;
                self.pass_unless_last(arrived.frame).await
            }
            RingFrame::Admitted { .. }
            | RingFrame::Grown { .. }
            | RingFrame::Sampled { .. }
            | RingFrame::KvArrived { .. }
            | RingFrame::KvSent { .. }
            | RingFrame::PromptLogprobs { .. }
            | RingFrame::Failed { .. } => self.pass(arrived.frame).await,
        }
    }

    async fn admit(&mut self, mut admit: Admit) -> Result<(), StageError> {
        if admit.refused.is_none() {
            admit.refused = self.take(&admit).await?;
        }
        if self.context.is_last() {
            let Admit { request, refused, .. } = admit;
            return self.pass(RingFrame::Admitted { request, refused }).await;
        }
        self.pass(RingFrame::Admit(admit)).await
    }

    /// Reserves pages and prepares for the sequence; says why where it cannot.
    async fn take(&mut self, admit: &Admit) -> Result<Option<Refusal>, StageError> {
        if let Some(refusal) = self.reserve(admit).await? {
            return Ok(Some(refusal));
        }
        self.admissions += 1;
        let admission = self.admissions;
        let (request, prompt_tokens) = (admit.request, admit.tokens.len() as u32 - admit.answered);
        if let Some(kv) = admit.await_kv {
            self.expect_kv(request, admission, kv);
        }
        let sampler = self.context.is_last().then(|| self.sampler(admit, prompt_tokens as usize));
        let export = admit.export.clone().map(|what| {
            export::start(
                self.context.clone(),
                request,
                prompt_tokens,
                what,
                (self.side.clone(), admission),
                self.ring.child_token(),
            )
        });
        if let (Some(export), Some(shared)) = (&export, admit.shared) {
            export.computed(shared.tokens);
        }
        let (for_others, counted) = (self.context.history.is_for_others(&request), SequenceTokens::default());
        let held = CountedSequence::one(&self.context.held);
        let sequence = StageSequence { admission, sampler, export, prompt_tokens, for_others, counted, _held: held };
        self.sequences.insert(request, sequence);
        self.context.compute.enters(request, to_compute(admit));
        Ok(None)
    }

    fn sampler(&self, admit: &Admit, prompt_tokens: usize) -> Sampler {
        let (prompt, answer) = admit.tokens.split_at(prompt_tokens);
        let begin = |constraint: Box<_>| Constrained::begin(&self.context.grammars, *constraint, answer.to_vec());
        Sampler {
            constrained: admit.sampling.constraint.clone().map(begin),
            sampling: admit.sampling.clone(),
            prompt: prompt.into(),
            generated: answer.to_vec(),
        }
    }

    fn expect_kv(&self, request: RequestId, admission: AdmissionNo, kv: AwaitKv) {
        self.kv_receiver.expect(ExpectedKv {
            me: self.context.me,
            request,
            tokens: kv.tokens,
            codec: kv.codec,
            patience: Duration::from_millis(kv.patience_ms.into()),
            stage: self.context.clone(),
            side: self.side.clone(),
            admission,
            ring: self.ring.child_token(),
        });
    }

    async fn step(&mut self, step: Step, hidden: Vec<f32>) -> Result<(), StageError> {
        let rows: usize = step.entries.iter().map(|e| e.tokens.len()).sum();
        if let Some(stranger) = step.entries.iter().find(|e| !self.sequences.contains_key(&e.request)) {
            return Err(StageError::Protocol(format!("step for {}, which is not here", stranger.request)));
        }
        if !self.context.is_first() && hidden.len() != rows * self.context.shape.hidden as usize {
            return Err(StageError::Protocol(format!("{rows} rows of activations announced, {} values", hidden.len())));
        }
        if self.context.is_last() {
            let (step, judged) = self.compute_and_sample(step, hidden).await?;
            let StepResult { chosen: Chosen { tokens, failed }, prompts } = judged;
            self.export_prompts(&step.entries);
            self.count(&step.entries, &counted::chosen(&tokens));
            self.tell_of_prompts(prompts).await?;
            for (request, reason) in failed {
                self.pass(RingFrame::Failed { request, reason }).await?;
            }
            return self.pass(RingFrame::Sampled { step: step.step, tokens }).await;
        }
        let (mut step, hidden) = self.compute_hidden(step, hidden).await?;
        step.rows = rows as u32;
        let entries = step.entries.clone();
        self.pass_with(RingFrame::Step(step), &hidden).await?;
        self.export_prompts(&entries);
        // How many of an answer's drafts hold is seen by its next step.
        self.count(&entries, &entries.iter().filter(|e| e.sample).map(|e| (e.request, 1)).collect());
        Ok(())
    }

    /// Counts what a step computed, by how many tokens it chose of each sequence.
    fn count(&mut self, entries: &[StepEntry], chosen: &BTreeMap<RequestId, u32>) {
        for entry in entries {
            if let Some(sequence) = self.sequences.get_mut(&entry.request).filter(|s| s.for_others) {
                sequence.counted.step(entry, chosen.get(&entry.request).copied().unwrap_or(0));
            }
        }
    }

    /// A sequence leaves: what was computed of it for another peer's gateway is known.
    fn note(&self, sequence: &StageSequence) {
        let StageContext { model, name, layers, shape, history, .. } = &self.context;
        if sequence.for_others {
            history.computed((*model, &**name), sequence.counted.work(*layers, shape.layers));
        }
    }

    async fn compute_hidden(&mut self, step: Step, hidden: Vec<f32>) -> Result<(Step, Vec<f32>), StageError> {
        let (key, first) = (self.context.key, self.context.is_first());
        let (mut taps, shares) = (self.taps(&step.entries), shares(&step.entries));
        let run = move |engine: &mut Engine| {
            let tokens: Vec<Token>;
            let input = if first {
                tokens = all_tokens(&step);
                Input::Tokens(&tokens)
            } else {
                Input::Hidden(&hidden)
            };
            let out = forget_drafts(engine, key, &step).and_then(|()| {
                let rows = engine.forward_tapped(key, &slices(&step), input, Output::Hidden, taps.as_tap());
                rows.map(|rows| rows.to_vec())
            });
            (step, out)
        };
        let (step, out) = self.context.compute.step(shares, run).await?;
        Ok((step, out.map_err(|e| StageError::Protocol(e.to_string()))?))
    }

    async fn compute_and_sample(&mut self, step: Step, hidden: Vec<f32>) -> Result<(Step, StepResult), StageError> {
        self.note_generated(&step);
        let (key, first, shape) = (self.context.key, self.context.is_first(), &self.context.shape);
        let widths = Widths { hidden: shape.hidden as usize, vocab: shape.vocab as usize };
        // The samplers travel to the compute thread and back, so that nothing is shared.
        let mut samplers: BTreeMap<RequestId, Sampler> = BTreeMap::new();
        for entry in &step.entries {
            let is_needed = |s: &Sampler| entry.sample || entry.prompt && s.sampling.prompt_logprobs.is_some();
            let sampler = self.sequences.get_mut(&entry.request).and_then(|s| s.sampler.take_if(|s| is_needed(s)));
            samplers.extend(sampler.map(|s| (entry.request, s)));
        }
        let (mut taps, shares) = (self.taps(&step.entries), shares(&step.entries));
        let run = move |engine: &mut Engine| {
            let tokens: Vec<Token>;
            let input = if first {
                tokens = all_tokens(&step);
                Input::Tokens(&tokens)
            } else {
                Input::Hidden(&hidden)
            };
            let chosen = forget_drafts(engine, key, &step)
                .and_then(|()| compute_and_judge(engine, key, &step, input, (widths, &mut samplers), &mut taps));
            (step, samplers, chosen.map_err(|e| e.to_string()))
        };
        let (step, samplers, chosen) = self.context.compute.step(shares, run).await?;
        for (request, sampler) in samplers {
            if let Some(sequence) = self.sequences.get_mut(&request) {
                sequence.sampler = Some(sampler);
            }
        }
        Ok((step, chosen.map_err(StageError::Protocol)?))
    }

    /// What is said of prompts' tokens, to the leader.
    async fn tell_of_prompts(&mut self, prompts: Vec<(RequestId, u32, Vec<PromptLogprob>)>) -> Result<(), StageError> {
        for (request, mut from, logprobs) in prompts {
            for part in logprobs.chunks(limits::PROMPT_LOGPROBS) {
                self.pass(RingFrame::PromptLogprobs { request, from, logprobs: part.to_vec() }).await?;
                from += part.len() as u32;
            }
        }
        Ok(())
    }

    /// Tokens fed back for decoding are the answer so far: penalties and grammars need them. Draft tokens that hold are noted when they do.
    fn note_generated(&mut self, step: &Step) {
        for entry in step.entries.iter().filter(|e| !e.prompt) {
            if let Some(sampler) = self.sequences.get_mut(&entry.request).and_then(|s| s.sampler.as_mut()) {
                sampler.generated.extend(entry.tokens.first());
                if let (Some(constrained), Some(token)) = (&mut sampler.constrained, entry.tokens.first()) {
                    constrained.go_on(*token);
                }
            }
        }
    }

    /// Whoever takes KV out while a step is computed.
    fn taps(&self, entries: &[StepEntry]) -> Taps {
        let mut taps = Taps::default();
        self.exported(entries).for_each(|(export, end)| export.tap(end, &mut taps));
        taps
    }

    /// What is computed can leave.
    fn export_prompts(&self, entries: &[StepEntry]) {
        self.exported(entries).for_each(|(export, end)| export.computed(end));
    }

    /// Exports of a step's prompts, and where each prompt's part of the step ends.
    fn exported(&self, entries: &[StepEntry]) -> impl Iterator<Item = (&Exporter, u32)> {
        entries.iter().filter(|e| e.prompt).filter_map(|entry| {
            let export = self.sequences.get(&entry.request)?.export.as_ref()?;
            Some((export, entry.start + entry.tokens.len() as u32))
        })
    }

    async fn pass_unless_last(&mut self, frame: RingFrame) -> Result<(), StageError> {
        if self.context.is_last() { Ok(()) } else { self.pass(frame).await }
    }

    async fn pass(&mut self, frame: RingFrame) -> Result<(), StageError> {
        self.pass_with(frame, &[]).await
    }

    async fn pass_with(&mut self, frame: RingFrame, hidden: &[f32]) -> Result<(), StageError> {
        match &mut self.downstream {
            Downstream::Leader(frames) => frames.send(frame).await.map_err(|_| StageError::Upstream),
            Downstream::Stream(stream) => {
                stream.send(&frame).await?;
                if !hidden.is_empty() {
                    stream.send_bytes(&to_bytes(hidden), limits::ACTIVATION_BYTES).await?;
                }
                Ok(())
            }
        }
    }

    async fn close(&mut self) {
        self.ring.cancel();
        let requests: Vec<RequestId> = self.sequences.keys().copied().collect();
        for request in requests {
            // The compute thread being gone leaves nothing to give back.
            let _ = self.release(request).await;
        }
        let kept = self.kept.clone();
        // It is waited for: with it all is given back.
        let _ = self.context.compute.call(move |engine| kept.forget_all(engine)).await;
    }
}

fn all_tokens(step: &Step) -> Vec<Token> {
    step.entries.iter().flat_map(|e| e.tokens.iter().copied()).collect()
}

/// Of what is admitted, tokens that are computed here before an answer's next one: all but those whose KV is here or comes.
fn to_compute(admit: &Admit) -> u32 {
    let shared = admit.shared.map_or(0, |shared| shared.tokens);
    let comes = admit.await_kv.map_or(0, |kv| kv.tokens);
    (admit.tokens.len() as u32).saturating_sub(shared.max(comes))
}

/// What each request has of a step, for whoever says whose turn it is.
fn shares(entries: &[StepEntry]) -> Vec<StepShare<RequestId>> {
    let share = |e: &StepEntry| StepShare {
        request: e.request,
        prompt_tokens: if e.prompt { e.tokens.len() as u32 } else { 0 },
    };
    entries.iter().map(share).collect()
}

fn slices(step: &Step) -> Vec<Slice> {
    let slice = |e: &StepEntry| Slice { request: e.request, start: e.start, len: e.tokens.len() as u32 };
    step.entries.iter().map(slice).collect()
}

/// Tokens computed for drafts that were rejected are forgotten before others take their places.
fn forget_drafts(engine: &mut Engine, stage: StageKey, step: &Step) -> Result<(), EngineError> {
    let mut answers = step.entries.iter().filter(|e| !e.prompt);
    answers.try_for_each(|e| engine.truncate(stage, e.request, e.start))
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
