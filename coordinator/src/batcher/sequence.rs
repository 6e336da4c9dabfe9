//! A sequence as its leader sees it.

use super::{
    BatcherConfig,
    prompt_logprobs::PromptLogprobsSoFar,
    speculation::{DraftRequest, DraftTokens, MOST},
    state::{Admission, SequencePages, State},
    steps::SequenceShare,
    strategy::Strategy,
};
use crate::{Time, policy::batching::RequestPhase};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::{
    KvCodec, PromptCodec, RequestId, Sampling, Seconds, Token,
    ring::{Admit, AwaitKv, KvExport, SharedPrefix, StepEntry},
    stream::{Computed, End, Generation},
};

/// The stages give up on late KV themselves; the leader does a moment later, should it not hear of it.
const GRACE: Duration = Duration::from_secs(2);
/// How often a sequence may have to give its pages back. After that it gets all it will ever need, or waits for it, so
/// that it comes to its end whatever else comes (Splitwise §IV-B bounds preemption for the same reason).
const PUSHED_OUT_AT_MOST: u32 = 2;

/// A sequence that enters a group.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSequence {
    /// Names the sequence in events and actions.
    pub request: RequestId,
    /// All tokens of its prompt.
    pub prompt: Vec<Token>,
    /// Tokens of its answer that are known: another group began it.
    pub answered: Vec<Token>,
    /// What the prompt's KV goes through, wherever it is computed. Where KV is awaited it is that of as many tokens.
    pub codec: PromptCodec,
    /// Most tokens it may reach here, prompt included.
    pub max_tokens: u32,
    /// What to generate.
    pub generation: Generation,
    /// What this group does of it.
    pub kind: SequenceKind,
}

/// What a group does of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceKind {
    /// Prompt and answer.
    Local,
    /// The answer only; KV and first token come from elsewhere. Where the KV is that of the prompt's first tokens, the rest of it,
    /// too, and the first token is chosen here.
    AwaitKv,
    /// The prompt and the first token; the KV goes elsewhere.
    Export(KvExport),
}

/// What a group does of a sequence; unlike its [`SequenceKind`] it changes.
#[derive(Debug)]
pub(super) enum SequenceRole {
    /// Prompt and answer.
    Local,
    /// The answer only, unless the KV fails to come.
    AwaitKv,
    /// The prompt and the first token; its KV goes elsewhere: bytes sent by stage.
    Export { export: KvExport, sent: BTreeMap<u16, u64> },
}

/// Answers of the stages that no longer count.
#[derive(Debug, Default)]
pub(super) struct Overtaken {
    pub admissions: u32,
    pub growth: u32,
}

#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and answer so far.
    pub tokens: Vec<Token>,
    /// Of those, the prompt.
    pub prompt: u32,
    /// The answer's first token, where it is known from elsewhere and not yet among the tokens.
    pub first: Option<Token>,
    pub max_tokens: u32,
    pub generation: Generation,
    /// What the prompt's KV goes through.
    pub codec: PromptCodec,
    pub role: SequenceRole,
    pub state: State,
    /// What may follow its tokens.
    pub drafts: DraftTokens,
    /// How many tokens of its prompt were there already when it first got pages; nothing before that.
    pub granted: Option<u32>,
    pub overtaken: Overtaken,
    /// How often it had to give its pages back.
    pub pushed_out: u32,
    /// What the last stage said of the prompt's tokens, until it is passed on.
    pub prompt_logprobs: PromptLogprobsSoFar,
    pub submitted: Time,
    /// When the first step with tokens of it was set off.
    pub stepped: Option<Time>,
}

impl Sequence {
    pub fn new(now: Time, new: NewSequence) -> Self {
        let prompt = new.prompt.len() as u32;
        let mut tokens = new.prompt;
        tokens.extend(new.answered);
        Self {
            prompt,
            tokens,
            first: None,
            max_tokens: new.max_tokens,
            generation: new.generation,
            codec: new.codec,
            role: match new.kind {
                SequenceKind::Local => SequenceRole::Local,
                SequenceKind::AwaitKv => SequenceRole::AwaitKv,
                SequenceKind::Export(export) => SequenceRole::Export { export, sent: BTreeMap::new() },
            },
            state: State::waiting(now),
            drafts: DraftTokens::default(),
            granted: None,
            overtaken: Overtaken::default(),
            pushed_out: 0,
            prompt_logprobs: PromptLogprobsSoFar::default(),
            submitted: now,
            stepped: None,
        }
    }

