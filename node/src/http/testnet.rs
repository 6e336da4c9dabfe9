//! `/api/testnet`: ends, stops and starts the processes of a testnet, for the pages of its peers.
//!
//! It is there only at a peer that may be broken and that a testnet on this machine has started and written down, with its process
//! and its data folder; and it reaches that testnet's processes alone.

use super::{ApiError, ApiState};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tsnode_testnet::{PeerInfo, STATE_FILE, State as Net};

const PATH: &str = "/api/testnet";
/// How long a peer that is started again may take until its HTTP listens.
const START: Duration = Duration::from_secs(30);

/// What may be done to a peer's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Deed {
    Kill,
    Stop,
    Cont,
    Restart,
}

/// What is to be done, to whom.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    deed: Deed,
    /// Its name in the testnet.
    peer: String,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Process {
    Runs,
    Stopped,
    Ended,
}

pub(super) async fn show(State(state): State<ApiState>) -> Result<Json<Value>, ApiError> {
    let (_, net) = testnet(&state).await?;
    let shown = |peer: &PeerInfo| json!({ "name": peer.name, "id": peer.id, "process": process(peer), "is_this": peer.pid == std::process::id() });
    Ok(Json(json!({ "peers": net.peers.iter().map(shown).collect::<Vec<_>>() })))
}

pub(super) async fn act(
    State(state): State<ApiState>,
    Json(Wish { deed, peer }): Json<Wish>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let (folder, mut net) = testnet(&state).await?;
    let wrong = |why: String| ApiError::param("peer", why);
    if net.peer(&peer).map_err(|e| wrong(e.to_string()))?.pid == std::process::id() {
        return Err(wrong(format!("{peer} is the peer that you ask: ask another one to end it")));
    }
    tracing::info!(?deed, peer, "done on purpose");
    let done = match deed {
        Deed::Restart => {
            net.restart(&peer, &folder, START).await.map_err(|e| wrong(e.to_string()))?;
            "starts again"
        }
        Deed::Kill => signal(net, peer.clone(), "-KILL", "killed").await?,
        Deed::Stop => signal(net, peer.clone(), "-STOP", "stopped").await?,
        Deed::Cont => signal(net, peer.clone(), "-CONT", "goes on").await?,
    };
    Ok((StatusCode::ACCEPTED, Json(json!({ "done": format!("{peer}: {done}") }))))
}

async fn signal(net: Net, peer: String, what: &'static str, done: &'static str) -> Result<&'static str, ApiError> {
    let sent = tokio::task::spawn_blocking(move || net.signal(&peer, what).map(|_| ()).map_err(|e| e.to_string()));
    let sent = sent.await.unwrap_or_else(|panic| Err(panic.to_string()));
    sent.map(|()| done).map_err(|why| ApiError::param("peer", why))
}

/// The testnet that this very process is a peer of, and where it is written down.
async fn testnet(state: &ApiState) -> Result<(PathBuf, Net), ApiError> {
    let data_dir = state.controls.testnet.clone();
    let found = tokio::task::spawn_blocking(move || find(&data_dir?)).await;
    found.ok().flatten().ok_or_else(|| ApiError::NotFound(PATH.into()))
}

/// That of the peer with this data folder, which lies in a folder of its run, which lies in the testnet's.
fn find(data_dir: &Path) -> Option<(PathBuf, Net)> {
    let folder = data_dir.parent()?.parent()?.to_owned();
    // Whoever else may write there has no say: what is started again is what the file names.
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|about| about.uid());
    let is_ours = owner(&folder.join(STATE_FILE))? == owner(data_dir)?;
    let net = Net::read(&folder).ok().filter(|_| is_ours)?;
    let own = |peer: &PeerInfo| peer.pid == std::process::id() && peer.data_dir == data_dir;
    net.peers.iter().any(own).then_some((folder, net))
}

fn process(peer: &PeerInfo) -> Process {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", peer.pid)).unwrap_or_default();
    // The state is behind the name, which is in parentheses and may hold anything.
    match stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().as_bytes().first().copied()) {
        _ if !peer.is_alive() => Process::Ended,
        Some(Some(b'T' | b't')) => Process::Stopped,
        _ => Process::Runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_testnet_that_has_started_this_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("run-1/peer0");
        std::fs::create_dir_all(&data_dir).unwrap();
        let peer = |pid: u32, data_dir: &Path| json!({ "name": "peer0", "id": "", "pid": pid, "data_dir": data_dir, "log": "", "http": "", "gateway": false, "args": [] });
        let write = |peers: Value| {
            let net = json!({ "folder": folder.path().join("run-1"), "executable": "", "peers": peers });
            std::fs::write(folder.path().join("testnet.json"), net.to_string()).unwrap();
        };
        assert!(find(&data_dir).is_none(), "no testnet");
        write(json!([peer(std::process::id() + 1, &data_dir)]));
        assert!(find(&data_dir).is_none(), "another process");
        write(json!([peer(std::process::id(), folder.path())]));
        assert!(find(&data_dir).is_none(), "another folder");
        write(json!([peer(std::process::id(), &data_dir)]));
        assert_eq!(find(&data_dir).unwrap().0, folder.path());
        assert!(find(Path::new("peer0")).is_none() && find(Path::new("/")).is_none());
    }
}
