//! A request for a response, as one for a chat completion.

use super::super::{
    ApiError,
    fields::Fields,
    translate::{Translated, TranslatedKind, taken},
};
use super::{items, response_store};
use serde_json::{Map, Value, json};

/// Fields that change nothing here.
const IGNORED: [&str; 6] = [
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "stream_options",
    "max_tool_calls",
];
/// Fields that mean the same by the same name.
const SAME: [&str; 3] = ["temperature", "top_p", "parallel_tool_calls"];
/// Fields that a response repeats, and what they are where they are not said.
fn repeated() -> Value {
    json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": { "effort": null, "summary": null }, "store": true, "temperature": null,
        "text": { "format": { "type": "text" } }, "tool_choice": "auto", "tools": [], "top_p": null,
        "truncation": "disabled", "user": null, "background": false, "safety_identifier": null,
    })
}

/// What a response says of its request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ResponsesRequest {
    /// Fields that it repeats.
    pub repeated: Map<String, Value>,
    /// The conversation, without what is said for this response alone; nothing where it is not to be kept.
    pub conversation: Option<Vec<Value>>,
}

/// `earlier` finds the conversation that ends with a response.
pub(super) fn translate<T>(
    mut fields: Fields,
    earlier: impl FnOnce(&str) -> Option<Vec<Value>>,
    teller: impl FnOnce(ResponsesRequest) -> T,
) -> Result<Translated<T>, ApiError> {
    let repeated = repeat(&mut fields);
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("model", fields.text("model")?.map(Value::from));
    let instructions = fields.text("instructions")?;
    let mut conversation = match fields.text("previous_response_id")? {
        None => Vec::new(),
        Some(id) => earlier(&id).ok_or_else(|| {
            let why = response_store::unknown(&id).to_string();
            ApiError::param("previous_response_id", format!("'previous_response_id' is not known here. {why}"))
        })?,
    };
    let input = fields.take("input").ok_or_else(|| ApiError::param("input", "'input' is missing"))?;
    conversation.extend(items::messages(input)?);
    // They are for this response, and not for those that go on from it.
    let system = instructions.map(|text| json!({ "role": "system", "content": text }));
    set("messages", Some(system.into_iter().chain(conversation.iter().cloned()).collect()));
    set("max_tokens", fields.integer("max_output_tokens", 1, u32::MAX.into())?.map(Value::from));
    set("tools", tools(&mut fields)?);
    set("tool_choice", tool_choice(&mut fields)?);
    set("response_format", format(&mut fields)?);
    set("reasoning_effort", effort(&mut fields)?);
    SAME.into_iter().for_each(|name| set(name, fields.take(name)));
    for name in ["user", "metadata", "safety_identifier"] {
        set(name, fields.take(name));
    }
    let (stream, keeps) = (fields.flag("stream")?, fields.take("store"));
    let keeps = match keeps {
        None => true,
        Some(Value::Bool(keeps)) => keeps,
        Some(_) => return Err(ApiError::param("store", "'store' must be true or false")),
    };
    refuse_the_rest(fields)?;
    let teller = teller(ResponsesRequest { repeated, conversation: keeps.then_some(conversation) });
    Ok(Translated { kind: TranslatedKind::Chat, body: Value::Object(body), stream, teller })
}

fn repeat(fields: &mut Fields) -> Map<String, Value> {
    let Value::Object(mut repeated) = repeated() else { return Map::new() };
    for (name, value) in &mut repeated {
        if let Some(said) = fields.peek(name) {
            *value = said.clone();
        }
    }
    repeated
}

fn refuse_the_rest(mut fields: Fields) -> Result<(), ApiError> {
    fields.refuse_unless("background", |v| v == false)?;
    fields.refuse_unless("truncation", |v| v == "disabled")?;
    fields.refuse_unless("top_logprobs", |v| v == 0)?;
    let is_log = |v: &Value| v == "message.output_text.logprobs";
    fields.refuse_unless("include", |v| v.as_array().is_some_and(|all| !all.iter().any(is_log)))?;
    IGNORED.into_iter().for_each(|name| drop(fields.take(name)));
    fields.finish()
}

fn wrong(name: &str, why: &str) -> ApiError {
    ApiError::param(name, format!("'{name}' {why}"))
}

fn tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let given = match fields.take("tools") {
        None => return Ok(None),
        Some(Value::Array(given)) if given.is_empty() => return Ok(None),
        Some(Value::Array(given)) => given,
        Some(_) => return Err(wrong("tools", "must be a list of tools")),
    };
    let tool = |(at, mut tool): (usize, Value)| {
        let kind: String = tool["type"].as_str().unwrap_or_default().chars().take(64).collect();
        if kind != "function" {
            let why = format!("is of type '{kind}', which this server does not run: only functions are supported");
            return Err(wrong(&format!("tools[{at}]"), &why));
        }
        let names = ["name", "description", "parameters", "strict"];
        let parts =
            names.map(|name| (name.to_owned(), taken(&mut tool, name))).into_iter().filter(|(_, v)| !v.is_null());
        Ok(json!({ "type": "function", "function": parts.collect::<Map<_, _>>() }))
    };
    given.into_iter().enumerate().map(tool).collect::<Result<Vec<_>, _>>().map(|tools| Some(tools.into()))
}

