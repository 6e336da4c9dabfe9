//! Prompt flow 1: what a client's request looks like inside the peer that took it, and the channel that takes it.

mod clients;
mod drive;
mod leader_reach;
mod sleep_watch;
mod spot_checks;

pub use drive::Drive;
pub use tsnode_coordinator::gateway::Trace;

use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::gate::Overrule;
use tsnode_protocol::{
    ModelId, PeerId, PromptCodec, PromptLogprob, RequestId, Sampled, Token,
    stream::{End, Generation},
};

/// Requests waiting to be looked at by the gateway; above it the HTTP side waits.
pub const SUBMISSIONS: usize = 256;

/// A request, tokenised and checked against the model's context.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedRequest {
    /// The request.
    pub request: RequestId,
    /// The model.
    pub model: ModelId,
    /// The prompt; at least one token.
    pub prompt: Vec<Token>,
    /// What to generate.
    pub generation: Generation,
    /// Its client may have been served before, here or by another gateway: it goes on from there.
    pub comes_back: bool,
    /// What the client says it has of its answer.
    pub seen: SeenAnswer,
    /// Where it wants the prompt computed, if it says so.
    pub overrule: Option<Overrule>,
    /// What it wants the prompt's KV to go through, if it says so.
    pub codec: Option<PromptCodec>,
}

/// How much of an answer a client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenAnswer {
    /// Tokens.
    pub tokens: usize,
    /// What they rest on, where there are any.
    pub codec: Option<PromptCodec>,
}

/// A request that a prefill and a decode group have taken.
#[derive(Debug)]
pub struct Accepted {
    /// Peer that leads the prefill.
    pub prefill: PeerId,
    /// Peer that leads the decoding.
    pub decode: PeerId,
    /// The answer, ended by exactly one [`Reply::End`]. Dropping it cancels the request.
    pub replies: mpsc::Receiver<Reply>,
    /// Cancels the request for a client that has all it wants: what still comes ends with a trace, and perhaps without an end.
    pub enough: CancellationToken,
}

/// A piece of the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// What the answer's tokens rest on: said before the first.
    Settled(PromptCodec),
    /// Log-probabilities of the prompt's next tokens from its second on, where asked for. All have come before the end, and before
    /// every token that was not known from another gateway.
    PromptLogprobs(Vec<PromptLogprob>),
    /// The next token; indices count up from 0 without gaps.
    Token {
        /// Place in the answer.
        index: u32,
        /// The token.
        sampled: Sampled,
    },
    /// What ran where, sent right before the end, or last to a client that has enough.
    Trace(Box<Trace>),
    /// The one end.
    End(End),
    /// The owner of the gateway cancelled the request; nothing follows.
    Cancelled,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// No group that is up serves the model now.
    #[error("nobody serves this model now: {reason}")]
    Unserved {
        /// What is missing.
        reason: String,
        /// When to ask again.
        retry_after: Duration,
    },
    /// The peer is shutting down.
    #[error("this peer is shutting down")]
    Closing,
}

/// A request on its way to the gateway.
#[derive(Debug)]
pub struct Submission {
    /// The request.
    pub prompt: PreparedRequest,
    /// Where to say whether it was taken.
    pub answer: oneshot::Sender<Result<Accepted, SubmitError>>,
}

/// The way to the gateway of this peer.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    submissions: mpsc::Sender<Submission>,
}

impl GatewayHandle {
    /// A gateway handle and the receiving end for whoever drives it.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Submission>) {
        let (submissions, receiver) = mpsc::channel(SUBMISSIONS);
        (Self { submissions }, receiver)
    }

    /// Hands a request over and waits until it is routed and granted, or refused.
    ///
    /// # Errors
    /// When nobody can serve it now.
    pub async fn submit(&self, prompt: PreparedRequest) -> Result<Accepted, SubmitError> {
        let (answer, accepted) = oneshot::channel();
        self.submissions.send(Submission { prompt, answer }).await.map_err(|_| SubmitError::Closing)?;
        accepted.await.map_err(|_| SubmitError::Closing)?
    }
}
