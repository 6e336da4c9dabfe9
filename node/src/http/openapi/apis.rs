//! All paths but completions and what is only read, as the document shows them: other APIs, encoders, tokens, and what the owner may
//! ask.

use super::response_schemas;
use serde_json::{Map, Value, json};

/// What a path takes and answers.
pub(super) struct Operation {
    pub path: &'static str,
    pub method: &'static str,
    says: &'static str,
    /// The schema of its body; none where it takes none.
    pub body: Option<fn() -> Value>,
    status: &'static str,
    /// The name of its answer's schema.
    answer: &'static str,
    /// What else an answer may be sent as.
    streamed: Option<&'static str>,
    errors: Errors,
    /// Whether it may be told how many days.
    days: bool,
}

/// The form of a path's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errors {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Errors {
    fn schema(self) -> &'static str {
        match self {
            Self::OpenAi => "Error",
            Self::Anthropic => "AnthropicError",
            Self::Ollama => "OllamaError",
        }
    }
}

const EVENTS: Option<&str> = Some("text/event-stream");
const LINES: Option<&str> = Some("application/x-ndjson");

const fn asks(path: &'static str, body: fn() -> Value, answer: &'static str, says: &'static str) -> Operation {
    Operation {
        path,
        method: "post",
        says,
        body: Some(body),
        status: "200",
        answer,
        streamed: None,
        errors: Errors::OpenAi,
        days: false,
    }
}

const fn of(path: &'static str, method: &'static str, answer: &'static str, says: &'static str) -> Operation {
    Operation { method, body: None, ..asks(path, anything, answer, says) }
}

/// Bodies of these are looked at for being JSON alone.
const fn owner(path: &'static str, says: &'static str) -> Operation {
    Operation { status: "202", ..asks(path, anything, "Done", says) }
}

pub(super) const OPERATIONS: &[Operation] = &[
    Operation { streamed: EVENTS, ..asks("/v1/responses", response, "Response", "OpenAI's responses") },
    of("/v1/responses/{id}", "get", "Response", "One that is kept"),
    of("/v1/responses/{id}", "delete", "Deleted", "Forgets it"),
    Operation {
        streamed: EVENTS,
        errors: Errors::Anthropic,
        ..asks("/v1/messages", message, "Message", "Anthropic's messages")
    },
    Operation {
        errors: Errors::Anthropic,
        ..asks("/v1/messages/count_tokens", counted, "TokenCount", "Tokens of a request for a message")
    },
    Operation {
        streamed: LINES,
        errors: Errors::Ollama,
        ..asks("/api/chat", ollama_chat, "OllamaAnswer", "Ollama's chats")
    },
    Operation {
        streamed: LINES,
        errors: Errors::Ollama,
        ..asks("/api/generate", ollama_generate, "OllamaAnswer", "Ollama's prompts")
    },
    Operation { errors: Errors::Ollama, ..of("/api/tags", "get", "OllamaModels", "Ollama's list of models") },
    Operation { errors: Errors::Ollama, ..asks("/api/show", ollama_show, "OllamaModel", "One of them") },
    asks("/v1/embeddings", embeddings, "Embeddings", "Vectors of texts"),
    asks("/v1/rerank", rerank, "Ranking", "Documents by how well they answer a query"),
    asks("/tokenize", tokenize, "Tokens", "Tokens of a text or of a conversation, as in vLLM"),
    asks("/detokenize", detokenize, "Text", "The text of tokens, as in vLLM"),
    of("/api/swarm", "get", "Swarm", "All that this peer knows of the swarm"),
    Operation { streamed: EVENTS, ..of("/api/events", "get", "Event", "The same and requests, as they change") },
    of("/api/requests", "get", "Requests", "The last requests of this gateway"),
    of("/api/requests/{id}", "get", "Request", "What one of them took"),
    Operation {
        days: true,
        ..of("/api/earnings", "get", "Earnings", "Tokens computed for others and by others, by day and model")
    },
    owner("/api/requests/{id}/cancel", "Cancels one that is under way"),
    of("/api/settings", "get", "Settings", "What members have set for the swarm"),
    owner("/api/settings", "Sets targets or a routing policy for the whole swarm"),
    of("/api/limits", "get", "Limits", "What the owner allows, the hours, and what the next start makes of it"),
    owner("/api/limits", "Changes memory, threads, uploads and hours, now and for the next start"),
    of("/api/models/pulls", "get", "Pulls", "Models that are fetched whole from peers, and how far each is"),
    Operation { answer: "Pulling", ..owner("/api/models/pulls", "Fetches a model whole from peers") },
    of("/api/arrivals", "get", "Arrivals", "Who was seen in the swarm, and since when"),
    of("/api/invite", "get", "Invite", "What others join with, where the swarm is open"),
    of("/api/plans", "get", "Plans", "Plans that this peer has followed"),
    owner("/api/pause", "Lends nothing until it is to lend again"),
    owner("/api/resume", "Lends again"),
    owner("/api/leave", "Leaves the swarm, and ends"),
    asks("/api/links/measure", measure, "Transfer", "Measures a link"),
];

