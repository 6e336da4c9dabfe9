//! `/v1/rerank`: documents by how well they answer a query, as Jina and Cohere ask for it and vLLM answers.

use super::{
    ApiError, ApiState,
    bodies::ReadBody,
    embeddings::{find, inputs, refused, truncate},
};
use axum::{Json, body::Body, extract::State, http::HeaderMap};
use serde_json::{Value, json};
use tsnode_protocol::{EncoderInput, EncoderTask, limits};

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let asked = state.bodies.read_inputs(&headers, body, limits::SEQUENCE_TOKENS as usize).await?;
    let ReadBody { place, naming, mut fields } = asked;
    let card = find(&state.view.borrow(), fields.text("model")?.as_deref(), EncoderTask::Score)?;
    let missing = |param: &str| ApiError::param(param, format!("'{param}' is missing"));
    let query = fields.text("query")?.ok_or_else(|| missing("query"))?;
    let documents = inputs(fields.documents().ok_or_else(|| missing("documents"))?, "documents")?;
    let texts = documents.into_iter().map(text).collect::<Result<Vec<String>, ApiError>>()?;
    let top = fields.integer("top_n", 0, u32::MAX.into())?.filter(|top| *top > 0);
    let top = top.map_or(texts.len(), |top| top as usize);
    // Jina's word; documents are returned unless it says no.
    let returns = fields.flag_or("return_documents", true)?;
    let truncate = truncate(&mut fields, &card)?;
    for ignored in ["user", "priority", "request_id"] {
        fields.take(ignored);
    }
    fields.finish()?;
    let pair = |text: &String| EncoderInput::Pair(query.clone(), text.clone());
    let pairs: Vec<EncoderInput> = texts.iter().map(pair).collect();
    if query.len().saturating_mul(pairs.len()) > QUERIES {
        return Err(ApiError::param("query", "the query is too long for so many documents; send fewer"));
    }
    if pairs.iter().any(|pair| pair.bytes() > limits::ENCODER_BYTES) {
        return Err(ApiError::param("documents", "the query and a document are too long together"));
    }
    let name = card.name.clone();
    let encoded = state.encoders.encode(card, pairs, truncate).await.map_err(|error| refused(error, "documents"))?;
    drop(place);
    let tokens: u64 = encoded.iter().map(|one| u64::from(one.tokens)).sum();
    let scores: Vec<f32> = encoded.iter().map(|one| one.values.first().copied().unwrap_or_default()).collect();
    let result = |index: usize| {
        let mut result = json!({ "index": index, "relevance_score": scores[index] });
        if returns {
            result["document"] = json!({ "text": texts[index] });
        }
        result
    };
    let results: Vec<Value> = best(&scores).into_iter().take(top).map(result).collect();
    Ok(Json(json!({
        "id": format!("rerank-{}", naming.request),
        "model": name,
        "usage": { "total_tokens": tokens },
        "results": results,
    })))
}

/// Copies of a query beside all documents (bytes).
const QUERIES: usize = 64 << 20;

fn text(document: EncoderInput) -> Result<String, ApiError> {
    match document {
        EncoderInput::Text(text) => Ok(text),
        _ => Err(ApiError::param("documents", "'documents' must be a list of strings")),
    }
}

/// Places of the scores, the best first; of equal ones the first.
fn best(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_comes_first_and_equals_keep_their_order() {
        assert_eq!(best(&[0.25, 0.75, 0.25, -1.0]), [1, 0, 2, 3]);
        assert!(best(&[]).is_empty());
    }
}
