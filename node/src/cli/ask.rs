//! Asks a running peer over its HTTP interface.

use crate::{
    config::Settings,
    exit::{Exit, Kind},
    node::HTTP_FILE,
    view::SwarmView,
};
use clap::ArgMatches;
use reqwest::{Client, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// How long a peer may take to begin an answer about itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// The peer that is asked.
pub(super) struct Peer {
    base: String,
    key: String,
    client: Client,
}

impl Peer {
    /// The one named, or the one that runs on this data folder, or the usual address.
    pub(super) fn find(settings: &Settings, matches: &ArgMatches) -> Result<Self, Exit> {
        let written = || std::fs::read_to_string(settings.data_dir().join(HTTP_FILE)).ok();
        let named = matches.try_get_one::<String>("api").ok().flatten().cloned();
        let base = named.or_else(|| written().map(|a| format!("http://{}", a.trim())));
        Self::at(settings, base.unwrap_or_else(|| "http://127.0.0.1:7448".into()))
    }

    /// The one at this address.
    pub(super) fn at(settings: &Settings, base: String) -> Result<Self, Exit> {
        let base = base.trim_end_matches('/').to_owned();
        let client = Client::builder().connect_timeout(Duration::from_secs(3)).build();
        let client = client.map_err(|e| Exit::new(Kind::Other, e.to_string()))?;
        Ok(Self { base, key: settings.text("api-key").to_owned(), client })
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.with_key(self.client.post(format!("{}{path}", self.base))).json(body)
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        if self.key.is_empty() { request } else { request.bearer_auth(&self.key) }
    }

    /// The answer, if it is one of success.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Exit> {
        let unreachable = |e: reqwest::Error| {
            let why = if e.is_connect() { "nobody answers there".into() } else { e.to_string() };
            Exit::new(Kind::Unreachable, format!("{}: {why}; start a peer with: tsnode join", self.base))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body: Value = response.json().await.unwrap_or_default();
        let message = body["error"]["message"].as_str().unwrap_or("no reason given").to_owned();
        let kind = if status.as_u16() == 503 { Kind::Unserved } else { Kind::Request };
        Err(Exit::new(kind, format!("{}: {message} ({status})", self.base)))
    }

    /// The swarm as the peer sees it.
    pub(super) async fn view(&self) -> Result<SwarmView, Exit> {
        self.get("/api/swarm").await
    }

    /// What the peer says at a path.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Exit> {
        let request = self.with_key(self.client.get(format!("{}{path}", self.base))).timeout(PATIENCE);
        let response = self.send(request).await?;
        let wrong = |e: reqwest::Error| Exit::new(Kind::Unreachable, format!("{}: not a tsnode peer: {e}", self.base));
        response.json().await.map_err(wrong)
    }
}
