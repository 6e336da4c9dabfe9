//! `/api/testnet`: ends, stops and starts the processes of a testnet, and breaks the network between them, for the pages of its peers.
//!
//! It is there only at a peer that may be broken and that a testnet on this machine has started and written down, with its process
//! and its data folder; and it reaches that testnet's processes alone.

use super::{ApiError, ApiState};
use crate::platform;
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tsnode_testnet::{Network, PeerInfo, STATE_FILE, TestnetError, TestnetState as Net};

const PATH: &str = "/api/testnet";
/// How long a peer that is started again may take until its HTTP listens.
const START: Duration = Duration::from_secs(30);

/// What is to be done, and to whom: peers are named as in the testnet.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "deed", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum TestnetOrder {
    /// Its process ends at once.
    Kill { peer: String },
    /// Its process hangs, its connections open.
    Stop { peer: String },
    /// It goes on.
    Cont { peer: String },
    /// It is started with its files.
    Restart { peer: String },
    /// Nothing goes between these and all others.
    Partition { side: Vec<String> },
    /// The link between two carries less, and later.
    Slow {
        peer: String,
        to: String,
        #[serde(default)]
        mbit: Option<f64>,
        #[serde(default)]
        ms: f64,
    },
    /// Every network is whole again.
    Heal {},
}

impl TestnetOrder {
    /// Whose process is meant, where one is.
    fn process(&self) -> Option<&str> {
        match self {
            Self::Kill { peer } | Self::Stop { peer } | Self::Cont { peer } | Self::Restart { peer } => Some(peer),
            Self::Partition { .. } | Self::Slow { .. } | Self::Heal {} => None,
        }
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ProcessState {
    Runs,
    Stopped,
    Ended,
}

pub(super) async fn show(State(state): State<ApiState>) -> Result<Json<Value>, ApiError> {
    let (_, net) = testnet(&state).await?;
    let broken = broken(&net).await;
    let shown = |peer: &PeerInfo| {
        let (cut, slow) = broken.get(&peer.name).cloned().unwrap_or_default();
        json!({
            "name": peer.name, "id": peer.id, "process": process(peer), "is_this": peer.pid == std::process::id(),
            "cut_from": cut, "slow_to": slow,
        })
    };
    Ok(Json(json!({ "peers": net.peers.iter().map(shown).collect::<Vec<_>>() })))
}

/// By name, from whom each peer that answers is cut off, and to whom its links are slow, as it says itself.
async fn broken(net: &Net) -> BTreeMap<String, (Vec<String>, Vec<Value>)> {
    let name = |id: &String| {
        net.peers.iter().find(|peer| peer.id == *id).map_or(id.as_str(), |peer| peer.name.as_str()).to_owned()
    };
    let asked: Vec<&PeerInfo> = net.peers.iter().filter(|peer| process(peer) == ProcessState::Runs).collect();
    let said = Network::of(asked.iter().copied()).broken().await;
    let of = |(peer, faults): (&PeerInfo, Value)| {
        let cut = faults["cut"].as_object().into_iter().flatten().map(|(id, _)| name(id)).collect();
        let slow = faults["slow"].as_object().into_iter().flatten();
        let slow = slow.map(|(id, link)| json!({ "to": name(id), "mbit": link["mbit"], "ms": link["ms"] })).collect();
        (peer.name.clone(), (cut, slow))
    };
    asked.into_iter().zip(said).filter_map(|(peer, faults)| Some(of((peer, faults?)))).collect()
}

pub(super) async fn act(
    State(state): State<ApiState>,
    Json(wish): Json<TestnetOrder>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let (folder, net) = testnet(&state).await?;
    let wrong = |why: String| ApiError::param("peer", why);
    if let Some(peer) = wish.process()
        && net.peer(peer).map_err(|e| wrong(e.to_string()))?.pid == std::process::id()
    {
        return Err(wrong(format!("{peer} is the peer that you ask: ask another one to end it")));
    }
    tracing::info!(?wish, "done on purpose");
    let done = done(wish, &folder, net).await.map_err(wrong)?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "done": done }))))
}

/// What was done, as it is said.
async fn done(wish: TestnetOrder, folder: &Path, mut net: Net) -> Result<String, String> {
    let why = |error: TestnetError| error.to_string();
    Ok(match wish {
        TestnetOrder::Restart { peer } => {
            net.restart(&peer, folder, START).await.map_err(why)?;
            format!("{peer}: starts again")
        }
        TestnetOrder::Kill { peer } => signal(net, peer, "-KILL", "killed").await?,
        TestnetOrder::Stop { peer } => signal(net, peer, "-STOP", "stopped").await?,
        TestnetOrder::Cont { peer } => signal(net, peer, "-CONT", "goes on").await?,
        TestnetOrder::Partition { side } => {
            if side.is_empty() || net.peers.iter().all(|peer| side.contains(&peer.name)) {
                return Err("name some of the peers, and not all: those are on the other side".into());
            }
            let names: Vec<&str> = side.iter().map(String::as_str).collect();
            network(&net).partition(&names).await.map_err(why)?;
            format!("{} cut off from all others: others notice within seconds", names.join(", "))
        }
        TestnetOrder::Slow { peer, to, mbit, ms } => {
            network(&net).slow_link([&peer, &to], mbit, ms).await.map_err(why)?;
            format!("the link between {peer} and {to} is slow")
        }
        TestnetOrder::Heal {} => {
            network(&net).heal().await.map_err(why)?;
            "every network is whole again".to_owned()
        }
    })
}

/// Of those that answer: whoever ended or was stopped cannot be told anything.
fn network(net: &Net) -> Network<'_> {
    Network::of(net.peers.iter().filter(|peer| process(peer) == ProcessState::Runs))
}

async fn signal(net: Net, peer: String, what: &'static str, done: &'static str) -> Result<String, String> {
    let sent = tokio::task::spawn_blocking(move || {
        net.signal(&peer, what).map_err(|e| e.to_string())?;
        Ok(format!("{peer}: {done}"))
    });
    sent.await.unwrap_or_else(|panic| Err(panic.to_string()))
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
    let owner = |path: &Path| std::fs::metadata(path).ok().and_then(|about| platform::owner(&about));
    let is_ours = owner(&folder.join(STATE_FILE))? == owner(data_dir)?;
    let net = Net::read(&folder).ok().filter(|_| is_ours)?;
    let own = |peer: &PeerInfo| peer.pid == std::process::id() && peer.data_dir == data_dir;
    net.peers.iter().any(own).then_some((folder, net))
}

fn process(peer: &PeerInfo) -> ProcessState {
    match () {
        () if !peer.is_alive() => ProcessState::Ended,
        () if platform::is_stopped(peer.pid) => ProcessState::Stopped,
        () => ProcessState::Runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_and_each_has_what_it_needs() {
        let read = |text: &str| serde_json::from_str::<TestnetOrder>(text).ok();
        let slow = TestnetOrder::Slow { peer: "peer0".into(), to: "peer1".into(), mbit: None, ms: 40.0 };
        assert_eq!(read(r#"{"deed":"slow","peer":"peer0","to":"peer1","ms":40}"#), Some(slow));
        assert_eq!(read(r#"{"deed":"heal"}"#), Some(TestnetOrder::Heal {}));
        assert_eq!(read(r#"{"deed":"kill","peer":"peer0"}"#).unwrap().process(), Some("peer0"));
        for wrong in [r#"{"deed":"kill"}"#, r#"{"deed":"slow","peer":"peer0"}"#, r#"{"deed":"burn","peer":"peer0"}"#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

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
