//! Who gets pages, and when: first come first, but for those that wait for another to compute what they begin with. Several are
//! asked for at once, so where the pages are too few for one, some that came later may get theirs. That happens to it once: from
//! then on it is asked for alone, or short ones without end would take what comes back before it is enough.

use super::{
    Action, Batcher, NewSequence, Sequence,
    state::{Admission, PageWait, State},
};
use crate::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    RequestId,
    ring::{Refusal, RingFrame, SharedPrefix, SharedWith},
    stream::End,
};

/// After how long pages are asked for again that another group on the same device may have given back.
const RETRY: Duration = Duration::from_millis(100);

/// A sequence's place among others: when it came, and its name.
pub(super) type QueuePlace = (Time, RequestId);

/// Sequences without pages.
#[derive(Debug, Default)]
pub(super) struct AdmissionQueue {
    /// First come first.
    waiting: BTreeSet<QueuePlace>,
    /// Those that wait for another to have computed what they begin with, by it.
    behind: BTreeMap<RequestId, Vec<QueuePlace>>,
    /// The one asked for last, if it was refused before.
    alone: Option<RequestId>,
    /// Pages were refused and none has come back since.
    full: bool,
    retry_at: Option<Time>,
}

impl AdmissionQueue {
    pub fn len(&self) -> usize {
        self.waiting.len() + self.behind.values().map(Vec::len).sum::<usize>()
    }

    pub fn push(&mut self, place: QueuePlace) {
        self.waiting.insert(place);
    }

    fn next(&mut self) -> Option<RequestId> {
        if self.full { None } else { self.waiting.pop_first().map(|(_, request)| request) }
    }

    /// Who would be next if there were pages.
    pub fn first(&self) -> Option<RequestId> {
        self.waiting.first().map(|(_, request)| *request)
    }

    /// No pages for anybody before some have come back.
    pub fn is_full(&mut self) {
        self.full = true;
    }

    pub fn pages_came_back(&mut self) {
        (self.full, self.retry_at) = (false, None);
    }

    pub fn retry_at(&self) -> Option<Time> {
        self.retry_at
    }

    pub fn retry(&mut self, now: Time) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.pages_came_back();
        }
    }

    /// Those that waited for this sequence wait no longer.
    pub fn go_on_behind(&mut self, request: RequestId) {
        self.waiting.extend(self.behind.remove(&request).unwrap_or_default());
    }

    /// It waits no longer.
    pub fn remove(&mut self, request: RequestId) {
        self.waiting.retain(|(_, r)| *r != request);
        self.behind.values_mut().for_each(|all| all.retain(|(_, r)| *r != request));
    }
}

impl Batcher {
    pub(super) fn submit(&mut self, now: Time, new: NewSequence, out: &mut Vec<Action>) {
        let request = new.request;
        let refuse = |reason: &str| Action::Refused { request, reason: reason.to_owned() };
        if self.sequences.contains_key(&request) {
            return out.push(refuse("a request of that name runs already"));
        }
        if self.queue.len() >= self.config.max_waiting {
            return out.push(refuse("too many requests wait here"));
        }
        if new.prompt.is_empty() || new.prompt.len() > new.max_tokens as usize {
            return out.push(refuse("the prompt is empty or too long"));
        }
        let sequence = Sequence::new(now, new);
        if let Some(end) = sequence.end().filter(|_| sequence.generated() > 0 && !sequence.wants_prompt_logprobs()) {
            // The group that began the answer could not say any more that this was all.
            return out.push(Action::End { request, end });
        }
        if sequence.len() > sequence.max_tokens {
            return out.push(refuse("more of its answer is known than it may have"));
        }
        self.queue.push(sequence.place(request));
        self.sequences.insert(request, sequence);
    }

    pub(super) fn admit_waiting(&mut self, now: Time, out: &mut Vec<Action>) {
        let has_place = |batcher: &Self| batcher.sequences.len() - batcher.queue.len() < batcher.config.max_running;
        while has_place(self) && !self.asks_for_one_alone() && !self.holds_back(now) {
            let Some(request) = self.queue.next() else { return };
            let Some(sequence) = self.sequences.get_mut(&request) else { continue };
            let was_refused = matches!(sequence.state, State::Waiting(PageWait { refused: true, .. }));
            self.queue.alone = was_refused.then_some(request);
            // Where there is no room for it, it ends the answer once the prompt is computed.
            if !sequence.awaits_kv() && sequence.generated() == 0 && sequence.len() < sequence.max_tokens {
                sequence.tokens.extend(sequence.first.take());
            }
            if sequence.awaits_kv() || !sequence.is_exact() {
                let admit = sequence.admission(request, None, &self.config);
                out.extend(admit.map(RingFrame::Admit).map(Action::Ring));
                continue;
            }
            let begins_alone = sequence.wants_prompt_logprobs();
            let ahead = self.prefixes.worth_waiting_for(&sequence.tokens).filter(|_| !begins_alone);
            if let Some(ahead) = ahead {
                self.queue.behind.entry(ahead).or_default().push(sequence.place(request));
                continue;
            }
            let shared = self.prefixes.shared(&sequence.tokens).filter(|_| !begins_alone);
            let admit = sequence.admission(request, shared, &self.config);
            out.extend(admit.map(RingFrame::Admit).map(Action::Ring));
            self.prefixes.begins(request, &sequence.tokens);
        }
    }

