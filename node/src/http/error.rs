//! Errors as OpenAI shapes them. The one file that knows HTTP statuses.

use crate::{data_plane::models::ModelFilesError, gateway::SubmitError, text::TextError};
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::time::Duration;

/// Why a request is not answered as asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// A field is missing, of the wrong kind, or out of range.
    #[error("{message}")]
    Invalid {
        /// What and why.
        message: String,
        /// Which field.
        param: Option<String>,
    },
    /// The prompt leaves no room in the model's context.
    #[error(
        "This model's maximum context length is {context} tokens. However, your {param} resulted in {prompt} tokens \
         and {wanted} more were asked for. Please reduce the length of the prompt or max_tokens."
    )]
    TooLong {
        /// Tokens the model can hold.
        context: u32,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        wanted: u32,
        /// Which field has the prompt.
        param: &'static str,
    },
    /// The prompt is so much longer than the model's context that not all of its tokens were made.
    #[error("{message}")]
    FarTooLong {
        /// How long it is, what it may be, and what to do.
        message: String,
        /// Which field.
        param: &'static str,
    },
    /// No such model.
    #[error("The model `{asked}` does not exist in this swarm, which has: {}", names(.there))]
    UnknownModel {
        /// What it was called.
        asked: String,
        /// What those are called that there are.
        there: Vec<String>,
    },
    /// A key is asked for, and none was sent.
    #[error(
        "You didn't provide an API key: send it as `Authorization: Bearer …`; the owner of this peer makes one with: \
         tsnode keys add NAME"
    )]
    NoKey,
    /// The key that was sent is none.
    #[error(
        "Incorrect API key provided: it was mistyped, or has been removed; the owner of this peer makes one with: \
         tsnode keys add NAME"
    )]
    WrongKey,
    /// The key is good for something else.
    #[error(
        "This API key may send prompts only; the owner of this peer makes one for everything with: \
         tsnode keys add NAME --scope admin"
    )]
    Forbidden,
    /// The request was sent to a name that is none of this peer's.
    #[error(
        "This peer does not answer to the name `{0}`: ask it by an address that it listens at, or have its owner allow the name \
         with: tsnode join --allow-host NAME"
    )]
    WrongHost(String),
    /// A page of another origin asks for what changes something.
    #[error(
        "Pages of `{0}` may not ask this peer: its owner allows an application of theirs with: tsnode join --allow-origin {0}"
    )]
    ForeignOrigin(String),
    /// The body is not said to be JSON.
    #[error("The body must be JSON, and {0} is said of it: send the header `Content-Type: application/json`")]
    NotJson(String),
    /// More requests than are allowed.
    #[error("Rate limit reached: ask again in {} s", retry_seconds(*.retry_after))]
    TooOften {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Refused before any handler was asked.
    #[error("{message}")]
    Refused {
        /// As which kind of error.
        status: StatusCode,
        /// Why.
        message: String,
    },
    /// No such path.
    #[error("There is nothing at {0}")]
    NotFound(String),
    /// The path is there, for another method.
    #[error("This path does not answer that method")]
    Method,
    /// The body is too large.
    #[error("The body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body comes too slowly.
    #[error(
        "The body came too slowly: {received} bytes in {} s. Send it again on a faster connection, or a shorter one.",
        after.as_secs()
    )]
    TooSlow {
        /// Bytes that came.
        received: usize,
        /// In this time.
        after: Duration,
    },
    /// Nobody serves the model now.
    #[error("{reason}")]
    Unserved {
        /// What is missing.
        reason: String,
        /// When to ask again.
        retry_after: Duration,
    },
    /// A peer failed on the way.
    #[error("{0}")]
    Failed(String),
    /// The owner of the gateway did not want it answered.
    #[error("The request was cancelled by the owner of the peer that took it")]
    Cancelled,
    /// The model's own files are no good.
    #[error("{0}")]
    Model(String),
}

