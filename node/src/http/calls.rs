//! Thoughts and calls of tools in an answer, in the form of chat completions.

use crate::text::AnswerPart;
use serde_json::{Map, Value, json};
use tsnode_protocol::RequestId;

/// What some of an answer adds to one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolCallDelta {
    pub index: usize,
    /// Where the call begins.
    pub name: Option<String>,
    pub arguments: String,
}

/// What some of an answer is beside its text.
#[derive(Clone, Debug, Default)]
pub(super) struct BesideText {
    pub reasoning: String,
    /// At most one for each call.
    pub calls: Vec<ToolCallDelta>,
}

impl BesideText {
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.calls.is_empty()
    }

    pub fn extend(&mut self, more: Self) {
        self.reasoning.push_str(&more.reasoning);
        more.calls.into_iter().for_each(|part| self.call(part));
    }

    /// Sorts parts of an answer; what is content is added to the text.
    pub fn sort(&mut self, said: Vec<AnswerPart>, text: &mut String) {
        for one in said {
            match one {
                AnswerPart::Content(more) => text.push_str(&more),
                AnswerPart::Reasoning(more) => self.reasoning.push_str(&more),
                AnswerPart::Call { index, name } => {
                    self.call(ToolCallDelta { index, name: Some(name), arguments: String::new() });
                }
                AnswerPart::Arguments { index, piece } => {
                    self.call(ToolCallDelta { index, name: None, arguments: piece })
                }
            }
        }
    }

    fn call(&mut self, part: ToolCallDelta) {
        match self.calls.iter_mut().find(|call| call.index == part.index) {
            Some(call) => {
                call.name = call.name.take().or(part.name);
                call.arguments.push_str(&part.arguments);
            }
            None => self.calls.push(part),
        }
    }

    /// Adds them to a whole message: its content is null where it only calls. What is thought has two names, since clients
    /// look for either.
    pub fn whole(&self, message: &mut Value, ids: CallIds) {
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
            message["reasoning"] = json!(self.reasoning);
        }
        if self.calls.is_empty() {
            return;
        }
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
        let call = |call: &ToolCallDelta| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": ids.of(call.index), "type": "function", "function": function })
        };
        message["tool_calls"] = self.calls.iter().map(call).collect();
    }

    /// Adds them to a part of a streamed one: a call's first part has its id and name.
    pub fn delta(&self, delta: &mut Map<String, Value>, ids: CallIds) {
        if !self.reasoning.is_empty() {
            delta.insert("reasoning_content".into(), json!(self.reasoning));
            delta.insert("reasoning".into(), json!(self.reasoning));
        }
        if self.calls.is_empty() {
            return;
        }
        let part = |part: &ToolCallDelta| match &part.name {
            Some(name) => json!({
                "index": part.index,
                "id": ids.of(part.index),
                "type": "function",
                "function": { "name": name, "arguments": part.arguments },
            }),
            None => json!({ "index": part.index, "function": { "arguments": part.arguments } }),
        };
        delta.insert("tool_calls".into(), self.calls.iter().map(part).collect());
    }
}

/// Names of one answer's calls: who comes back with the same request gets the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallIds {
    pub request: RequestId,
    /// The answer's number.
    pub choice: usize,
    /// Mistral's templates refuse any but nine letters and digits.
    pub is_short: bool,
}

impl CallIds {
    fn of(self, index: usize) -> String {
        let mut hash = blake3::Hasher::new();
        let RequestId(request) = &self.request;
        hash.update(request).update(&self.choice.to_le_bytes()).update(&index.to_le_bytes());
        let hex = hash.finalize().to_hex();
        if self.is_short { hex[..9].to_owned() } else { format!("call_{}", &hex[..24]) }
    }
}
