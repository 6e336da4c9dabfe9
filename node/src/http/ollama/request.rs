//! Ollama's requests, as completions.

use super::super::{
    ApiError,
    fields::Fields,
    translate::{Translated, TranslatedKind, taken},
};
use super::answer::{OllamaEndpoint, OllamaTeller};
use serde_json::{Map, Value, json};

/// What a model is called where no version is said.
const LATEST: &str = ":latest";
/// Fields that change nothing here.
const IGNORED: [&str; 4] = ["keep_alive", "truncate", "shift", "name"];
/// Options that completions know, by their names there.
const OPTIONS: [(&str, &str); 9] = [
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
];
/// Fields that say how a template renders a prompt.
const TEMPLATES: [&str; 2] = ["chat_template_kwargs", "reasoning_effort"];
/// Options that would change what is drawn, and what they are where they do nothing.
const DRAWS: [(&str, f64); 3] = [("mirostat", 0.0), ("typical_p", 1.0), ("tfs_z", 1.0)];

/// A request as it was read.
#[derive(Debug)]
pub(super) struct OllamaRequest {
    kind: TranslatedKind,
    body: Map<String, Value>,
    stream: bool,
    endpoint: OllamaEndpoint,
    asks_nothing: bool,
}

/// The completion that a request becomes, where models are called so.
pub(super) fn translate(asked: OllamaRequest, names: &[String]) -> Result<Translated<OllamaTeller>, ApiError> {
    let OllamaRequest { kind, mut body, stream, endpoint, asks_nothing } = asked;
    if let Some(Value::String(name)) = body.get_mut("model") {
        name.truncate(real(name, names).len());
    }
    Ok(Translated { kind, body: Value::Object(body), stream, teller: OllamaTeller::of(endpoint, asks_nothing) })
}

/// What a model is called here.
pub(super) fn real<'n>(name: &'n str, names: &[String]) -> &'n str {
    match name.strip_suffix(LATEST) {
        Some(short) if !names.iter().any(|there| there == name) => short,
        _ => name,
    }
}

pub(super) fn chat(mut fields: Fields) -> Result<OllamaRequest, ApiError> {
    let mut body = common(&mut fields)?;
    let messages = match fields.take("messages") {
        None => Vec::new(),
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(wrong("messages", "must be a list of messages")),
    };
    let (mut said, mut calls) = (Vec::new(), CallNumbers::default());
    for (at, one) in messages.into_iter().enumerate() {
        said.push(message(one, &format!("messages[{at}]"), &mut calls)?);
    }
    let asks_nothing = said.is_empty();
    body.insert("messages".into(), said.into());
    if let Some(tools) = fields.take("tools").filter(|tools| *tools != json!([])) {
        body.insert("tools".into(), tools);
    }
    let stream = stream(&mut fields)?;
    fields.finish()?;
    Ok(OllamaRequest { kind: TranslatedKind::Chat, body, stream, endpoint: OllamaEndpoint::Chat, asks_nothing })
}

pub(super) fn generate(mut fields: Fields) -> Result<OllamaRequest, ApiError> {
    let mut body = common(&mut fields)?;
    let prompt = fields.take("prompt").unwrap_or_else(|| json!(""));
    let Value::String(prompt) = prompt else { return Err(wrong("prompt", "must be a string")) };
    for (name, nothing) in
        [("suffix", json!("")), ("template", json!("")), ("context", json!([])), ("images", json!([]))]
    {
        fields.refuse_unless(name, |value| *value == nothing)?;
    }
    let (raw, system, stream) = (fields.flag("raw")?, fields.text("system")?, stream(&mut fields)?);
    fields.finish()?;
    let asks_nothing = prompt.is_empty();
    if raw {
        // They are for a template, and none renders it.
        TEMPLATES.into_iter().for_each(|name| drop(body.remove(name)));
        body.insert("prompt".into(), prompt.into());
        return Ok(OllamaRequest {
            kind: TranslatedKind::Text,
            body,
            stream,
            endpoint: OllamaEndpoint::Generate,
            asks_nothing,
        });
    }
    let system = system.filter(|text| !text.is_empty()).map(|text| json!({ "role": "system", "content": text }));
    let said = system.into_iter().chain([json!({ "role": "user", "content": prompt })]);
    body.insert("messages".into(), said.collect());
    Ok(OllamaRequest { kind: TranslatedKind::Chat, body, stream, endpoint: OllamaEndpoint::Generate, asks_nothing })
}

