//! A small hub that speaks the real one's protocol over a socket, and breaks it where it is told to: for tests of the client, which
//! is the real one. Large files are redirected to another origin, as to the hub's CDN; small ones to another path.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use data_encoding::HEXLOWER;
use futures::stream;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What shows that somebody may see gated repositories.
pub const TOKEN: &str = "hf_good";
/// Bytes sent at a time.
const PIECE: usize = 16 << 10;

/// What goes wrong with a file's bytes, or with whatever is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubFault {
    /// The stream breaks after so many bytes of an answer.
    Break(usize),
    /// One of the bytes is another.
    Wrong,
    /// So long between pieces.
    Slow(Duration),
    /// Nothing comes any more after the first piece.
    Stall,
    /// Ranges are not known.
    NoRanges,
    /// A page comes, as from a network that wants a login.
    Page,
    /// Too many requests: come back in so many seconds.
    TooMany(u64),
    /// The hub itself is in trouble.
    Trouble,
    /// It is listed, and is not there.
    Gone,
}

/// A request that was heard.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "what a test that fails shows")]
pub struct RecordedRequest {
    pub method: Method,
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
    /// It came to the origin that redirections lead to.
    pub cdn: bool,
}

#[derive(Clone)]
struct File {
    bytes: Bytes,
    /// As large files are kept: by SHA-256, on another host.
    large: bool,
}

impl File {
    fn hash(&self) -> String {
        let mut context = if self.large { Context::new(&SHA256) } else { Context::new(&SHA1_FOR_LEGACY_USE_ONLY) };
        if !self.large {
            context.update(format!("blob {}\0", self.bytes.len()).as_bytes());
        }
        context.update(&self.bytes);
        HEXLOWER.encode(context.finish().as_ref())
    }
}

#[derive(Clone, Default)]
struct Repo {
    commit: String,
    files: BTreeMap<String, File>,
    gated: bool,
}

#[derive(Default)]
struct HubState {
    repos: BTreeMap<String, Repo>,
    /// By path of a file, or `""` for whatever is asked; how often each.
    faults: HashMap<String, Vec<(HubFault, usize)>>,
    heard: Vec<RecordedRequest>,
    sent: u64,
    cdn: String,
}

/// The hub, as long as it is not dropped.
pub struct Double {
    pub endpoint: String,
    world: Arc<Mutex<HubState>>,
    serving: Vec<JoinHandle<()>>,
}

type Shared = State<(Arc<Mutex<HubState>>, bool)>;

