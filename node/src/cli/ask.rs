//! Asks a running peer over its HTTP interface.

use super::detached;
use crate::{
    cli::exit::{Exit, ExitKind},
    config::{Settings, values},
    plain,
    store::{HTTP_FILE, owner_token},
    view::SwarmView,
};
use clap::ArgMatches;
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a peer may take to begin an answer about itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// The peer that is asked.
pub(super) struct PeerClient {
    base: String,
    authority: Authority,
    client: Client,
}

/// By what the peer lets this command in, where it asks for keys.
enum Authority {
    /// A key that was given.
    Key(String),
    /// The token that the peer has left for its owner.
    Owner(String),
    /// Nothing: the peer is another than that of this folder, or its token cannot be read.
    Nothing { folder: PathBuf },
}

impl PeerClient {
    /// The one named, or the one that runs on this data folder, or the usual address.
    pub(super) fn find(settings: &Settings, matches: &ArgMatches) -> Result<Self, Exit> {
        let folder = settings.data_dir();
        let named = matches.try_get_one::<String>("api").ok().flatten().map(|text| url(text)).transpose()?;
        let base = named.or_else(|| written(&folder));
        Self::of(settings, base.unwrap_or_else(|| format!("http://{USUAL}")), &folder)
    }

    /// The one that runs on this data folder.
    pub(super) fn own(settings: &Settings) -> Result<Self, Exit> {
        let folder = settings.data_dir();
        Self::of(settings, written(&folder).unwrap_or_else(|| "http://".into()), &folder)
    }

    /// The one at this address, whose data folder this may be: to no other address is its token shown.
    pub(super) fn of(settings: &Settings, base: String, folder: &Path) -> Result<Self, Exit> {
        let base = base.trim_end_matches('/').to_owned();
        // Peers have no certificates, and a small system may have none to judge them by.
        let client = Client::builder().connect_timeout(Duration::from_secs(3)).tls_certs_only([]).build();
        let client = client.map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
        let own = || written(folder).filter(|own| *own == base);
        let token = || owner_token::read(folder, own()?.trim_start_matches("http://"));
        let authority = match settings.text("api-key") {
            "" => token().map_or_else(|| Authority::Nothing { folder: folder.to_owned() }, Authority::Owner),
            key => Authority::Key(key.to_owned()),
        };
        Ok(Self { base, authority, client })
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.with_key(self.client.post(format!("{}{path}", self.base))).json(body)
    }

    /// A question without a body.
    pub(super) fn request(&self, path: &str) -> RequestBuilder {
        self.with_key(self.client.get(format!("{}{path}", self.base)))
    }

    /// The address, without a slash at its end.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// What to do where it refuses this command.
    pub(super) fn advice(&self) -> String {
        self.authority.advice()
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.authority {
            Authority::Key(shown) | Authority::Owner(shown) => request.bearer_auth(shown),
            Authority::Nothing { .. } => request,
        }
    }

    /// The answer, if it is one of success.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Exit> {
        let unreachable = |e: reqwest::Error| {
            let next = match detached::running().filter(|peer| peer.http != self.base) {
                Some(peer) => format!("a testnet runs here, which is asked with: --api {}", peer.http),
                None => "start a peer with: tsnode join, or name the address of one that runs: --api URL".into(),
            };
            Exit::new(ExitKind::Unreachable, format!("{}: {}; {next}", self.base, unanswered(&e)))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body: Value = response.json().await.unwrap_or_default();
        let mut message = body["error"]["message"].as_str().unwrap_or("no reason given").to_owned();
        if matches!(status.as_u16(), 401 | 403) {
            message = format!("{message}; {}", self.authority.advice());
        }
        let kind = if status.as_u16() == 503 { ExitKind::Unserved } else { ExitKind::Request };
        Err(Exit::new(kind, format!("{}: {message} ({status})", self.base)))
    }

    /// The swarm as the peer sees it.
    pub(super) async fn view(&self) -> Result<SwarmView, Exit> {
        self.get("/api/swarm").await
    }

    /// What the peer says at a path.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Exit> {
        let request = self.request(path).timeout(PATIENCE);
        let response = self.send(request).await?;
        let wrong = |e: reqwest::Error| {
            Exit::new(
                ExitKind::Unreachable,
                format!("{}: {}; is that a tsnode peer of this version?", self.base, unread(&e)),
            )
        };
        response.json().await.map_err(wrong)
    }
}

/// The swarm as the peer sees it that the command line means.
pub(super) async fn look(settings: &Settings, matches: &ArgMatches) -> Result<SwarmView, Exit> {
    PeerClient::find(settings, matches)?.view().await
}