    pub fn awaits_kv(&self) -> bool {
        matches!(self.role, SequenceRole::AwaitKv)
    }

    /// Whether its KV is yet to come from elsewhere: until then policies do not know of it.
    pub fn kv_comes(&self) -> bool {
        self.awaits_kv() && matches!(self.state, State::Admitting(_) | State::AwaitingKv { .. })
    }

    /// Whether the stages have yet to say if it has pages for what it will compute at once.
    pub fn awaits_admission(&self) -> bool {
        !self.awaits_kv() && matches!(self.state, State::Admitting(_))
    }

    pub fn exports(&self) -> bool {
        matches!(self.role, SequenceRole::Export { .. })
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Whether its prompt's KV stays as it is computed; what an export packs are copies.
    pub fn is_exact(&self) -> bool {
        self.exports() || self.codec.codec == KvCodec::Raw
    }

    /// Tokens of the prompt whose KV goes through its codec, or comes from elsewhere: those after them are computed behind it.
    pub fn first_part(&self) -> u32 {
        self.codec.tokens(self.prompt)
    }

    /// Tokens of the answer so far.
    pub fn generated(&self) -> u32 {
        self.len() - self.prompt
    }

    /// Tokens whose KV the group has.
    pub fn present(&self) -> u32 {
        match self.state {
            State::Waiting(_) | State::Admitting(_) | State::AwaitingKv { .. } => 0,
            State::Prefilling { done, .. } => done,
            State::Decoding { .. } | State::Paused { .. } => self.len() - 1,
            State::Sending { .. } => self.prompt,
        }
    }

    /// Whether it may have to give its pages back for others.
    pub fn may_be_pushed_out(&self) -> bool {
        let computes = matches!(self.state, State::Prefilling { .. } | State::Decoding { .. } | State::Paused { .. });
        computes && !self.exports() && self.pushed_out < PUSHED_OUT_AT_MOST
    }

    pub fn age(&self, now: Time) -> Seconds {
        Seconds(now.saturating_sub(self.submitted).as_secs_f64())
    }

    /// What computing its prompt took, which is done now.
    pub fn computed(&self, now: Time) -> Computed {
        let stepped = self.stepped.unwrap_or(now);
        Computed { queued: self.age(stepped), took: Seconds(now.saturating_sub(stepped).as_secs_f64()) }
    }

    pub fn deadline(&self, config: &BatcherConfig) -> Option<Time> {
        match &self.state {
            // One that had pages and gave them back for others is not made to pay for it.
            State::Waiting(wait) if self.pushed_out == 0 => Some(wait.since + config.admission_patience),
            State::AwaitingKv { since, arrived, .. } if arrived.len() < config.stages => {
                Some(*since + config.kv_patience + GRACE)
            }
            _ => None,
        }
    }

    /// How the answer ends with its last token, if it does.
    pub fn end(&self) -> Option<End> {
        if self.tokens.last().is_some_and(|last| self.generation.stop_tokens.contains(last)) {
            return Some(End::Stop);
        }
        let full = self.len() >= self.max_tokens;
        (self.generated() >= self.generation.max_new_tokens || full).then_some(End::Length)
    }

    /// How it ends once what is known of it is computed, if nothing is to be generated.
    pub fn end_of_prompt(&self) -> Option<End> {
        match self.generated() {
            0 => (self.generation.max_new_tokens == 0).then_some(End::Length),
            _ => self.end(),
        }
    }

    /// Tokens it may still generate.
    pub fn left(&self) -> u32 {
        let room = self.max_tokens.saturating_sub(self.prompt);
        room.min(self.generation.max_new_tokens).saturating_sub(self.generated()).max(1)
    }

    /// The room it asks for: what it has and a part of what may come, or all.
    pub fn wanted_room(&self, growth: u32) -> u32 {
        if self.pushed_out < PUSHED_OUT_AT_MOST {
            self.len().saturating_add(growth).min(self.max_tokens)
        } else {
            self.max_tokens
        }
    }

    /// Asks the stages for pages, if it waits for some.
    pub fn admission(
        &mut self,
        request: RequestId,
        shared: Option<SharedPrefix>,
        config: &BatcherConfig,
    ) -> Option<Admit> {
        let State::Waiting(wait) = self.state else { return None };
        let pages = SequencePages {
            room: self.wanted_room(config.growth),
            computed_here: !self.awaits_kv() && self.is_exact(),
            through_codec: self.awaits_kv() || self.is_exact(),
        };
        self.state = State::Admitting(Admission { wait, shared, pages });
        let patience_ms = config.kv_patience.as_millis() as u32;
        let (await_kv, export) = match &self.role {
            SequenceRole::Local => (None, None),
            SequenceRole::AwaitKv => {
                (Some(AwaitKv { patience_ms, codec: self.codec.codec, tokens: self.first_part() }), None)
            }
            SequenceRole::Export { export, .. } => (None, Some(export.clone())),
        };
        Some(Admit {
            request,
            tokens: self.tokens.clone(),
            answered: self.generated(),
            room: pages.room,
            most: self.max_tokens,
            shared,
            sampling: self.sampling(),
            await_kv,
            export,
            refused: None,
        })
    }

    /// How the last stage chooses, and whether it still says something of the prompt's tokens.
    fn sampling(&mut self) -> Sampling {
        let mut sampling = self.generation.sampling.clone();
        sampling.prompt_logprobs = sampling.prompt_logprobs.filter(|_| self.wants_prompt_logprobs());
        self.prompt_logprobs.begin_anew();
        sampling
    }

    /// Proposes what follows its tokens by what it repeats; whether there is a draft.
    pub fn propose(&mut self) -> bool {
        let most = self.draftable();
        self.drafts.propose(&self.tokens, most)
    }

    /// Whether a draft model could help with it.
    pub fn wants_drafts(&self) -> bool {
        self.drafts.tokens.is_empty() && self.draftable() > 0
    }

    /// What a draft model is asked about it, which so has been told all its tokens.
    pub fn wanted(&mut self, request: RequestId) -> Option<DraftRequest> {
        let most = Some(self.draftable()).filter(|_| self.wants_drafts())? as u32;
        let (start, all) = (self.drafts.told, self.len());
        self.drafts.told = all;
        let (tokens, sampling) = (self.tokens[start as usize..].to_vec(), self.generation.sampling.clone());
        Some(DraftRequest { request, start, tokens, most, sampling })
    }

    /// What a draft model proposes; no more than it was asked for.
    pub fn take_drafts(&mut self, mut drafts: Vec<Token>) {
        drafts.truncate(self.draftable());
        (self.drafts.tokens, self.drafts.by) = (drafts, Strategy::Draft);
    }

    /// How many tokens may be proposed: as far as there is room, and more is wanted than the next. Under a grammar none: the
    /// tokens allowed after a draft token are known only once that is accepted.
    fn draftable(&self) -> usize {
        if self.generation.sampling.constraint.is_some() {
            return 0;
        }
        let has = self.state.pages().map_or(0, |pages| pages.room);
        let room = has.saturating_sub(self.len()).min(self.left().saturating_sub(1));
        MOST.min(room as usize)
    }

    /// What the stages were asked for, now that they have answered, unless their answer no longer counts.
    pub fn admission_answered(&mut self) -> Option<Admission> {
        if self.overtaken.admissions > 0 {
            self.overtaken.admissions -= 1;
            return None;
        }
        let State::Admitting(admission) = self.state else { return None };
        Some(admission)
    }

    /// What of it is computed in a step, with what was proposed unless the step goes without.
    pub fn entry(&mut self, now: Time, share: &SequenceShare, way: Strategy) -> Option<StepEntry> {
        let (request, all) = (share.request, self.len());
        self.stepped.get_or_insert(now);
        match (share.part, &mut self.state) {
            (RequestPhase::Answer, State::Decoding { .. }) => {
                let mut tokens = vec![*self.tokens.last()?];
                if way != Strategy::Plain {
                    tokens.append(&mut self.drafts.tokens);
                }
                self.drafts.checked = tokens.len() as u32 - 1;
                Some(StepEntry { request, start: all - 1, tokens, sample: true, prompt: false })
            }
            (RequestPhase::Prompt, State::Prefilling { sent, .. }) => {
                let start = *sent;
                let end = (start + share.tokens).min(all);
                let tokens = self.tokens[start as usize..end as usize].to_vec();
                *sent = end;
                Some(StepEntry { request, start, tokens, sample: end == all && self.first.is_none(), prompt: true })
            }
            _ => None,
        }
    }
}
