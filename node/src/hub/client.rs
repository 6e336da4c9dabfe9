//! Asks the hub: what a repository holds, what a file is, and its bytes from a place on.

use super::{
    error::HubError,
    hash::BlobHash,
    name::{ModelName, RepoId, Revision},
    settings::HubSettings,
};
use reqwest::{
    Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url,
    header::{ACCEPT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LOCATION, RANGE, RETRY_AFTER},
    redirect,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::error::Error;
use std::time::Duration;

/// Most bytes of an answer that is no file.
const ANSWER_BYTES: usize = 16 << 20;
/// Most files of a repository.
const FILES: usize = 20_000;
/// Longest path of a file in a repository.
const PATH_BYTES: usize = 512;
/// Redirections followed until a file's hash is said.
const REDIRECTS: usize = 5;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// What is not part of a segment of a URL's path.
const CODES: [(char, &str); 4] = [('%', "%25"), ('?', "%3F"), ('#', "%23"), (' ', "%20")];

/// The hub.
pub struct Hub {
    settings: HubSettings,
    /// Sees where answers lead to.
    asks: Client,
    /// Goes there.
    fetches: Client,
}

/// What a repository is at a revision.
pub struct RepoInfo {
    /// The commit.
    pub commit: Revision,
    /// Paths of its files, which lead nowhere else.
    pub files: Vec<RepoFile>,
    /// Its licence, as the hub calls it.
    pub licence: Option<String>,
    /// Whether terms have to be accepted first.
    pub gated: bool,
}

/// A file as the hub lists it.
pub struct RepoFile {
    /// Its path in the repository.
    pub path: String,
    /// Its size, where the hub says it (bytes).
    pub bytes: Option<u64>,
    /// Its hash, where the hub says it.
    pub hash: Option<BlobHash>,
}

/// A file, exactly.
pub struct FileMeta {
    /// What it is called among the blobs, and what it is held against.
    pub hash: BlobHash,
    /// Its size.
    pub bytes: u64,
}

/// A file's bytes as they come, from a place on.
pub struct FileStream {
    /// Where they begin.
    pub from: u64,
    /// They themselves.
    pub response: Response,
}

/// A repository that a search found.
#[derive(Clone, Debug)]
pub struct FoundRepo {
    /// Its name.
    pub repo: RepoId,
    /// How often it was fetched in the last month.
    pub downloads: u64,
    /// Its licence, as the hub calls it.
    pub licence: Option<String>,
    /// Whether terms have to be accepted first.
    pub gated: bool,
}

#[derive(Deserialize)]
struct RawInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<RawFile>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    gated: Value,
}

#[derive(Deserialize)]
struct RawFile {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<RawLfs>,
}

#[derive(Deserialize)]
struct RawLfs {
    sha256: Option<String>,
}

#[derive(Deserialize)]
struct RawFound {
    id: String,
    #[serde(default)]
    downloads: u64,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    gated: Value,
}

impl Hub {
    /// A hub to ask.
    ///
    /// # Errors
    /// When this system cannot tell whom to trust.
    pub fn new(settings: HubSettings) -> Result<Self, HubError> {
        let client = |policy: fn() -> redirect::Policy| {
            let builder = |own: fn(ClientBuilder) -> ClientBuilder| {
                let agent = concat!("tsnode/", env!("CARGO_PKG_VERSION"));
                let common = Client::builder().user_agent(agent).redirect(policy()).connect_timeout(CONNECT);
                own(common.read_timeout(settings.patience.silence)).build()
            };
            let is_plain = settings.endpoint.starts_with("http://");
            match builder(|own| own) {
                // Certificates are not asked for there, and the system may have none.
                Err(_) if is_plain => builder(|own| own.tls_certs_only([])),
                built => built,
            }
        };
        let built = client(redirect::Policy::none)
            .and_then(|asks| Ok((asks, client(|| redirect::Policy::limited(REDIRECTS))?)));
        let why = |e: reqwest::Error| {
            format!("{}; most systems have certificates as a package, ca-certificates", deepest(&e))
        };
        let (asks, fetches) =
            built.map_err(|e| HubError::Unreachable { endpoint: settings.endpoint.clone(), why: why(e) })?;
        Ok(Self { settings, asks, fetches })
    }

