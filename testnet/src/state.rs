//! A detached testnet: where its peers are, written down for later commands.

use crate::{PeerInfo, TestnetError, peer::terminate};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// File in the testnet's folder.
pub const STATE_FILE: &str = "testnet.json";

/// A detached testnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Where its data folders and logs are.
    pub folder: PathBuf,
    /// Its peers.
    pub peers: Vec<PeerInfo>,
}

impl State {
    /// Reads it from a testnet's folder.
    ///
    /// # Errors
    /// When there is none.
    pub fn read(folder: &Path) -> Result<Self, TestnetError> {
        let absent = || TestnetError::Absent(folder.to_owned());
        let text = std::fs::read(folder.join(STATE_FILE)).map_err(|_| absent())?;
        serde_json::from_slice(&text).map_err(|_| absent())
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), TestnetError> {
        let path = folder.join(STATE_FILE);
        let io = |error| TestnetError::Io { what: path.display().to_string(), error };
        let text = serde_json::to_vec_pretty(self).map_err(|e| io(e.into()))?;
        std::fs::write(&path, text).map_err(io)
    }

    /// Peers whose process runs.
    pub fn alive(&self) -> impl Iterator<Item = &PeerInfo> {
        self.peers.iter().filter(|p| is_alive(p))
    }

    /// Lets every peer leave, and removes its folder and the note of it in `folder`. Says how many had to be left running.
    pub async fn down(&self, folder: &Path, patience: Duration) -> usize {
        for peer in self.alive() {
            terminate(peer.pid);
        }
        let until = Instant::now() + patience;
        while self.alive().next().is_some() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let left = self.alive().count();
        if left == 0 {
            // Nothing to remove is as good.
            let _ = std::fs::remove_dir_all(&self.folder);
            let _ = std::fs::remove_file(folder.join(STATE_FILE));
        }
        left
    }
}

/// Whether the process is still that peer: numbers are used again.
fn is_alive(peer: &PeerInfo) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", peer.pid)).unwrap_or_default();
    let folder = peer.data_dir.to_string_lossy();
    line.split(|b| *b == 0).any(|arg| arg == folder.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_and_read_and_the_dead_are_known() {
        let folder = std::env::temp_dir().join(format!("tsnode-state-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(matches!(State::read(&folder), Err(TestnetError::Absent(_))));
        let peer = PeerInfo {
            name: "peer0".into(),
            id: "12D3KooW".into(),
            pid: std::process::id(),
            data_dir: "/nowhere/at/all".into(),
            log: "/nowhere/log".into(),
            http: "http://127.0.0.1:1".into(),
            gateway: false,
        };
        let state = State { folder: folder.join("run"), peers: vec![peer] };
        state.write(&folder).unwrap();
        assert_eq!(State::read(&folder).unwrap(), state);
        assert_eq!(state.alive().count(), 0, "this process is not that peer");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
