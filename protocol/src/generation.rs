//! What a request generates, and when it stops.

use crate::{RequestClass, Sampling, Token, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// What is generated and when to stop.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Generation {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate.
    pub max_new_tokens: u32,
    /// Tokens that end the answer; they are reported, then `End::Stop`.
    pub stop_tokens: Vec<Token>,
    /// For whom it is.
    #[serde(default)]
    pub class: RequestClass,
}

impl Generation {
    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.stop_tokens.len() > limits::STOP_TOKENS || self.max_new_tokens > limits::SEQUENCE_TOKENS {
            return Err(CodecError::Invalid("generation limits out of range"));
        }
        self.sampling.check()
    }
}
