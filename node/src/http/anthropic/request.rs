//! A request for a message, as one for a chat completion.

use super::super::{
    ApiError,
    fields::Fields,
    translate::{Translated, TranslatedKind, taken},
};
use serde_json::{Map, Value, json};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Answer,
    /// To know how many tokens it has.
    Count,
}

/// Fields that change nothing here.
const IGNORED: [&str; 9] = [
    "metadata",
    "service_tier",
    "cache_control",
    "inference_geo",
    "diagnostics",
    "speed",
    "user_profile_id",
    "workspace_id",
    "context_management",
];
/// Fields that say how to answer, and nothing where nothing is answered.
const ANSWERING: [&str; 6] = ["max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream"];
/// What a result begins with where the tool has failed.
const FAILED: &str = "Error: ";
/// Fields that mean the same by the same name.
const SAME: [&str; 3] = ["temperature", "top_p", "top_k"];

pub(super) fn translate<T>(mut fields: Fields, purpose: Purpose, teller: T) -> Result<Translated<T>, ApiError> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("model", fields.text("model")?.map(Value::from));
    set("messages", Some(messages(&mut fields)?));
    set("tools", tools(&mut fields)?);
    let (choice, parallel) = tool_choice(&mut fields)?;
    set("tool_choice", choice);
    set("parallel_tool_calls", parallel);
    set("chat_template_kwargs", thinking(&mut fields)?);
    let (format, effort) = output(&mut fields)?;
    set("response_format", format.filter(|_| purpose == Purpose::Answer));
    set("reasoning_effort", effort);
    let stream = if purpose == Purpose::Answer {
        let most = fields.integer("max_tokens", 1, u32::MAX.into())?;
        let most = most.ok_or_else(|| ApiError::param("max_tokens", "'max_tokens' is missing: it must be a number"))?;
        set("max_tokens", Some(most.into()));
        set("stop", stops(&mut fields)?);
        SAME.into_iter().for_each(|name| set(name, fields.take(name)));
        fields.flag("stream")?
    } else {
        ANSWERING.into_iter().for_each(|name| drop(fields.take(name)));
        false
    };
    IGNORED.into_iter().for_each(|name| drop(fields.take(name)));
    fields.finish()?;
    Ok(Translated { kind: TranslatedKind::Chat, body: Value::Object(body), stream, teller })
}

fn messages(fields: &mut Fields) -> Result<Value, ApiError> {
    let wrong = || ApiError::param("messages", "'messages' must be a list of messages");
    let Some(Value::Array(given)) = fields.take("messages") else { return Err(wrong()) };
    if given.is_empty() {
        return Err(refused("messages", "must have at least one message"));
    }
    let mut said = Vec::new();
    if let Some(system) = fields.take("system") {
        said.push(json!({ "role": "system", "content": text_of(system, "system")? }));
    }
    for (at, message) in given.into_iter().enumerate() {
        let place = format!("messages.{at}");
        let Value::Object(mut message) = message else { return Err(wrong()) };
        let content = message.remove("content").unwrap_or_default();
        match message.get("role").and_then(Value::as_str) {
            Some("user") => user(content, &place, &mut said)?,
            Some("assistant") => said.push(assistant(content, &place)?),
            _ => {
                return Err(refused(
                    &format!("{place}.role"),
                    "must be user or assistant; what is system's is 'system'",
                ));
            }
        }
    }
    if said.last().is_some_and(|last| last["role"] == "assistant") {
        return Err(refused("messages", "must end with what the user says: this server begins every answer itself"));
    }
    Ok(Value::Array(said))
}

fn refused(place: &str, why: &str) -> ApiError {
    ApiError::param(place, format!("'{place}' {why}"))
}

