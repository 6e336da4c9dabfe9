//! Makes a model's tokens of texts, however long these are, in memory that the model's context bounds.

use super::{
    Conversation, SpecialText, TextError,
    fewest::{Fewest, said},
    short,
    specials::SpecialTextGuard,
    tokenizer_guard,
};
use tokenizers::Tokenizer;
use tsnode_protocol::{ModelShape, Token, limits};

/// Characters of a token that an error repeats.
const NAMED: usize = 40;
/// Texts that are longer are read in pieces first (bytes): a tokenizer takes up to 260 bytes of memory for each of these.
const WHOLE: usize = 512 << 10;
/// What is read at once then (bytes).
const PIECE: usize = 64 << 10;
/// A text in pieces may have more tokens than the whole: words are cut, and what swallows spaces swallows less. A text is too
/// long when it has so many times the context in pieces.
const IN_PIECES: usize = 2;

/// What templates leave out, as the model's own thoughts, may be so many times what its context can hold.
const LEFT_OUT: usize = 16;

/// Reads texts for a model.
pub(super) struct Reader {
    tokenizer: Tokenizer,
    /// Where clients' texts must not become control tokens.
    guard: Option<SpecialTextGuard>,
    fewest: Option<Fewest>,
    vocab: u32,
    /// Tokens that a prompt may have.
    context: u32,
}

impl Reader {
    pub fn new(tokenizer: Tokenizer, shape: &ModelShape) -> Self {
        let fewest = Fewest::of(&tokenizer);
        let context = shape.context.min(limits::SEQUENCE_TOKENS);
        Self { tokenizer, guard: None, fewest, vocab: shape.vocab, context }
    }

