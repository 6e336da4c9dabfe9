//! The data plane's streams: how each begins, what is said on it, and how it is cut into frames.
//!
//! A stream is a sequence of frames: four bytes of length (little-endian), then that many bytes. The first frame of
//! every stream is an [`Opening`]; on the first stream of a connection it is `Opening::Prove` and nothing else is
//! answered before that exchange ends well.

pub use crate::generation::Generation;

use crate::RequestId;
use crate::{
    BytesPerSecond, Gossip, GroupId, KvCodec, ModelId, PromptCodec, Sampled, Seconds, Signed, Token,
    codec::{self, CodecError},
    encoder::EncodeRequest,
    kv::{Delivery, KvHeader, KvPace},
    limits,
    proof::{Code, Nonce},
    reason::shorten,
    response_log::ResponseLogHead,
    ring::{KvTarget, RingHello, check_targets},
    sampling::{PromptLogprob, check_prompt_logprobs},
};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// ALPN of the data plane.
pub const ALPN: &[u8] = b"tsnode/1";
/// Bytes in front of a frame.
pub const FRAME_HEADER: usize = 4;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ConnectionUse {
    /// Whatever either end opens.
    Anything,
    /// A part of KV transfers, beside one for anything.
    KvStream,
}

/// The first frame of a stream.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Opening {
    /// Proof of membership: the dialer's nonce, and what the connection is for. Answer: [`ProofAnswer`]; then the dialer's [`Code`].
    Prove(Nonce, ConnectionUse),
    /// Gateway → leader of a decode or mixed group.
    Decode(DecodeRequest),
    /// Gateway → leader of a prefill group.
    Prefill(PrefillRequest),
    /// Stage → next stage.
    Ring(RingHello),
    /// Prefill stage → decode stage.
    Kv(KvHeader),
    /// Anyone → a peer with the model: one of its small files. Answer: one frame with its bytes.
    File {
        /// The model.
        model: ModelId,
        /// The file's name in its GPU.
        name: String,
    },
    /// Gateway → replica: what a client gets, as it gets it, in [`crate::response_log::ResponseLogPart`]s.
    ResponseLog(ResponseLogHead),
    /// Anyone → likely replicas: what a client got who asked for just this. Answer: the [`ResponseLogHead`] and parts, or nothing.
    Recall(ResponseLogHead),
    /// Measures the link: frames of nothing but zeros, each answered by a [`TrainSeen`].
    Probe {
        /// Bytes that will be sent at most, in all frames together.
        bytes: u32,
    },
    /// Asks where this connection is seen to come from: behind an address translation only others know. Answer:
    /// [`SeenAt`].
    Where,
    /// Both ends dial each other now, so that what stands between them takes either's packets for answers. The
    /// opener's addresses; answer: [`Meeting`], the listener's.
    Meet(Meeting),
    /// Member of a group → its leader; leader, or whoever has no group → those who listen: signed heartbeats, the sender's
    /// own and those that it leads. No answer.
    Heartbeats(Vec<Signed<Gossip>>),
    /// Gateway → a peer that lends an encoder. Answer: [`crate::EncodeEvent`]s.
    Encode(EncodeRequest),
    /// Anyone → a peer with the model: its weights. Then [`crate::weights::WeightsQuery`]s, one after the other, each answered before
    /// the next.
    Weights(ModelId),
}

/// The most bytes one probe may send.
pub const PROBE_BYTES: u32 = 1 << 25;
/// Addresses in one meeting: whoever is asked sends packets to all of them.
pub const MEETING_ADDRESSES: usize = 8;

/// Where a connection is seen to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SeenAt {
    /// Nothing where it is not seen: it came over a third peer.
    pub address: Option<SocketAddr>,
}

/// Where one end of a meeting may be reached (UDP).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Meeting {
    /// At most [`MEETING_ADDRESSES`].
    pub addresses: Vec<SocketAddr>,
}

impl Meeting {
    /// Refuses one of too many addresses.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.addresses.len() > MEETING_ADDRESSES {
            return Err(CodecError::Invalid("too many addresses to meet at"));
        }
        Ok(())
    }
}

/// How a frame of a probe arrived.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct TrainSeen {
    /// How fast; nothing where too little arrived to tell.
    pub rate: Option<BytesPerSecond>,
}

