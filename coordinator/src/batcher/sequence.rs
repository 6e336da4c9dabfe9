//! A sequence as its leader sees it.

use super::{BatcherConfig, steps::Share};
use crate::{Time, policy::batching::Part};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    RequestId, Seconds, Token,
    ring::{KvExport, StepEntry},
    stream::{End, Generation},
};

/// The stages give up on late KV themselves; the leader does a moment later, should it not hear of it.
const GRACE: Duration = Duration::from_secs(2);

/// A sequence that enters a group.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSequence {
    /// Its name.
    pub request: RequestId,
    /// Its prompt.
    pub prompt: Vec<Token>,
    /// Most tokens it may reach here, prompt included.
    pub max_tokens: u32,
    /// What to generate.
    pub generation: Generation,
    /// What this group does of it.
    pub kind: Kind,
}

/// What a group does of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Prompt and answer.
    Local,
    /// The answer only; KV and first token come from elsewhere.
    AwaitKv,
    /// The prompt and the first token; the KV goes elsewhere.
    Export(KvExport),
}

#[derive(Debug)]
pub(super) enum State {
    /// Has no pages.
    Waiting { first: Option<Token> },
    /// The stages are asked for pages.
    Admitting { first: Option<Token> },
    /// Has pages; KV has arrived at some stages.
    AwaitingKv { since: Time, arrived: BTreeSet<u16>, first: Option<Token> },
    /// Computes its prompt: `sent` tokens are on their way or computed, `done` are computed. `first` is known where only
    /// the KV was lost.
    Prefilling { sent: u32, done: u32, first: Option<Token> },
    /// Computes its answer, of which `generated` tokens exist.
    Decoding { last: Token, generated: u32 },
    /// Its KV is on its way to another group.
    Sending,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub prompt: Vec<Token>,
    pub max_tokens: u32,
    pub generation: Generation,
    pub kind: Kind,
    pub state: State,
    /// The gateway has been told that there are pages.
    pub granted: bool,
    /// Admissions under way whose answer no longer counts.
    pub overtaken: u32,
    /// Bytes sent by stage.
    pub sent: BTreeMap<u16, u64>,
    pub submitted: Time,
    pub waits_since: Time,
}

impl Sequence {
    pub fn new(now: Time, new: NewSequence) -> Self {
        Self {
            prompt: new.prompt,
            max_tokens: new.max_tokens,
            generation: new.generation,
            kind: new.kind,
            state: State::Waiting { first: None },
            granted: false,
            overtaken: 0,
            sent: BTreeMap::new(),
            submitted: now,
            waits_since: now,
        }
    }

    pub fn awaits_kv(&self) -> bool {
        self.kind == Kind::AwaitKv
    }

    pub fn age(&self, now: Time) -> Seconds {
        Seconds(now.saturating_sub(self.submitted).as_secs_f64())
    }

    pub fn deadline(&self, config: &BatcherConfig) -> Option<Time> {
        match &self.state {
            State::Waiting { .. } => Some(self.waits_since + config.admission_patience),
            State::AwaitingKv { since, arrived, .. } if arrived.len() < config.stages => {
                Some(*since + config.kv_patience + GRACE)
            }
            _ => None,
        }
    }

    /// Whether the answer ends with `last`, its `generated`-th token.
    pub fn end_after(&self, last: Token, generated: u32) -> Option<End> {
        if self.generation.stop_tokens.contains(&last) {
            return Some(End::Stop);
        }
        let full = self.prompt.len() as u32 + generated >= self.max_tokens;
        (generated >= self.generation.max_new_tokens || full).then_some(End::Length)
    }

    /// Tokens it may still generate after its `generated`-th.
    pub fn left(&self, generated: u32) -> u32 {
        let room = self.max_tokens.saturating_sub(self.prompt.len() as u32);
        room.min(self.generation.max_new_tokens).saturating_sub(generated).max(1)
    }

    /// What of it is computed in a step.
    pub fn entry(&mut self, share: &Share) -> Option<StepEntry> {
        let request = share.request;
        match (share.part, &mut self.state) {
            (Part::Answer, State::Decoding { last, generated }) => {
                let start = self.prompt.len() as u32 + *generated - 1;
                Some(StepEntry { request, start, tokens: vec![*last], sample: true, prompt: false })
            }
            (Part::Prompt, State::Prefilling { sent, first, .. }) => {
                let start = *sent;
                let end = (start + share.tokens).min(self.prompt.len() as u32);
                let whole = end as usize == self.prompt.len();
                let tokens = self.prompt[start as usize..end as usize].to_vec();
                *sent = end;
                Some(StepEntry { request, start, tokens, sample: whole && first.is_none(), prompt: true })
            }
            _ => None,
        }
    }
}
