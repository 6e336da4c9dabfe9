//! Text that a client writes must not become a control token, where the peer is told to guard against it.
//!
//! Messages are rendered with a private letter in the place of each special token's text, which no template reads as
//! anything, and what was written stands there again when the text becomes tokens: plain ones. What a template might make
//! of the rest is found by rendering the conversation once more with all its letters blotted out: both must have the same
//! special tokens in the same order, or nobody can tell which of them are the template's, and the request is refused.

use super::{Conversation, TextError, tokenizer_guard};
use std::collections::BTreeSet;
use std::convert::Infallible;
use tokenizers::Tokenizer;

/// The first private letter; special tokens have one each. Fonts and people leave this plane of Unicode alone.
const FIRST: u32 = 0xf_0000;
/// The letter that stands for any other.
const BLOT: char = '\u{10fffd}';

/// What becomes of special tokens' texts in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    /// They are control tokens, as transformers has it.
    #[default]
    Control,
    /// They are plain text.
    Plain,
}

/// Keeps clients' texts from becoming control tokens.
pub(super) struct SpecialTextGuard {
    /// Reads special tokens' texts as any other.
    plain: Tokenizer,
    /// Special tokens' texts, the longest first.
    texts: Vec<String>,
    ids: BTreeSet<u32>,
}

impl SpecialTextGuard {
    /// For a tokenizer's special tokens; a text that it does not know has a token too, which controls nothing.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let mut plain = tokenizer.clone();
        plain.set_encode_special_tokens(true);
        let unknown: BTreeSet<u32> =
            tokenizer_guard::encode(&plain, &BLOT.to_string(), false).unwrap_or_default().into_iter().collect();
        let added = tokenizer.get_added_tokens_decoder();
        let special = || added.iter().filter(|(_, token)| token.special && !token.content.is_empty());
        let mut texts: Vec<String> = special().map(|(_, token)| token.content.clone()).collect();
        texts.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        let ids = special().map(|(id, _)| *id).filter(|id| !unknown.contains(id)).collect();
        Self { plain, texts, ids }
    }

    fn letter(place: usize) -> Option<char> {
        u32::try_from(place).ok().and_then(|place| char::from_u32(FIRST + place))
    }

    fn place(letter: char) -> Option<usize> {
        u32::from(letter).checked_sub(FIRST).and_then(|place| usize::try_from(place).ok())
    }

    /// Messages with private letters for special tokens' texts.
    ///
    /// # Errors
    /// When they have such letters already, or hold what becomes a special token though it is not written as one.
    pub fn hidden(&self, tokenizer: &Tokenizer, said: &Conversation) -> Result<Conversation, TextError> {
        let hide = |text: &str| {
            if text.chars().any(|letter| u32::from(letter) >= FIRST) {
                return Err(refused("private letters of Unicode stand in a message"));
            }
            let hidden = self.hide(text);
            for part in hidden.split(|letter| u32::from(letter) >= FIRST) {
                let [read, plain] = [tokenizer, &self.plain].map(|by| tokenizer_guard::encode(by, part, false));
                if read.map_err(TextError::Input)? != plain.map_err(TextError::Input)? {
                    return Err(refused("a message holds what the tokenizer takes for a control token"));
                }
            }
            Ok(hidden)
        };
        said.map(hide, hide)
    }

    fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        for (place, special) in self.texts.iter().enumerate() {
            let Some(letter) = Self::letter(place) else { break };
            hidden = hidden.replace(special.as_str(), letter.encode_utf8(&mut [0; 4]));
        }
        hidden
    }

    /// Messages of which only spaces and lengths are left.
    pub fn blotted(said: &Conversation) -> Conversation {
        let blot = |text: &str| text.chars().map(|letter| if letter.is_whitespace() { letter } else { BLOT }).collect();
        let blotted = said.map(|text| Ok::<_, Infallible>(blot(text)), |name| Ok(name.to_owned()));
        blotted.unwrap_or_else(|never| match never {})
    }

    /// Tokens of a rendered conversation, whose special tokens are those of the blotted one.
    ///
    /// # Errors
    /// When they are others, or the tokenizer cannot.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str, blotted: &str) -> Result<Vec<u32>, TextError> {
        let expected = tokenizer_guard::encode(tokenizer, blotted, false).map_err(TextError::Input)?;
        let read = tokenizer_guard::encode_with_places(tokenizer, text).map_err(TextError::Input)?;
        let special = |id: &&u32| self.ids.contains(*id);
        if !read.iter().map(|(id, _)| id).filter(special).eq(expected.iter().filter(special)) {
            return Err(refused("the chat template makes control tokens of what a message says"));
        }
        self.restored(text, &read)
    }

    /// Runs between special tokens are read again where something is hidden in them.
    fn restored(&self, text: &str, read: &[(u32, (usize, usize))]) -> Result<Vec<u32>, TextError> {
        let (mut tokens, mut run, mut from) = (Vec::with_capacity(read.len()), Vec::new(), 0);
        for (id, (start, end)) in read {
            if self.ids.contains(id) {
                self.push_run(&mut tokens, &mut run, text.get(from..*start))?;
                tokens.push(*id);
                from = *end;
            } else {
                run.push(*id);
            }
        }
        self.push_run(&mut tokens, &mut run, text.get(from..))?;
        Ok(tokens)
    }

    fn push_run(&self, tokens: &mut Vec<u32>, run: &mut Vec<u32>, part: Option<&str>) -> Result<(), TextError> {
        let part = part.ok_or_else(|| refused("the tokenizer does not say where its tokens are"))?;
        match self.shown(part) {
            Some(shown) => {
                let plain = tokenizer_guard::encode(&self.plain, &shown, false).map_err(TextError::Input)?;
                // Some vocabularies have a control token's text among their words.
                if plain.iter().any(|id| self.ids.contains(id)) {
                    return Err(refused("the tokenizer cannot read a control token's text as plain text"));
                }
                tokens.extend(plain);
            }
            None => tokens.append(run),
        }
        run.clear();
        Ok(())
    }

    /// The text as it was written, if anything of it is hidden.
    fn shown(&self, part: &str) -> Option<String> {
        let text = |letter: char| Self::place(letter).and_then(|place| self.texts.get(place));
        part.contains(|letter| text(letter).is_some()).then(|| {
            let mut shown = String::with_capacity(part.len());
            for letter in part.chars() {
                match text(letter) {
                    Some(special) => shown.push_str(special),
                    None => shown.push(letter),
                }
            }
            shown
        })
    }
}

fn refused(why: &str) -> TextError {
    TextError::Input(format!("{why}; this peer guards special tokens (--guard-special-tokens)"))
}
