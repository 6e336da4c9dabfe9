//! `/openapi.json`: what this server takes and answers, for programs that read OpenAPI.
//!
//! Bodies are read field by field so that they take no more memory than they are long (`fields.rs`): there are no types from
//! which a library could derive their schemas. So they are tables here ([`request_fields`]), and tests hold them against the reader: it
//! looks for no field that a table has not, takes what lies within its bounds, and refuses by name what does not.

mod apis;
mod request_fields;
mod response_schemas;

use axum::Json;
use request_fields::At;
use serde_json::{Map, Value, json};

pub(super) async fn document() -> Json<Value> {
    Json(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tsnode",
            "description": "A swarm of uneven machines that answers as one. Documented in docs/reference/http.md.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths(),
        "components": {
            "schemas": response_schemas::schemas(),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    }))
}

fn paths() -> Map<String, Value> {
    let mut paths = Map::new();
    let completions = [
        ("/v1/completions", At::Completions, "Completion", "What follows a prompt", "prompt"),
        ("/v1/chat/completions", At::Chat, "ChatCompletion", "What follows in a conversation", "messages"),
    ];
    for (path, at, answer, summary, needed) in completions {
        let body = json!({ "required": true, "content": { "application/json": { "schema": request(at, needed) } } });
        let streamed = json!({ "schema": {} });
        let whole = json!({ "schema": { "$ref": format!("#/components/schemas/{answer}") } });
        let done = json!({
            "description": "The answer; as server-sent events where `stream` is true",
            "content": { "application/json": whole, "text/event-stream": streamed },
        });
        let operation = json!({
            "summary": summary,
            "security": [{}, { "key": [] }],
            "requestBody": body,
            "responses": response_schemas::of_a_completion(done),
        });
        paths.insert(path.to_owned(), json!({ "post": operation }));
    }
    for (path, schema, summary) in response_schemas::READ {
        paths.insert((*path).to_owned(), json!({ "get": response_schemas::reading(path, schema, summary) }));
    }
    for operation in apis::OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.shown();
    }
    paths
}

/// A body's schema. Fields that no table has are refused by name.
fn request(at: At, needed: &str) -> Value {
    let here = request_fields::all().filter(|field| field.at.is_for(at));
    let properties: Map<String, Value> = here.map(|field| (field.name.to_owned(), field.schema())).collect();
    json!({ "type": "object", "required": [needed], "properties": properties, "additionalProperties": false })
}

#[cfg(test)]
mod tests;
