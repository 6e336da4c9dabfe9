//! What a gateway is told and says, and how it behaves.

use super::Trace;
use crate::{
    gate::{KvChoice, Overrule, SplitChoice},
    policy::choice::Dispatch,
    spot_check::CheckedAnswer,
    trust::Offence,
    view::View,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    GroupId, KvCodec, ModelId, PeerId, PromptCodec, PromptLogprob, RequestId, Sampled, Token,
    kv::KvPace,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, End, Generation, PrefillEvent, PrefillRequest},
};

/// How a gateway behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// Requests open at once.
    pub max_requests: usize,
    /// How long a decode group with other work may take to grant pages: longer than it lets a request wait for them.
    pub grant_patience: Duration,
    /// How long a request may go without a sign of progress where it is not known what that takes, or where its group works
    /// for others meanwhile.
    pub progress_patience: Duration,
    /// When to tell a client to ask again.
    pub retry_after: Duration,
    /// How long a request that was begun waits for a group that can go on with it.
    pub unrouted_patience: Duration,
    /// How long any other waits for its model, where that is not in memory since devices serve more than they hold at once: for
    /// others' answers to end, and for its weights to be read.
    pub loading_patience: Duration,
    /// Packing of KV that is sent.
    pub kv: KvChoice,
    /// What every prompt's KV goes through, sent or not, where its client does not say: the same request is then answered with the
    /// same tokens every time.
    pub fixed: Option<KvCodec>,
    /// When KV leaves, where it is not as pays.
    pub pace: Option<KvPace>,
    /// Whether the cost gate is asked.
    pub split: SplitChoice,
    /// Bytes of a KV element in pages; of a model that is not among [`Self::model_element_bytes`].
    pub element_bytes: u64,
    /// The same of models that this peer keeps otherwise: of what others keep theirs in nothing is said.
    pub model_element_bytes: BTreeMap<ModelId, u64>,
    /// How requests are routed.
    pub dispatch: Dispatch,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            grant_patience: Duration::from_secs(40),
            progress_patience: Duration::from_secs(60),
            retry_after: Duration::from_secs(2),
            unrouted_patience: Duration::from_secs(60),
            loading_patience: Duration::from_secs(600),
            kv: KvChoice::Auto,
            fixed: None,
            pace: None,
            split: SplitChoice::Auto,
            element_bytes: 2,
            model_element_bytes: BTreeMap::new(),
            dispatch: Dispatch::Live,
        }
    }
}

impl GatewayConfig {
    /// Bytes of an element of a model's KV in pages.
    #[must_use]
    pub fn element_bytes(&self, model: ModelId) -> u64 {
        self.model_element_bytes.get(&model).copied().unwrap_or(self.element_bytes)
    }
}

/// What happens to requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A client's request.
    Submit {
        /// Its name.
        request: RequestId,
        /// The model.
        model: ModelId,
        /// The prompt.
        prompt: Vec<Token>,
        /// What to generate.
        generation: Generation,
        /// What its client has already, from a gateway that died.
        begun: Option<Begun>,
        /// Where its client wants the prompt computed, if it says so.
        overrule: Option<Overrule>,
        /// What its client wants the prompt's KV to go through, if it says so.
        codec: Option<PromptCodec>,
    },
    /// The client no longer wants it.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// The swarm has changed.
    View(View),
    /// The decode leader says something.
    Decode {
        /// The request.
        request: RequestId,
        /// What.
        event: DecodeEvent,
    },
    /// The line to the decode leader ended without an end.
    DecodeLost {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// The prefill leader says something.
    Prefill {
        /// The request.
        request: RequestId,
        /// What.
        event: PrefillEvent,
    },
    /// The line to the prefill leader ended without an end.
    PrefillLost {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// Who gives no sign of life now though its connections are open (`crate::probe`): all of them, each time.
    Unresponsive {
        /// Whom nothing is to be sent to where others are.
        peers: BTreeSet<PeerId>,
    },
    /// This process was not run for a while, or its host slept, and is told so before anything else that has come of it.
    Woke,
    /// The time [`Gateway::deadline`] asked for.
    Deadline,
}

impl Event {
    /// Whose it is, if it is one request's.
    pub(super) fn request(&self) -> Option<RequestId> {
        match self {
            Self::Submit { request, .. }
            | Self::Cancel { request }
            | Self::Decode { request, .. }
            | Self::DecodeLost { request, .. }
            | Self::Prefill { request, .. }
            | Self::PrefillLost { request, .. } => Some(*request),
            Self::View(_) | Self::Unresponsive { .. } | Self::Woke | Self::Deadline => None,
        }
    }
}

/// An answer that another gateway began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// What its prompt's KV goes through.
    pub codec: PromptCodec,
    /// The group that computed its prompt for another, as far as that gateway said: it may still have it.
    pub holder: Option<GroupId>,
    /// The answer so far. None of it where nobody knows but the client, who has some and says what it rests on.
    pub answer: Vec<Token>,
}

/// What a gateway does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask this leader to decode.
    OpenDecode {
        /// The request.
        request: RequestId,
        /// Whom.
        leader: PeerId,
        /// What to ask.
        open: DecodeRequest,
    },
    /// Ask this leader to prefill.
    OpenPrefill {
        /// The request.
        request: RequestId,
        /// Whom.
        leader: PeerId,
        /// What to ask.
        open: PrefillRequest,
    },
    /// Tell the decode leader.
    Order {
        /// The request.
        request: RequestId,
        /// What.
        order: DecodeOrder,
    },
    /// Hang up on the decode leader.
    CloseDecode {
        /// The request.
        request: RequestId,
    },
    /// Hang up on the prefill leader.
    ClosePrefill {
        /// The request.
        request: RequestId,
    },
    /// Tell the client that it is being served.
    Accepted {
        /// The request.
        request: RequestId,
        /// Who prefills.
        prefill: PeerId,
        /// Who decodes.
        decode: PeerId,
    },
    /// Tell the client that nobody serves it now.
    Unserved {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
        /// When to ask again.
        retry_after: Duration,
    },
    /// Give the client what is said of the prompt's tokens; all of it, in parts, before the first token that is chosen after.
    PromptLogprobs {
        /// The request.
        request: RequestId,
        /// What is said of the next ones.
        logprobs: Vec<PromptLogprob>,
    },
    /// Give the client the next token.
    Token {
        /// The request.
        request: RequestId,
        /// Place in the answer.
        index: u32,
        /// The token.
        sampled: Sampled,
    },
    /// The client has its first token: from now on the prompt's KV goes through this wherever the request goes. Said again when
    /// another group holds it.
    Settled {
        /// The request.
        request: RequestId,
        /// The packing, and of how many tokens.
        codec: PromptCodec,
        /// The group that computed the prompt for another.
        holder: Option<GroupId>,
    },
    /// A peer has done what it should not.
    Blame {
        /// Who.
        peer: PeerId,
        /// What.
        offence: Offence,
    },
    /// It ended well, all of it computed where it began; right before the end.
    Served(CheckedAnswer),
    /// What ran where; right before the end.
    Trace(Box<Trace>),
    /// What had run where for a client that hung up, as far as it came here.
    HungUp(Box<Trace>),
    /// Tell the client that this was all.
    End {
        /// The request.
        request: RequestId,
        /// How it ended.
        end: End,
    },
}
