//! The models of the swarm, as Ollama lists and shows them.

use super::super::{ApiError, ApiState, bodies::ReadBody, fields::Fields, texts::find_card};
use super::request::real;
use axum::{Json, body::Body, extract::State, http::HeaderMap};
use serde_json::{Value, json};
use tsnode_protocol::ModelCard;

/// Nobody knows when a model was changed: those of a swarm never are.
const BEGINNING: &str = "1970-01-01T00:00:00Z";

pub(in crate::http) async fn tags(State(state): State<ApiState>) -> Json<Value> {
    let models: Vec<Value> = state.view.borrow().models.iter().map(tag).collect();
    Json(json!({ "models": models }))
}

pub(in crate::http) async fn show(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let parse = |bytes: &[u8]| Ok((Fields::foreign(bytes)?, ()));
    let (ReadBody { mut fields, .. }, ()) = state.bodies.read_by(&headers, body, parse).await?;
    let (model, older) = (fields.text("model")?, fields.text("name")?);
    let name = model.or(older).ok_or_else(|| ApiError::param("model", "'model' is missing"))?;
    let card = {
        let view = state.view.borrow();
        let names: Vec<String> = view.models.iter().map(|card| card.name.clone()).collect();
        find_card(&view, Some(real(&name, &names)))?.clone()
    };
    // Whether it thinks is in its files. They may not be here yet: then that is what is not said.
    let text = state.texts.find(&state.view(), Some(&card.id.to_string())).await;
    Ok(Json(shown(&card, text.is_ok_and(|text| text.thinks()))))
}

fn tag(card: &ModelCard) -> Value {
    json!({
        "name": card.name, "model": card.name, "modified_at": BEGINNING, "digest": card.id.to_string(),
        "size": card.shape.stage_bytes(card.shape.all_layers()), "details": details(),
    })
}

/// What peers do not tell each other of a model is empty.
fn details() -> Value {
    json!({
        "parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": "",
    })
}

/// Tools work with every model: one that knows none is told of them in words.
fn shown(card: &ModelCard, thinks: bool) -> Value {
    let capabilities: &[&str] = if thinks { &["completion", "tools", "thinking"] } else { &["completion", "tools"] };
    let shape = &card.shape;
    json!({
        "modelfile": "", "parameters": "", "template": "", "license": "", "modified_at": BEGINNING, "details": details(),
        "capabilities": capabilities,
        "model_info": {
            "general.architecture": "transformer", "general.basename": card.name,
            "transformer.attention.head_count": shape.heads, "transformer.attention.head_count_kv": shape.kv_heads,
            "transformer.block_count": shape.layers, "transformer.context_length": shape.context,
            "transformer.embedding_length": shape.hidden, "transformer.feed_forward_length": shape.intermediate,
            "transformer.vocab_size": shape.vocab,
        },
    })
}
