//! Errors in the form of the API whose path was asked.

use super::super::ApiError;
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, StatusCode},
    middleware::Next,
    response::Response,
};
use serde_json::{Value, json};

const REQUEST_ID: &str = "x-request-id";
/// What Anthropic's clients look for.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");
/// Paths of Ollama's API, also of what is not built: its clients are to read why.
const OLLAMA: [&str; 14] = [
    "/api/blobs",
    "/api/chat",
    "/api/copy",
    "/api/create",
    "/api/delete",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/api/ps",
    "/api/pull",
    "/api/push",
    "/api/show",
    "/api/tags",
    "/api/me",
];

/// Whose form errors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorFormat {
    OpenAi,
    Anthropic,
    Ollama,
}

impl ErrorFormat {
    fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if OLLAMA.contains(&path) {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

/// Shapes what goes wrong behind it, and names the request as the API does.
pub(in crate::http) async fn errors(request: Request, next: Next) -> Response {
    let form = ErrorFormat::of(request.uri().path());
    let mut response = next.run(request).await;
    if form == ErrorFormat::Anthropic
        && let Some(id) = response.headers().get(REQUEST_ID).cloned()
    {
        response.headers_mut().insert(ANTHROPIC_ID, id);
    }
    let status = response.status();
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let body = match form {
        ErrorFormat::OpenAi => return response,
        ErrorFormat::Anthropic => anthropic(status, &error.to_string()),
        ErrorFormat::Ollama => json!({ "error": error.to_string() }),
    };
    *response.body_mut() = Body::from(body.to_string());
    response
}

fn anthropic(status: StatusCode, message: &str) -> Value {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
