//! Tokens back to text, one at a time: never half a character, never a character twice, and none lost.
//!
//! What a decoder makes of a token can depend on where it stands: the first may lose a space, another may be joined to the one
//! before it. So a token's text is what a few tokens with it say beyond what they say without it. Bytes become tokens of
//! whole characters before that: decoders read neighbouring bytes together, and one of them would spoil the others.

use super::{bytes::ByteTokens, tokenizer_guard};
use std::collections::VecDeque;
use tokenizers::Tokenizer;
use tsnode_protocol::Token;

/// Whole tokens (or characters of bytes) looked at before the new one: decoders join neighbours, and may keep back spaces at
/// the end.
const CONTEXT: usize = 4;
/// Stands before those that do not begin the text: it has no space to lose.
const NEUTRAL: &str = "a";

/// The text of an answer as it grows.
pub struct Detokeniser<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    /// Special tokens that are text all the same.
    kept: Vec<Token>,
    spelling: ByteTokens,
    /// The last tokens, each or as many as make whole characters.
    context: VecDeque<Vec<String>>,
    /// Whether these are all so far.
    first: bool,
    /// What they say.
    said: String,
    /// Bytes of a character that is not whole yet: three at most.
    begun: Vec<u8>,
}

/// A token as it stands in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenText {
    /// Its text; U+FFFD where it is only part of a character.
    pub text: String,
    /// Its bytes: those of neighbours make whole characters.
    pub bytes: Vec<u8>,
}

impl<'t> Detokeniser<'t> {
    /// For an answer that follows nothing.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        let spelling = ByteTokens::of(tokenizer);
        let (context, said, begun) = (VecDeque::new(), String::new(), Vec::new());
        Self { tokenizer, skip_special, kept: Vec::new(), spelling, context, first: true, said, begun }
    }

    /// The same, with these special tokens as text.
    #[must_use]
    pub fn keeping(self, kept: Vec<Token>) -> Self {
        Self { kept, ..self }
    }

    /// The text that `token` adds; empty while a character is incomplete.
    pub fn push(&mut self, token: Token) -> String {
        let skip = self.skip_special && !self.kept.contains(&token);
        let Some(token) = tokenizer_guard::token(self.tokenizer, token.0, skip) else {
            return String::new();
        };
        match self.spelling.bytes(&token) {
            Some(bytes) => {
                self.begun.extend(bytes);
                self.whole_characters(false)
            }
            None => {
                let broken_off = self.whole_characters(true);
                broken_off + &self.add(vec![token])
            }
        }
    }

    /// What is left at the end; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.whole_characters(true)
    }

    /// What `token` would say here, special or not.
    #[must_use]
    pub fn token_text(&self, token: Token) -> TokenText {
        let Some(token) = tokenizer_guard::token(self.tokenizer, token.0, false) else { return TokenText::default() };
        let unit = match self.spelling.bytes(&token) {
            None => vec![token],
            Some(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) if self.begun.is_empty() => self.spelling.spell(text),
                _ => return TokenText { text: String::from_utf8_lossy(&bytes).into_owned(), bytes },
            },
        };
        let text = self.with(&unit).map(|now| beyond(&now, &self.said).to_owned()).unwrap_or_default();
        TokenText { bytes: text.clone().into(), text }
    }

    /// Takes the bytes so far for text, but at most at the end what could become a character.
    fn whole_characters(&mut self, last: bool) -> String {
        let bytes = std::mem::take(&mut self.begun);
        let mut text = String::new();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            if !chunk.valid().is_empty() {
                text += &self.add(self.spelling.spell(chunk.valid()));
            }
            let broken = chunk.invalid();
            if !last && chunks.peek().is_none() && is_begun(broken) {
                self.begun = broken.to_vec();
            } else if !broken.is_empty() {
                text += &self.add(self.spelling.spell(&self.spelling.unreadable(broken)));
            }
        }
        text
    }

    /// What a token says, or bytes that are whole characters.
    fn add(&mut self, unit: Vec<String>) -> String {
        let Some(now) = self.with(&unit) else {
            // The decoder breaks at these; it may be good for those behind them.
            self.context.clear();
            self.first = false;
            self.said = self.with(&[]).unwrap_or_default();
            return String::new();
        };
        let new = beyond(&now, &self.said).to_owned();
        self.context.push_back(unit);
        self.said = now;
        if self.context.len() > CONTEXT {
            self.context.pop_front();
            self.first = false;
            self.said = self.with(&[]).unwrap_or_default();
        }
        new
    }

    /// What the context and these say.
    fn with(&self, unit: &[String]) -> Option<String> {
        let neutral = (!self.first).then_some(NEUTRAL);
        let tokens = self.context.iter().flatten().chain(unit).map(String::as_str);
        tokenizer_guard::join(self.tokenizer, &neutral.into_iter().chain(tokens).collect::<Vec<_>>())
    }
}

/// Whether more bytes could make a character of these.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// What `now` says beyond `before`. A decoder that rewrites what it said, as none that we know does, is taken at its new word
/// from there on: what was given out stays.
fn beyond<'n>(now: &'n str, before: &str) -> &'n str {
    let same = now.chars().zip(before.chars()).take_while(|(now, before)| now == before);
    &now[same.map(|(now, _)| now.len_utf8()).sum()..]
}

#[cfg(test)]
mod tests;