impl Operation {
    pub fn shown(&self) -> Value {
        let mut content = json!({ "application/json": { "schema": response_schemas::reference(self.answer) } });
        if let Some(kind) = self.streamed {
            content[kind] = json!({ "schema": {} });
        }
        let mut responses = response_schemas::refusals(&response_schemas::REFUSALS, self.errors.schema());
        let mut operation = json!({ "summary": self.says, "security": [{}, { "key": [] }] });
        if let Some(body) = self.body {
            responses.extend(response_schemas::refusals(&response_schemas::OF_BODIES, self.errors.schema()));
            operation["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "schema": body() } } });
        }
        if self.path.contains("{id}") {
            responses.extend(response_schemas::refusals(&response_schemas::OF_IDS, self.errors.schema()));
            operation["parameters"] = json!([response_schemas::id()]);
        }
        if self.days {
            responses.extend(response_schemas::refusals(&response_schemas::OF_DAYS, self.errors.schema()));
            operation["parameters"] = json!([response_schemas::days()]);
        }
        responses.insert(self.status.into(), json!({ "description": self.says, "content": content }));
        operation["responses"] = Value::Object(responses);
        operation
    }
}

/// An object with these fields; others are refused by name.
fn closed(needed: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": needed, "properties": properties, "additionalProperties": false })
}

/// More fields.
fn with(mut all: Value, more: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    all
}

/// Fields that do nothing.
fn ignored(names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), json!({}))).collect::<Map<_, _>>().into()
}

fn only(value: Value) -> Value {
    json!({ "enum": [value, null] })
}

fn whole(low: i64, high: i64) -> Value {
    json!({ "type": ["integer", "null"], "minimum": low, "maximum": high })
}

fn number(low: f64, high: f64) -> Value {
    json!({ "type": ["number", "null"], "minimum": low, "maximum": high })
}

fn text() -> Value {
    json!({ "type": ["string", "null"] })
}

fn flag() -> Value {
    json!({ "type": ["boolean", "null"] })
}

fn list() -> Value {
    json!({ "type": ["array", "null"] })
}

fn maybe_object() -> Value {
    json!({ "type": ["object", "null"] })
}

fn anything() -> Value {
    json!({})
}

const MOST: i64 = u32::MAX as i64;

fn sampling() -> Value {
    json!({ "temperature": number(0.0, 2.0), "top_p": number(0.0, 1.0) })
}