    /// Where it is, and the rest of how it is asked.
    #[must_use]
    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    /// What a repository holds.
    ///
    /// # Errors
    /// When there is none, or it may not be seen.
    pub(super) async fn info(&self, name: &ModelName) -> Result<RepoInfo, HubError> {
        let revision = name.revision.as_str().replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.settings.endpoint, name.repo);
        let response = self.tried(|| self.get(&url)).await?;
        let response = self.accepted(response, name, None)?;
        let raw: RawInfo = read(response, &url).await?;
        let wrong = |why: &str| HubError::Answer { url: url.clone(), why: why.into() };
        let commit = raw.sha.parse::<Revision>().ok().filter(Revision::is_commit);
        let commit = commit.ok_or_else(|| wrong("it names no commit"))?;
        if raw.siblings.len() > FILES {
            return Err(wrong("there are too many files"));
        }
        let bad = raw.siblings.iter().find(|file| !leads_nowhere_else(&file.rfilename));
        if let Some(bad) = bad {
            let shown: String = bad.rfilename.chars().take(80).collect();
            return Err(wrong(&format!("a file is called {shown:?}, which no file of a repository is")));
        }
        Ok(RepoInfo {
            commit,
            files: raw.siblings.into_iter().map(RepoFile::of).collect(),
            licence: licence(&raw.tags),
            gated: is_gated(&raw.gated),
        })
    }

    /// What a file is: its size and its hash.
    ///
    /// # Errors
    /// When there is none, it may not be seen, or the hub does not say what it is.
    pub(super) async fn meta(&self, name: &ModelName, commit: &Revision, file: &str) -> Result<FileMeta, HubError> {
        let mut url = self.resolve(&name.repo, commit, file);
        for _ in 0..=REDIRECTS {
            let mut response = self.tried(|| self.head(&url)).await?;
            let says_it = text(response.headers(), "x-linked-etag").is_some();
            match response.status().is_redirection() {
                true if says_it => {}
                true => {
                    url = next(&url, response.headers())?;
                    continue;
                }
                false => response = self.accepted(response, name, Some(file))?,
            }
            let headers = response.headers();
            let linked = text(headers, "x-linked-etag");
            let etag = linked.or_else(|| text(headers, ETAG.as_str()));
            let bytes = text(headers, "x-linked-size").or_else(|| text(headers, "content-length"));
            let wrong = |why: &str| HubError::Answer { url: url.clone(), why: why.into() };
            let hash =
                etag.and_then(BlobHash::of_etag).ok_or_else(|| wrong("there is no hash to verify the file with"))?;
            let bytes = bytes.and_then(|bytes| bytes.parse().ok()).ok_or_else(|| wrong("there is no size"))?;
            return Ok(FileMeta { hash, bytes });
        }
        Err(HubError::Answer { url, why: "it leads on and on".into() })
    }

    /// A file's bytes from a place on; a server that knows no ranges begins at the beginning.
    ///
    /// # Errors
    /// When they cannot be had.
    pub(super) async fn stream(
        &self,
        name: &ModelName,
        commit: &Revision,
        (file, meta): (&str, &FileMeta),
        from: u64,
    ) -> Result<FileStream, HubError> {
        let url = self.resolve(&name.repo, commit, file);
        let ranged = || {
            let request = self.get(&url).header(ACCEPT_ENCODING, "identity");
            if from > 0 { request.header(RANGE, format!("bytes={from}-")) } else { request }
        };
        let response = self.tried(ranged).await?;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = text(response.headers(), CONTENT_RANGE.as_str()).unwrap_or_default();
            let fits = range.starts_with(&format!("bytes {from}-")) && range.ends_with(&format!("/{}", meta.bytes));
            let why = || format!("bytes from {from} of {} were asked for, and {range:?} came", meta.bytes);
            return if fits { Ok(FileStream { from, response }) } else { Err(HubError::Answer { url, why: why() }) };
        }
        let response = self.accepted(response, name, Some(file))?;
        Ok(FileStream { from: 0, response })
    }

    /// Repositories with these words, most fetched first.
    ///
    /// # Errors
    /// When the hub cannot be asked.
    pub async fn search(&self, words: &str, most: usize) -> Result<Vec<FoundRepo>, HubError> {
        let parameters = [("search", words), ("limit", &most.to_string()), ("sort", "downloads"), ("direction", "-1")];
        let address = format!("{}/api/models", self.settings.endpoint);
        let unreadable = |_| HubError::Unreachable { endpoint: address.clone(), why: "that is no address".into() };
        let url = Url::parse_with_params(&address, parameters).map_err(unreadable)?.to_string();
        let response = self.tried(|| self.get(&url)).await?;
        if !response.status().is_success() {
            return Err(HubError::Status { url, status: response.status().as_u16() });
        }
        let raw: Vec<RawFound> = read(response, &url).await?;
        let found = |raw: RawFound| {
            let gated = is_gated(&raw.gated);
            // Some old ones have no owner, and no name that we could ask by.
            Some(FoundRepo { repo: raw.id.parse().ok()?, downloads: raw.downloads, licence: licence(&raw.tags), gated })
        };
        Ok(raw.into_iter().filter_map(found).take(most).collect())
    }

    fn resolve(&self, repo: &RepoId, commit: &Revision, file: &str) -> String {
        let coded: String = file.chars().map(|c| coded(c).map_or_else(|| c.to_string(), str::to_owned)).collect();
        format!("{}/{repo}/resolve/{commit}/{coded}", self.settings.endpoint)
    }

    /// Asks, and asks again where that may help. Who asks is shown to the hub alone, and not to whom it leads on.
    async fn tried(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, HubError> {
        let patience = self.settings.patience;
        let (mut wait, mut attempt) = (patience.first_wait, 1);
        loop {
            let (pause, failed) = match request().send().await {
                Ok(response) => match self.put_off(&response)? {
                    Some(put_off) => put_off,
                    None => return Ok(response),
                },
                Err(error) => (None, self.unreachable(&error)),
            };
            if attempt >= patience.tries {
                return Err(failed);
            }
            tracing::debug!(error = %failed, attempt, "asks the hub again");
            tokio::time::sleep(pause.unwrap_or(wait)).await;
            (wait, attempt) = (wait * 2, attempt + 1);
        }
    }

    /// Whether an answer is to be waited for: how long, where the hub says it, and what it comes to where nobody waits.
    fn put_off(&self, response: &Response) -> Result<Option<(Option<Duration>, HubError)>, HubError> {
        let (url, status) = (shown(response.url()), response.status());
        match status {
            StatusCode::TOO_MANY_REQUESTS => {
                let asked = text(response.headers(), RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
                let wait = asked.map(Duration::from_secs);
                let busy = |wait| HubError::Busy { endpoint: self.settings.endpoint.clone(), wait };
                match wait {
                    Some(wait) if wait > self.settings.patience.longest_wait => Err(busy(wait)),
                    wait => Ok(Some((wait, busy(wait.unwrap_or(self.settings.patience.longest_wait))))),
                }
            }
            status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
                Ok(Some((None, HubError::Status { url, status: status.as_u16() })))
            }
            _ => Ok(None),
        }
    }

    fn get(&self, url: &str) -> RequestBuilder {
        self.known(self.fetches.get(url), url)
    }

    fn head(&self, url: &str) -> RequestBuilder {
        self.known(self.asks.head(url).header(ACCEPT_ENCODING, "identity"), url)
    }

    fn known(&self, request: RequestBuilder, url: &str) -> RequestBuilder {
        let own = |text: &str| Url::parse(text).ok().map(|url| url.origin());
        match &self.settings.token {
            Some(token) if own(url) == own(&self.settings.endpoint) => request.bearer_auth(token.secret()),
            _ => request,
        }
    }

    pub(super) fn unreachable(&self, error: &reqwest::Error) -> HubError {
        HubError::Unreachable { endpoint: self.settings.endpoint.clone(), why: deepest(error) }
    }

    /// What the hub refuses, in its own words' meaning.
    fn accepted(&self, response: Response, name: &ModelName, file: Option<&str>) -> Result<Response, HubError> {
        let (status, headers) = (response.status(), response.headers());
        if status.is_success() {
            return match is_html(headers) {
                true => Err(HubError::NotAHub { url: shown(response.url()), why: "it sent a page".into() }),
                false => Ok(response),
            };
        }
        let repo = || name.repo.clone();
        let gated = || HubError::Gated {
            repo: repo(),
            page: format!("{}/{}", self.settings.endpoint, name.repo),
            has_token: self.settings.token.is_some(),
        };
        Err(match (text(headers, "x-error-code"), status.as_u16(), file) {
            (Some("GatedRepo"), ..) | (None, 403, _) => gated(),
            (Some("RevisionNotFound"), ..) => HubError::NoRevision { name: name.clone() },
            (Some("EntryNotFound"), _, Some(file)) | (None, 404, Some(file)) => {
                HubError::NoFile { repo: repo(), file: file.to_owned() }
            }
            (Some("RepoNotFound"), ..) | (None, 401 | 404, _) => HubError::NoRepo { repo: repo() },
            (_, status, _) => HubError::Status { url: shown(response.url()), status },
        })
    }
}

