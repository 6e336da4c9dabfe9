//! `input`: a text, or items of a conversation, as messages of a chat.

use super::super::{ApiError, translate::taken};
use serde_json::{Value, json};

/// The messages that `input` adds to a conversation.
pub(super) fn messages(input: Value) -> Result<Vec<Value>, ApiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({ "role": "user", "content": text })]),
        Value::Array(items) if !items.is_empty() => items,
        _ => return Err(ApiError::param("input", "'input' must be a string or a list of items")),
    };
    let mut said = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        add(item, &format!("input[{at}]"), &mut said)?;
    }
    Ok(said)
}

fn add(mut item: Value, place: &str, said: &mut Vec<Value>) -> Result<(), ApiError> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = match item["role"].as_str() {
                Some(role @ ("user" | "system" | "developer" | "assistant")) => role.to_owned(),
                _ => return Err(refused(&format!("{place}.role"), "must be user, assistant, system or developer")),
            };
            let content = text_of(taken(&mut item, "content"), &format!("{place}.content"))?;
            said.push(json!({ "role": role, "content": content }));
        }
        "function_call" => {
            let [id, name, arguments] = ["call_id", "name", "arguments"].map(|name| taken(&mut item, name));
            if ![&id, &name, &arguments].into_iter().all(Value::is_string) {
                return Err(refused(place, "must have the strings 'call_id', 'name' and 'arguments'"));
            }
            let function = json!({ "name": name, "arguments": arguments });
            call(json!({ "id": id, "type": "function", "function": function }), said);
        }
        "function_call_output" => {
            let id = taken(&mut item, "call_id");
            if !id.is_string() {
                return Err(refused(place, "has no 'call_id'"));
            }
            let output = text_of(taken(&mut item, "output"), &format!("{place}.output"))?;
            said.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        }
        // Thoughts of answers before.
        "reasoning" => {}
        other => {
            let other: String = other.chars().take(64).collect();
            return Err(refused(
                place,
                &format!("is an item of type '{other}', which is not supported by this server"),
            ));
        }
    }
    Ok(())
}

/// A call belongs to what the model said before it.
pub(super) fn call(call: Value, said: &mut Vec<Value>) {
    match said.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) if last["tool_calls"].is_array() => {
            if let Some(calls) = last["tool_calls"].as_array_mut() {
                calls.push(call);
            }
        }
        Some(last) => last["tool_calls"] = json!([call]),
        None => said.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
    }
}

/// A text, or parts that are text.
fn text_of(content: Value, place: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(refused(place, "must be a string or a list of text parts")),
    };
    let mut text = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        let kind = part["type"].as_str().unwrap_or_default();
        let said = match kind {
            "input_text" | "output_text" | "text" => &part["text"],
            "refusal" => &part["refusal"],
            other => {
                let other: String = other.chars().take(64).collect();
                let why = format!("is a part of type '{other}', and only text is supported by this server");
                return Err(refused(&place, &why));
            }
        };
        text.push_str(said.as_str().ok_or_else(|| refused(&place, "must have a string as 'text'"))?);
    }
    Ok(text)
}

fn refused(place: &str, why: &str) -> ApiError {
    ApiError::param(place, format!("'{place}' {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_what_the_user_says() {
        assert_eq!(messages(json!("Hi")).unwrap(), [json!({ "role": "user", "content": "Hi" })]);
    }

    #[test]
    fn items_are_messages_and_calls_belong_to_what_was_said_before_them() {
        let call =
            |id: &str| json!({ "type": "function_call", "id": "fc", "call_id": id, "name": "f", "arguments": "{}" });
        let said = messages(json!([
            { "role": "developer", "content": "Be brief." },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] },
            { "type": "reasoning", "summary": [] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "c" }] },
            call("1"),
            call("2"),
            { "type": "function_call_output", "call_id": "1", "output": "x" },
            { "type": "function_call_output", "call_id": "2", "output": [{ "type": "input_text", "text": "y" }] },
            call("3"),
        ]));
        let made = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let expected = json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "user", "content": "ab" },
            { "role": "assistant", "content": "c", "tool_calls": [made("1"), made("2")] },
            { "role": "tool", "tool_call_id": "1", "content": "x" },
            { "role": "tool", "tool_call_id": "2", "content": "y" },
            { "role": "assistant", "content": "", "tool_calls": [made("3")] },
        ]);
        assert_eq!(Value::from(said.unwrap()), expected);
    }

    #[test]
    fn what_is_no_text_is_refused_by_its_place() {
        let cases = [
            (json!([]), "'input' must be"),
            (json!(7), "'input' must be"),
            (json!([{ "role": "king", "content": "x" }]), "'input[0].role'"),
            (
                json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
                "'input[0].content[0]' is a part of type 'input_image'",
            ),
            (json!([{ "role": "user", "content": [{ "type": "input_text" }] }]), "must have a string as 'text'"),
            (json!([{ "role": "user" }]), "'input[0].content' must be"),
            (json!([{ "type": "item_reference", "id": "x" }]), "of type 'item_reference'"),
            (json!([{ "type": "function_call", "name": "f" }]), "'call_id', 'name' and 'arguments'"),
        ];
        for (input, why) in cases {
            let refused = messages(input.clone()).unwrap_err().to_string();
            assert!(refused.contains(why), "{input}: {refused}");
        }
    }
}
