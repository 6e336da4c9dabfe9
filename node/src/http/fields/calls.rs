//! `tool_calls` of an assistant's message: what it called before.

use super::{
    json_text::JsonText,
    shallow::{Owned, Read, Shallow, Wanted},
    skip,
};
use crate::text::ToolCall;
use serde::de::DeserializeSeed;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, value::MapAccessDeserializer};

/// Calls of one message.
const CALLS: usize = 256;

pub(super) const WRONG: &str = "'tool_calls' must be a short list of {\"id\", \"type\": \"function\", \"function\": \
                                {\"name\", \"arguments\"}}, with 'arguments' a JSON object in a string";

/// All calls of a message.
pub(super) struct CallList;

impl<'de> Wanted<'de> for CallList {
    type Value = Result<Vec<ToolCall>, &'static str>;

    fn list<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read<Self::Value>, A::Error> {
        let mut calls = Vec::new();
        while let Some(read) = seq.next_element_seed(Shallow(WantedCall))? {
            match read {
                Read::Is(Some(call)) if calls.len() < CALLS => calls.push(call),
                _ => return skip(&mut seq).map(|_| Read::Is(Err(WRONG))),
            }
        }
        Ok(Read::Is(Ok(calls)))
    }
}

/// One call; nothing for what is none.
struct WantedCall;

impl<'de> Wanted<'de> for WantedCall {
    type Value = Option<ToolCall>;

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<Self::Value>, A::Error> {
        let (mut id, mut function) = (Read::Null, Read::Null);
        while let Some(name) = map.next_key_seed(Shallow(Owned))? {
            match name {
                Read::Is(name) if name == "id" => id = map.next_value_seed(Shallow(Owned))?,
                Read::Is(name) if name == "function" => function = map.next_value_seed(Shallow(WantedFunction))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let Read::Is(Some((name, arguments))) = function else { return Ok(Read::Is(None)) };
        let id = if let Read::Is(id) = id { Some(id) } else { None };
        Ok(Read::Is(Some(ToolCall { id, name, arguments })))
    }
}

/// The tool's name, and what it was called with.
struct WantedFunction;

impl<'de> Wanted<'de> for WantedFunction {
    type Value = Option<(String, String)>;

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<Self::Value>, A::Error> {
        let (mut called, mut arguments) = (Read::Null, Read::Null);
        while let Some(name) = map.next_key_seed(Shallow(Owned))? {
            match name {
                Read::Is(name) if name == "name" => called = map.next_value_seed(Shallow(Owned))?,
                Read::Is(name) if name == "arguments" => arguments = map.next_value_seed(Shallow(JsonArguments))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let arguments = match arguments {
            Read::Null => Some("{}".to_owned()),
            Read::Is(arguments) => arguments,
            Read::Other => None,
        };
        let Read::Is(called) = called else { return Ok(Read::Is(None)) };
        Ok(Read::Is(arguments.map(|arguments| (called, arguments))))
    }
}

/// A JSON object, in a string or as it is; nothing for what is none.
struct JsonArguments;

impl<'de> Wanted<'de> for JsonArguments {
    type Value = Option<String>;

    fn text(self, text: &str) -> Read<Self::Value> {
        let text = text.trim();
        if text.is_empty() {
            return Read::Is(Some("{}".to_owned()));
        }
        let is_object = text.starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok();
        Read::Is(is_object.then(|| super::owned(text)))
    }

    fn object<A: MapAccess<'de>>(self, map: A) -> Result<Read<Self::Value>, A::Error> {
        let mut text = String::new();
        JsonText(&mut text).deserialize(MapAccessDeserializer::new(map))?;
        Ok(Read::Is(Some(text)))
    }
}