/// What a user says, and what tools gave, in its order.
fn user(content: Value, place: &str, said: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut text = None;
    for (at, block) in blocks(content, place)?.into_iter().enumerate() {
        let place = format!("{place}.content.{at}");
        match kind(&block) {
            "text" => text.get_or_insert_with(String::new).push_str(&text_block(block, &place)?),
            "tool_result" => {
                said.extend(text.take().map(|text| json!({ "role": "user", "content": text })));
                said.push(tool_result(block, &place)?);
            }
            other => return Err(unsupported(&place, other)),
        }
    }
    said.extend(text.map(|text| json!({ "role": "user", "content": text })));
    Ok(())
}

fn tool_result(mut block: Value, place: &str) -> Result<Value, ApiError> {
    let Some(id) = block["tool_use_id"].as_str().map(str::to_owned) else {
        return Err(refused(place, "has no 'tool_use_id'"));
    };
    let mut text = match taken(&mut block, "content") {
        Value::Null => String::new(),
        content => text_of(content, &format!("{place}.content"))?,
    };
    match &block["is_error"] {
        // Chat templates know no failed tools: the model reads of it.
        Value::Bool(true) => text.insert_str(0, FAILED),
        Value::Bool(false) | Value::Null => {}
        _ => return Err(refused(&format!("{place}.is_error"), "must be true or false")),
    }
    Ok(json!({ "role": "tool", "tool_call_id": id, "content": text }))
}

