//! What is answered, as the document shows it.

use serde_json::{Map, Value, json};

/// What is read: its path, the schema of what it answers, and what it is.
pub(super) const READ: &[(&str, &str, &str)] = &[
    ("/v1/models", "ModelList", "Models that the swarm serves"),
    ("/v1/models/{id}", "Model", "One of them"),
    ("/healthz", "Health", "Whether the process lives"),
    ("/health", "Health", "Whether the process lives"),
    ("/readyz", "Readiness", "Whether requests are served"),
    ("/api/version", "Version", "Name and version"),
];

/// Errors that any path behind a key has: what they are and when.
pub(super) const REFUSALS: [(&str, &str); 4] = [
    ("401", "No key, or none that is known"),
    ("403", "The key, the name of this host or the page that asks is not allowed this"),
    ("429", "More requests than allowed: wait for Retry-After"),
    ("503", "Nobody serves it now: the message says what is waited for"),
];

/// Errors of bodies and of what they ask for.
pub(super) const OF_BODIES: [(&str, &str); 9] = [
    ("400", "A field is missing, wrong or out of range, and named"),
    ("404", "No such model"),
    ("408", "The body came too slowly"),
    ("410", "The owner of this peer cancelled it"),
    ("413", "The body is too large"),
    ("415", "The body is not said to be JSON"),
    ("422", "The body is not what this path takes"),
    ("500", "The model's own files are no good"),
    ("502", "A peer failed on the way, and no other could go on"),
];

/// Errors of paths with an id.
pub(super) const OF_IDS: [(&str, &str); 2] = [("400", "The id is not UTF-8"), ("404", "There is none of that name")];

/// Errors of a number of days.
pub(super) const OF_DAYS: [(&str, &str); 1] = [("400", "The number of days is none, or out of range")];

fn refusal(says: &str, schema: &str) -> Value {
    json!({ "description": says, "content": { "application/json": { "schema": reference(schema) } } })
}

/// The `id` of a path.
pub(super) fn id() -> Value {
    json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
}

/// How many days are asked for.
pub(super) fn days() -> Value {
    let schema = json!({ "type": "integer", "minimum": 1, "maximum": crate::history::DAYS });
    json!({ "name": "days", "in": "query", "required": false, "schema": schema })
}

pub(super) fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// These, in the form that a schema has.
pub(super) fn refusals(which: &[(&str, &str)], schema: &str) -> Map<String, Value> {
    which.iter().map(|(status, says)| ((*status).to_owned(), refusal(says, schema))).collect()
}

/// Of a path that takes a body.
pub(super) fn of_a_completion(done: Value) -> Map<String, Value> {
    let mut responses = refusals(&REFUSALS, "Error");
    responses.extend(refusals(&OF_BODIES, "Error"));
    responses.insert("200".into(), done);
    responses
}

/// A path that is only read.
pub(super) fn reading(path: &str, schema: &str, summary: &str) -> Value {
    let content = |schema: &str| json!({ "application/json": { "schema": reference(schema) } });
    let mut responses = refusals(&REFUSALS, "Error");
    responses.insert("200".into(), json!({ "description": summary, "content": content(schema) }));
    if path == "/readyz" {
        responses.insert("503".into(), json!({ "description": "Not yet, and why", "content": content(schema) }));
    }
    let mut operation = json!({ "summary": summary, "security": [{}, { "key": [] }] });
    if path.ends_with("{id}") {
        responses.extend(refusals(&OF_IDS, "Error"));
        operation["parameters"] = json!([id()]);
    }
    operation["responses"] = Value::Object(responses);
    operation
}

/// What answers are made of. An answer may have more than is named here.
pub(super) fn schemas() -> Value {
    let mut schemas = of_models();
    if let (Value::Object(all), Value::Object(more)) = (&mut schemas, of_peers()) {
        all.extend(more);
    }
    schemas
}