    /// Whether the stages have yet to answer for one that was refused before.
    fn asks_for_one_alone(&self) -> bool {
        let alone = self.queue.alone.and_then(|request| self.sequences.get(&request));
        alone.is_some_and(|sequence| matches!(sequence.state, State::Admitting(_)))
    }

    /// A sequence goes for which the stages may have been asked for pages, and have not answered.
    pub(super) fn note_unanswered(&mut self, request: RequestId, sequence: &Sequence) {
        let asked = sequence.overtaken.admissions + u32::from(matches!(sequence.state, State::Admitting(_)));
        if asked > 0 {
            *self.unanswered.entry(request).or_default() += asked;
        }
    }

    /// Whether the stages' answer is for a sequence of that name that is gone: they answer in the order in which they are asked.
    fn is_for_one_gone(&mut self, request: RequestId) -> bool {
        let Some(left) = self.unanswered.get_mut(&request) else { return false };
        *left -= 1;
        if *left == 0 {
            self.unanswered.remove(&request);
        }
        true
    }

    pub(super) fn admitted(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        if self.is_for_one_gone(request) {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let Some(Admission { shared, pages, .. }) = sequence.admission_answered() else { return };
        let there = shared.map_or(0, |s| s.tokens);
        if sequence.granted.is_none() {
            sequence.granted = Some(there);
            if !sequence.exports() {
                out.push(Action::Granted { request, cached: there });
            }
        }
        if sequence.awaits_kv() {
            sequence.state = State::AwaitingKv { pages, since: now, arrived: Default::default() };
        } else {
            self.compute_from(request, there);
        }
    }

    /// Computes the tokens that are known from here on; of a prompt that has yet to go through its codec nothing beyond what
    /// does.
    pub(super) fn compute_from(&mut self, request: RequestId, there: u32) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let Some(pages) = sequence.state.pages() else { return };
        sequence.state = State::Prefilling { pages, sent: there, done: there };
        let first = sequence.first_part();
        if pages.through_codec || sequence.len() == first {
            // Behind a prompt whose first token is its answer nobody waits for a short step.
            let answer = (!sequence.exports()).then(|| sequence.left()).filter(|left| *left > 1);
            self.steps.prompt(request, there, sequence.len() - there, answer);
        } else {
            self.steps.prompt(request, there, first - there, None);
        }
    }

    pub(super) fn not_admitted(&mut self, request: RequestId, why: Refusal, out: &mut Vec<Action>) {
        if self.is_for_one_gone(request) {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let Some(Admission { wait, shared, .. }) = sequence.admission_answered() else { return };
        let refused = wait.refused || matches!(why, Refusal::Full(_));
        sequence.state = State::Waiting(PageWait { refused, ..wait });
        let (granted, place) = (sequence.granted.is_some(), sequence.place(request));
        // Stages before the one that refused hold pages already.
        out.push(Action::Ring(RingFrame::Release(request)));
        self.prefixes.ends(request);
        self.queue.go_on_behind(request);
        if let Refusal::Never(reason) = why {
            self.sequences.remove(&request);
            return out.push(no_room(request, granted, reason));
        }
        self.queue.push(place);
        match why {
            Refusal::PrefixGone => self.forget_shared(shared, out),
            _ => self.queue.is_full(),
        }
    }

    /// Where none of this group's sequences has pages that could come back, another group's have, as they may have wherever pools
    /// are shared: they are asked for again.
    pub(super) fn see_to_retry(&mut self, now: Time) {
        let others_give = self.config.shares_pages || self.sequences.len() == self.queue.len();
        if self.queue.full && others_give {
            self.queue.retry_at.get_or_insert(now + RETRY);
        }
    }

    /// A stage has let go of what a sequence was to begin with: nobody can any more.
    fn forget_shared(&mut self, shared: Option<SharedPrefix>, out: &mut Vec<Action>) {
        match shared.map(|s| s.with) {
            Some(SharedWith::Kept(prefix)) => {
                self.prefixes.forget(prefix);
                out.push(Action::Ring(RingFrame::Forget(prefix)));
            }
            Some(SharedWith::Running(other)) => self.prefixes.ends(other),
            None => {}
        }
    }

    /// The pages of a sequence that runs no longer go back, or are kept for others that begin alike.
    pub(super) fn let_go(&mut self, request: RequestId, sequence: &Sequence, out: &mut Vec<Action>) {
        self.prefixes.ends(request);
        self.queue.go_on_behind(request);
        if sequence.drafts.told > 0 {
            out.push(Action::NoDrafts { request });
        }
        let Some(pages) = sequence.state.pages() else { return };
        let present = if pages.computed_here { sequence.present() } else { 0 };
        let keeping = self.prefixes.keeping(&sequence.tokens[..present as usize]);
        let end = match keeping.prefix {
            Some(prefix) => RingFrame::Keep { request, prefix, tokens: present },
            None => RingFrame::Release(request),
        };
        out.push(Action::Ring(end));
        out.extend(keeping.forgotten.into_iter().map(|prefix| Action::Ring(RingFrame::Forget(prefix))));
        self.queue.pages_came_back();
    }
}

/// A sequence without pages is refused, or ends if it had been granted some before.
pub(super) fn no_room(request: RequestId, granted: bool, reason: String) -> Action {
    if granted { Action::End { request, end: End::Failed(reason) } } else { Action::Refused { request, reason } }
}
