//! `messages`: a conversation.

use super::{ApiError, owned, skip, skip_map};
use crate::text::ChatMessage;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Messages of one conversation.
const MESSAGES: usize = 4096;
/// Roles as models know them, by what clients call them: what OpenAI calls developer, models know as system.
const ROLES: [(&str, &str); 4] =
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant")];

const NO_LIST: &str = "'messages' must be a list of messages";
const COUNT: &str = "'messages' must have at least one message, and not thousands";
const NO_ROLE: &str = "a message has no 'role'";
const WRONG_ROLE: &str = "a message's 'role' must be system, developer, user or assistant";
const WRONG_CONTENT: &str = "a message's 'content' must be a string or a list of text parts";
const WRONG_PART: &str = "only content parts of type 'text' are supported";

/// What a client gives as its conversation, or why it is none.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Messages(Result<Vec<ChatMessage>, &'static str>);

impl Messages {
    pub fn read(given: Option<Self>) -> Result<Vec<ChatMessage>, ApiError> {
        given.map_or(Err(NO_LIST), |given| given.0).map_err(|why| ApiError::param("messages", why))
    }
}

/// Reads a conversation; nothing for null.
pub(super) struct ReadMessages;

impl<'de> DeserializeSeed<'de> for ReadMessages {
    type Value = Option<Messages>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        Ok(match from.deserialize_any(Shallow(MessageList))? {
            Read::Null => None,
            Read::Other => Some(Messages(Err(NO_LIST))),
            Read::Is(read) => Some(Messages(read)),
        })
    }
}

/// What stands somewhere: nothing, what is looked for, or something else.
enum Read<T> {
    Null,
    Is(T),
    Other,
}

/// What is looked for somewhere; all else is passed over.
trait Wanted<'de>: Sized {
    type Value;

    fn text(self, _: &str) -> Read<Self::Value> {
        Read::Other
    }

    fn list<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read<Self::Value>, A::Error> {
        skip(&mut seq).map(|_| Read::Other)
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<Self::Value>, A::Error> {
        skip_map(&mut map).map(|()| Read::Other)
    }
}

/// Looks for something.
struct Shallow<W>(W);

impl<'de, W: Wanted<'de>> DeserializeSeed<'de> for Shallow<W> {
    type Value = Read<W::Value>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, W: Wanted<'de>> Visitor<'de> for Shallow<W> {
    type Value = Read<W::Value>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        self.0.list(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        self.0.object(map)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Read::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }
}

/// The list of all messages.
struct MessageList;

impl<'de> Wanted<'de> for MessageList {
    type Value = Result<Vec<ChatMessage>, &'static str>;

    fn list<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read<Self::Value>, A::Error> {
        let mut messages = Vec::new();
        while let Some(read) = seq.next_element_seed(Shallow(OneMessage))? {
            let message = if let Read::Is(message) = read { message } else { Err(NO_ROLE) };
            match message {
                Ok(message) if messages.len() < MESSAGES => messages.push(message),
                unfit => {
                    skip(&mut seq)?;
                    return Ok(Read::Is(Err(unfit.err().unwrap_or(COUNT))));
                }
            }
        }
        Ok(Read::Is(if messages.is_empty() { Err(COUNT) } else { Ok(messages) }))
    }
}

/// One message.
struct OneMessage;

impl<'de> Wanted<'de> for OneMessage {
    type Value = Result<ChatMessage, &'static str>;

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<Self::Value>, A::Error> {
        let (mut role, mut content) = (Read::Null, Read::Null);
        while let Some(name) = map.next_key_seed(Shallow(Name))? {
            match name {
                Read::Is(Known::Role) => role = map.next_value_seed(Shallow(Role))?,
                Read::Is(Known::Content) => content = map.next_value_seed(Shallow(Content))?,
                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        Ok(Read::Is(match (role, content) {
            (Read::Null | Read::Other, _) => Err(NO_ROLE),
            (Read::Is(None), _) => Err(WRONG_ROLE),
            (Read::Is(Some(_)), Read::Null | Read::Other) => Err(WRONG_CONTENT),
            (Read::Is(Some(role)), Read::Is(content)) => {
                content.map(|content| ChatMessage { role: role.to_owned(), content })
            }
        }))
    }
}

/// Names in messages and their parts that mean something.
enum Known {
    Role,
    Content,
    Type,
    Text,
}

struct Name;

impl Wanted<'_> for Name {
    type Value = Known;

    fn text(self, name: &str) -> Read<Known> {
        match name {
            "role" => Read::Is(Known::Role),
            "content" => Read::Is(Known::Content),
            "type" => Read::Is(Known::Type),
            "text" => Read::Is(Known::Text),
            _ => Read::Other,
        }
    }
}

/// Who speaks, as models know it; nothing for what is no role.
struct Role;

impl Wanted<'_> for Role {
    type Value = Option<&'static str>;

