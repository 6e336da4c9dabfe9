//! Prompt flow 1 and 9: HTTP on every peer: OpenAI's API, the swarm's state, metrics, and a page to look at.

mod answer;
mod anthropic;
mod api;
mod arrivals;
mod auth;
mod bodies;
mod calls;
mod chat;
mod complete;
mod earnings;
mod embeddings;
mod ends;
mod error;
mod events;
mod faults;
mod fields;
mod fingerprint;
mod guests;
pub mod hosts;
mod invite;
mod limits;
mod links;
mod logprobs;
mod mend;
mod metrics;
mod naming;
mod ollama;
mod openapi;
mod outgoing;
mod owner;
mod page;
mod params;
mod prompt_logprobs;
mod pulls;
mod request;
mod rerank;
mod respond;
mod responses;
mod running;
mod seeds;
mod settings;
mod sites;
mod sse;
mod structured;
mod template;
mod testnet;
mod texts;
mod tokens;
mod tolerance;
mod tools;
mod traces;
mod translate;

pub use auth::Gatekeeper;
pub use error::ApiError;
pub use metrics::Metrics;
pub use texts::Texts;

use crate::{
    control_plane::owner::OwnerHandle,
    data_plane::{doors::Door, measure::Measurer},
    embedding::Encoders,
    faults::Faults,
    gateway::GatewayHandle,
    history::History,
    limits::LimitsHandle,
    view::SwarmView,
    weights::Pulls,
};
use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{get, post},
};
use guests::{Guest, Guests, attend};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::places::Origin;
use tsnode_protocol::{SettingKey, SettingValue};

/// Body of what the owner asks (bytes): a few words. Those of prompts have bounds of their own, [`bodies`].
const OWNER_BODY_BYTES: usize = 64 * 1024;

/// What may be done to the peer over HTTP.
#[derive(Clone, Debug)]
pub struct Controls {
    /// Its owner's wishes.
    pub owner: OwnerHandle,
    /// Measures its links.
    pub measurer: Measurer,
    /// What a testnet breaks; none where it may not.
    pub faults: Option<watch::Sender<Faults>>,
    /// The data folder of a peer that may be broken, by which it is known whether a testnet has started it.
    pub testnet: Option<PathBuf>,
    /// That a client asks before there is a plan.
    pub asked: watch::Sender<bool>,
    /// What is to be set for the swarm, to whoever says it; what does not fit is refused.
    pub settings: mpsc::Sender<(SettingKey, SettingValue)>,
    /// What the owner has allowed, and allows.
    pub limits: LimitsHandle,
    /// Fetches models whole.
    pub pulls: Pulls,
}

/// What every handler works with.
#[derive(Clone)]
pub struct ApiState {
    gateway: GatewayHandle,
    view: watch::Receiver<SwarmView>,
    controls: Controls,
    texts: Texts,
    encoders: Encoders,
    bodies: bodies::Bodies,
    metrics: Arc<Metrics>,
    history: History,
    responses: Arc<responses::ResponseStore>,
    running: Arc<running::RunningRequests>,
    listeners: events::Listeners,
    gatekeeper: Arc<Gatekeeper>,
}

impl ApiState {
    /// For a peer with this gateway and these models' texts.
    #[must_use]
    pub fn new(
        gateway: GatewayHandle,
        texts: Texts,
        view: watch::Receiver<SwarmView>,
        controls: Controls,
        gatekeeper: Gatekeeper,
    ) -> Self {
        Self {
            gateway,
            view,
            controls,
            texts,
            encoders: Encoders::channel().0,
            bodies: bodies::Bodies::default(),
            metrics: Arc::default(),
            history: History::default(),
            responses: Arc::default(),
            running: Arc::default(),
            listeners: Default::default(),
            gatekeeper: Arc::new(gatekeeper),
        }
    }

    /// The same, with encoders to ask.
    #[must_use]
    pub fn with_encoders(self, encoders: Encoders) -> Self {
        Self { encoders, ..self }
    }

    /// The same, with what is remembered of this peer's work.
    #[must_use]
    pub fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }

    fn view(&self) -> SwarmView {
        self.view.borrow().clone()
    }

    /// The swarm as it is shown.
    fn shown(&self) -> SwarmView {
        SwarmView { attainment: self.metrics.attainment(), overflows: self.metrics.overflows(), ..self.view() }
    }
}

/// All routes.
pub fn router(state: ApiState) -> Router {
    let routes = Router::new()
        .route("/", get(page::index))
        .route("/page.js", get(page::script))
        .route("/v1/models", get(api::models))
        .route("/v1/models/{id}", get(api::model))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(complete::handle))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::show).delete(responses::delete))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/show", post(ollama::show))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/embeddings", post(embeddings::handle))
        .route("/v1/rerank", post(rerank::handle))
        .route("/healthz", get(api::health))
        .route("/health", get(api::health))
        .route("/readyz", get(api::ready))
        .route("/metrics", get(api::metrics))
        .route("/api/swarm", get(api::swarm))
        .route("/api/events", get(events::stream))
        .route("/api/requests", get(traces::list))
        .route("/api/requests/{id}", get(traces::show))
        .route("/api/requests/{id}/cancel", post(running::cancel))
        .route("/api/earnings", get(earnings::show))
        .route("/api/version", get(api::version))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/api/faults", get(faults::show).post(faults::set))
        .route("/api/testnet", get(testnet::show).post(testnet::act))
        .route("/api/links/measure", post(links::measure))
        .route("/api/settings", get(settings::show).post(settings::set))
        .route("/api/limits", get(limits::show).post(limits::set))
        .route("/api/models/pulls", get(pulls::show).post(pulls::set))
        .route("/api/arrivals", get(arrivals::show))
        .route("/api/invite", get(invite::show))
        .route("/api/plans", get(arrivals::plans))
        .route("/api/pause", post(owner::pause))
        .route("/api/resume", post(owner::resume))
        .route("/api/leave", post(owner::leave))
        .fallback(api::not_found)
        .method_not_allowed_fallback(api::wrong_method)
        .layer(middleware::from_fn(sites::as_json))
        .layer(middleware::from_fn_with_state(state.clone(), auth::check))
        .layer(DefaultBodyLimit::max(OWNER_BODY_BYTES))
        .with_state(state.clone());
    let sites = middleware::from_fn_with_state(state.clone(), sites::check);
    sites::for_pages(routes, state.gatekeeper.sites())
        .layer(sites)
        .layer(middleware::from_fn(outgoing::finish))
        .layer(middleware::from_fn(translate::errors))
}

/// Serves those who have a place at the door until `stop`; requests under way may end.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    door: Door<Origin>,
    state: ApiState,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let service = router(state).layer(Extension(events::Stop(stop.clone())));
    let service = service.layer(middleware::from_fn(attend)).into_make_service_with_connect_info::<Guest>();
    crate::tasks::spawn("HTTP door", door.clone().watch(stop.clone()));
    axum::serve(Guests { listener, door }, service).with_graceful_shutdown(stop.cancelled_owned()).await
}

#[cfg(test)]
mod tests;
