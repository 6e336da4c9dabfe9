//! `prompt`: a text, a list of texts, a list of token ids, or a list of such lists.

use super::{
    ApiError, owned,
    read_on::{EarlyRefusal, READ_ON},
    skip_map,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;
use tsnode_protocol::Token;

/// Prompts of one request times answers to each.
pub(in crate::http) const SUBMISSIONS: usize = 128;

/// What a client gives as prompts.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum Prompt {
    /// At least one.
    Given(Vec<GivenPrompt>),
    /// More than can be asked for at once.
    TooMany,
    /// Something else.
    Wrong,
}

/// One prompt.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum GivenPrompt {
    Text(String),
    Tokens(Vec<Token>),
    /// More than any model takes: so many.
    Endless(usize),
}

/// What stands where a prompt may stand.
enum PromptItem {
    Null,
    Token(Token),
    One(GivenPrompt),
    List(Prompt),
    Wrong,
}

/// Reads what is given as prompts, of so many tokens each at most; nothing for null.
#[derive(Clone, Copy)]
pub(super) struct ReadPrompt<'b> {
    /// The field.
    pub name: &'static str,
    pub tokens: usize,
    /// So many prompts at most.
    pub most: usize,
    pub ending: &'b EarlyRefusal,
}

impl ReadPrompt<'_> {
    /// Reads the rest of a list from which nothing more is taken, or ends reading with this refusal.
    fn read_on<'de, A: SeqAccess<'de>>(
        self,
        seq: &mut A,
        refusal: impl FnOnce(Self) -> ApiError,
    ) -> Result<usize, A::Error> {
        self.ending.read_on(seq, || refusal(self))
    }

    fn far_too_long(self) -> ApiError {
        let (name, least, most) = (self.name, self.tokens + READ_ON, self.tokens);
        let message = format!(
            "'{name}' has a list of more than {least} token ids, and no model here takes more than {most}. Please shorten it."
        );
        ApiError::FarTooLong { message, param: name }
    }

    fn too_many(self) -> ApiError {
        ApiError::param(self.name, format!("'{}' is a list of more than {}", self.name, self.most))
    }

    fn wrong(self) -> ApiError {
        let why = "must be a string, a list of strings, a list of token ids, or a list of those";
        ApiError::param(self.name, format!("'{}' {why}", self.name))
    }
}

impl<'de> DeserializeSeed<'de> for ReadPrompt<'_> {
    type Value = Option<Prompt>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        Ok(match from.deserialize_any(ReadItem { lists: 2, given: self })? {
            PromptItem::Null => None,
            PromptItem::One(one) => Some(Prompt::Given(vec![one])),
            PromptItem::List(prompt) => Some(prompt),
            PromptItem::Token(_) | PromptItem::Wrong => Some(Prompt::Wrong),
        })
    }
}

/// Reads one thing, which may be so many lists in each other.
#[derive(Clone, Copy)]
struct ReadItem<'b> {
    lists: u8,
    given: ReadPrompt<'b>,
}

impl<'de> DeserializeSeed<'de> for ReadItem<'_> {
    type Value = PromptItem;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<PromptItem, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ReadItem<'_> {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::One(GivenPrompt::Text(owned(text))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<PromptItem, E> {
        Ok(u32::try_from(number).map_or(PromptItem::Wrong, |id| PromptItem::Token(Token(id))))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<PromptItem, E> {
        Ok(PromptItem::Wrong)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<PromptItem, E> {
        Ok(PromptItem::Wrong)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<PromptItem, E> {
        Ok(PromptItem::Wrong)
    }

    fn visit_unit<E: Error>(self) -> Result<PromptItem, E> {
        Ok(PromptItem::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PromptItem, A::Error> {
        skip_map(&mut map).map(|()| PromptItem::Wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptItem, A::Error> {
        let given = self.given;
        let Some(lists) = self.lists.checked_sub(1) else {
            return given.read_on(&mut seq, ReadPrompt::wrong).map(|_| PromptItem::Wrong);
        };
        let mut read = List::default();
        while let Some(item) = seq.next_element_seed(ReadItem { lists, given })? {
            if let Err(prompt) = read.push(item, given.most) {
                let is_many = lists > 0 && prompt == Prompt::TooMany;
                given.read_on(&mut seq, if is_many { ReadPrompt::too_many } else { ReadPrompt::wrong })?;
                return Ok(if lists == 0 { PromptItem::Wrong } else { PromptItem::List(prompt) });
            }
            if read.tokens.len() > given.tokens {
                let more = given.read_on(&mut seq, ReadPrompt::far_too_long)?;
                return Ok(PromptItem::One(GivenPrompt::Endless(read.tokens.len() + more)));
            }
        }
        Ok(read.end(lists))
    }
}

/// A list as it is read: of token ids, or of prompts.
#[derive(Default)]
struct List {
    tokens: Vec<Token>,
    prompts: Vec<GivenPrompt>,
}

impl List {
    /// What the whole is, where this cannot be in it.
    fn push(&mut self, item: PromptItem, most: usize) -> Result<(), Prompt> {
        match item {
            PromptItem::Token(token) if self.prompts.is_empty() => self.tokens.push(token),
            PromptItem::One(given) if self.tokens.is_empty() => {
                self.prompts.push(given);
                if self.prompts.len() > most {
                    return Err(Prompt::TooMany);
                }
            }
            _ => return Err(Prompt::Wrong),
        }
        Ok(())
    }

    /// A list inside another is one prompt.
    fn end(self, lists: u8) -> PromptItem {
        match (lists, self.prompts.is_empty(), self.tokens.is_empty()) {
            (0, true, _) => PromptItem::One(GivenPrompt::Tokens(self.tokens)),
            (0, ..) => PromptItem::Wrong,
            (_, true, true) => PromptItem::List(Prompt::Wrong),
            (_, true, false) => PromptItem::One(GivenPrompt::Tokens(self.tokens)),
            _ => PromptItem::List(Prompt::Given(self.prompts)),
        }
    }
}