impl RepoFile {
    fn of(raw: RawFile) -> Self {
        let hash = raw.lfs.and_then(|lfs| lfs.sha256).or(raw.blob).and_then(|hash| BlobHash::of_etag(&hash));
        Self { path: raw.rfilename, bytes: raw.size, hash }
    }
}

/// Whether a path lies in the folder it is relative to, and is one that every disk takes.
fn leads_nowhere_else(path: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    path.len() <= PATH_BYTES
        && path.split('/').all(is_part)
        && !path.contains('\\')
        && !path.chars().any(char::is_control)
}

/// Where an answer leads to.
fn next(url: &str, headers: &HeaderMap) -> Result<String, HubError> {
    let to = text(headers, LOCATION.as_str()).and_then(|to| Url::parse(url).ok()?.join(to).ok());
    let wrong = || HubError::Answer { url: url.to_owned(), why: "it leads nowhere".into() };
    to.map(|to| to.to_string()).ok_or_else(wrong)
}

/// A JSON answer, which is bounded and may be something else.
async fn read<T: DeserializeOwned>(mut response: Response, url: &str) -> Result<T, HubError> {
    let wrong = |why: String| HubError::Answer { url: url.to_owned(), why };
    if is_html(response.headers()) {
        return Err(HubError::NotAHub { url: url.to_owned(), why: "it sent a page".into() });
    }
    let mut bytes = Vec::new();
    while let Some(more) = response.chunk().await.map_err(|e| wrong(deepest(&e)))? {
        bytes.extend_from_slice(&more);
        if bytes.len() > ANSWER_BYTES {
            return Err(wrong(format!("it has more than {ANSWER_BYTES} bytes")));
        }
    }
    let not_it = |e: serde_json::Error| HubError::NotAHub { url: url.to_owned(), why: e.to_string() };
    serde_json::from_slice(&bytes).map_err(not_it)
}

