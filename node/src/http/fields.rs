//! A request's JSON object, read so that it takes no more memory than it is long.
//!
//! Read as JSON values a body takes up to seventy times its length: a map of one letter is 700 bytes. So what may be long,
//! prompts and messages, is read into what it is, and all the rest together may take a fixed amount.

mod bounded;
mod calls;
mod foreign;
mod json_text;
mod messages;
mod prompt;
mod read_on;
mod shallow;

pub(super) use messages::Messages;
pub(super) use prompt::{GivenPrompt, Prompt, SUBMISSIONS};

use super::ApiError;
use bounded::{ParseBudget, Within};
use messages::ReadMessages;
use prompt::ReadPrompt;
use read_on::EarlyRefusal;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use tsnode_kernels::memory;

/// Inputs of one request for vectors or scores: as many as OpenAI takes.
pub(super) const INPUTS: usize = 2048;

/// A request's JSON object, from which fields are taken one by one; what is left at the end is unknown.
#[derive(Debug, Default)]
pub(super) struct Fields {
    prompt: Option<Prompt>,
    /// What is to be encoded: `input`, or `documents`.
    input: Option<Prompt>,
    documents: Option<Prompt>,
    messages: Option<Messages>,
    others: Map<String, Value>,
}

impl Fields {
    /// Reads a body in which prompts have so many tokens at most.
    pub(super) fn parse(body: &[u8], tokens: usize) -> Result<Self, ApiError> {
        Self::read(body, tokens, Lists::OfPrompts)
    }

    /// Reads a body with lists of what is to be encoded.
    pub(super) fn parse_inputs(body: &[u8], tokens: usize) -> Result<Self, ApiError> {
        Self::read(body, tokens, Lists::OfInputs)
    }

    fn read(body: &[u8], tokens: usize, lists: Lists) -> Result<Self, ApiError> {
        let wrong = |message: String| ApiError::Invalid { message, param: None };
        if let Err(error) = std::str::from_utf8(body) {
            return Err(wrong(format!("The body is not UTF-8: {error}")));
        }
        let (mut budget, ending) = (ParseBudget::default(), EarlyRefusal::default());
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = Object { budget: &mut budget, tokens, lists, ending: &ending }
            .deserialize(&mut json)
            .and_then(|read| json.end().map(|()| read));
        match read {
            Ok(Some(fields)) => Ok(fields),
            Ok(None) => Err(wrong("The body must be a JSON object".into())),
            Err(error) => {
                let refusal = ending.refusal().or_else(|| budget.exceeded());
                Err(refusal.unwrap_or_else(|| wrong(unparsed(&error))))
            }
        }
    }

    /// The prompts, unless they are absent or null.
    pub(super) fn prompt(&mut self) -> Option<Prompt> {
        self.prompt.take()
    }

    /// What is to be encoded, unless it is absent or null.
    pub(super) fn input(&mut self) -> Option<Prompt> {
        self.input.take()
    }

    /// What is to be ranked, unless it is absent or null.
    pub(super) fn documents(&mut self) -> Option<Prompt> {
        self.documents.take()
    }

    /// The conversation, unless it is absent or null.
    pub(super) fn messages(&mut self) -> Option<Messages> {
        self.messages.take()
    }

    /// The field, unless it is absent or null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        asked::note(name);
        self.others.remove(name).filter(|v| !v.is_null())
    }

    /// The field, which is left.
    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.others.get(name).filter(|v| !v.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::param(name, format!("'{name}' must be a string"))),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.flag_or(name, false)
    }

    /// True or false; `unsaid` where it is neither.
    pub(super) fn flag_or(&mut self, name: &str, unsaid: bool) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(unsaid),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(ApiError::param(name, format!("'{name}' must be true or false"))),
        }
    }

    pub(super) fn integer(&mut self, name: &str, low: u64, high: u64) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|n| (low..=high).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(ApiError::param(name, format!("'{name}' must be an integer from {low} to {high}"))),
        }
    }

    pub(super) fn number(&mut self, name: &str, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|x| (low..=high).contains(x)) {
            Some(x) => Ok(Some(x as f32)),
            None => Err(ApiError::param(name, format!("'{name}' must be a number from {low} to {high}"))),
        }
    }

    /// A field that is known and does nothing here, unless it asks for what is not built.
    pub(super) fn refuse_unless(&mut self, name: &str, harmless: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !harmless(&value) => {
                Err(ApiError::param(name, format!("'{name}' is not supported by this server")))
            }
            _ => Ok(()),
        }
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        let other = self.others.into_iter().find(|(_, v)| !v.is_null()).map(|(name, _)| name);
        let prompt = self.prompt.map(|_| "prompt".to_owned());
        let messages = self.messages.map(|_| "messages".to_owned());
        let input = self.input.map(|_| "input".to_owned());
        let documents = self.documents.map(|_| "documents".to_owned());
        match other.or(prompt).or(messages).or(input).or(documents) {
            None => Ok(()),
            Some(name) => {
                let name: String = name.chars().take(64).collect();
                Err(ApiError::param(&name, format!("Unrecognized request argument supplied: {name}")))
            }
        }
    }
}

