//! `messages`: a conversation.

use super::{
    ApiError,
    calls::CallList,
    owned,
    read_on::EarlyRefusal,
    shallow::{Owned, Read, Shallow, Wanted},
    skip,
};
use crate::text::{ChatMessage, ToolCall};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess};

/// Messages of one conversation.
const MESSAGES: usize = 4096;
/// Calls of tools in all of them.
const CALLS: usize = 4096;
/// Roles as models know them, by what clients call them: what OpenAI calls developer, models know as system.
const ROLES: [(&str, &str); 5] =
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")];

const NO_LIST: &str = "'messages' must be a list of messages";
const COUNT: &str = "'messages' must have at least one message, and not thousands";
const NO_ROLE: &str = "a message has no 'role'";
const WRONG_ROLE: &str = "a message's 'role' must be system, developer, user, assistant or tool";
const WRONG_CONTENT: &str = "a message's 'content' must be a string or a list of text parts";
const WRONG_PART: &str = "only content parts of type 'text' are supported";

const MANY_CALLS: &str = "'messages' have thousands of 'tool_calls'";

/// What a client gives as its conversation, or why it is none.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Messages(Result<Vec<ChatMessage>, &'static str>);

impl Messages {
    pub fn read(given: Option<Self>) -> Result<Vec<ChatMessage>, ApiError> {
        given.map_or(Err(NO_LIST), |given| given.0).map_err(|why| ApiError::param("messages", why))
    }
}

/// Reads a conversation; nothing for null.
pub(super) struct ReadMessages<'b>(pub &'b EarlyRefusal);

impl<'de> DeserializeSeed<'de> for ReadMessages<'_> {
    type Value = Option<Messages>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        Ok(match from.deserialize_any(Shallow(MessageList(self.0)))? {
            Read::Null => None,
            Read::Other => Some(Messages(Err(NO_LIST))),
            Read::Is(read) => Some(Messages(read)),
        })
    }
}

/// The list of all messages.
struct MessageList<'b>(&'b EarlyRefusal);

impl<'de> Wanted<'de> for MessageList<'_> {
    type Value = Result<Vec<ChatMessage>, &'static str>;

    fn list<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read<Self::Value>, A::Error> {
        let (mut messages, mut calls) = (Vec::new(), 0);
        while let Some(read) = seq.next_element_seed(Shallow(OneMessage))? {
            let message = if let Read::Is(message) = read { message } else { Err(NO_ROLE) };
            calls += message.as_ref().map_or(0, |message: &ChatMessage| message.tool_calls.len());
            let unfit = match message {
                Ok(_) if calls > CALLS => MANY_CALLS,
                Ok(message) if messages.len() < MESSAGES => {
                    messages.push(message);
                    continue;
                }
                Ok(_) => COUNT,
                Err(why) => why,
            };
            self.0.read_on(&mut seq, || ApiError::param("messages", unfit))?;
            return Ok(Read::Is(Err(unfit)));
        }
        Ok(Read::Is(if messages.is_empty() { Err(COUNT) } else { Ok(messages) }))
    }
}

/// One message.
struct OneMessage;

impl<'de> Wanted<'de> for OneMessage {
    type Value = Result<ChatMessage, &'static str>;

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<Self::Value>, A::Error> {
        let mut said = FoundMessage::default();
        while let Some(name) = map.next_key_seed(Shallow(Name))? {
            match name {
                Read::Is(KnownName::Role) => said.role = map.next_value_seed(Shallow(WantedRole))?,
                Read::Is(KnownName::Content) => said.content = map.next_value_seed(Shallow(Content))?,
                Read::Is(KnownName::ToolCalls) => said.calls = map.next_value_seed(Shallow(CallList))?,
                Read::Is(KnownName::Other(at)) => said.others[at] = map.next_value_seed(Shallow(Owned))?,
                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        Ok(Read::Is(said.message()))
    }
}

/// A message's parts as they were found.
#[derive(Default)]
struct FoundMessage {
    role: Read<Option<&'static str>>,
    content: Read<Result<String, &'static str>>,
    calls: Read<Result<Vec<ToolCall>, &'static str>>,
    /// As in [`OTHERS`].
    others: [Read<String>; OTHERS.len()],
}

impl FoundMessage {
    fn message(self) -> Result<ChatMessage, &'static str> {
        let role = match self.role {
            Read::Null | Read::Other => return Err(NO_ROLE),
            Read::Is(None) => return Err(WRONG_ROLE),
            Read::Is(Some(role)) => role,
        };
        let is_assistant = role == "assistant";
        let content = match self.content {
            Read::Is(content) => content?,
            // Who calls a tool need not say anything.
            Read::Null if is_assistant => String::new(),
            Read::Null | Read::Other => return Err(WRONG_CONTENT),
        };
        let tool_calls = match self.calls {
            Read::Is(calls) if is_assistant => calls?,
            Read::Other if is_assistant => return Err(super::calls::WRONG),
            _ => Vec::new(),
        };
        let [name, tool_call_id, thought, also_thought] = self.others.map(|other| match other {
            Read::Is(text) => Some(text),
            Read::Null | Read::Other => None,
        });
        let reasoning_content = thought.or(also_thought).filter(|_| is_assistant);
        let tool_call_id = tool_call_id.filter(|_| role == "tool");
        Ok(ChatMessage { role: role.to_owned(), content, reasoning_content, tool_calls, tool_call_id, name })
    }
}

/// Texts of a message that are passed on to the template.
const OTHERS: [&str; 4] = ["name", "tool_call_id", "reasoning_content", "reasoning"];

/// Names in messages and their parts that mean something.
enum KnownName {
    Role,
    Content,
    ToolCalls,
    /// By its place in [`OTHERS`].
    Other(usize),
    Type,
    Text,
}

struct Name;

impl Wanted<'_> for Name {
    type Value = KnownName;