impl Authority {
    /// What to do when it does not suffice.
    fn advice(&self) -> String {
        match self {
            Self::Key(_) => {
                "this command has shown the key of --api-key (or TSNODE_API_KEY, or the settings file): on \
                             the peer's host its owner needs none"
                    .into()
            }
            Self::Owner(_) => "the token in the data folder is not this process's: is it another peer's?".into(),
            Self::Nothing { folder } => format!(
                "no peer of {} runs there with a token for its owner ({}, beside http.addr): run this as the peer's user with the \
                 peer's --data-dir, or with --api-key-file FILE; a peer that is started again writes both anew",
                folder.display(),
                owner_token::TOKEN_FILE
            ),
        }
    }
}

/// Where the peer that runs on this folder listens.
fn written(folder: &Path) -> Option<String> {
    let address = std::fs::read_to_string(folder.join(HTTP_FILE)).ok()?;
    // What is no address was damaged, and leads nowhere.
    let address: SocketAddr = address.trim().parse().ok()?;
    Some(format!("http://{address}"))
}

/// Where a peer's HTTP listens by itself.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7448);

/// Where to ask: `http://127.0.0.1:7448`, or that without its scheme, a port alone, another host's name.
fn url(text: &str) -> Result<String, Exit> {
    const WHERE: &str = "write where a peer's HTTP listens";
    let wrong = |why: &str| Exit::new(ExitKind::Usage, format!("--api {text}: {why}, as http://{USUAL}"));
    let (scheme, rest) = match text.trim().split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest.trim_end_matches('/')),
        None => (None, text.trim().trim_end_matches('/')),
    };
    match scheme {
        None | Some("http") => {}
        Some("https") => return Err(wrong("this command asks without TLS: write the peer's own address")),
        Some(_) => return Err(wrong(WHERE)),
    }
    if let (None, Ok(address)) = (scheme, values::address(rest, USUAL)) {
        return Ok(format!("http://{address}"));
    }
    let parsed = Url::parse(&format!("http://{rest}")).ok().filter(|url| url.host_str().is_some_and(|h| !h.is_empty()));
    let mut parsed = parsed.ok_or_else(|| wrong(WHERE))?;
    // A name alone, as an address alone, is that of a host whose peer listens where peers do.
    let host = rest.split('/').next().unwrap_or(rest);
    let names_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if scheme.is_none() && !names_port {
        parsed.set_port(Some(USUAL.port())).map_err(|()| wrong(WHERE))?;
    }
    let base = parsed.as_str().trim_end_matches('/');
    // As OpenAI's clients have it: with the version that is a part of every path.
    Ok(base.strip_suffix("/v1").unwrap_or(base).to_owned())
}

/// Why there is no answer.
pub(super) fn unanswered(error: &reqwest::Error) -> String {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(found) = cause {
        if let Some(io) = found.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::ConnectionRefused => "nobody answers there".into(),
                // The system's resolver has no kind of its own for it.
                _ if io.to_string().contains("lookup address") => "no host of that name is found".into(),
                _ => plain::io_error(io),
            };
        }
        cause = found.source();
    }
    match error {
        e if e.is_timeout() => "no answer in time".into(),
        e if e.is_connect() => "nobody answers there".into(),
        e if e.is_builder() => "that is no address".into(),
        _ => "the connection broke off".into(),
    }
}

/// Why an answer cannot be read.
pub(super) fn unread(error: &reqwest::Error) -> String {
    if error.is_decode() { "what it answers cannot be read".into() } else { unanswered(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_address_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        for (text, base) in
            [("127.0.0.1:7448\n", Some("http://127.0.0.1:7448")), ("127.0.0.1:74\u{1}8\n", None), ("", None)]
        {
            std::fs::write(folder.path().join(HTTP_FILE), text).unwrap();
            assert_eq!(written(folder.path()).as_deref(), base, "{text:?}");
        }
    }

    #[test]
    fn a_peer_is_named_as_people_write_addresses() {
        for (text, meant) in [
            ("http://127.0.0.1:7458", "http://127.0.0.1:7458"),
            ("http://127.0.0.1:7458/", "http://127.0.0.1:7458"),
            ("127.0.0.1:7458", "http://127.0.0.1:7458"),
            ("7458", "http://127.0.0.1:7458"),
            ("localhost:7458", "http://127.0.0.1:7458"),
            ("[::1]:7458", "http://[::1]:7458"),
            ("attic:7458", "http://attic:7458"),
            // As URLs have it: the usual port of their scheme.
            ("attic:80", "http://attic"),
            ("attic", "http://attic:7448"),
            ("http://attic/tsnode", "http://attic/tsnode"),
            ("http://127.0.0.1:7458/v1", "http://127.0.0.1:7458"),
            ("http://attic/tsnode/v1/", "http://attic/tsnode"),
        ] {
            assert_eq!(url(text).map_err(|e| e.to_string()).as_deref(), Ok(meant), "{text}");
        }
        for wrong in ["http://", "ftp://x", "https://127.0.0.1:7448", "a b", "7448:7448:x", "://"] {
            let said = url(wrong).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("--api {wrong}: ")) && said.ends_with("as http://127.0.0.1:7448"),
                "{said}"
            );
        }
    }
}
