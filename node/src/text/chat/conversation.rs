//! A conversation as a client sends it, and all that a chat template is given with it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said; empty where an assistant only called tools.
    pub content: String,
    /// What an assistant thought before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools that an assistant called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Who says it, or the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ChatMessage {
    /// What somebody says, and nothing else.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// Bytes of all its texts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
        let others = [&self.reasoning_content, &self.tool_call_id, &self.name].into_iter().flatten().map(String::len);
        self.content.len() + calls.chain(others).sum::<usize>()
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the tool's answer names it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// How a conversation ends when it is text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Where the answer begins.
    #[default]
    Answer,
    /// Behind its last message.
    Closed,
    /// Within its last message, which the answer goes on with.
    Open,
}

/// What a chat template is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// What was said so far.
    pub messages: Vec<ChatMessage>,
    /// Tools that may be called, as the client wrote them; none where it named none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Documents to answer from, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<Value>,
    /// Other names that the template may ask for, as `enable_thinking`; they overrule what it is given anyway.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub kwargs: Map<String, Value>,
    /// Where the text ends.
    #[serde(default)]
    pub ending: Ending,
}

impl<M: AsRef<[ChatMessage]>> From<M> for Conversation {
    fn from(messages: M) -> Self {
        Self { messages: messages.as_ref().to_vec(), ..Self::default() }
    }
}

impl Conversation {
    /// Bytes of all messages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(ChatMessage::bytes).sum()
    }

    /// The same, with other texts: `words` makes them of what was said, and `names` of what names things (roles, tools,
    /// keys), where a template looks for what it knows.
    ///
    /// # Errors
    /// Those of either.
    pub(in crate::text) fn map<E>(
        &self,
        mut words: impl FnMut(&str) -> Result<String, E>,
        mut names: impl FnMut(&str) -> Result<String, E>,
    ) -> Result<Self, E> {
        let mut messages = Vec::with_capacity(self.messages.len());
        for said in &self.messages {
            let mut calls = Vec::with_capacity(said.tool_calls.len());
            for call in &said.tool_calls {
                let arguments = match serde_json::from_str(&call.arguments) {
                    Ok(value) => map_json(&value, &mut words, &mut names)?.to_string(),
                    Err(_) => words(&call.arguments)?,
                };
                let id = call.id.as_deref().map(&mut names).transpose()?;
                calls.push(ToolCall { id, name: names(&call.name)?, arguments });
            }
            messages.push(ChatMessage {
                role: names(&said.role)?,
                content: words(&said.content)?,
                reasoning_content: said.reasoning_content.as_deref().map(&mut words).transpose()?,
                tool_calls: calls,
                tool_call_id: said.tool_call_id.as_deref().map(&mut names).transpose()?,
                name: said.name.as_deref().map(&mut names).transpose()?,
            });
        }
        let mut list = |values: &[Value]| -> Result<Vec<Value>, E> {
            values.iter().map(|value| map_json(value, &mut words, &mut names)).collect()
        };
        let (tools, documents) = (list(&self.tools)?, list(&self.documents)?);
        let kwargs = self.kwargs.iter();
        let kwargs = kwargs.map(|(key, value)| Ok((key.clone(), map_json(value, &mut words, &mut names)?)));
        Ok(Self { messages, tools, documents, kwargs: kwargs.collect::<Result<_, E>>()?, ending: self.ending })
    }
}

/// What looks like one is a name: of a type, a tool, a value to choose.
fn is_name(text: &str) -> bool {
    text.chars().all(|letter| letter.is_alphanumeric() || "_-.:/".contains(letter))
}

fn map_json<E>(
    value: &Value,
    words: &mut impl FnMut(&str) -> Result<String, E>,
    names: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Value, E> {
    Ok(match value {
        Value::String(text) if is_name(text) => Value::String(names(text)?),
        Value::String(text) => Value::String(words(text)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| map_json(item, words, names)).collect::<Result<_, E>>()?)
        }
        Value::Object(pairs) => {
            let mut mapped = Map::new();
            for (key, value) in pairs {
                mapped.insert(names(key)?, map_json(value, words, names)?);
            }
            Value::Object(mapped)
        }
        other => other.clone(),
    })
}
