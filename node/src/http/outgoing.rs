//! What every answer has: an id to name it by, and, if it is an error, OpenAI's form.
//!
//! Handlers' own errors have that form already. What axum says before a handler is reached (a body of another type, JSON
//! that is none, a path that cannot be decoded) is plain text, and gets it here, whoever adds a path.

use super::{ApiError, respond::REQUEST_ID};
use axum::{
    body::to_bytes,
    extract::Request,
    http::{HeaderValue, header, response::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tsnode_protocol::RequestId;

/// Longest message that is put into another form (bytes).
const MESSAGE: usize = 4 << 10;

pub(super) async fn finish(request: Request, next: Next) -> Response {
    let path: String = request.uri().path().chars().take(120).collect();
    let mut response = next.run(request).await;
    let fails = response.status().is_client_error() || response.status().is_server_error();
    if fails && !is_json(&response) {
        response = in_form(response).await;
    }
    let headers = response.headers_mut();
    if !headers.contains_key(REQUEST_ID) {
        // A request that no peer was asked for has no name yet.
        let id = RequestId(crate::random_bytes());
        headers.extend(HeaderValue::from_str(&id.to_string()).ok().map(|id| (REQUEST_ID, id)));
    }
    if fails {
        let id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        tracing::debug!(request = id, path, status = response.status().as_u16(), "refused");
    }
    response
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

/// The same error, with what its text says.
async fn in_form(response: Response) -> Response {
    let (Parts { status, mut headers, .. }, body) = response.into_parts();
    let said = to_bytes(body, MESSAGE).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let message = if said.is_empty() { status.canonical_reason().unwrap_or("refused") } else { &said };
    let mut answer = ApiError::Refused { status, message: message.to_owned() }.into_response();
    headers.remove(header::CONTENT_TYPE);
    headers.remove(header::CONTENT_LENGTH);
    answer.headers_mut().extend(headers);
    answer
}
