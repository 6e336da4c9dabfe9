//! Prompt flow 8: steps set off, some of them once a draft model has proposed tokens for them.
//!
//! A step of answers alone may wait for draft tokens: the policy has chosen who computes in it, and nobody else takes their
//! places meanwhile. Whatever becomes of them until those are there, the step sets off with those that are left, and
//! without where none came.

use super::{
    Action, Batcher, Sequence, Speculation, pace,
    steps::SequenceShare,
    strategy::{self, Strategy},
};
use crate::{Time, policy::batching::RequestPhase};
use tsnode_protocol::{
    RequestId, Token,
    ring::{RingFrame, Step, StepEntry},
};

impl Batcher {
    /// Sets off the steps that may, or asks for their draft tokens first.
    pub(super) fn form_steps(&mut self, now: Time, out: &mut Vec<Action>) {
        if !self.has_its_policy() {
            return;
        }
        // A group of one stage knows after the step that runs who has pages, and a moment later than what was sampled: a step without
        // who came meanwhile would be all that a prompt waits for. Of more stages the answers come round the ring.
        if self.config.stages == 1
            && !self.steps.are_on_the_way()
            && self.sequences.values().any(Sequence::awaits_admission)
        {
            return;
        }
        let kv_comes = self.sequences.values().any(Sequence::kv_comes);
        while let Some((step, shares)) = self.steps.next(kv_comes) {
            match self.way(now, step, &shares) {
                Strategy::Draft => self.ask(step, &shares, out),
                way => self.set_off(now, step, &shares, way, out),
            }
        }
    }

    /// What the draft model proposes, or nothing.
    pub(super) fn drafted(
        &mut self,
        now: Time,
        step: u64,
        drafts: Vec<(RequestId, Vec<Token>)>,
        out: &mut Vec<Action>,
    ) {
        if !self.asked.remove(&step) {
            return;
        }
        let shares = self.steps.shares(step);
        if shares.is_empty() {
            self.strategies.lose(step);
            return self.step_done(now, step, Vec::new(), out);
        }
        for (request, tokens) in drafts {
            let is_here = shares.iter().any(|s| s.request == request);
            if let Some(sequence) = self.sequences.get_mut(&request).filter(|s| is_here && s.wants_drafts()) {
                sequence.take_drafts(tokens);
            }
        }
        self.set_off(now, step, &shares, Strategy::Draft, out);
    }

    /// Where a step has its draft tokens from. It is timed if it has a choice and nothing but answers.
    fn way(&mut self, now: Time, step: u64, shares: &[SequenceShare]) -> Strategy {
        let answers = shares.iter().filter(|s| s.part == RequestPhase::Answer).count();
        if self.config.speculation == Speculation::Never || !strategy::may_help(answers) {
            return Strategy::Plain;
        }
        let (mut found, mut wanting) = (false, false);
        for share in shares.iter().filter(|s| s.part == RequestPhase::Answer) {
            let Some(sequence) = self.sequences.get_mut(&share.request) else { continue };
            found |= sequence.propose();
            wanting |= sequence.wants_drafts();
        }
        let alone = answers == shares.len();
        let drafts = wanting && alone && self.config.speculation == Speculation::Drafted;
        let possible: &[Strategy] = match (found, drafts) {
            (false, false) => return Strategy::Plain,
            (true, false) => &[Strategy::Plain, Strategy::Lookup],
            (false, true) => &[Strategy::Plain, Strategy::Draft],
            (true, true) => &[Strategy::Plain, Strategy::Lookup, Strategy::Draft],
        };
        let way = self.strategies.choose(answers, possible);
        if alone {
            self.strategies.begins(step, now, answers, way);
        }
        way
    }

    fn ask(&mut self, step: u64, shares: &[SequenceShare], out: &mut Vec<Action>) {
        let wanted = |s: &SequenceShare| self.sequences.get_mut(&s.request)?.wanted(s.request);
        let wanted = shares.iter().filter_map(wanted).collect();
        self.asked.insert(step);
        out.push(Action::Propose { step, wanted });
    }

    fn set_off(&mut self, now: Time, step: u64, shares: &[SequenceShare], way: Strategy, out: &mut Vec<Action>) {
        let entry = |s: &SequenceShare| self.sequences.get_mut(&s.request)?.entry(now, s, way);
        let entries: Vec<StepEntry> = shares.iter().filter_map(entry).collect();
        self.pace.sets_off(step, pace::size(&entries), now);
        out.push(Action::Ring(RingFrame::Step(Step { step, entries, rows: 0 })));
    }
}