fn tool_choice(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    match fields.take("tool_choice") {
        Some(choice) if choice["type"] == "function" => {
            Ok(Some(json!({ "type": "function", "function": { "name": choice["name"] } })))
        }
        Some(choice) if choice.is_object() => Err(wrong("tool_choice", "of this type is not supported by this server")),
        choice => Ok(choice),
    }
}

/// `text.format` is what chats call `response_format`.
fn format(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let Some(mut text) = fields.take("text") else { return Ok(None) };
    if !text.is_object() {
        return Err(wrong("text", "must be an object"));
    }
    let mut format = taken(&mut text, "format");
    match format["type"].as_str() {
        None if format.is_null() => Ok(None),
        Some("json_schema") => {
            let Some(schema) = format.as_object_mut() else { return Ok(None) };
            schema.remove("type");
            Ok(Some(json!({ "type": "json_schema", "json_schema": schema })))
        }
        _ => Ok(Some(format)),
    }
}

fn effort(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    match fields.take("reasoning") {
        None => Ok(None),
        Some(mut reasoning) if reasoning.is_object() => {
            Ok(Some(taken(&mut reasoning, "effort")).filter(|v| !v.is_null()))
        }
        Some(_) => Err(wrong("reasoning", "must be an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: Value) -> Result<Translated<ResponsesRequest>, ApiError> {
        let Value::Object(fields) = request else { unreachable!() };
        let earlier = |id: &str| (id == "resp_1").then(|| vec![json!({ "role": "user", "content": "Hello" })]);
        translate(Fields::of(fields), earlier, |asked| asked)
    }

    #[test]
    fn a_request_is_a_chat_that_goes_on_from_an_earlier_one() {
        let read = read(json!({
            "model": "m", "input": "Go on", "instructions": "Be brief.", "previous_response_id": "resp_1", "stream": true,
            "max_output_tokens": 9, "temperature": 0.5, "metadata": { "a": "b" }, "include": [], "truncation": "disabled",
            "text": { "format": { "type": "text" }, "verbosity": "low" }, "reasoning": { "effort": null },
        }))
        .unwrap();
        let said = |role: &str, text: &str| json!({ "role": role, "content": text });
        let expected = json!({
            "model": "m", "max_tokens": 9, "temperature": 0.5, "metadata": { "a": "b" }, "response_format": { "type": "text" },
            "messages": [said("system", "Be brief."), said("user", "Hello"), said("user", "Go on")],
        });
        assert!(read.stream);
        assert_eq!(read.body, expected);
        let conversation = vec![said("user", "Hello"), said("user", "Go on")];
        assert_eq!(read.teller.conversation, Some(conversation), "without what was for this one alone");
        let repeated = read.teller.repeated;
        assert_eq!((&repeated["instructions"], &repeated["top_p"]), (&json!("Be brief."), &Value::Null));
    }

    #[test]
    fn tools_and_schemas_are_those_of_a_chat() {
        let read = read(json!({
            "input": "x", "store": false,
            "tools": [{ "type": "function", "name": "f", "parameters": {}, "strict": true, "description": null }],
            "tool_choice": { "type": "function", "name": "f" },
            "text": { "format": { "type": "json_schema", "name": "s", "schema": {}, "strict": true } },
        }))
        .unwrap();
        let function = json!({ "name": "f", "parameters": {}, "strict": true });
        assert_eq!(read.body["tools"], json!([{ "type": "function", "function": function }]));
        assert_eq!(read.body["tool_choice"], json!({ "type": "function", "function": { "name": "f" } }));
        let schema = json!({ "name": "s", "schema": {}, "strict": true });
        assert_eq!(read.body["response_format"], json!({ "type": "json_schema", "json_schema": schema }));
        assert_eq!(read.teller.conversation, None, "it is not to be kept");
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let with = |name: &str, value: Value| json!({ "input": "x", name: value });
        let cases = [
            (json!({}), "'input' is missing"),
            (with("previous_response_id", json!("resp_2")), "keeps its last 256 responses, of 16 MiB together"),
            (with("background", json!(true)), "'background' is not supported"),
            (with("truncation", json!("auto")), "'truncation' is not supported"),
            (with("include", json!(["message.output_text.logprobs"])), "'include' is not supported"),
            (with("tools", json!([{ "type": "web_search" }])), "does not run"),
            (with("tool_choice", json!({ "type": "allowed_tools" })), "'tool_choice' of this type"),
            (with("store", json!("no")), "'store' must be"),
            (with("conversation", json!("c")), "conversation"),
            (with("prompt", json!({ "id": "p" })), "prompt"),
        ];
        for (request, why) in cases {
            let refused = read(request.clone()).unwrap_err().to_string();
            assert!(refused.contains(why), "{request}: {refused}");
        }
    }
}
