//! Who may ask, and how often: keys where there are some, and a rate for each of them, or for each address.

use super::{ApiError, ApiState};
use crate::http::hosts::Sites;
use crate::store::keys::{KeyRing, KeyScope};
use crate::store::owner_token::LocalToken;
use axum::{
    extract::{ConnectInfo, Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tsnode_coordinator::rate_limit::{RateLimit, TokenBucket};

/// Paths that say nothing but whether the peer is alive, and the page, which has nothing in it until it shows a key itself.
const OPEN: [&str; 6] = ["/healthz", "/health", "/readyz", "/", "/page.js", "/openapi.json"];
/// What a key for inference is good for, beside all under `/v1/`.
const INFERENCE: [&str; 7] =
    ["/api/chat", "/api/generate", "/api/tags", "/api/show", "/api/version", "/tokenize", "/detokenize"];
/// Where Anthropic's clients show their key.
const API_KEY: &str = "x-api-key";
/// Askers remembered; those who have asked little are forgotten first.
const ASKERS: usize = 4096;

/// Looks at who asks.
#[derive(Debug)]
pub struct Gatekeeper {
    keys: KeyRing,
    rate: Option<RateLimit>,
    /// By which the owner's own commands are known.
    local: Option<LocalToken>,
    /// By which names, and for which pages.
    sites: Sites,
    started: Instant,
    /// Held for map operations only.
    buckets: Mutex<BTreeMap<RateSubject, TokenBucket>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RateSubject {
    Key(String),
    Address(IpAddr),
}

impl Gatekeeper {
    /// Asks for one of these keys, and lets each do so many requests a minute, if that is limited.
    #[must_use]
    pub fn new(keys: KeyRing, per_minute: Option<u32>) -> Self {
        // A tenth of a minute's at once: programs ask in bunches.
        let rate = |n: u32| RateLimit { per_second: f64::from(n) / 60.0, burst: (f64::from(n) / 10.0).max(1.0) };
        Self {
            keys,
            rate: per_minute.map(rate),
            local: None,
            sites: Sites::default(),
            started: Instant::now(),
            buckets: Mutex::default(),
        }
    }

    /// Lets in who shows this, to everything and at any rate.
    #[must_use]
    pub fn with_local(self, token: LocalToken) -> Self {
        Self { local: Some(token), ..self }
    }

    /// Answers to these names, and for these pages; else to loopback's names and for no page but its own.
    #[must_use]
    pub fn with_sites(self, sites: Sites) -> Self {
        Self { sites, ..self }
    }

    pub(super) fn sites(&self) -> &Sites {
        &self.sites
    }

    fn admit(&self, path: &str, shown: Option<&str>, from: IpAddr) -> Result<(), ApiError> {
        if self.local.as_ref().is_some_and(|local| local.accepts(shown, from)) {
            return Ok(());
        }
        let asker = match self.keys.check(shown) {
            Ok(Some((_, KeyScope::Inference))) if !is_inference(path) => return Err(ApiError::Forbidden),
            Ok(Some((name, _))) => RateSubject::Key(name),
            Ok(None) => RateSubject::Address(from),
            Err(_) => {
                // Whoever tries keys is held to the rate of their address.
                self.take(RateSubject::Address(from))?;
                return Err(shown.map_or(ApiError::NoKey, |_| ApiError::WrongKey));
            }
        };
        self.take(asker)
    }

    fn take(&self, asker: RateSubject) -> Result<(), ApiError> {
        let Some(rate) = self.rate else { return Ok(()) };
        let now = self.started.elapsed();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= ASKERS {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        if buckets.len() >= ASKERS && !buckets.contains_key(&asker) {
            buckets.pop_first();
        }
        let bucket = buckets.entry(asker).or_insert_with(|| TokenBucket::new(rate, now));
        bucket.take(now).map_err(|retry_after| ApiError::TooOften { retry_after })
    }
}

/// The key in a header's value; a scheme's name may be written in any letters (RFC 9110, 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim_start())
}

fn is_inference(path: &str) -> bool {
    path.starts_with("/v1/") || INFERENCE.contains(&path)
}

pub(super) async fn check(
    State(state): State<ApiState>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if !OPEN.contains(&path) {
        let given = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok());
        let shown = given(header::AUTHORIZATION.as_str()).and_then(bearer).or(given(API_KEY));
        if let Err(error) = state.gatekeeper.admit(path, shown, from.ip()) {
            return error.into_response();
        }
    }
    next.run(request).await
}