impl ApiError {
    /// A field that is wrong.
    pub(super) fn param(param: &str, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: Some(param.to_owned()) }
    }

    fn facts(&self) -> (StatusCode, &'static str, Option<&'static str>) {
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::Invalid { .. } => (StatusCode::BAD_REQUEST, INVALID, None),
            Self::TooLong { .. } | Self::FarTooLong { .. } => {
                (StatusCode::BAD_REQUEST, INVALID, Some("context_length_exceeded"))
            }
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, INVALID, Some("model_not_found")),
            Self::NoKey | Self::WrongKey => (StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key")),
            Self::Forbidden => (StatusCode::FORBIDDEN, INVALID, Some("insufficient_permissions")),
            Self::WrongHost(_) => (StatusCode::FORBIDDEN, INVALID, Some("host_not_allowed")),
            Self::ForeignOrigin(_) => (StatusCode::FORBIDDEN, INVALID, Some("origin_not_allowed")),
            Self::NotJson(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_media_type")),
            Self::TooOften { .. } => (StatusCode::TOO_MANY_REQUESTS, "requests", Some("rate_limit_exceeded")),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, INVALID, None),
            Self::Refused { status, .. } if status.is_server_error() => (*status, "server_error", None),
            Self::Refused { status, .. } => (*status, INVALID, None),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, INVALID, None),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, None),
            Self::TooSlow { .. } => (StatusCode::REQUEST_TIMEOUT, INVALID, Some("request_timeout")),
            Self::Unserved { .. } => (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("unavailable")),
            Self::Failed(_) => (StatusCode::BAD_GATEWAY, "server_error", Some("peer_failed")),
            // Clients ask again by themselves where others are to blame: not after this.
            Self::Cancelled => (StatusCode::GONE, INVALID, Some("cancelled")),
            Self::Model(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some("broken_model")),
        }
    }

    /// How to show a key, as RFC 6750 says it.
    fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::NoKey => Some(r#"Bearer realm="tsnode""#),
            Self::WrongKey => Some(r#"Bearer realm="tsnode", error="invalid_token""#),
            Self::Forbidden => Some(r#"Bearer realm="tsnode", error="insufficient_scope""#),
            _ => None,
        }
    }

    /// The JSON body, also used inside streams.
    pub(super) fn body(&self) -> Value {
        let (_, kind, code) = self.facts();
        let param = match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::TooLong { param, .. } | Self::FarTooLong { param, .. } => Some((*param).into()),
            Self::UnknownModel { .. } => Some("model".into()),
            _ => None,
        };
        json!({ "error": { "message": self.to_string(), "type": kind, "param": param, "code": code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.facts().0, Json(self.body())).into_response();
        // For APIs that shape it otherwise.
        response.extensions_mut().insert(self.clone());
        if let Self::Unserved { retry_after, .. } | Self::TooOften { retry_after } = &self {
            let seconds = HeaderValue::from(retry_seconds(*retry_after));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if let Some(challenge) = self.challenge() {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

/// Names of models are peers' words: so many of them are said.
const NAMES: usize = 12;
/// And so much of each.
const NAME_CHARS: usize = 120;

fn names(there: &[String]) -> String {
    let short = |name: &String| name.chars().take(NAME_CHARS).collect::<String>();
    let mut said: Vec<String> = there.iter().take(NAMES).map(short).collect();
    match there.len() {
        0 => said.push("no model".into()),
        all if all > NAMES => said.push(format!("and {} more", all - NAMES)),
        _ => {}
    }
    said.join(", ")
}

/// Whole seconds to wait: never too few, and at least one.
fn retry_seconds(after: Duration) -> u64 {
    after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0)).max(1)
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let reason = error.to_string();
        match error {
            SubmitError::Unserved { retry_after, .. } => Self::Unserved { reason, retry_after },
            SubmitError::Closing => Self::Unserved { reason, retry_after: Duration::from_secs(5) },
        }
    }
}

impl From<ModelFilesError> for ApiError {
    fn from(error: ModelFilesError) -> Self {
        Self::Unserved { reason: error.to_string(), retry_after: Duration::from_secs(2) }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Input(message) => Self::Invalid { message, param: None },
            // Also by what the client says.
            TextError::Unbounded => Self::param("messages", error.to_string()),
            TextError::TooLong { .. } => Self::FarTooLong { message: error.to_string(), param: "messages" },
            TextError::Busy | TextError::Unfinished(_) | TextError::NoProcess { .. } => {
                Self::Unserved { reason: error.to_string(), retry_after: Duration::from_secs(10) }
            }
            TextError::NoTemplate => Self::param("messages", error.to_string()),
            other => Self::Model(other.to_string()),
        }
    }
}