    fn text(self, name: &str) -> Read<KnownName> {
        match name {
            "role" => Read::Is(KnownName::Role),
            "content" => Read::Is(KnownName::Content),
            "type" => Read::Is(KnownName::Type),
            "text" => Read::Is(KnownName::Text),
            "tool_calls" => Read::Is(KnownName::ToolCalls),
            _ => {
                OTHERS.iter().position(|other| *other == name).map_or(Read::Other, |at| Read::Is(KnownName::Other(at)))
            }
        }
    }
}

/// Who speaks, as models know it; nothing for what is no role.
struct WantedRole;

impl Wanted<'_> for WantedRole {
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
        while let Some(part) = seq.next_element_seed(Shallow(ContentPart { whole: &mut whole }))? {
            if !matches!(part, Read::Is(())) {
                return skip(&mut seq).map(|_| Read::Is(Err(WRONG_PART)));
            }
        }
        Ok(Read::Is(Ok(whole)))
    }
}

/// A part of a message, whose text is added to the whole.
struct ContentPart<'w> {
    whole: &'w mut String,
}

impl<'de> Wanted<'de> for ContentPart<'_> {
    type Value = ();

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<()>, A::Error> {
        let from = self.whole.len();
        let (mut is_text, mut has_text) = (false, false);
        while let Some(name) = map.next_key_seed(Shallow(Name))? {
            match name {
                Read::Is(KnownName::Type) => {
                    is_text = matches!(map.next_value_seed(Shallow(TextType))?, Read::Is(true))
                }
                Read::Is(KnownName::Text) => {
                    self.whole.truncate(from);
                    has_text = matches!(map.next_value_seed(Shallow(WantedText(self.whole)))?, Read::Is(()));
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
struct WantedText<'w>(&'w mut String);

impl Wanted<'_> for WantedText<'_> {
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
        let said = ChatMessage::new;
        let rules = ChatMessage { name: Some("x".into()), ..said("system", "Be brief.") };
        assert_eq!(read, Ok(vec![rules, said("user", "One two"), said("assistant", "")]));
    }

    #[test]
    fn calls_and_their_answers_are_read() {
        let read = read(
            r#"[{"role":"assistant","content":null,"reasoning":"Hm.","tool_calls":[
                {"id":"c1","type":"function","function":{"name":"wind","arguments":"{\"town\": \"Bonn\"}"}},
                {"function":{"arguments":{"b":1,"a":[true]},"name":"rain"}},{"function":{"name":"now","arguments":""}}]},
            {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"calm"}]}]"#,
        );
        let call = |id: Option<&str>, name: &str, arguments: &str| ToolCall {
            id: id.map(str::to_owned),
            name: name.into(),
            arguments: arguments.into(),
        };
        let calls = vec![
            call(Some("c1"), "wind", r#"{"town": "Bonn"}"#),
            call(None, "rain", r#"{"b":1,"a":[true]}"#),
            call(None, "now", "{}"),
        ];
        let asked = ChatMessage {
            reasoning_content: Some("Hm.".into()),
            tool_calls: calls,
            ..ChatMessage::new("assistant", "")
        };
        let answered = ChatMessage { tool_call_id: Some("c1".into()), ..ChatMessage::new("tool", "calm") };
        assert_eq!(read, Ok(vec![asked, answered]));
    }

    #[test]
    fn calls_that_are_none_are_refused() {
        for calls in [
            r#"{}"#,
            r#"[1]"#,
            r#"[{"id":"c"}]"#,
            r#"[{"function":{"arguments":"{}"}}]"#,
            r#"[{"function":{"name":"f","arguments":"[1]"}}]"#,
            r#"[{"function":{"name":"f","arguments":"{\"a\":"}}]"#,
            r#"[{"function":{"name":"f","arguments":7}}]"#,
        ] {
            let refused = read(&format!(r#"[{{"role":"assistant","tool_calls":{calls}}}]"#));
            assert_eq!(refused, Err(crate::http::fields::calls::WRONG.to_owned()), "{calls}");
        }
        let many = format!("[{}]", vec![r#"{"function":{"name":"f","arguments":"{}"}}"#; 200].join(","));
        let message = format!(r#"{{"role":"assistant","tool_calls":{many}}}"#);
        assert_eq!(read(&format!("[{}]", vec![message.as_str(); 21].join(","))), Err(MANY_CALLS.to_owned()));
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
