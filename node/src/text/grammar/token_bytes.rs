//! The bytes that each of a model's tokens stands for, as grammars need them.

use super::GrammarError;
use crate::text::{bytes::ByteTokens, tokenizer_guard};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Longer tokens are never chosen under a grammar (bytes): the trie counts its depth in a byte.
const LONGEST: usize = 200;
/// Stands before a token, which then does not begin a text and has no space to lose.
const NEUTRAL: &str = "a";

/// What each token of a model says.
pub struct GrammarVocabulary(Vec<Vec<u8>>);

impl GrammarVocabulary {
    /// Of a model with so many tokens. Special ones say nothing, and can only be named.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, vocab: u32) -> Self {
        let spelling = ByteTokens::of(tokenizer);
        let added = tokenizer.get_added_vocabulary();
        let neutral = tokenizer_guard::join(tokenizer, &[NEUTRAL]).unwrap_or_default();
        let text = |token: &str| {
            let both = tokenizer_guard::join(tokenizer, &[NEUTRAL, token])?;
            both.strip_prefix(&neutral).map(|text| text.as_bytes().to_vec())
        };
        let word = |id| {
            let token = tokenizer_guard::token(tokenizer, id, false)?;
            if added.is_special_token(&token) {
                return Some(special(token.as_bytes()));
            }
            spelling.bytes(&token).or_else(|| text(&token))
        };
        let within = |word: Option<Vec<u8>>| word.filter(|word| word.len() <= LONGEST).unwrap_or_default();
        Self((0..vocab).map(|id| within(word(id))).collect())
    }

    /// Reads the tokenizer of a model with so many tokens.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(tokenizer: &[u8], vocab: u32) -> Result<Self, GrammarError> {
        let tokenizer = tokenizer_guard::read(tokenizer).map_err(GrammarError::NoVocabulary)?;
        Ok(Self::new(&tokenizer, vocab))
    }

    pub(super) fn size(&self) -> u32 {
        self.0.len() as u32
    }

    /// With one token more, which no model has: that the text is complete.
    pub(super) fn into_env(mut self) -> TokEnv {
        let complete = self.size();
        self.0.push(special(b"<complete>"));
        let info = TokRxInfo::new(complete + 1, complete);
        Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &self.0)))
    }
}

/// What no text says: grammars can name it, as `<|end|>`.
fn special(name: &[u8]) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(name);
    word
}
