//! A detached testnet: where its peers are, written down for later commands.

use crate::{
    PeerInfo, TestnetError,
    peer::{Process, invite_of, terminate},
    platform::signal,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// File in the testnet's folder.
pub const STATE_FILE: &str = "testnet.json";

/// A detached testnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestnetState {
    /// Where its data folders and logs are.
    pub folder: PathBuf,
    /// What its peers run.
    pub executable: PathBuf,
    /// Its peers.
    pub peers: Vec<PeerInfo>,
}

impl TestnetState {
    /// Reads it from a testnet's folder.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn read(folder: &Path) -> Result<Self, TestnetError> {
        let path = folder.join(STATE_FILE);
        let text = std::fs::read(&path).map_err(|_| TestnetError::Absent(folder.to_owned()))?;
        serde_json::from_slice(&text).map_err(|error| TestnetError::Broken { path, error: error.to_string() })
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), TestnetError> {
        let path = folder.join(STATE_FILE);
        let io = |error| TestnetError::Io { what: path.display().to_string(), error };
        let text = serde_json::to_vec_pretty(self).map_err(|e| io(e.into()))?;
        // Whole or not at all: whoever cannot read it loses sight of processes that run.
        let draft = folder.join(format!(".{STATE_FILE}.{}.new", std::process::id()));
        let written = File::create(&draft).and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
        written.and_then(|()| std::fs::rename(&draft, &path)).map_err(|error| {
            // The first error is the one worth reporting.
            let _ = std::fs::remove_file(&draft);
            io(error)
        })
    }

    /// Peers whose process runs.
    pub fn alive(&self) -> impl Iterator<Item = &PeerInfo> {
        self.peers.iter().filter(|p| p.is_alive())
    }

    /// The peer of that name.
    ///
    /// # Errors
    /// When there is none; says which there are.
    pub fn peer(&self, name: &str) -> Result<&PeerInfo, TestnetError> {
        let names = || self.peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.peers.iter().find(|p| p.name == name);
        found.ok_or_else(|| TestnetError::NoPeer { name: name.to_owned(), names: names() })
    }

    /// Sends a peer's process a signal, as `-STOP`.
    ///
    /// # Errors
    /// When there is no such peer, or it does not run.
    pub fn signal(&self, name: &str, what: &str) -> Result<&PeerInfo, TestnetError> {
        let peer = self.peer(name)?;
        if !peer.is_alive() {
            return Err(TestnetError::NotRunning(name.to_owned()));
        }
        signal(peer.pid, what)?;
        Ok(peer)
    }

    /// Starts a peer again with its files, killing it first if it runs; waits until its HTTP listens, and writes down in
    /// `folder` where that is.
    ///
    /// # Errors
    /// When there is no such peer, or it does not start.
    pub async fn restart(&mut self, name: &str, folder: &Path, patience: Duration) -> Result<&PeerInfo, TestnetError> {
        let info = self.peer(name)?.clone();
        if info.is_alive() {
            signal(info.pid, "-KILL")?;
            let until = Instant::now() + patience;
            while info.is_alive() && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let invite = invite_of(self.peers.iter());
        let mut process = Process::relaunch(&self.executable, info, invite.as_deref())?;
        process.await_http(patience).await?;
        if let Some(peer) = self.peers.iter_mut().find(|p| p.name == name) {
            *peer = process.info.clone();
        }
        self.write(folder)?;
        self.peer(name)
    }

    /// Lets every peer leave, and removes its folder and the note of it in `folder`, unless some do not leave.
    pub async fn down(&self, folder: &Path, patience: Duration) -> EndedPeers {
        let asked: Vec<&PeerInfo> = self.alive().collect();
        for peer in &asked {
            terminate(peer.pid);
            // One that was stopped hears it as soon as it goes on.
            let _ = signal(peer.pid, "-CONT");
        }
        let until = Instant::now() + patience;
        while self.alive().next().is_some() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let names = |peers: Vec<&PeerInfo>| peers.into_iter().map(|peer| peer.name.clone()).collect::<Vec<_>>();
        let (left, stayed) = asked.iter().copied().partition(|peer| !peer.is_alive());
        let ended = self.peers.iter().filter(|peer| !asked.iter().any(|a| a.name == peer.name)).collect();
        let down = EndedPeers { left: names(left), ended: names(ended), stayed: names(stayed) };
        if down.stayed.is_empty() {
            // Nothing to remove is as good.
            let _ = std::fs::remove_dir_all(&self.folder);
            let _ = std::fs::remove_file(folder.join(STATE_FILE));
        }
        down
    }
}

/// What became of a testnet's peers, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndedPeers {
    /// They have left.
    pub left: Vec<String>,
    /// Their processes had ended before.
    pub ended: Vec<String>,
    /// They still run.
    pub stayed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_and_read_and_the_dead_are_known() {
        let folder = std::env::temp_dir().join(format!("tsnode-state-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(matches!(TestnetState::read(&folder), Err(TestnetError::Absent(_))));
        let peer = PeerInfo {
            name: "peer0".into(),
            id: "12D3KooW".into(),
            pid: std::process::id(),
            data_dir: "/nowhere/at/all".into(),
            log: "/nowhere/log".into(),
            http: "http://127.0.0.1:1".into(),
            gateway: false,
            args: vec!["join".into()],
        };
        let state =
            TestnetState { folder: folder.join("run"), executable: "/nowhere/tsnode".into(), peers: vec![peer] };
        state.write(&folder).unwrap();
        assert_eq!(TestnetState::read(&folder).unwrap(), state);
        assert_eq!(state.alive().count(), 0, "this process is not that peer");
        std::fs::write(folder.join(STATE_FILE), "{").unwrap();
        let said = TestnetState::read(&folder).unwrap_err().to_string();
        assert!(said.contains(STATE_FILE) && said.contains("may still run"), "{said}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
