//! What a template is given, as the values that it computes with: messages, tools and documents as transformers has them.

use super::{ChatMessage, Conversation, Dict, Ending, Error, Names, ToolCall, Value};
use serde_json::Value as Json;

/// What is not given is none, and no error to ask for.
pub(super) fn names(conversation: &Conversation) -> Result<Names, Error> {
    let Conversation { messages, tools, documents, kwargs, ending } = conversation;
    let messages = messages.iter().map(message).collect::<Result<_, _>>()?;
    let mut names: Names = vec![
        ("messages".into(), Value::list(messages)),
        ("tools".into(), list(tools)?),
        ("documents".into(), list(documents)?),
        ("add_generation_prompt".into(), Value::Bool(*ending == Ending::Answer)),
    ];
    for (name, value) in kwargs {
        names.push((name.as_str().into(), json(value)?));
    }
    Ok(names)
}

fn list(values: &[Json]) -> Result<Value, Error> {
    if values.is_empty() {
        return Ok(Value::None);
    }
    values.iter().map(json).collect::<Result<_, _>>().map(Value::list)
}

/// JSON with its keys in their order.
pub(super) fn json(value: &Json) -> Result<Value, Error> {
    Ok(match value {
        Json::Null => Value::None,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::Int(whole.into()),
            (None, Some(whole)) => Value::Int(whole.into()),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::text(text.as_str()),
        Json::Array(items) => Value::list(items.iter().map(json).collect::<Result<_, _>>()?),
        Json::Object(pairs) => dict(pairs.iter().map(|(key, value)| Ok((key.as_str(), json(value)?))))?,
    })
}

fn dict<'k>(pairs: impl IntoIterator<Item = Result<(&'k str, Value), Error>>) -> Result<Value, Error> {
    let mut dict = Dict::default();
    for pair in pairs {
        let (key, value) = pair?;
        dict.insert(Value::text(key), value)?;
    }
    Ok(Value::dict(dict))
}

/// Only what was said of it: templates ask whether a message has calls.
fn message(message: &ChatMessage) -> Result<Value, Error> {
    let ChatMessage { role, content, reasoning_content, tool_calls, tool_call_id, name } = message;
    let mut parts = vec![Ok(("role", Value::text(role.as_str()))), Ok(("content", Value::text(content.as_str())))];
    let others = [("name", name), ("tool_call_id", tool_call_id), ("reasoning_content", reasoning_content)];
    parts.extend(others.into_iter().filter_map(|(key, text)| Some(Ok((key, Value::text(text.as_deref()?))))));
    if !tool_calls.is_empty() {
        let calls = tool_calls.iter().map(call).collect::<Result<_, _>>()?;
        parts.push(Ok(("tool_calls", Value::list(calls))));
    }
    dict(parts)
}

/// Its arguments are an object: templates write them in their own way.
fn call(call: &ToolCall) -> Result<Value, Error> {
    let arguments = match serde_json::from_str::<Json>(&call.arguments) {
        Ok(arguments) => json(&arguments)?,
        Err(_) => Value::text(call.arguments.as_str()),
    };
    let function = dict([Ok(("name", Value::text(call.name.as_str()))), Ok(("arguments", arguments))])?;
    let id = call.id.as_deref().map(|id| Ok(("id", Value::text(id))));
    dict(id.into_iter().chain([Ok(("type", Value::text("function"))), Ok(("function", function))]))
}