fn unparsed(error: &serde_json::Error) -> String {
    format!("The body could not be parsed as JSON: {error}")
}

/// Reads the whole of a body; nothing, if it is JSON and no object.
struct Object<'b> {
    budget: &'b mut ParseBudget,
    tokens: usize,
    lists: Lists,
    ending: &'b EarlyRefusal,
}

impl<'b> Object<'b> {
    fn prompts(&self, name: &'static str, most: usize) -> ReadPrompt<'b> {
        ReadPrompt { name, tokens: self.tokens, most, ending: self.ending }
    }
}

/// Which fields are long lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lists {
    OfPrompts,
    /// `input`, and `documents`.
    OfInputs,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Option<Fields>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Option<Fields>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "prompt" => fields.prompt = map.next_value_seed(self.prompts("prompt", SUBMISSIONS))?,
                "input" if self.lists == Lists::OfInputs => {
                    fields.input = map.next_value_seed(self.prompts("input", INPUTS))?;
                }
                "documents" if self.lists == Lists::OfInputs => {
                    fields.documents = map.next_value_seed(self.prompts("documents", INPUTS))?;
                }
                "messages" => fields.messages = map.next_value_seed(ReadMessages(self.ending))?,
                _ => {
                    self.budget.field(&name)?;
                    let value = map.next_value_seed(Within(self.budget))?;
                    fields.others.insert(name, value);
                }
            }
        }
        Ok(Some(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        skip(&mut seq).map(|_| None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// A text in memory of its own.
fn owned(text: &str) -> String {
    let mut own = String::with_capacity(memory::room(text.len()));
    own.push_str(text);
    own
}

/// Reads the rest of a list and keeps nothing of it; says how much there was.
fn skip<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<usize, A::Error> {
    let mut skipped = 0;
    while seq.next_element::<IgnoredAny>()?.is_some() {
        skipped += 1;
    }
    Ok(skipped)
}

/// Reads the rest of an object and keeps nothing of it.
fn skip_map<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Fields that were looked for on this thread: a test's requests are all served on its own.
#[cfg(test)]
pub(super) mod asked {
    use std::{cell::RefCell, collections::BTreeSet};

    thread_local!(static NAMES: RefCell<BTreeSet<String>> = RefCell::default());

    pub(super) fn note(name: &str) {
        NAMES.with_borrow_mut(|names| names.extend([name.to_owned()]));
    }

    pub fn forget() {
        drop(NAMES.take());
    }

    pub fn names() -> BTreeSet<String> {
        NAMES.with_borrow(Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::Token;

    fn read(body: &str) -> Fields {
        Fields::parse(body.as_bytes(), 3).unwrap()
    }

    fn refused(body: &str) -> String {
        Fields::parse(body.as_bytes(), 3).unwrap_err().to_string()
    }

    #[test]
    fn prompts_are_what_they_look_like() {
        let prompt = |json: &str| read(&format!(r#"{{"prompt":{json}}}"#)).prompt();
        let tokens = |ids: &[u32]| ids.iter().map(|id| Token(*id)).collect::<Vec<_>>();
        let text = |text: &str| GivenPrompt::Text(text.into());
        assert_eq!(prompt(r#""a\u00e9""#), Some(Prompt::Given(vec![text("aé")])));
        assert_eq!(prompt("[1, 2]"), Some(Prompt::Given(vec![GivenPrompt::Tokens(tokens(&[1, 2]))])));
        let mixed = Prompt::Given(vec![text("a"), GivenPrompt::Tokens(tokens(&[3])), GivenPrompt::Tokens(vec![])]);
        assert_eq!(prompt(r#"["a", [3], []]"#), Some(mixed));
        let endless = Prompt::Given(vec![GivenPrompt::Endless(6), GivenPrompt::Tokens(tokens(&[1, 2, 3]))]);
        assert_eq!(prompt("[[1,2,3,4,5,6],[1,2,3]]"), Some(endless));
        assert_eq!(prompt("[1,2,3,4]"), Some(Prompt::Given(vec![GivenPrompt::Endless(4)])));
        assert_eq!(prompt("null"), None);
        for wrong in
            ["1", "true", "{}", r#"{"a":[1]}"#, "[]", "[1.5]", "[-1]", "[1,[2]]", "[[2],1]", "[[[1]]]", "[[\"a\"]]"]
        {
            assert_eq!(prompt(wrong), Some(Prompt::Wrong), "{wrong}");
        }
        assert_eq!(prompt(&format!("[{}[1]]", "[1],".repeat(128))), Some(Prompt::TooMany));
        assert_eq!(
            read(r#"{"prompt":"a","prompt":"b"}"#).prompt(),
            Some(Prompt::Given(vec![text("b")])),
            "the last one"
        );
    }

    #[test]
    fn a_list_that_is_far_too_long_ends_reading_and_one_that_is_a_little_does_not() {
        let begins = |unit: &str, times: usize| {
            Fields::parse(format!(r#"{{"prompt":[{}odd"#, unit.repeat(times)).as_bytes(), 3).unwrap_err()
        };
        let long = begins("7,", 100_000);
        assert!(matches!(&long, ApiError::FarTooLong { param: "prompt", .. }), "{long}");
        assert!(long.to_string().contains("more than 65539 token ids"), "{long}");
        for (unit, why) in
            [("[],", "'prompt' is a list of more than 128"), ("1.5,", "'prompt' must be a string, a list")]
        {
            let refusal = begins(unit, 100_000);
            assert!(matches!(&refusal, ApiError::Invalid { param: Some(name), .. } if name == "prompt"), "{refusal}");
            assert!(refusal.to_string().starts_with(why), "{refusal}");
        }
        // What follows it is read, and is no JSON.
        for unit in ["7,", "[],", "1.5,"] {
            assert!(begins(unit, 1000).to_string().starts_with("The body could not be parsed as JSON: "), "{unit}");
        }
        let long = format!(r#"{{"messages":[{}odd"#, r#"{"":0},"#.repeat(100_000));
        assert_eq!(refused(&long), "a message has no 'role'");
        let counted = read(&format!(r#"{{"prompt":[{}7]}}"#, "7,".repeat(1000))).prompt();
        assert_eq!(counted, Some(Prompt::Given(vec![GivenPrompt::Endless(1001)])));
    }

    #[test]
    fn what_is_no_object_is_no_request() {
        for body in ["[]", "[[[1]]]", "1", "-1", "1.5", "\"a\"", "null", "true"] {
            assert_eq!(refused(body), "The body must be a JSON object", "{body}");
        }
        for body in ["", "{", "{\"prompt\":", "{}{}", "{\"prompt\":[1,}", "[1"] {
            assert!(refused(body).starts_with("The body could not be parsed as JSON: "), "{body}");
        }
    }

    #[test]
    fn what_is_left_is_unknown_whatever_it_is() {
        let left = |body: &str| read(body).finish().unwrap_err().to_string();
        assert!(left(r#"{"prompt":"a"}"#).ends_with("supplied: prompt"));
        assert!(left(r#"{"messages":[]}"#).ends_with("supplied: messages"));
        assert!(left(r#"{"prompt":"a","odd":1}"#).ends_with("supplied: odd"));
        assert!(read(r#"{"prompt":null,"messages":null,"odd":null}"#).finish().is_ok());
    }

    #[test]
    fn other_fields_have_an_end_and_are_named_at_it() {
        let mut usual = read(r#"{"stop":["a","b"],"logit_bias":{"1":-2.5},"metadata":{"a":{"b":[true,null,-1]}}}"#);
        assert_eq!(usual.take("stop"), Some(serde_json::json!(["a", "b"])));
        assert_eq!(usual.take("metadata"), Some(serde_json::json!({ "a": { "b": [true, null, -1] } })));
        let many = 1 << 18;
        for long in ["{},".repeat(many), "0,".repeat(many), "[0],".repeat(many), r#"{"":0},"#.repeat(many)] {
            let refusal = Fields::parse(format!(r#"{{"stop":[{long}0]}}"#).as_bytes(), 3).unwrap_err();
            assert!(matches!(&refusal, ApiError::Invalid { param: Some(name), .. } if name == "stop"), "{refusal}");
        }
        let deep = format!(r#"{{"stop":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
        assert!(refused(&deep).contains("recursion limit"));
    }
}
