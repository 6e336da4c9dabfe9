//! Inside a group: frames that travel once round the ring leader → stage 1 → … → last stage → leader.
//!
//! Every stage handles a frame and passes it on, so what the leader says arrives everywhere in the order it was
//! said. A ring lives as long as all its streams; when one ends, all end, and with them the sequences in it.

use crate::{
    GroupId, KvCodec, LayerRange, ModelId, PeerId, RequestId, RingId, Sampled, Sampling, Stage, Token,
    codec::CodecError,
    kv::{Delivery, KvPace},
    limits,
    reason::shorten,
    sampling::{PromptLogprob, check_prompt_logprobs},
};
use bincode::{Decode, Encode};
use std::net::SocketAddr;

/// Opens the stream from one stage to the next.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RingHello {
    /// The group whose ring it is.
    pub group: GroupId,
    /// This life of its ring.
    pub ring: RingId,
    /// The model that the group serves.
    pub model: ModelId,
    /// All stages in order; the receiver finds itself at `position`, 0 being the leader.
    pub stages: Vec<Stage>,
    /// Place of the receiver.
    pub position: u16,
}

/// One frame on the ring. An activation frame of raw bytes follows a `Step` wherever `rows > 0`.
#[expect(clippy::large_enum_variant, reason = "of many steps few are admissions, and frames are not kept")]
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum RingFrame {
    /// From the leader: take pages for a sequence.
    Admit(Admit),
    /// From the leader: compute some tokens of some sequences.
    Step(Step),
    /// From the leader: make room for more of a sequence.
    Grow(Grow),
    /// From the leader: the sequence has ended; free its pages.
    Release(RequestId),
    /// From the leader: the sequence has ended, or waits; keep its first tokens for sequences that begin alike, until they
    /// are forgotten or their memory is needed.
    Keep {
        /// The sequence.
        request: RequestId,
        /// What is kept.
        prefix: PrefixId,
        /// So many tokens.
        tokens: u32,
    },
    /// From the leader: nothing will begin with this any more.
    Forget(PrefixId),
    /// From the leader: the sequence's first tokens are computed; leave their KV as if it had been packed, sent and
    /// unpacked.
    FakeQuantise {
        /// The sequence.
        request: RequestId,
        /// So many tokens: its prompt.
        tokens: u32,
        /// The packing.
        codec: KvCodec,
    },
    /// To the leader: whether every stage has pages for the sequence.
    Admitted {
        /// The sequence.
        request: RequestId,
        /// Why not, from the first stage that had to refuse.
        refused: Option<Refusal>,
    },
    /// To the leader: whether every stage has the room.
    Grown {
        /// The sequence.
        request: RequestId,
        /// Why not, from the first stage that had to refuse.
        refused: Option<Refusal>,
    },
    /// To the leader: the tokens chosen at the end of a step.
    Sampled {
        /// The step's number.
        step: u64,
        /// For each entry with `sample` set, in order: one, or for an answer with draft tokens as many as hold and one more.
        tokens: Vec<(RequestId, Sampled)>,
    },
    /// To the leader: a stage holds all remote KV of its layers, or gave up on it.
    KvArrived {
        /// The sequence.
        request: RequestId,
        /// Place of the stage.
        position: u16,
        /// How it came, or why the stage gave up.
        arrived: Result<Vec<Delivery>, String>,
    },
    /// To the leader: a stage has sent all KV of its layers, or could not.
    KvSent {
        /// The sequence.
        request: RequestId,
        /// Place of the stage.
        position: u16,
        /// Payload bytes sent.
        bytes: u64,
        /// Why it could not.
        failed: Option<String>,
    },
    /// To the leader: what the last stage says of tokens of a prompt, before the tokens of the step that computed them.
    PromptLogprobs {
        /// The sequence.
        request: RequestId,
        /// Place of the first of these; that of the prompt's second token is 0.
        from: u32,
        /// No more than one message may have.
        logprobs: Vec<PromptLogprob>,
    },
    /// To the leader, before the step is told of that this came to light in: the last stage can choose no token of the
    /// sequence.
    Failed {
        /// The sequence.
        request: RequestId,
        /// Why not.
        reason: String,
    },
}

/// What a leader keeps of a sequence; its own numbers, within one life of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct PrefixId(pub u64);

/// Why a stage has no pages for a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Refusal {
    /// There are too few now.
    Full(String),
    /// There will never be enough, or the sequence cannot be.
    Never(String),
    /// What it was to begin with is gone.
    PrefixGone,
}

/// Whose tokens a sequence begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum SharedWith {
    /// One that runs.
    Running(RequestId),
    /// What is kept of one that ended.
    Kept(PrefixId),
}

/// The tokens that a sequence has in common with another: their KV is not computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SharedPrefix {
    /// The sequence, or the kept prefix, whose KV is used.
    pub with: SharedWith,
    /// How many, from the first on.
    pub tokens: u32,
}

/// A sequence enters a group.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Admit {
    /// Names the sequence in all later frames.
    pub request: RequestId,
    /// Its prompt and what is known of its answer, for penalties at the last stage.
    pub tokens: Vec<Token>,
    /// Of those, as many as belong to the answer: it was here before and had to give its pages back, or another group began
    /// it.
    pub answered: u32,
    /// Tokens that pages are reserved for; [`RingFrame::Grow`] adds to them.
    pub room: u32,
    /// Tokens it may reach: a stage that could never hold them refuses at once.
    pub most: u32,
    /// What of it is there already.
    pub shared: Option<SharedPrefix>,
    /// How the last stage chooses.
    pub sampling: Sampling,
    /// Set where KV comes from elsewhere.
    pub await_kv: Option<AwaitKv>,
    /// Set where KV goes elsewhere.
    pub export: Option<KvExport>,
    /// The first refusal so far, filled in on the way.
    pub refused: Option<Refusal>,
}

