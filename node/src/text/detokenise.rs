//! Tokens back to text, one at a time: never half a character, and never a character twice.

use super::guarded;
use tokenizers::Tokenizer;
use tsnode_protocol::Token;

/// Tokens looked at before the new ones: what decoders do at a beginning (dropping a space, say) happens there.
const CONTEXT: usize = 4;

/// The text of an answer as it grows.
pub struct Detokeniser<'t> {
    tokenizer: &'t Tokenizer,
    tokens: Vec<u32>,
    /// Tokens before this one have been given out.
    given: usize,
    skip_special: bool,
}

impl<'t> Detokeniser<'t> {
    /// For an answer that follows nothing.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, tokens: Vec::new(), given: 0, skip_special }
    }

    /// The text that `token` adds; empty while a character is incomplete.
    pub fn push(&mut self, token: Token) -> String {
        self.tokens.push(token.0);
        self.advance(false)
    }

    /// What is left at the end; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> String {
        let from = self.given.saturating_sub(CONTEXT);
        let decode = |tokens: &[u32]| guarded::decode(self.tokenizer, tokens, self.skip_special);
        let before = decode(&self.tokens[from..self.given]);
        let now = decode(&self.tokens[from..]);
        if !last && now.ends_with('\u{FFFD}') {
            return String::new();
        }
        let Some(new) = now.strip_prefix(&before) else {
            // A decoder that rewrites what it said leaves nothing to add but what is longer.
            return String::new();
        };
        self.given = self.tokens.len();
        new.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Templates, TextModel, model::tests::embedded};

    #[test]
    fn pieces_make_the_whole_and_characters_stay_whole() {
        let model = TextModel::new(&embedded(), &Templates::Here).unwrap();
        let text = "“Naïve,” she said — 日本 😀, and so on.";
        let tokens = model.tokenizer().encode(text, false).unwrap();
        let mut detokeniser = Detokeniser::new(model.tokenizer(), true);
        let mut whole = String::new();
        for id in tokens.get_ids() {
            let piece = detokeniser.push(Token(*id));
            assert!(!piece.contains('\u{FFFD}'), "{piece:?}");
            whole.push_str(&piece);
        }
        whole.push_str(&detokeniser.finish());
        assert_eq!(whole, text);
    }
}