/// The listener's half of the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProofAnswer {
    /// The listener's nonce.
    pub nonce: Nonce,
    /// The listener's code.
    pub code: Code,
}

/// Asks a decode group to take a sequence.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct DecodeRequest {
    /// Names the request at gateway and groups alike.
    pub request: RequestId,
    /// The group, as the gateway's plan names it.
    pub group: GroupId,
    /// All tokens of the prompt.
    pub prompt: Vec<Token>,
    /// Tokens of the answer that the client has already: another group began it, and could not end it.
    pub answered: Vec<Token>,
    /// What to generate, `answered` counted in.
    pub generation: Generation,
    /// Whether KV will come from a prefill group; otherwise this group prefills too.
    pub await_kv: bool,
    /// What the prompt's KV goes through wherever it is computed. It is chosen once for a request, so that a request that
    /// moves gets the very tokens it would have got where it was. Where KV comes from a prefill group it is that of as many tokens
    /// as this says, and this group computes the others.
    pub codec: PromptCodec,
}

/// Gateway → decode leader, after [`DecodeRequest`].
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum DecodeOrder {
    /// The prefill group chose this first token: decode from it once the KV is there.
    Begin(Token),
    /// The remote prefill failed: prefill here. `first` is set when the client already has the first token.
    PrefillHere {
        /// The first token, if it is known.
        first: Option<Token>,
    },
}

/// Why a leader refuses what comes for a group that the plan has dropped.
pub const PLAN_CHANGED: &str = "the plan has changed";
/// Why a peer refuses what comes for a group that it has not, or no more.
pub const NOT_LED: &str = "this peer does not lead that group";
/// Why a leader refuses what comes while its group has no ring: it builds one.
pub const NOT_UP: &str = "the group is not up";

/// Decode leader → gateway.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum DecodeEvent {
    /// Pages are reserved; KV may be sent.
    Granted {
        /// Tokens of the prompt that need not be computed: another request began with them.
        cached: u32,
    },
    /// Not taken: no pages, not this plan, not this group. The gateway may ask another group.
    Refused(String),
    /// All KV is here (remote prefill), this long after the grant.
    KvArrived {
        /// Since the grant.
        after: Seconds,
        /// How it came, stream by stream.
        deliveries: Vec<Delivery>,
    },
    /// This group has computed the prompt.
    Computed(Computed),
    /// KV did not come or did not fit; the group prefills the prompt itself.
    KvFailed(String),
    /// The next token. Index 0 is the first one after the prompt, sent only if this group prefilled.
    Token {
        /// Place in the answer.
        index: u32,
        /// The token.
        sampled: Sampled,
    },
    /// The sequence has ended.
    End(End),
    /// Of the prompt's tokens, where asked for; all of them before the first token of the answer that this group chooses.
    PromptLogprobs {
        /// Place of the first of these; that of the prompt's second token is 0.
        from: u32,
        /// As many as one message may have, but for the last ones.
        logprobs: Vec<PromptLogprob>,
    },
}

impl DecodeEvent {
    /// Leaves no more of a reason in it than is kept.
    pub fn shorten_reason(&mut self) {
        if let Self::Refused(why) | Self::KvFailed(why) | Self::End(End::Failed(why)) = self {
            shorten(why);
        }
    }

    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        match self {
            Self::PromptLogprobs { logprobs, .. } => check_prompt_logprobs(logprobs),
            Self::Token { sampled, .. } => sampled.check(),
            // Each stage of the group says of its own that they are no more than the stages they may come from.
            Self::KvArrived { deliveries, .. } if deliveries.len() > limits::STAGES * limits::STAGES => {
                Err(CodecError::Invalid("KV in too many pieces"))
            }
            _ => Ok(()),
        }
    }
}

/// What computing a prompt took at the leader of the group that did it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Computed {
    /// From its coming to the first step with tokens of it.
    pub queued: Seconds,
    /// From there to the token that follows it.
    pub took: Seconds,
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A stop token came.
    Stop,
    /// `max_new_tokens` were generated, or the context is full.
    Length,
    /// Something failed; the text says what.
    Failed(String),
}