fn is_html(headers: &HeaderMap) -> bool {
    text(headers, CONTENT_TYPE.as_str()).is_some_and(|kind| kind.starts_with("text/html"))
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// An address without what follows it, which may be signed.
fn shown(url: &Url) -> String {
    url.as_str().split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// The cause of an error that has others around it.
pub(super) fn deepest(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match error {
        e if e.is_timeout() => "no answer in time".into(),
        _ => crate::plain::without_numbers(&cause.to_string()),
    }
}

/// It says how access is granted, or `false`.
fn is_gated(said: &Value) -> bool {
    !matches!(said, Value::Null | Value::Bool(false))
}

fn licence(tags: &[String]) -> Option<String> {
    tags.iter().find_map(|tag| tag.strip_prefix("license:")).map(|licence| licence.chars().take(40).collect())
}

fn coded(c: char) -> Option<&'static str> {
    CODES.iter().find(|(plain, _)| *plain == c).map(|(_, code)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_files_stay_where_they_are_put() {
        for fine in ["config.json", "a/b/c.gguf", ".gitattributes", "x y.json", "Q4_K_M/ünï.gguf"] {
            assert!(leads_nowhere_else(fine), "{fine}");
        }
        let long = "a".repeat(300);
        for wrong in
            ["", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "a\\b", "a\u{0}b", "a\nb", "./a", &long]
        {
            assert!(!leads_nowhere_else(wrong), "{wrong:?}");
        }
    }
}
