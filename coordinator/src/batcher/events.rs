//! What a batcher hears, and what it does.

use super::{NewSequence, speculation::DraftRequest};
use crate::policy::choice::Batches;
use std::time::Duration;
use tsnode_protocol::{
    PromptLogprob, RequestId, Sampled, Seconds, Token,
    kv::Delivery,
    ring::{Refusal, RingFrame},
    stream::{Computed, End},
};

/// What happens to a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A new sequence.
    Submit(NewSequence),
    /// The gateway has the first token from the prefill group.
    Begin {
        /// The sequence.
        request: RequestId,
        /// The token.
        first: Token,
    },
    /// The remote prefill failed.
    PrefillHere {
        /// The sequence.
        request: RequestId,
        /// The first token, if the client has it already.
        first: Option<Token>,
    },
    /// The gateway no longer wants it.
    Cancel {
        /// The sequence.
        request: RequestId,
    },
    /// From the ring: pages reserved, or not.
    Admitted {
        /// The sequence.
        request: RequestId,
        /// Why not.
        refused: Option<Refusal>,
    },
    /// From the ring: room for more, or not.
    Grown {
        /// The sequence.
        request: RequestId,
        /// Why not.
        refused: Option<Refusal>,
    },
    /// From the ring: a step is done.
    Sampled {
        /// Its number.
        step: u64,
        /// The tokens chosen.
        tokens: Vec<(RequestId, Sampled)>,
        /// How long the leader's compute thread has computed since it began; nothing where that is not what the group has.
        busy: Option<Duration>,
    },
    /// From the ring: what the last stage says of a prompt's tokens.
    PromptLogprobs {
        /// The sequence.
        request: RequestId,
        /// Place of the first of these.
        from: u32,
        /// What it says.
        logprobs: Vec<PromptLogprob>,
    },
    /// From the ring: a stage has its KV, or gave up.
    KvArrived {
        /// The sequence.
        request: RequestId,
        /// Place of the stage.
        position: u16,
        /// How it came, or why the stage gave up.
        arrived: Result<Vec<Delivery>, String>,
    },
    /// From the ring: a stage has sent its KV, or could not.
    KvSent {
        /// The sequence.
        request: RequestId,
        /// Place of the stage.
        position: u16,
        /// Payload bytes.
        bytes: u64,
        /// Why it could not.
        failed: Option<String>,
    },
    /// From the ring: no token can be chosen.
    Failed {
        /// The sequence.
        request: RequestId,
        /// Why not.
        reason: String,
    },
    /// From the draft model: what it was asked for, or nothing.
    Drafted {
        /// The step that waits for it.
        step: u64,
        /// Tokens that may come next.
        drafts: Vec<(RequestId, Vec<Token>)>,
    },
    /// The ring is no more: nothing on it exists any longer.
    RingBroken {
        /// Why.
        reason: String,
    },
    /// Steps are to be formed so from now on.
    BatchBy(Batches),
    /// The time [`Batcher::deadline`] asked for.
    Deadline,
}

/// What a group does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this round the ring.
    Ring(RingFrame),
    /// Have the draft model propose; the step waits for [`Event::Drafted`], which must come.
    Propose {
        /// The step.
        step: u64,
        /// Of which answers, and how many.
        wanted: Vec<DraftRequest>,
    },
    /// The draft model is asked no more about a sequence that it was told of.
    NoDrafts {
        /// The sequence.
        request: RequestId,
    },
    /// Pages are reserved; KV may come.
    Granted {
        /// The sequence.
        request: RequestId,
        /// Tokens of its prompt that need not be computed here.
        cached: u32,
    },
    /// It is not taken.
    Refused {
        /// The sequence.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// All KV is here.
    KvArrived {
        /// The sequence.
        request: RequestId,
        /// Since the grant.
        after: Seconds,
        /// How it came to every stage.
        deliveries: Vec<Delivery>,
    },
    /// The prompt is computed here; right before the first token.
    Computed {
        /// The sequence.
        request: RequestId,
        /// What that took.
        computed: Computed,
    },
    /// KV did not come; the prompt is computed here.
    KvFailed {
        /// The sequence.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// What is said of the prompt's tokens, where asked for: all of it, in parts, before the first token chosen here.
    PromptLogprobs {
        /// The sequence.
        request: RequestId,
        /// Place of the first of these.
        from: u32,
        /// What is said.
        logprobs: Vec<PromptLogprob>,
    },
    /// The next token.
    Token {
        /// The sequence.
        request: RequestId,
        /// Place in the answer.
        index: u32,
        /// The token.
        sampled: Sampled,
    },
    /// The first token of a prompt whose KV goes elsewhere.
    First {
        /// The sequence.
        request: RequestId,
        /// The token.
        sampled: Sampled,
        /// What that took.
        computed: Computed,
        /// Tokens of the prompt that were not computed here.
        cached: u32,
    },
    /// All KV is sent and confirmed; the last word on such a sequence.
    KvSent {
        /// The sequence.
        request: RequestId,
        /// Payload bytes.
        bytes: u64,
        /// Since submission.
        after: Seconds,
    },
    /// The one end of any other sequence.
    End {
        /// The sequence.
        request: RequestId,
        /// How.
        end: End,
    },
}