/// A sequence grows.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Grow {
    /// The sequence that needs more pages.
    pub request: RequestId,
    /// Tokens that pages are reserved for then, in all.
    pub room: u32,
    /// The first refusal so far, filled in on the way.
    pub refused: Option<Refusal>,
}

/// KV that comes from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AwaitKv {
    /// For how long a stage keeps empty pages (milliseconds).
    pub patience_ms: u32,
    /// What it goes through: tiles of an earlier coming of the same request, packed otherwise, are none of this one.
    pub codec: KvCodec,
    /// Of so many of the prompt's tokens, the first ones; those after them are computed here.
    pub tokens: u32,
}

impl Admit {
    fn check(&self) -> Result<(), CodecError> {
        let tokens = self.tokens.len();
        if self.most > limits::SEQUENCE_TOKENS || self.room > self.most || tokens > self.room as usize {
            return Err(CodecError::Invalid("sequence too long"));
        }
        // Of what is shared the last token is computed: its logits are wanted.
        if self.answered as usize >= tokens || self.shared.is_some_and(|s| s.tokens as usize >= tokens) {
            return Err(CodecError::Invalid("more of a sequence than there is"));
        }
        let prompt = tokens - self.answered as usize;
        if self.await_kv.is_some_and(|kv| kv.tokens == 0 || kv.tokens as usize > prompt) {
            return Err(CodecError::Invalid("KV of more of a prompt than there is"));
        }
        self.export.as_ref().map_or(Ok(()), |export| check_targets(&export.targets))?;
        self.sampling.check()
    }
}

/// Where a prefilled sequence's KV goes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KvExport {
    /// Stages of the decode group; each gets the layers it holds.
    pub targets: Vec<KvTarget>,
    /// How tiles are packed.
    pub codec: KvCodec,
    /// When tiles leave.
    pub pace: KvPace,
}

/// A stage that receives KV.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KvTarget {
    /// The peer that runs the stage.
    pub peer: PeerId,
    /// The layers that it holds, whose KV it gets.
    pub layers: LayerRange,
    /// Where its data plane listens.
    pub addresses: Vec<SocketAddr>,
}

/// Refuses more stages than a group has, and more addresses than a peer has.
pub(crate) fn check_targets(targets: &[KvTarget]) -> Result<(), CodecError> {
    if targets.len() > limits::STAGES {
        return Err(CodecError::Invalid("too many targets"));
    }
    if targets.iter().any(|target| target.addresses.len() > limits::ADDRESSES) {
        return Err(CodecError::Invalid("too many addresses"));
    }
    Ok(())
}

/// One iteration over a batch.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Step {
    /// Counts up within a ring.
    pub step: u64,
    /// The batch: entries in order own consecutive rows of the activations.
    pub entries: Vec<StepEntry>,
    /// Rows of activations in the frame that follows; 0 from a stage that computes none.
    pub rows: u32,
}

/// Some consecutive tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct StepEntry {
    /// The sequence whose tokens they are.
    pub request: RequestId,
    /// Position of the first token.
    pub start: u32,
    /// The tokens (the leader embeds them; the last stage keeps the generated ones for penalties). Of an answer's, all but
    /// the first are draft tokens.
    pub tokens: Vec<Token>,
    /// Whether the last stage chooses a token: of a prompt after the last of these, of an answer after each, as long as
    /// the one chosen is the one proposed.
    pub sample: bool,
    /// Whether these are tokens of the prompt.
    pub prompt: bool,
}

impl RingFrame {
    /// Leaves no more of a reason in it than is kept.
    pub fn shorten_reason(&mut self) {
        match self {
            Self::Admit(Admit { refused: Some(Refusal::Full(why) | Refusal::Never(why)), .. })
            | Self::Grow(Grow { refused: Some(Refusal::Full(why) | Refusal::Never(why)), .. })
            | Self::Admitted { refused: Some(Refusal::Full(why) | Refusal::Never(why)), .. }
            | Self::Grown { refused: Some(Refusal::Full(why) | Refusal::Never(why)), .. }
            | Self::KvArrived { arrived: Err(why), .. }
            | Self::KvSent { failed: Some(why), .. }
            | Self::Failed { reason: why, .. } => shorten(why),
            _ => {}
        }
    }

    /// Refuses frames out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        match self {
            Self::Admit(admit) => admit.check(),
            Self::KvArrived { arrived: Ok(deliveries), .. } if deliveries.len() > limits::STAGES => {
                Err(CodecError::Invalid("KV in too many pieces"))
            }
            Self::PromptLogprobs { logprobs, .. } => check_prompt_logprobs(logprobs),
            Self::Sampled { tokens, .. } if tokens.len() > limits::CHOSEN => {
                Err(CodecError::Invalid("more tokens than a step chooses"))
            }
            Self::Sampled { tokens, .. } => tokens.iter().try_for_each(|(_, sampled)| sampled.check()),
            Self::Grow(grow) if grow.room > limits::SEQUENCE_TOKENS => Err(CodecError::Invalid("sequence too long")),
            Self::Step(step) => {
                let rows: usize = step.entries.iter().map(|e| e.tokens.len()).sum();
                if step.entries.len() > limits::BATCH || step.rows as usize > rows {
                    return Err(CodecError::Invalid("step too large"));
                }
                let too_far = |e: &StepEntry| {
                    e.tokens.is_empty() || e.start as usize + e.tokens.len() > limits::SEQUENCE_TOKENS as usize
                };
                if step.entries.iter().any(too_far) {
                    return Err(CodecError::Invalid("step entry out of range"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