fn assistant(content: Value, place: &str) -> Result<Value, ApiError> {
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (at, mut block) in blocks(content, place)?.into_iter().enumerate() {
        let place = format!("{place}.content.{at}");
        match kind(&block) {
            "text" => text.push_str(&text_block(block, &place)?),
            "thinking" => thoughts.push_str(block["thinking"].as_str().unwrap_or_default()),
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (taken(&mut block, "id"), taken(&mut block, "name"));
                if !id.is_string() || !name.is_string() || !block["input"].is_object() {
                    return Err(refused(&place, "must have 'id', 'name' and an object as 'input'"));
                }
                let function = json!({ "name": name, "arguments": block["input"].to_string() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            other => return Err(unsupported(&place, other)),
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

/// A text is one block.
fn blocks(content: Value, place: &str) -> Result<Vec<Value>, ApiError> {
    match content {
        Value::String(text) => Ok(vec![json!({ "type": "text", "text": text })]),
        Value::Array(blocks) => Ok(blocks),
        _ => Err(refused(&format!("{place}.content"), "must be a string or a list of content blocks")),
    }
}

fn kind(block: &Value) -> &str {
    block["type"].as_str().unwrap_or_default()
}

fn text_block(mut block: Value, place: &str) -> Result<String, ApiError> {
    match taken(&mut block, "text") {
        Value::String(text) => Ok(text),
        _ => Err(refused(place, "must have a string as 'text'")),
    }
}

fn unsupported(place: &str, kind: &str) -> ApiError {
    let kind: String = kind.chars().take(64).collect();
    refused(place, &format!("is a content block of type '{kind}', which is not supported by this server"))
}

/// A text, or text blocks.
fn text_of(content: Value, place: &str) -> Result<String, ApiError> {
    let mut text = String::new();
    let blocks = match content {
        Value::String(text) => return Ok(text),
        Value::Array(blocks) => blocks,
        _ => return Err(refused(place, "must be a string or a list of text blocks")),
    };
    for (at, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}.{at}");
        if kind(&block) != "text" {
            return Err(unsupported(&place, kind(&block)));
        }
        text.push_str(&text_block(block, &place)?);
    }
    Ok(text)
}

fn tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let given = match fields.take("tools") {
        None => return Ok(None),
        Some(Value::Array(given)) if given.is_empty() => return Ok(None),
        Some(Value::Array(given)) => given,
        Some(_) => return Err(refused("tools", "must be a list of tools")),
    };
    let tool = |(at, tool): (usize, Value)| match tool["type"].as_str() {
        None | Some("custom") => {
            let mut function = json!({ "name": tool["name"], "parameters": tool["input_schema"] });
            if tool["description"].is_string() {
                function["description"] = tool["description"].clone();
            }
            Ok(json!({ "type": "function", "function": function }))
        }
        Some(other) => Err(refused(
            &format!("tools.{at}"),
            &format!("is of type '{}', which this server does not run", other.chars().take(64).collect::<String>()),
        )),
    };
    given.into_iter().enumerate().map(tool).collect::<Result<Vec<_>, _>>().map(|tools| Some(tools.into()))
}

/// Which tools may be called, and whether several at once.
fn tool_choice(fields: &mut Fields) -> Result<(Option<Value>, Option<Value>), ApiError> {
    let Some(choice) = fields.take("tool_choice") else { return Ok((None, None)) };
    let wanted = match choice["type"].as_str() {
        Some("auto") => json!("auto"),
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => json!({ "type": "function", "function": { "name": choice["name"] } }),
        _ => return Err(refused("tool_choice", "must be an object whose 'type' is auto, any, tool or none")),
    };
    let one_at_once = choice["disable_parallel_tool_use"] == true;
    Ok((Some(wanted), one_at_once.then(|| false.into())))
}

/// A list, and no text by itself.
fn stops(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let stops = fields.take("stop_sequences");
    match stops {
        Some(Value::Array(_)) | None => Ok(stops),
        Some(_) => Err(refused("stop_sequences", "must be a list of strings")),
    }
}

/// Anthropic's models think only when they are told to; what others do unless they are told is their template's.
fn thinking(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let Some(thinking) = fields.take("thinking") else { return Ok(None) };
    match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => Ok(Some(json!({ "enable_thinking": true }))),
        Some("disabled") => Ok(Some(json!({ "enable_thinking": false }))),
        _ => Err(refused("thinking", "must be an object whose 'type' is enabled, adaptive or disabled")),
    }
}

/// What form an answer has, and how hard the model is to think.
fn output(fields: &mut Fields) -> Result<(Option<Value>, Option<Value>), ApiError> {
    let mut config = match fields.take("output_config") {
        None => return Ok((None, None)),
        Some(config) if config.is_object() => config,
        Some(_) => return Err(refused("output_config", "must be an object")),
    };
    let (effort, mut format) = (taken(&mut config, "effort"), taken(&mut config, "format"));
    let effort = Some(effort).filter(|effort| !effort.is_null());
    match format["type"].as_str() {
        None if format.is_null() => Ok((None, effort)),
        Some("json_schema") => {
            let schema = json!({ "name": "format", "schema": taken(&mut format, "schema"), "strict": true });
            Ok((Some(json!({ "type": "json_schema", "json_schema": schema })), effort))
        }
        _ => Err(refused("output_config.format", "must be an object whose 'type' is json_schema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: Value) -> Result<Translated<()>, ApiError> {
        let Value::Object(fields) = request else { unreachable!() };
        translate(Fields::of(fields), Purpose::Answer, ())
    }

    fn refusal(request: Value) -> String {
        read(request).unwrap_err().to_string()
    }

    #[test]
    fn a_conversation_is_a_chat() {
        let read = read(json!({
            "model": "m", "max_tokens": 9, "stream": true, "temperature": 0.5, "top_k": 3, "stop_sequences": ["x"],
            "system": [{ "type": "text", "text": "Be ", "cache_control": { "type": "ephemeral" } },
                { "type": "text", "text": "brief." }],
            "messages": [
                { "role": "user", "content": "Hello" },
                { "role": "assistant", "content": [{ "type": "text", "text": "Good day" }] },
                { "role": "user", "content": [{ "type": "text", "text": "Go " }, { "type": "text", "text": "on" }] },
            ],
            "metadata": { "user_id": "u" },
        }))
        .unwrap();
        assert!(read.stream && read.kind == TranslatedKind::Chat);
        let said = |role: &str, text: &str| json!({ "role": role, "content": text });
        let messages =
            [said("system", "Be brief."), said("user", "Hello"), said("assistant", "Good day"), said("user", "Go on")];
        let expected = json!({
            "model": "m", "max_tokens": 9, "temperature": 0.5, "top_k": 3, "stop": ["x"], "messages": messages,
        });
        assert_eq!(read.body, expected);
    }

    #[test]
    fn tools_and_what_they_gave_are_those_of_a_chat() {
        let weather = json!({ "city": "Ulm" });
        let read = read(json!({
            "max_tokens": 9,
            "tools": [{ "name": "weather", "description": "Of a city", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "thinking": { "type": "disabled" },
            "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": {} } },
            "messages": [
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "Hm", "signature": "" },
                    { "type": "tool_use", "id": "t1", "name": "weather", "input": weather }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "Rain" }] },
                    { "type": "tool_result", "tool_use_id": "t2", "content": "no such city", "is_error": true },
                    { "type": "tool_result", "tool_use_id": "t3", "is_error": false },
                    { "type": "text", "text": "And?" }] },
            ],
        }))
        .unwrap();
        let function = json!({ "name": "weather", "arguments": weather.to_string() });
        let call = json!({ "id": "t1", "type": "function", "function": function });
        let messages = json!([
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": "", "reasoning_content": "Hm", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "t1", "content": "Rain" },
            { "role": "tool", "tool_call_id": "t2", "content": "Error: no such city" },
            { "role": "tool", "tool_call_id": "t3", "content": "" },
            { "role": "user", "content": "And?" },
        ]);
        assert_eq!(read.body["messages"], messages);
        let tool = json!({ "name": "weather", "description": "Of a city", "parameters": { "type": "object" } });
        assert_eq!(read.body["tools"], json!([{ "type": "function", "function": tool }]));
        let schema = json!({ "name": "format", "schema": {}, "strict": true });
        assert_eq!(read.body["response_format"], json!({ "type": "json_schema", "json_schema": schema }));
        assert_eq!(read.body["reasoning_effort"], "low");
        assert_eq!(read.body["chat_template_kwargs"], json!({ "enable_thinking": false }));
        assert_eq!((&read.body["tool_choice"], &read.body["parallel_tool_calls"]), (&json!("required"), &json!(false)));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_its_place() {
        let user = |content: Value| json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": content }] });
        let with = |name: &str, value: Value| {
            let mut request = user(json!("x"));
            request[name] = value;
            request
        };
        let cases = [
            (
                user(json!([{ "type": "image", "source": {} }])),
                "messages.0.content.0' is a content block of type 'image'",
            ),
            (user(json!([{ "type": "tool_result" }])), "has no 'tool_use_id'"),
            (
                user(json!([{ "type": "tool_result", "tool_use_id": "t", "is_error": "yes" }])),
                "'messages.0.content.0.is_error' must be true or false",
            ),
            (user(json!(7)), "'messages.0.content' must be a string"),
            (user(json!([{ "type": "text" }])), "'messages.0.content.0' must have a string as 'text'"),
            (json!({ "messages": [{ "role": "user", "content": "x" }] }), "'max_tokens' is missing"),
            (json!({ "max_tokens": 1 }), "'messages' must be a list"),
            (json!({ "max_tokens": 1, "messages": [{ "role": "system", "content": "x" }] }), "'messages.0.role'"),
            (json!({ "max_tokens": 1, "messages": [{ "role": "assistant", "content": "x" }] }), "must end with"),
            (with("tools", json!([{ "type": "web_search_20250305", "name": "w" }])), "does not run"),
            (with("thinking", json!("yes")), "'thinking' must be"),
            (with("tool_choice", json!("auto")), "'tool_choice' must be"),
            (with("container", json!("c")), "container"),
            (with("stop_sequences", json!("x")), "'stop_sequences' must be a list"),
            (json!({ "max_tokens": 1, "messages": [] }), "'messages' must have at least one"),
        ];
        for (request, why) in cases {
            let refused = refusal(request.clone());
            assert!(refused.contains(why), "{request}: {refused}");
        }
    }
}