    /// Reads special tokens' texts in messages as told.
    pub fn read_specials(&mut self, special: SpecialText) {
        self.guard = (special == SpecialText::Plain).then(|| SpecialTextGuard::new(&self.tokenizer));
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Tokens of a plain text, with what the tokenizer puts around one.
    pub fn plain(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.tokens(text, true)
    }

    /// Tokens of a text that a template made, which has written all special tokens itself.
    pub fn rendered(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.tokens(text, false)
    }

    /// The text of some tokens, special ones included.
    pub fn text(&self, tokens: &[Token]) -> Result<String, TextError> {
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        tokenizer_guard::decode(&self.tokenizer, &ids).map_err(TextError::Input)
    }

    /// Messages without special tokens' texts, and without any.
    pub fn hidden(&self, said: &Conversation) -> Result<(Conversation, Conversation), TextError> {
        let Some(guard) = &self.guard else { return Ok((said.clone(), Conversation::default())) };
        let short = |text: &str| self.refuse_long(text).map(|()| String::new());
        said.map(short, short)?;
        Ok((guard.hidden(&self.tokenizer, said)?, SpecialTextGuard::blotted(said)))
    }

    /// Tokens of a conversation that was rendered from such messages.
    pub fn restored(&self, text: &str, blotted: &str) -> Result<Vec<Token>, TextError> {
        let Some(guard) = &self.guard else { return self.rendered(text) };
        self.refuse_long(text)?;
        self.known(guard.encode(&self.tokenizer, text, blotted)?)
    }

    /// Refuses a text that cannot fit by its length.
    pub fn refuse_hopeless(&self, text: &str) -> Result<(), TextError> {
        let Some(fewest) = self.fewest.as_ref().filter(|_| text.len() > self.context as usize) else { return Ok(()) };
        self.fits(text.len(), fewest.tokens(text))
    }

    /// Refuses a conversation that is so long that no template makes it fit.
    pub fn refuse_endless(&self, said: &Conversation) -> Result<(), TextError> {
        let bytes = said.bytes();
        let Some(fewest) = &self.fewest else { return Ok(()) };
        let tokens = fewest.tokens_of(bytes);
        if tokens / LEFT_OUT > self.context as usize { self.fits(bytes, tokens) } else { Ok(()) }
    }

    /// Why a conversation cannot fit if the template keeps all that it is asked, by its length.
    pub fn hopeless_chat(&self, conversation: &Conversation) -> Option<TextError> {
        let asked = || conversation.messages.iter().filter(|message| message.role != "assistant");
        let bytes = asked().map(|message| message.content.len()).sum::<usize>();
        let fewest = self.fewest.as_ref().filter(|_| bytes > self.context as usize)?;
        // Templates may trim what they keep.
        let said = asked().map(|message| said(&message.content)).sum();
        self.fits(bytes, fewest.tokens_of(said)).err()
    }

    fn refuse_long(&self, text: &str) -> Result<(), TextError> {
        self.refuse_hopeless(text)?;
        if text.len() <= WHOLE {
            return Ok(());
        }
        let (mut rest, mut tokens) = (text, 0);
        while !rest.is_empty() {
            let (piece, behind) = short::split(rest, PIECE);
            tokens += tokenizer_guard::encode(&self.tokenizer, piece, false).map_err(TextError::Input)?.len();
            self.fits(text.len(), tokens / IN_PIECES)?;
            rest = behind;
        }
        Ok(())
    }

    fn fits(&self, bytes: usize, tokens: usize) -> Result<(), TextError> {
        let context = self.context;
        if tokens > context as usize { Err(TextError::TooLong { bytes, tokens, context }) } else { Ok(()) }
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, TextError> {
        self.refuse_long(text)?;
        self.known(tokenizer_guard::encode(&self.tokenizer, text, special).map_err(TextError::Input)?)
    }

    /// Tokens, if the model has them all.
    fn known(&self, tokens: Vec<u32>) -> Result<Vec<Token>, TextError> {
        let vocab = self.vocab;
        if let Some(stray) = tokens.iter().find(|id| **id >= vocab) {
            let named = tokenizer_guard::token(&self.tokenizer, *stray, false).unwrap_or_default();
            let named: String = named.chars().take(NAMED).collect();
            return Err(TextError::Input(format!(
                "the text holds {named:?}, token {stray} of the tokenizer, but the model has {vocab}; leave it out"
            )));
        }
        Ok(tokens.into_iter().map(Token).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{model::tests::embedded, templates::Templates, *};
    use super::*;
    use std::sync::Arc;

    /// Of the embedded model, with another context; where told, with a normalizer that says nothing of a text's length.
    fn model(context: u32, is_vague: bool, template: Option<&str>) -> TextModel {
        let mut files = embedded();
        files.card.shape.context = context;
        let changed = Arc::make_mut(&mut files.files);
        if is_vague {
            let mut tokenizer: serde_json::Value = serde_json::from_slice(&changed["tokenizer.json"]).unwrap();
            tokenizer["normalizer"] = serde_json::json!({ "type": "StripAccents" });
            changed.insert("tokenizer.json".into(), serde_json::to_vec(&tokenizer).unwrap());
        }
        if let Some(template) = template {
            changed.insert("chat_template.jinja".into(), template.into());
        }
        TextModel::new(&files, &Templates::Here).unwrap()
    }

    fn too_long<T: std::fmt::Debug>(refused: Result<T, TextError>) -> (usize, usize, u32) {
        match refused {
            Err(TextError::TooLong { bytes, tokens, context }) => (bytes, tokens, context),
            other => panic!("{other:?}"),
        }
    }

    fn says(role: &str, content: &str) -> ChatMessage {
        ChatMessage::new(role, content)
    }

    #[tokio::test]
    async fn a_text_that_cannot_fit_is_refused_without_its_tokens() {
        let model = model(1024, false, None);
        let long = "a ".repeat(4 << 20);
        let refused = allocation_counter::measure(|| {
            let (bytes, tokens, context) = too_long(model.encode(&long));
            assert_eq!((bytes, tokens, context), (8 << 20, (8_usize << 20).div_ceil(14), 1024));
        });
        assert!(refused.bytes_max < 1 << 20, "{} bytes", refused.bytes_max);
        let said = model.encode_prompt(long).await.unwrap_err().to_string();
        for part in ["maximum context length is 1024 tokens", "8388608 bytes", "at least 599187 tokens", "shorten"] {
            assert!(said.contains(part), "{said}");
        }
        // What may fit is read to the last token, though it does not.
        let close = "a ".repeat(7 * 1024);
        assert!(model.encode(&close).unwrap().len() > 7 * 1024);
    }

    #[test]
    fn a_long_text_of_a_tokenizer_that_says_nothing_is_read_in_pieces() {
        let model = model(1024, true, None);
        let long = "a ".repeat(4 << 20);
        let refused = allocation_counter::measure(|| {
            let (bytes, tokens, context) = too_long(model.encode(&long));
            assert!(bytes == 8 << 20 && tokens > 1024 && context == 1024);
        });
        assert!(refused.bytes_max < 40 << 20, "{} bytes", refused.bytes_max);
    }

    #[test]
    fn a_long_text_that_fits_has_the_tokens_it_would_have_had() {
        let model = model(1 << 20, true, None);
        let long = "It was a dark and windy night. ".repeat(20_000);
        assert!(long.len() > WHOLE);
        let whole = tokenizer_guard::encode(model.tokenizer(), &long, true).unwrap();
        assert_eq!(model.encode(&long).unwrap().iter().map(|token| token.0).collect::<Vec<_>>(), whole);
    }

    #[tokio::test]
    async fn a_conversation_that_cannot_fit_is_not_rendered() {
        let (long, short) = ("word ".repeat(1 << 20), "Hello");
        let usual = model(1024, false, None);
        for messages in
            [vec![says("user", &long)], vec![says("system", &long), says("assistant", "x"), says("user", short)]]
        {
            let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
            assert_eq!(too_long(usual.encode_chat(&messages).await).0, bytes);
        }
        let tokenizer_guard = model(1024, false, None).reading(SpecialText::Plain);
        too_long(tokenizer_guard.encode_chat(&[says("user", &long)]).await);
        // What the model said counts, too, where it is far more than any template leaves out.
        let of_itself =
            |words: usize| [says("user", short), says("assistant", &"word ".repeat(words)), says("user", short)];
        let (_, tokens, _) = too_long(usual.encode_chat(&of_itself(1 << 20)).await);
        assert_eq!(tokens, (5_usize * (1 << 20) + 10).div_ceil(14));
        // Otherwise it is rendered to see it, with what the template says itself.
        let (_, tokens, _) = too_long(usual.encode_chat(&of_itself(1 << 12)).await);
        assert!(tokens > (5_usize * (1 << 12) + 10).div_ceil(14));
    }

    #[tokio::test]
    async fn a_template_that_leaves_out_what_was_asked_is_asked_itself() {
        let long = "word ".repeat(1 << 13);
        let last = model(1024, false, Some("<|user|>{{ messages[-1].content | trim }}<|assistant|>"));
        let tokens = last.encode_chat(&[says("user", &long), says("user", "Hello")]).await.unwrap();
        assert!(tokens.len() < 10, "{tokens:?}");
        too_long(last.encode_chat(&[says("user", "Hello"), says("user", &long)]).await);
        let thoughts =
            model(1024, false, Some("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"));
        let thought = says("assistant", &format!("<think>{long}</think>Yes"));
        assert!(thoughts.encode_chat(&[says("user", "Hello"), thought, says("user", "Why?")]).await.is_ok());
    }
}
