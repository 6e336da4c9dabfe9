//! Encoders: models that make a vector or a score of a text. One is whole on each peer that lends it, outside every plan.
//!
//! A gateway opens a stream with an [`EncodeRequest`] ([`crate::stream::Opening::Encode`]); the lender answers with an
//! [`EncodeEvent::Encoded`] for each input, in their order, and [`EncodeEvent::Done`], or says at any point why not.

use crate::{ModelId, Token, codec::CodecError, limits, reason::shorten};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// What a gateway must know of an encoder to offer it and to ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct EncoderCard {
    /// What the model is: a hash of its weights, tokenizer and settings.
    pub id: ModelId,
    /// What people call it; shown in `/v1/models`.
    pub name: String,
    /// What it makes of a text.
    pub task: EncoderTask,
    /// Values of one vector; 1 of a score.
    pub dimensions: u32,
    /// Longest input, special tokens counted in (tokens).
    pub context: u32,
}

/// What an encoder makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EncoderTask {
    /// A vector: texts that mean the same have vectors of the same direction.
    Embed,
    /// A number for a query and a text: how well the one answers the other, from 0 to 1.
    Score,
}

/// What is to be encoded.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum EncoderInput {
    /// A text; the lender's tokenizer adds the model's special tokens.
    Text(String),
    /// Tokens, special ones and all.
    Tokens(Vec<Token>),
    /// A query and a text.
    Pair(String, String),
}

impl EncoderInput {
    /// What it takes on the wire, nearly (bytes).
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => 4 * tokens.len(),
            Self::Pair(query, text) => query.len() + text.len(),
        }
    }
}

/// Asks a peer for vectors or scores.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EncodeRequest {
    /// The encoder to use, by the id in its lender's advert.
    pub model: ModelId,
    /// At least one, at most [`limits::ENCODER_INPUTS`].
    pub inputs: Vec<EncoderInput>,
    /// Inputs are cut to so many tokens; longer ones than the model takes are refused where nothing is said.
    pub truncate: Option<u32>,
}

impl EncodeRequest {
    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if !(1..=limits::ENCODER_INPUTS).contains(&self.inputs.len()) {
            return Err(CodecError::Invalid("nothing to encode, or too much at once"));
        }
        if self.inputs.iter().map(EncoderInput::bytes).sum::<usize>() > limits::ENCODER_BYTES {
            return Err(CodecError::Invalid("inputs too long"));
        }
        Ok(())
    }
}

/// Lender → gateway.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum EncodeEvent {
    /// The next input's values.
    Encoded(Encoded),
    /// That was all.
    Done {
        /// Inputs of others that wait here now.
        waiting: u32,
    },
    /// It will not happen here.
    Refused(EncodeRefusal),
}

/// One input, encoded.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Encoded {
    /// Tokens that were computed, special ones and all.
    pub tokens: u32,
    /// The vector, or the one score.
    pub values: Vec<f32>,
}

/// Why a lender does not encode.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum EncodeRefusal {
    /// Too much waits; another lender may have room.
    #[error("{waiting} inputs wait there already")]
    Busy {
        /// Inputs that wait.
        waiting: u32,
    },
    /// It does not lend this model, or no more.
    #[error("it does not lend this model now")]
    NotLent,
    /// An input is longer than the model takes: it is so everywhere.
    #[error("input {index} has {tokens} tokens, and the model takes {context}")]
    TooLong {
        /// Which, from 0.
        index: u32,
        /// Its tokens.
        tokens: u32,
        /// What the model takes.
        context: u32,
    },
    /// An input is nothing that the model can read: it is so everywhere.
    #[error("input {index}: {why}")]
    Input {
        /// Which, from 0.
        index: u32,
        /// Why.
        why: String,
    },
    /// Something failed there.
    #[error("{0}")]
    Failed(String),
}

impl EncodeRefusal {
    /// Leaves no more of a reason in it than is kept.
    pub fn shorten_reason(&mut self) {
        if let Self::Input { why, .. } | Self::Failed(why) = self {
            shorten(why);
        }
    }

    /// Whether every lender would say the same.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::TooLong { .. } | Self::Input { .. })
    }
}

impl EncoderCard {
    /// Refuses cards whose texts or sizes are out of bounds.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.name.len() > limits::TEXT_BYTES || self.name.is_empty() {
            return Err(CodecError::Invalid("encoder name empty or too long"));
        }
        if !(1..=limits::ENCODER_DIMENSIONS).contains(&self.dimensions)
            || !(1..=limits::SEQUENCE_TOKENS).contains(&self.context)
        {
            return Err(CodecError::Invalid("encoder sizes out of range"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_cards_are_within_bounds() {
        let request = |inputs| EncodeRequest { model: ModelId([1; 16]), inputs, truncate: None };
        let text = |bytes: usize| EncoderInput::Text("a".repeat(bytes));
        assert!(request(vec![text(limits::ENCODER_BYTES)]).check().is_ok());
        assert!(request(vec![text(limits::ENCODER_BYTES), text(1)]).check().is_err());
        assert!(request(vec![]).check().is_err());
        assert!(request(vec![text(0); limits::ENCODER_INPUTS + 1]).check().is_err());
        let card = EncoderCard {
            id: ModelId([1; 16]),
            name: "a".into(),
            task: EncoderTask::Embed,
            dimensions: 384,
            context: 512,
        };
        assert!(card.check().is_ok());
        assert!(EncoderCard { name: String::new(), ..card.clone() }.check().is_err());
        assert!(EncoderCard { dimensions: limits::ENCODER_DIMENSIONS + 1, ..card.clone() }.check().is_err());
        assert!(EncoderCard { context: 0, ..card }.check().is_err());
    }
}