fn response() -> Value {
    let item = json!({ "type": "object" });
    let input = json!({ "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "items": item }] });
    let own = json!({
        "input": input, "model": text(), "instructions": text(), "previous_response_id": text(),
        "max_output_tokens": whole(1, MOST), "tools": list(), "tool_choice": {}, "text": maybe_object(),
        "reasoning": maybe_object(), "parallel_tool_calls": flag(), "stream": flag(), "store": flag(),
        "background": only(json!(false)), "truncation": only(json!("disabled")), "top_logprobs": only(json!(0)), "include": list(),
    });
    let taken = ignored(&[
        "user",
        "metadata",
        "safety_identifier",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "stream_options",
        "max_tool_calls",
    ]);
    closed(&["input"], with(with(own, sampling()), taken))
}

/// What both paths of Anthropic's API take.
fn conversation() -> Value {
    let block = json!({ "type": "object", "required": ["type"], "properties": { "type": { "type": "string" } } });
    let content = json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": block }] });
    let message = json!({
        "type": "object",
        "required": ["role", "content"],
        "properties": { "role": { "enum": ["user", "assistant"] }, "content": content },
    });
    let system = json!({ "anyOf": [{ "type": ["string", "null"] }, { "type": "array", "items": block }] });
    let own = json!({
        "model": text(), "messages": { "type": "array", "minItems": 1, "items": message }, "system": system,
        "tools": list(), "tool_choice": maybe_object(), "thinking": maybe_object(), "output_config": maybe_object(),
    });
    let taken = ignored(&[
        "metadata",
        "service_tier",
        "cache_control",
        "inference_geo",
        "diagnostics",
        "speed",
        "user_profile_id",
        "workspace_id",
        "context_management",
    ]);
    with(own, taken)
}

fn message() -> Value {
    let stops = json!({ "type": ["array", "null"], "maxItems": 16, "items": { "type": "string" } });
    let answering = json!({
        "max_tokens": { "type": "integer", "minimum": 1, "maximum": MOST }, "top_k": whole(-1, 1 << 20), "stop_sequences": stops,
        "stream": flag(),
    });
    closed(&["messages", "max_tokens"], with(conversation(), with(answering, sampling())))
}

fn counted() -> Value {
    let answering = ignored(&["max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream"]);
    closed(&["messages"], with(conversation(), answering))
}

/// What both of Ollama's ways of asking take.
fn ollama() -> Value {
    let format = json!({ "anyOf": [{ "enum": ["", "json", null] }, { "type": "object" }] });
    let own = json!({
        "model": { "type": "string" }, "options": maybe_object(), "format": format, "think": { "type": ["boolean", "string", "null"] },
        "stream": flag(), "logprobs": only(json!(false)), "top_logprobs": only(json!(0)),
    });
    with(own, ignored(&["keep_alive", "truncate", "shift", "name"]))
}

fn ollama_chat() -> Value {
    let message = json!({
        "type": "object",
        "required": ["role"],
        "properties": { "role": { "enum": ["system", "user", "assistant", "tool"] }, "content": text() },
    });
    let own = json!({ "messages": { "type": ["array", "null"], "items": message }, "tools": list() });
    closed(&["model"], with(ollama(), own))
}

fn ollama_generate() -> Value {
    let own = json!({
        "prompt": text(), "system": text(), "raw": flag(), "suffix": only(json!("")), "template": only(json!("")),
        "context": only(json!([])), "images": only(json!([])),
    });
    closed(&["model"], with(ollama(), own))
}

/// The older name is taken, too.
fn ollama_show() -> Value {
    let by = |name: &str| json!({ "type": "object", "required": [name], "properties": { name: { "type": "string" } } });
    json!({ "anyOf": [by("model"), by("name")] })
}

/// What is to be encoded.
fn inputs() -> Value {
    let text = json!({ "type": "string", "minLength": 1 });
    let id = json!({ "type": "integer", "minimum": 0, "maximum": MOST });
    let list = |items: &Value| json!({ "type": "array", "minItems": 1, "maxItems": 2048, "items": items });
    let ids = json!({ "type": "array", "minItems": 1, "items": id });
    json!({ "anyOf": [text, list(&text), ids, list(&ids)] })
}

fn embeddings() -> Value {
    let own = json!({
        "input": inputs(), "model": text(), "encoding_format": { "enum": ["float", "base64", null] }, "dimensions": whole(1, MOST),
        "normalize": flag(), "truncate_prompt_tokens": whole(-1, MOST),
    });
    closed(&["input"], with(own, ignored(&["user", "priority", "request_id", "input_type", "task"])))
}

fn rerank() -> Value {
    let text_ = json!({ "type": "string", "minLength": 1 });
    let documents = json!({ "anyOf": [text_, { "type": "array", "minItems": 1, "maxItems": 2048, "items": text_ }] });
    let own = json!({
        "query": { "type": "string" }, "documents": documents, "model": text(), "top_n": whole(0, MOST), "return_documents": flag(),
        "truncate_prompt_tokens": whole(-1, MOST),
    });
    closed(&["query", "documents"], with(own, ignored(&["user", "priority", "request_id"])))
}

/// Of a conversation also what its template gets: more fields than are named here.
fn tokenize() -> Value {
    let by =
        |name: &str, schema: Value| json!({ "type": "object", "required": [name], "properties": { name: schema } });
    let messages = json!({ "type": "array", "minItems": 1 });
    let mut either = json!({ "anyOf": [by("prompt", json!({ "type": "string" })), by("messages", messages)] });
    either["properties"] = json!({ "model": text(), "add_special_tokens": flag(), "return_token_strs": flag() });
    either
}

fn detokenize() -> Value {
    let id = json!({ "type": "integer", "minimum": 0, "maximum": MOST });
    closed(&["tokens"], json!({ "model": text(), "tokens": { "type": "array", "items": id } }))
}

fn measure() -> Value {
    let peer = json!({ "type": "string" });
    let bytes = json!({ "type": "integer", "minimum": 1, "maximum": crate::data_plane::measure::MOST });
    closed(&["to", "bytes"], json!({ "to": peer, "bytes": bytes }))
}
