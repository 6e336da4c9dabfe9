//! What a browser says of a request is looked at before anything else: by which name it asks, and for which page ([`crate::http::hosts`]).

use super::{ApiError, ApiState};
use crate::http::hosts::{Asks, Sites};
use axum::{
    Router,
    body::HttpBody as _,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, AllowPrivateNetwork, CorsLayer, ExposeHeaders};

/// How long a browser may remember what it has been allowed.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Longest name that is repeated in an answer (characters).
const SHOWN: usize = 120;

/// Refuses names that lead here by nobody's wish, and foreign pages that would change something.
pub(super) async fn check(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    match admit(state.gatekeeper.sites(), &request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn admit(sites: &Sites, request: &Request) -> Result<(), ApiError> {
    let hosts = request.headers().get_all(header::HOST).iter().map(text);
    // Browsers always say one; who does not is a program.
    let asked: Vec<&str> =
        request.uri().authority().map(|authority| authority.as_str()).into_iter().chain(hosts).collect();
    if let Some(wrong) = asked.iter().find(|host| !sites.answers_to(host)) {
        return Err(ApiError::WrongHost(shown(wrong)));
    }
    let origin = request.headers().get(header::ORIGIN).map(text);
    let changes_nothing = matches!(*request.method(), Method::GET | Method::HEAD);
    match sites.asks(origin, asked.first().copied()) {
        Asks::Foreign if !changes_nothing => Err(ApiError::ForeignOrigin(shown(origin.unwrap_or_default()))),
        Asks::Itself | Asks::Allowed | Asks::Foreign => Ok(()),
    }
}

fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Has browsers hand what is answered to pages that are allowed. Their questions whether they may ask have no key: they are
/// answered before one is looked for.
pub(super) fn for_pages(router: Router, sites: &Sites) -> Router {
    if !sites.has_pages() {
        return router;
    }
    let sites = sites.clone();
    let is_allowed = move |origin: &HeaderValue, _: &Parts| sites.allows(text(origin));
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(AllowPrivateNetwork::yes())
        .expose_headers(ExposeHeaders::any())
        .max_age(REMEMBERED);
    router.layer(cors)
}

/// Ollama's clients do not say what their bodies are, and its own examples send them as forms. They ask for text alone: what a
/// page of others sends there is refused by its origin.
const UNSAID: [&str; 3] = ["/api/chat", "/api/generate", "/api/show"];

/// Takes bodies as JSON only: a page can send forms and texts anywhere without being asked whether it may.
pub(super) async fn as_json(request: Request, next: Next) -> Response {
    let may_say_nothing = UNSAID.contains(&request.uri().path());
    if request.body().is_end_stream() || may_say_nothing || is_json(request.headers()) {
        return next.run(request).await;
    }
    let said = request.headers().get(header::CONTENT_TYPE).map(|kind| shown(text(kind)));
    ApiError::NotJson(said.unwrap_or_else(|| "nothing".into())).into_response()
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(text).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}