    fn text(self, said: &str) -> Read<Self::Value> {
        Read::Is(ROLES.iter().find(|(client, _)| *client == said).map(|(_, model)| *model))
    }
}

/// What is said: a text, or a list of parts.
struct Content;

impl<'de> Wanted<'de> for Content {
    type Value = Result<String, &'static str>;

    fn text(self, text: &str) -> Read<Self::Value> {
        Read::Is(Ok(owned(text)))
    }

    fn list<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read<Self::Value>, A::Error> {
        let mut whole = String::new();
        while let Some(part) = seq.next_element_seed(Shallow(Part { whole: &mut whole }))? {
            if !matches!(part, Read::Is(())) {
                return skip(&mut seq).map(|_| Read::Is(Err(WRONG_PART)));
            }
        }
        Ok(Read::Is(Ok(whole)))
    }
}

/// A part of a message, whose text is added to the whole.
struct Part<'w> {
    whole: &'w mut String,
}

impl<'de> Wanted<'de> for Part<'_> {
    type Value = ();

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<()>, A::Error> {
        let from = self.whole.len();
        let (mut is_text, mut has_text) = (false, false);
        while let Some(name) = map.next_key_seed(Shallow(Name))? {
            match name {
                Read::Is(Known::Type) => is_text = matches!(map.next_value_seed(Shallow(TextType))?, Read::Is(true)),
                Read::Is(Known::Text) => {
                    self.whole.truncate(from);
                    has_text = matches!(map.next_value_seed(Shallow(Added(self.whole)))?, Read::Is(()));
                }
                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        Ok(if is_text && has_text { Read::Is(()) } else { Read::Other })
    }
}

/// Whether a part is text.
struct TextType;

impl Wanted<'_> for TextType {
    type Value = bool;

    fn text(self, said: &str) -> Read<bool> {
        Read::Is(said == "text")
    }
}

/// A text that is added to another.
struct Added<'w>(&'w mut String);

impl Wanted<'_> for Added<'_> {
    type Value = ();

    fn text(self, text: &str) -> Read<()> {
        if self.0.is_empty() {
            *self.0 = owned(text);
        } else {
            self.0.push_str(text);
        }
        Read::Is(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::Fields;

    fn read(messages: &str) -> Result<Vec<ChatMessage>, String> {
        let mut fields = Fields::parse(format!(r#"{{"messages":{messages}}}"#).as_bytes(), 3).unwrap();
        Messages::read(fields.messages()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_conversation_is_read_whatever_else_its_messages_say() {
        let parts = r#"[{"type":"text","text":"One "},{"text":"t\u0077o","type":"text","more":{"text":[{}]}}]"#;
        let read = read(&format!(
            r#"[{{"role":"developer","content":"Be brief.","name":"x"}},{{"content":{parts},"role":"user","tool_calls":[{{"a":[]}}]}},
            {{"role":"assistant","content":[]}}]"#
        ));
        let said = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
        assert_eq!(read, Ok(vec![said("system", "Be brief."), said("user", "One two"), said("assistant", "")]));
    }

    #[test]
    fn what_is_none_is_said() {
        let cases = [
            ("null", NO_LIST),
            ("\"Hello\"", NO_LIST),
            ("{}", NO_LIST),
            ("7", NO_LIST),
            ("[]", COUNT),
            ("[1]", NO_ROLE),
            ("[[]]", NO_ROLE),
            (r#"[{"content":"x"}]"#, NO_ROLE),
            (r#"[{"role":1,"content":"x"}]"#, NO_ROLE),
            (r#"[{"role":"king","content":"x"}]"#, WRONG_ROLE),
            (r#"[{"role":"user"}]"#, WRONG_CONTENT),
            (r#"[{"role":"user","content":{"a":1}}]"#, WRONG_CONTENT),
            (r#"[{"role":"user","content":["x"]}]"#, WRONG_PART),
            (r#"[{"role":"user","content":[{"type":"image_url","text":"x"}]}]"#, WRONG_PART),
            (r#"[{"role":"user","content":[{"type":"text","text":1}]}, {"role":"user"}]"#, WRONG_PART),
            (r#"[{"role":"user","content":[{"text":"x"}]}]"#, WRONG_PART),
        ];
        for (messages, why) in cases {
            assert_eq!(read(messages), Err(why.to_owned()), "{messages}");
        }
        let many = r#"{"role":"user","content":"x"},"#.repeat(MESSAGES);
        let last = r#"{"role":"user","content":"x"}"#;
        assert_eq!(read(&format!("[{many}{last}]")), Err(COUNT.to_owned()));
        assert_eq!(read(&format!("[{}]", many.trim_end_matches(','))).map(|read| read.len()), Ok(MESSAGES));
    }
}
