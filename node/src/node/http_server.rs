//! The HTTP server of a peer: it opens first, and says how far the peer is until that is useful.

use super::{
    context::NodeContext,
    setup::{NodeError, not_written},
};
use crate::{
    data_plane::models::{FilesQuery, ModelLibrary},
    embedding::{self, Encoders},
    gateway::{GatewayHandle, Submission},
    http::{self, ApiState, Controls, Gatekeeper, Texts},
    store::{
        HTTP_FILE,
        keys::KeyRing,
        owner_token::{LocalToken, TOKEN_FILE},
    },
    text::Templates,
    view::SwarmView,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a peer that leaves waits for clients' last bytes; streams that do not end by then are cut with the process.
const LAST_BYTES: Duration = Duration::from_secs(2);
/// Where Ollama's clients look unless they are told otherwise.
const OLLAMA_PORT: u16 = 11434;

/// The HTTP side, and the far ends of what it asks.
pub(super) struct HttpServer {
    pub view: watch::Sender<SwarmView>,
    pub submissions: mpsc::Receiver<Submission>,
    pub queries: mpsc::Receiver<FilesQuery>,
    pub encodings: mpsc::Receiver<embedding::Query>,
    /// At each of its ports.
    pub serving: Vec<JoinHandle<std::io::Result<()>>>,
    pub end: CancellationToken,
}

impl NodeContext {
    /// Opens the ports, and leaves word of them in the data folder.
    pub async fn http_server(&self, controls: Controls) -> Result<HttpServer, NodeError> {
        let listener = http_listener(self.config.http).await?;
        let ollama = SocketAddr::new(self.config.http.ip(), OLLAMA_PORT);
        let ollama = if self.config.ollama_port { Some(http_listener(ollama).await?) } else { None };
        let at = listener.local_addr().map_err(|e| NodeError::System(e.to_string()))?;
        let (me, belonging) = (self.identity.peer_id(), &self.belonging);
        let first = SwarmView::first(me, belonging.swarm, belonging.secret.is_some());
        let (view, viewer) = watch::channel(SwarmView { split: self.config.split, http: Some(at), ..first });
        let (gateway, submissions) = GatewayHandle::channel();
        let (models, queries) = ModelLibrary::channel();
        let keys = KeyRing::open(&self.config.data_dir, self.config.api_key.as_deref())?;
        // The address of a process before this one may be another program's by now: it must not be shown the token.
        self.store.remove_file(HTTP_FILE);
        let local = LocalToken::leave(&self.store, at);
        let local = local.map_err(|error| not_written(&self.store, TOKEN_FILE, error))?;
        let gatekeeper = Gatekeeper::new(keys, self.config.http_rate);
        let gatekeeper = gatekeeper.with_local(local).with_sites(self.config.sites.clone());
        let templates = Templates::apart().map_err(|e| NodeError::System(e.to_string()))?;
        let texts = Texts::new(models, templates).reading(self.config.special_text).parsing(self.config.parsers);
        let (encoders, encodings) = Encoders::channel();
        let state = ApiState::new(gateway, texts, viewer, controls, gatekeeper).with_encoders(encoders);
        let state = state.with_history(self.history.clone());
        let end = CancellationToken::new();
        let serving = [Some(listener), ollama].into_iter().flatten().map(|listener| {
            crate::tasks::spawn("HTTP", http::serve(listener, self.doors.http.clone(), state.clone(), end.clone()))
        });
        let serving = serving.collect();
        let written = self.store.write_file(HTTP_FILE, &format!("{at}\n"));
        written.map_err(|error| not_written(&self.store, HTTP_FILE, error))?;
        Ok(HttpServer { view, submissions, queries, encodings, serving, end })
    }
}

async fn http_listener(address: SocketAddr) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|e| NodeError::Listen {
        address,
        what: "HTTP",
        in_use: e.kind() == std::io::ErrorKind::AddrInUse,
        error: crate::plain::io_error(&e),
    })
}

/// Takes no new clients, and waits until those that are there have their last bytes.
pub(super) async fn last_bytes(end: &CancellationToken, serving: Vec<JoinHandle<std::io::Result<()>>>) {
    end.cancel();
    let _ = timeout(LAST_BYTES, futures::future::join_all(serving)).await;
}