fn wrong(name: &str, why: &str) -> ApiError {
    ApiError::param(name, format!("'{name}' {why}"))
}

/// Streamed unless it is said otherwise.
fn stream(fields: &mut Fields) -> Result<bool, ApiError> {
    if fields.peek("stream").is_some() { fields.flag("stream") } else { Ok(true) }
}

/// What both endpoints have.
fn common(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut body = Map::new();
    let name = fields.text("model")?.ok_or_else(|| wrong("model", "is missing"))?;
    body.insert("model".into(), name.into());
    options(fields, &mut body)?;
    match fields.take("format") {
        None => {}
        Some(format) if format == "" => {}
        Some(format) if format == "json" => {
            drop(body.insert("response_format".into(), json!({ "type": "json_object" })))
        }
        Some(schema) if schema.is_object() => {
            let schema = json!({ "name": "format", "schema": schema });
            body.insert("response_format".into(), json!({ "type": "json_schema", "json_schema": schema }));
        }
        Some(_) => return Err(wrong("format", "must be \"json\" or a JSON schema")),
    }
    if let Some(think) = fields.take("think") {
        if !think.is_boolean() && !think.is_string() {
            return Err(wrong("think", "must be true, false, or how hard to think"));
        }
        body.insert("chat_template_kwargs".into(), json!({ "enable_thinking": think != false }));
        if think.is_string() {
            body.insert("reasoning_effort".into(), think);
        }
    }
    fields.refuse_unless("logprobs", |v| *v == false)?;
    fields.refuse_unless("top_logprobs", |v| *v == 0)?;
    IGNORED.into_iter().for_each(|name| drop(fields.take(name)));
    Ok(body)
}

/// What concerns the machine that computes, as `num_ctx` and `num_gpu`, is its owner's matter here.
fn options(fields: &mut Fields, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut options = match fields.take("options") {
        None => return Ok(()),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(wrong("options", "must be an object")),
    };
    for (theirs, ours) in OPTIONS {
        if let Some(value) = options.remove(theirs) {
            body.insert(ours.into(), value);
        }
    }
    for (name, nothing) in DRAWS {
        if options.remove(name).is_some_and(|value| value.as_f64() != Some(nothing)) {
            return Err(wrong(&format!("options.{name}"), "is not supported by this server"));
        }
    }
    match options.remove("num_predict") {
        None | Some(Value::Null) => {}
        // Until the model ends it, or its context is full.
        Some(most) if most.as_i64().is_some_and(|most| most < 0) => {}
        Some(most) => drop(body.insert("max_tokens".into(), most)),
    }
    Ok(())
}

/// Calls of tools, which have no names here.
#[derive(Debug, Default)]
struct CallNumbers {
    made: usize,
    answered: usize,
}

