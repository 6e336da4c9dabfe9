//! `/v1/responses`: OpenAI's newer API, told in its words by a chat completion.

mod answer;
mod items;
mod request;
mod response_store;

pub(super) use response_store::ResponseStore;

use super::{
    ApiError, ApiState,
    translate::{self, AnswerHead, CompletionPart, Framing, StreamEvent, Teller, Usage},
};
use answer::ResponsesTeller;
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::HeaderMap,
    response::Response,
};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn create(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let store = state.responses.clone();
    let translate = move |fields| {
        let earlier = store.clone();
        request::translate(
            fields,
            |id| earlier.conversation(id),
            |asked| KeptResponse { telling: ResponsesTeller::of(asked), store },
        )
    };
    translate::answer(&state, headers, body, translate).await
}

pub(super) async fn show(State(state): State<ApiState>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    state.responses.response(&id).map(Json).ok_or_else(|| response_store::unknown(&id))
}

pub(super) async fn delete(State(state): State<ApiState>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if !state.responses.forget(&id) {
        return Err(response_store::unknown(&id));
    }
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// A response that is kept when it is whole, unless its client wants it otherwise.
struct KeptResponse {
    telling: ResponsesTeller,
    store: Arc<ResponseStore>,
}

impl KeptResponse {
    fn keep(&self) {
        if let Some((response, conversation)) = self.telling.to_keep() {
            self.store.keep(response, &conversation);
        }
    }
}

impl Teller for KeptResponse {
    const FRAMING: Framing = Framing::Events { ping: None };

    fn begin(&mut self, head: &AnswerHead) -> Vec<StreamEvent> {
        self.telling.begin(head)
    }

    fn add(&mut self, part: CompletionPart) -> Vec<StreamEvent> {
        self.telling.add(part)
    }

    fn end(&mut self, usage: Usage) -> Vec<StreamEvent> {
        let told = self.telling.end(usage);
        self.keep();
        told
    }

    fn fail(&mut self, error: &Value) -> Vec<StreamEvent> {
        self.telling.fail(error)
    }

    fn whole(&mut self, head: &AnswerHead, answer: CompletionPart, usage: Usage) -> Value {
        let whole = self.telling.whole(head, answer, usage);
        self.keep();
        whole
    }
}
