//! What a prompt's KV goes through before anything is computed behind it: the tokens of an answer rest on that.

use crate::{KvCodec, codec::CodecError, limits};
use bincode::{Decode, Encode};

/// A codec, and of how many of a prompt's tokens the KV goes through it. What comes after those is computed behind what the codec
/// left of them, and stays as it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct PromptCodec {
    /// How the KV of those tokens is packed.
    pub codec: KvCodec,
    /// So many tokens, the first ones, where a group computes only these for another; else all of them. Whole groups of tokens
    /// ([`PromptCodec::GROUP`]), so that they are packed alike wherever they are computed.
    pub first: Option<u32>,
}

impl From<KvCodec> for PromptCodec {
    /// All of the prompt.
    fn from(codec: KvCodec) -> Self {
        Self { codec, first: None }
    }
}

impl PromptCodec {
    /// Prompts are parted at multiples of so many tokens: what every codec packs together.
    pub const GROUP: u32 = 64;

    /// The same for the first tokens only; for all, where there are no more.
    #[must_use]
    pub fn of_first(codec: KvCodec, first: u32, prompt: u32) -> Self {
        Self { codec, first: (first < prompt).then_some(first) }
    }

    /// Of a prompt of so many tokens those whose KV goes through it.
    #[must_use]
    pub fn tokens(self, prompt: u32) -> u32 {
        self.first.map_or(prompt, |first| first.min(prompt))
    }

    /// What an answer rests on: where numbers stay as they are it is the same wherever a prompt is parted.
    #[must_use]
    pub fn basis(self) -> Self {
        Self { first: self.first.filter(|_| self.codec != KvCodec::Raw), ..self }
    }

    /// Refuses parts that are not whole groups of tokens.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(self) -> Result<(), CodecError> {
        let is_whole = |first: u32| first > 0 && first.is_multiple_of(Self::GROUP) && first <= limits::SEQUENCE_TOKENS;
        if self.first.is_none_or(is_whole) {
            Ok(())
        } else {
            Err(CodecError::Invalid("part of a prompt that is no whole groups of tokens"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_parted_between_groups_of_tokens_of_every_codec() {
        for codec in [KvCodec::Raw, KvCodec::Int3, KvCodec::Int4, KvCodec::Int8] {
            assert_eq!(PromptCodec::GROUP % codec.tile_step(), 0, "{codec:?}");
            let first = |first| PromptCodec { codec, first: Some(first) }.check().is_ok();
            assert!(first(64) && first(128) && !first(0) && !first(100) && !first(limits::SEQUENCE_TOKENS + 64));
            assert!(PromptCodec::from(codec).check().is_ok());
        }
    }

    #[test]
    fn an_answer_rests_on_where_its_prompt_was_parted_if_bits_were_lost() {
        let of = |codec| PromptCodec::of_first(codec, 128, 300);
        assert_eq!((of(KvCodec::Raw).tokens(300), of(KvCodec::Raw).tokens(100)), (128, 100));
        assert_eq!(of(KvCodec::Raw).basis(), KvCodec::Raw.into());
        assert_eq!(of(KvCodec::Int4).basis(), of(KvCodec::Int4));
        assert_eq!(PromptCodec::of_first(KvCodec::Int4, 128, 128), KvCodec::Int4.into(), "that is all of it");
    }
}
