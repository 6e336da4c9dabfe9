//! What is known of an answer outside its gateway: a client whose gateway died goes on at any other peer.
//!
//! A gateway opens one stream for each request to a replica ([`crate::stream::Opening::ResponseLog`]), says each few tokens what the
//! client got, and ends the stream with the answer. Whoever is asked for a request it does not know asks likely replicas
//! ([`crate::stream::Opening::Recall`]), which answer with a [`ResponseLogHead`] and parts, or with nothing. Nothing of a prompt is
//! in a response log: the client says it again, and a fingerprint tells whether it is the same.

use crate::{
    GroupId, ModelId, PeerId, PromptCodec, RequestId, Sampled, Token, codec, codec::CodecError, generation::Generation,
};
use bincode::{Decode, Encode};

/// Tokens in one part.
pub const PART_TOKENS: usize = 2048;

/// A hash of everything an answer depends on but what its prompt's KV goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of a prompt and what is to be generated after it.
    #[must_use]
    pub fn of(model: ModelId, prompt: &[Token], generation: &Generation) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tsnode 2026 response log fingerprint");
        hasher.update(&model.0).update(&(prompt.len() as u64).to_le_bytes());
        for token in prompt {
            hasher.update(&token.0.to_le_bytes());
        }
        hasher.update(&codec::encode(generation));
        Self(*hasher.finalize().as_bytes())
    }
}

/// Whose response log a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ResponseLogHead {
    /// The request; only its client and its peers know it.
    pub request: RequestId,
    /// What was asked.
    pub asked: Fingerprint,
}

/// The next tokens of an answer.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct ResponseLogPart {
    /// What the prompt's KV has gone through: the tokens rest on it.
    pub codec: PromptCodec,
    /// The group that computed the prompt for another: it may have it still.
    pub holder: Option<GroupId>,
    /// The tokens, each with its log-probability if that is known.
    pub tokens: Vec<Sampled>,
}

impl ResponseLogPart {
    /// Refuses parts out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.tokens.len() > PART_TOKENS {
            return Err(CodecError::Invalid("response log part too large"));
        }
        self.tokens.iter().try_for_each(Sampled::check)?;
        self.codec.check()
    }
}

/// What of a response log is in a ledger on a disk. Times are in seconds since 1970 by the writer's clock.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Record {
    /// A response log begins; one of the same request and gateway is replaced.
    Begin {
        /// Whose.
        head: ResponseLogHead,
        /// The gateway whose client it is.
        gateway: PeerId,
        /// When.
        at: u64,
    },
    /// It goes on.
    Part {
        /// The request.
        request: RequestId,
        /// The gateway.
        gateway: PeerId,
        /// Place of the part's first token in the answer.
        from: u32,
        /// The tokens.
        part: ResponseLogPart,
        /// When.
        at: u64,
    },
    /// It is of no use any more.
    Forget {
        /// The request.
        request: RequestId,
        /// The gateway.
        gateway: PeerId,
    },
}