/// Asks a prefill group for the first token, and to send the KV.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct PrefillRequest {
    /// Names the request at gateway and groups alike.
    pub request: RequestId,
    /// The group, as the gateway's plan names it.
    pub group: GroupId,
    /// Tokens of the prompt, as far as this group computes it.
    pub prompt: Vec<Token>,
    /// How the first token is chosen.
    pub generation: Generation,
    /// Stages of the decode group.
    pub targets: Vec<KvTarget>,
    /// Packing of the KV.
    pub codec: KvCodec,
    /// When it leaves.
    pub pace: KvPace,
}

/// Prefill leader → gateway.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum PrefillEvent {
    /// The prompt is computed, or the part of it that was asked for.
    First {
        /// The first token of the answer.
        sampled: Sampled,
        /// What that took.
        computed: Computed,
        /// Tokens of the prompt that were not computed: another request had begun with them.
        cached: u32,
    },
    /// Every stage has sent its KV and had it confirmed.
    KvSent {
        /// Payload bytes.
        bytes: u64,
        /// From acceptance to the last confirmation.
        after: Seconds,
    },
    /// It will not happen.
    Failed(String),
}

impl PrefillEvent {
    /// Leaves no more of a reason in it than is kept.
    pub fn shorten_reason(&mut self) {
        if let Self::Failed(why) = self {
            shorten(why);
        }
    }

    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        match self {
            Self::First { sampled, .. } => sampled.check(),
            Self::KvSent { .. } | Self::Failed(_) => Ok(()),
        }
    }
}

/// The length in front of a frame of `bytes`.
///
/// # Errors
/// When the frame is larger than `limit`.
pub fn frame_header(bytes: usize, limit: usize) -> Result<[u8; FRAME_HEADER], CodecError> {
    if bytes > limit {
        return Err(CodecError::TooLarge { bytes, limit });
    }
    u32::try_from(bytes).map(u32::to_le_bytes).map_err(|_| CodecError::TooLarge { bytes, limit })
}

/// The length a frame header announces.
///
/// # Errors
/// When it is larger than `limit`.
pub fn frame_length(header: [u8; FRAME_HEADER], limit: usize) -> Result<usize, CodecError> {
    let bytes = u32::from_le_bytes(header) as usize;
    if bytes > limit {
        return Err(CodecError::TooLarge { bytes, limit });
    }
    Ok(bytes)
}

/// Reads the content of a control frame.
///
/// # Errors
/// When it is too large, of another version or malformed.
pub fn decode_frame<T: codec::Wire>(bytes: &[u8]) -> Result<T, CodecError> {
    codec::decode::<T, { limits::FRAME_BYTES }>(bytes)
}

impl Opening {
    /// Refuses openings out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        let prompt = |p: &[Token]| {
            if p.is_empty() || p.len() > limits::SEQUENCE_TOKENS as usize {
                return Err(CodecError::Invalid("prompt empty or too long"));
            }
            Ok(())
        };
        match self {
            Self::Decode(d)
                if d.answered.len()
                    > limits::SEQUENCE_TOKENS as usize - d.prompt.len().min(limits::SEQUENCE_TOKENS as usize) =>
            {
                Err(CodecError::Invalid("answer too long"))
            }
            Self::Decode(d) => prompt(&d.prompt).and_then(|()| d.codec.check()).and_then(|()| d.generation.check()),
            Self::Prefill(p) => {
                check_targets(&p.targets)?;
                prompt(&p.prompt).and_then(|()| p.generation.check())
            }
            Self::Ring(hello) if hello.stages.len() > limits::STAGES => Err(CodecError::Invalid("too many stages")),
            Self::Ring(hello) if usize::from(hello.position) >= hello.stages.len() => {
                Err(CodecError::Invalid("no such stage"))
            }
            Self::Kv(header) => header.check(),
            Self::File { name, .. } if name.len() > 64 => Err(CodecError::Invalid("file name too long")),
            Self::Meet(meeting) => meeting.check(),
            Self::Encode(request) => request.check(),
            Self::Heartbeats(words) if !(1..=limits::HEARTBEATS).contains(&words.len()) => {
                Err(CodecError::Invalid("no heartbeats, or too many"))
            }
            Self::Probe { bytes } if *bytes > PROBE_BYTES => Err(CodecError::Invalid("probe too large")),
            _ => Ok(()),
        }
    }
}