/// An object that has these properties, the needed ones always.
fn object(needed: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": needed, "properties": properties })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// What is answered about models and by them.
fn of_models() -> Value {
    let text = json!({ "type": "string" });
    let maybe_text = json!({ "type": ["string", "null"] });
    let count = json!({ "type": "integer", "minimum": 0 });
    let finish = json!({ "type": ["string", "null"] });
    let whole = |object_name: &str, choice: &str| {
        let properties = json!({
            "id": text, "object": { "const": object_name }, "created": count, "model": text,
            "system_fingerprint": maybe_text, "choices": list(reference(choice)), "usage": reference("Usage"),
        });
        object(&["id", "object", "created", "model", "choices", "usage"], properties)
    };
    let error = json!({ "message": text, "type": text, "param": maybe_text, "code": maybe_text });
    json!({
        "Error": object(&["error"], json!({ "error": object(&["message", "type", "param", "code"], error) })),
        "Usage": object(
            &["prompt_tokens", "completion_tokens", "total_tokens"],
            json!({
                "prompt_tokens": count, "completion_tokens": count, "total_tokens": count,
                "prompt_tokens_details": { "type": "object", "properties": { "cached_tokens": count } },
                "completion_tokens_details": { "type": "object", "properties": { "reasoning_tokens": count } },
            }),
        ),
        "Choice": object(
            &["index", "text", "finish_reason", "logprobs"],
            json!({ "index": count, "text": text, "finish_reason": finish, "logprobs": { "type": ["object", "null"] } }),
        ),
        "ChatChoice": object(
            &["index", "message", "finish_reason", "logprobs"],
            json!({
                "index": count,
                "message": object(&["role", "content"], json!({ "role": text, "content": maybe_text })),
                "finish_reason": finish,
                "logprobs": { "type": ["object", "null"] },
            }),
        ),
        "Completion": whole("text_completion", "Choice"),
        "ChatCompletion": whole("chat.completion", "ChatChoice"),
        "Model": object(
            &["id", "object", "created", "owned_by"],
            json!({
                "id": text, "object": { "const": "model" }, "created": count, "owned_by": text, "max_model_len": count,
                "tsnode_peers": count, "tsnode_loaded": { "type": "boolean" }, "tsnode_default": { "type": "boolean" },
            }),
        ),
        "ModelList": object(&["object", "data"], json!({ "object": { "const": "list" }, "data": list(reference("Model")) })),
        "Health": object(&["status"], json!({ "status": text })),
        "Readiness": {},
        "Version": object(&["name", "version"], json!({ "name": text, "version": text })),
        "Response": object(
            &["id", "object", "created_at", "status", "model", "output", "usage"],
            json!({
                "id": text, "object": { "const": "response" }, "created_at": count, "model": text,
                "status": { "enum": ["completed", "incomplete", "failed"] }, "output": list(json!({ "type": "object" })),
            }),
        ),
        "Deleted": object(&["id", "object", "deleted"], json!({ "id": text, "deleted": { "const": true } })),
        "Message": object(
            &["id", "type", "role", "model", "content", "stop_reason", "usage"],
            json!({
                "id": text, "type": { "const": "message" }, "role": { "const": "assistant" }, "model": text,
                "content": list(json!({ "type": "object", "required": ["type"] })), "stop_reason": maybe_text,
                "usage": object(&["input_tokens", "output_tokens"], json!({ "input_tokens": count, "output_tokens": count })),
            }),
        ),
        "TokenCount": object(&["input_tokens"], json!({ "input_tokens": count })),
        "AnthropicError": object(
            &["type", "error"],
            json!({
                "type": { "const": "error" },
                "error": object(&["type", "message"], json!({ "type": text, "message": text })),
            }),
        ),
        "OllamaError": object(&["error"], json!({ "error": text })),
        "OllamaAnswer": object(&["model", "created_at", "done"], json!({ "model": text, "created_at": text, "done": { "type": "boolean" } })),
        "OllamaModels": object(&["models"], json!({ "models": list(object(&["name", "model", "details"], json!({}))) })),
        "OllamaModel": object(&["details", "model_info", "capabilities"], json!({ "capabilities": list(text.clone()) })),
        "Embeddings": object(
            &["object", "data", "model", "usage"],
            json!({ "object": { "const": "list" }, "data": list(object(&["object", "index", "embedding"], json!({}))), "model": text }),
        ),
        "Ranking": object(
            &["id", "model", "usage", "results"],
            json!({ "results": list(object(&["index", "relevance_score"], json!({ "index": count }))) }),
        ),
        "Tokens": object(
            &["count", "max_model_len", "tokens"],
            json!({ "count": count, "max_model_len": count, "tokens": list(count.clone()) }),
        ),
        "Text": object(&["prompt"], json!({ "prompt": text })),
    })
}

/// What is told of peers, of what they did, and of what was set.
fn of_peers() -> Value {
    let text = json!({ "type": "string" });
    let maybe_text = json!({ "type": ["string", "null"] });
    let count = json!({ "type": "integer", "minimum": 0 });
    json!({
        "Swarm": object(&["me", "peers", "models"], json!({ "peers": list(json!({})), "models": list(json!({})) })),
        "Event": { "type": "object" },
        "Requests": object(&["requests", "running"], json!({ "requests": list(json!({})), "running": list(json!({})) })),
        "Work": object(&["prompt_tokens", "completion_tokens"], json!({ "prompt_tokens": count, "completion_tokens": count })),
        "Earned": object(
            &["day", "model", "model_id", "for_others", "by_others"],
            json!({ "day": text, "model": text, "model_id": text, "for_others": reference("Work"), "by_others": reference("Work") }),
        ),
        "Earnings": object(
            &["earnings", "total", "days_kept"],
            json!({
                "earnings": list(reference("Earned")), "days_kept": count,
                "total": object(&["for_others", "by_others"], json!({ "for_others": reference("Work"), "by_others": reference("Work") })),
            }),
        ),
        "Limits": object(
            &["limits", "hours", "lending", "relending", "kept", "fixed"],
            json!({
                "limits": { "type": "object" }, "hours": maybe_text, "lending": text,
                "relending": { "type": "object" }, "kept": { "type": "object" }, "fixed": { "type": "object" },
            }),
        ),
        "Arrivals": object(&["watched_since", "arrivals"], json!({ "watched_since": {}, "arrivals": list(json!({})) })),
        "Invite": object(&["invite"], json!({ "invite": maybe_text, "why": text })),
        "Pulls": object(&["pulls"], json!({ "pulls": list(json!({})) })),
        "Plans": object(&["plans"], json!({ "plans": list(json!({})) })),
        "Settings": object(&["settings", "attainment"], json!({ "settings": list(json!({})), "attainment": list(json!({})) })),
        "Request": { "type": "object" },
        "Done": object(&["done"], json!({ "done": text })),
        "Pulling": object(&["done", "id"], json!({ "done": text, "id": text })),
        "Transfer": { "type": "object" },
    })
}
