//! The API key, where one is set.

use super::{ApiError, ApiState};
use axum::{
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Paths that say nothing but whether the peer is alive.
const OPEN: [&str; 3] = ["/healthz", "/health", "/readyz"];

pub(super) async fn check(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    if let Some(key) = &state.api_key
        && !OPEN.contains(&request.uri().path())
    {
        let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let given = given.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
        // Hashes compare in constant time, whatever the lengths.
        if blake3::hash(given.as_bytes()) != blake3::hash(key.as_bytes()) {
            return ApiError::Unauthorised.into_response();
        }
    }
    next.run(request).await
}