fn message(mut given: Value, place: &str, calls: &mut CallNumbers) -> Result<Value, ApiError> {
    if given["images"].as_array().is_some_and(|images| !images.is_empty()) {
        return Err(wrong(&format!("{place}.images"), "are not supported by this server"));
    }
    let (role, content) = (taken(&mut given, "role"), taken(&mut given, "content"));
    let content = if content.is_null() { json!("") } else { content };
    if !role.is_string() || !content.is_string() {
        return Err(wrong(place, "must have the strings 'role' and 'content'"));
    }
    let is_tool = role == "tool";
    let mut message = json!({ "role": role, "content": content });
    if is_tool {
        message["tool_call_id"] = format!("call_{}", calls.answered).into();
        calls.answered += 1;
        if given["tool_name"].is_string() {
            message["name"] = taken(&mut given, "tool_name");
        }
    }
    if given["thinking"].is_string() {
        message["reasoning_content"] = taken(&mut given, "thinking");
    }
    if let Value::Array(made) = taken(&mut given, "tool_calls") {
        let call = |mut call: Value| {
            let mut function = taken(&mut call, "function");
            let arguments = taken(&mut function, "arguments");
            let arguments = if let Value::String(text) = arguments { text } else { arguments.to_string() };
            let id = format!("call_{}", calls.made);
            calls.made += 1;
            let function = json!({ "name": taken(&mut function, "name"), "arguments": arguments });
            json!({ "id": id, "type": "function", "function": function })
        };
        let made: Vec<Value> = made.into_iter().map(call).collect();
        if !made.is_empty() {
            message["tool_calls"] = made.into();
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(request: Value) -> Fields {
        let Value::Object(fields) = request else { unreachable!() };
        Fields::of(fields)
    }

    #[test]
    fn a_chat_is_streamed_unless_it_is_said_otherwise() {
        let options =
            json!({ "temperature": 0.5, "num_predict": 9, "num_ctx": 4096, "repeat_penalty": 1.1, "typical_p": 1 });
        let asked = chat(fields(json!({
            "model": "m:latest", "messages": [{ "role": "user", "content": "Hi", "images": null }], "options": options,
            "keep_alive": "5m", "think": false, "format": "", "tools": [],
        })))
        .unwrap();
        assert!(asked.stream && !asked.asks_nothing);
        let read = translate(asked, &["m".into()]).unwrap();
        let expected = json!({
            "model": "m", "messages": [{ "role": "user", "content": "Hi" }], "temperature": 0.5, "max_tokens": 9,
            "repetition_penalty": 1.1, "chat_template_kwargs": { "enable_thinking": false },
        });
        assert_eq!(read.body, expected);
        assert_eq!(real("m:latest", &["m:latest".into()]), "m:latest");
    }

    #[test]
    fn a_prompt_is_a_conversation_unless_it_is_raw() {
        let asked = |raw: bool| {
            let request = json!({
                "model": "m", "prompt": "Hi", "system": "Be brief.", "raw": raw, "stream": false, "think": "low",
            });
            generate(fields(request)).unwrap()
        };
        let said = |role: &str, text: &str| json!({ "role": role, "content": text });
        let templated = asked(false);
        assert_eq!(templated.body["messages"], json!([said("system", "Be brief."), said("user", "Hi")]));
        assert!(!templated.stream && templated.kind == TranslatedKind::Chat);
        assert_eq!(templated.body["reasoning_effort"], "low");
        let raw = asked(true);
        assert_eq!(
            (raw.kind, Value::Object(raw.body)),
            (TranslatedKind::Text, json!({ "model": "m", "prompt": "Hi" }))
        );
        assert!(generate(fields(json!({ "model": "m" }))).unwrap().asks_nothing);
    }

    #[test]
    fn calls_of_tools_get_names() {
        let call = json!({ "function": { "name": "f", "arguments": { "a": 1 } } });
        let tool = json!({ "role": "tool", "tool_name": "f", "content": "x" });
        let messages = json!([{ "role": "user", "content": "x" }, { "role": "assistant", "tool_calls": [call, call] }, tool, tool]);
        let body =
            chat(fields(json!({ "model": "m", "messages": messages, "format": { "type": "object" } }))).unwrap().body;
        let ids = [1, 1, 2, 3].map(|at| &body["messages"][at]);
        assert_eq!(
            (&ids[0]["tool_calls"][0]["id"], &ids[1]["tool_calls"][1]["id"]),
            (&json!("call_0"), &json!("call_1"))
        );
        assert_eq!((&ids[2]["tool_call_id"], &ids[3]["tool_call_id"]), (&json!("call_0"), &json!("call_1")));
        assert_eq!(ids[0]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!([&ids[2]["name"], &ids[3]["name"]], ["f", "f"], "templates name the tool that said it");
        assert_eq!(body["response_format"]["json_schema"]["schema"], json!({ "type": "object" }));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let with = |name: &str, value: Value| json!({ "model": "m", "prompt": "x", name: value });
        let cases = [
            (json!({ "prompt": "x" }), "'model' is missing"),
            (with("suffix", json!("y")), "'suffix' is not supported"),
            (with("images", json!(["aGk="])), "'images' is not supported"),
            (with("options", json!({ "mirostat": 2 })), "'options.mirostat' is not supported"),
            (with("format", json!("yaml")), "'format' must be"),
            (with("prompt", json!(["x"])), "'prompt' must be a string"),
            (with("think", json!(7)), "'think' must be true, false"),
        ];
        for (request, why) in cases {
            let refused = generate(fields(request.clone())).unwrap_err().to_string();
            assert!(refused.contains(why), "{request}: {refused}");
        }
        let image = json!([{ "role": "user", "content": "x", "images": ["aGk="] }]);
        let refused = chat(fields(json!({ "model": "m", "messages": image }))).unwrap_err().to_string();
        assert!(refused.contains("'messages[0].images' are not supported"), "{refused}");
    }
}