impl Double {
    /// Listens at any port.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    /// Listens at this address, and the CDN at any.
    pub async fn start_at(address: &str) -> Self {
        let world = Arc::new(Mutex::new(HubState::default()));
        let (hub, cdn) = (TcpListener::bind(address).await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let endpoint = url(&hub);
        world.lock().unwrap().cdn = url(&cdn);
        let router = |is_cdn: bool| {
            Router::new()
                .route("/api/models", get(search))
                .route("/api/models/{org}/{repo}", get(info))
                .route("/api/models/{org}/{repo}/revision/{revision}", get(info_at))
                .route("/api/models/{org}/{repo}/tree/{revision}", get(tree))
                .route("/api/resolve-cache/{org}/{repo}/{commit}/{*path}", get(small).head(small))
                .route("/{org}/{repo}/resolve/{revision}/{*path}", get(resolve).head(resolve))
                .route("/cdn/{org}/{repo}/{*path}", get(large).head(large))
                .with_state((world.clone(), is_cdn))
        };
        let serve = |listener, is_cdn| {
            let router = router(is_cdn);
            tsnode::tasks::spawn("test", async move { axum::serve(listener, router).await.unwrap() })
        };
        let serving = vec![serve(hub, false), serve(cdn, true)];
        Self { endpoint, world, serving }
    }

    /// A repository with these files; those with a mark of large ones are kept as such.
    pub fn repo(&self, id: &str, files: &[(&str, &[u8])]) -> String {
        let is_large = |name: &str| [".safetensors", ".gguf", ".bin"].iter().any(|ending| name.ends_with(ending));
        let file = |(name, bytes): &(&str, &[u8])| {
            ((*name).to_owned(), File { bytes: Bytes::copy_from_slice(bytes), large: is_large(name) })
        };
        let files: BTreeMap<String, File> = files.iter().map(file).collect();
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(id.as_bytes());
        files.values().for_each(|file| context.update(file.hash().as_bytes()));
        let commit = HEXLOWER.encode(context.finish().as_ref());
        let repo = Repo { commit: commit.clone(), files, gated: false };
        self.world.lock().unwrap().repos.insert(id.to_owned(), repo);
        commit
    }

    pub fn gate(&self, id: &str) {
        self.world.lock().unwrap().repos.get_mut(id).unwrap().gated = true;
    }

    /// Has this go wrong so many times with a file, or (`""`) with whatever is asked.
    pub fn fail(&self, path: &str, fault: HubFault, times: usize) {
        self.world.lock().unwrap().faults.entry(path.to_owned()).or_default().push((fault, times));
    }

    pub fn mend(&self) {
        self.world.lock().unwrap().faults.clear();
    }

    /// Bytes of files that were sent, and what was asked, since it was looked last.
    pub fn account(&self) -> (u64, Vec<RecordedRequest>) {
        let mut world = self.world.lock().unwrap();
        (std::mem::take(&mut world.sent), std::mem::take(&mut world.heard))
    }

    pub fn sent(&self) -> u64 {
        self.world.lock().unwrap().sent
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

impl HubState {
    fn hear(&mut self, (method, path): (&Method, String), headers: &HeaderMap, cdn: bool) {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
        let token = text(header::AUTHORIZATION).map(|value| value.trim_start_matches("Bearer ").to_owned());
        self.heard.push(RecordedRequest { method: method.clone(), path, range: text(header::RANGE), token, cdn });
    }

    /// The next thing to go wrong there, of those that are asked for.
    fn fault(&mut self, path: &str, is_meant: impl Fn(&HubFault) -> bool) -> Option<HubFault> {
        let faults = self.faults.get_mut(path)?;
        let at = faults.iter().position(|(fault, times)| *times > 0 && is_meant(fault))?;
        faults[at].1 -= 1;
        Some(faults[at].0)
    }

    /// What is refused whatever is asked for.
    fn refusal(&mut self) -> Option<Response> {
        match self.fault("", |_| true)? {
            HubFault::Page => Some(page()),
            HubFault::TooMany(seconds) => {
                Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", seconds.to_string())]).into_response())
            }
            _ => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
        }
    }

    #[expect(clippy::result_large_err, reason = "what is refused is the answer itself")]
    fn seen(&self, id: &str, headers: &HeaderMap, listing: bool) -> Result<Repo, Response> {
        let Some(repo) = self.repos.get(id) else {
            // As the hub has it: who is not known is told nothing about what there is.
            return Err(error(StatusCode::UNAUTHORIZED, "RepoNotFound", "Invalid username or password."));
        };
        let may = headers.get(header::AUTHORIZATION).is_some_and(|value| value == &format!("Bearer {TOKEN}"));
        if repo.gated && !may && !listing {
            return Err(error(StatusCode::FORBIDDEN, "GatedRepo", "Access to this model is restricted."));
        }
        Ok(repo.clone())
    }
}

fn page() -> Response {
    (StatusCode::OK, [("content-type", "text/html; charset=utf-8")], "<html><body>Log in</body></html>").into_response()
}

fn error(status: StatusCode, code: &'static str, message: &'static str) -> Response {
    (status, [("x-error-code", code), ("x-error-message", message)], Json(json!({ "error": message }))).into_response()
}

async fn search(
    State((world, cdn)): Shared,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let mut world = world.lock().unwrap();
    world.hear((&Method::GET, "/api/models".into()), &headers, cdn);
    if let Some(refused) = world.refusal() {
        return refused;
    }
    let words = query.get("search").cloned().unwrap_or_default().to_lowercase();
    let found = world.repos.iter().filter(|(id, _)| id.to_lowercase().contains(&words));
    let shown = found.map(|(id, repo)| {
        json!({ "id": id, "modelId": id, "downloads": 7, "likes": 1, "private": false,
            "gated": if repo.gated { json!("manual") } else { json!(false) }, "tags": ["license:apache-2.0"] })
    });
    Json(shown.collect::<Vec<Value>>()).into_response()
}

async fn info(state: Shared, Path((org, repo)): Path<(String, String)>, headers: HeaderMap) -> Response {
    info_at(state, Path((org, repo, "main".into())), headers).await
}

async fn info_at(
    State((world, cdn)): Shared,
    Path((org, name, revision)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    let id = format!("{org}/{name}");
    let mut world = world.lock().unwrap();
    world.hear((&Method::GET, format!("/api/models/{id}/revision/{revision}")), &headers, cdn);
    if let Some(refused) = world.refusal() {
        return refused;
    }
    let repo = match world.seen(&id, &headers, true) {
        Ok(repo) => repo,
        Err(refused) => return refused,
    };
    if revision != "main" && revision != repo.commit {
        return error(StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id");
    }
    let sibling = |(path, file): (&String, &File)| {
        let lfs = json!({ "sha256": file.hash(), "size": file.bytes.len(), "pointerSize": 135 });
        let mut shown = json!({ "rfilename": path, "size": file.bytes.len(), "blobId": file.hash() });
        if file.large {
            shown["lfs"] = lfs;
            shown["blobId"] = json!("0".repeat(40));
        }
        shown
    };
    let siblings: Vec<Value> = repo.files.iter().map(sibling).collect();
    let gated = if repo.gated { json!("manual") } else { json!(false) };
    Json(json!({ "_id": "1", "id": id, "modelId": id, "sha": repo.commit, "private": false, "gated": gated, "disabled": false,
        "downloads": 7, "likes": 1, "tags": ["license:apache-2.0"], "siblings": siblings,
        "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z" }))
    .into_response()
}

async fn tree(
    State((world, cdn)): Shared,
    Path((org, name, revision)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    let id = format!("{org}/{name}");
    let mut world = world.lock().unwrap();
    world.hear((&Method::GET, format!("/api/models/{id}/tree/{revision}")), &headers, cdn);
    let repo = match world.seen(&id, &headers, true) {
        Ok(repo) => repo,
        Err(refused) => return refused,
    };
    let entry = |(path, file): (&String, &File)| {
        let mut shown = json!({ "type": "file", "oid": file.hash(), "size": file.bytes.len(), "path": path });
        if file.large {
            shown["oid"] = json!("0".repeat(40));
            shown["lfs"] = json!({ "oid": file.hash(), "size": file.bytes.len(), "pointerSize": 135 });
        }
        shown
    };
    Json(repo.files.iter().map(entry).collect::<Vec<Value>>()).into_response()
}

/// Where a file is, and what.
async fn resolve(
    State((world, cdn)): Shared,
    method: Method,
    Path((org, name, revision, path)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response {
    let id = format!("{org}/{name}");
    let mut world = world.lock().unwrap();
    world.hear((&method, format!("/{id}/resolve/{revision}/{path}")), &headers, cdn);
    if let Some(refused) = world.refusal() {
        return refused;
    }
    let repo = match world.seen(&id, &headers, false) {
        Ok(repo) => repo,
        Err(refused) => return refused,
    };
    if revision != "main" && revision != repo.commit {
        return error(StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id");
    }
    if world.fault(&path, |fault| matches!(fault, HubFault::Page)).is_some() {
        return page();
    }
    let gone = world.fault(&path, |fault| matches!(fault, HubFault::Gone)).is_some();
    let Some(file) = repo.files.get(&path).filter(|_| !gone) else {
        let mut refused = error(StatusCode::NOT_FOUND, "EntryNotFound", "Entry not found");
        refused.headers_mut().insert("x-repo-commit", repo.commit.parse().unwrap());
        return refused;
    };
    let commit = &repo.commit;
    if file.large {
        let headers = [
            ("x-repo-commit", commit.clone()),
            ("x-linked-size", file.bytes.len().to_string()),
            ("x-linked-etag", format!("\"{}\"", file.hash())),
            ("location", format!("{}/cdn/{id}/{path}?signature=secret", world.cdn)),
        ];
        return (StatusCode::FOUND, headers).into_response();
    }
    let to = format!("/api/resolve-cache/{id}/{commit}/{path}");
    (StatusCode::TEMPORARY_REDIRECT, [("x-repo-commit", commit.clone()), ("location", to)]).into_response()
}

async fn small(
    State((world, cdn)): Shared,
    method: Method,
    Path((org, name, _commit, path)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response {
    bytes(&world, (&method, cdn), &format!("{org}/{name}"), &path, &headers)
}

async fn large(
    State((world, cdn)): Shared,
    method: Method,
    Path((org, name, path)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    bytes(&world, (&method, cdn), &format!("{org}/{name}"), &path, &headers)
}

/// A file's bytes, or what becomes of them.
fn bytes(
    world: &Arc<Mutex<HubState>>,
    (method, cdn): (&Method, bool),
    id: &str,
    path: &str,
    headers: &HeaderMap,
) -> Response {
    let mut guard = world.lock().unwrap();
    guard.hear((method, format!("/{id}/{path}")), headers, cdn);
    let repo = guard.repos[id].clone();
    let file = repo.files[path].clone();
    let total = file.bytes.len();
    let is_head = method == Method::HEAD;
    let fault =
        if is_head { None } else { guard.fault(path, |fault| !matches!(fault, HubFault::Page | HubFault::Gone)) };
    let asked =
        headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let asked = asked.filter(|_| fault != Some(HubFault::NoRanges));
    let from: usize = asked.map_or(0, |(from, _)| from.parse().unwrap());
    let to = asked.and_then(|(_, to)| to.parse::<usize>().ok()).map_or(total, |last| (last + 1).min(total));
    if asked.is_some() && from >= total {
        return (StatusCode::RANGE_NOT_SATISFIABLE, [("content-range", format!("bytes */{total}"))]).into_response();
    }
    let mut body = file.bytes.slice(from..to);
    if fault == Some(HubFault::Wrong) {
        let mut wrong = body.to_vec();
        let middle = wrong.len() / 2;
        wrong[middle] ^= 1;
        body = wrong.into();
    }
    let length = body.len();
    drop(guard);
    let body = if is_head { Body::empty() } else { paced(world.clone(), body, fault) };
    let status = if asked.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut response = (status, body).into_response();
    let mut put = |name: &'static str, value: String| response.headers_mut().insert(name, value.parse().unwrap());
    put("etag", format!("\"{}\"", file.hash()));
    put("x-repo-commit", repo.commit);
    put("accept-ranges", "bytes".into());
    put("content-length", length.to_string());
    put("content-type", "application/octet-stream".into());
    if asked.is_some() {
        put("content-range", format!("bytes {from}-{}/{total}", to - 1));
    }
    response
}

fn paced(world: Arc<Mutex<HubState>>, body: Bytes, fault: Option<HubFault>) -> Body {
    let pieces = stream::unfold((world, body, 0_usize), move |(world, mut body, sent)| async move {
        match fault {
            Some(HubFault::Break(after)) if sent >= after => {
                // What was sent before leaves first: a server flushes it while it waits for more.
                tokio::time::sleep(Duration::from_millis(10)).await;
                return Some((Err(io::Error::other("broken on purpose")), (world, body, sent)));
            }
            Some(HubFault::Slow(pause)) => tokio::time::sleep(pause).await,
            Some(HubFault::Stall) if sent > 0 => std::future::pending().await,
            _ => {}
        }
        if body.is_empty() {
            return None;
        }
        let most = match fault {
            Some(HubFault::Break(after)) => PIECE.min(after - sent).max(1),
            _ => PIECE,
        };
        let piece = body.split_to(most.min(body.len()));
        world.lock().unwrap().sent += piece.len() as u64;
        let sent = sent + piece.len();
        Some((Ok(piece), (world, body, sent)))
    });
    Body::from_stream(pieces)
}
