//! A real process that wants into a private swarm: it was told everything but the secret.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tsnode::store::{Belonging, Store};
use tsnode_protocol::{Invite, Secret};
use tsnode_testnet::{PeerInfo, Sight, Swarm};

pub struct Stranger {
    process: Child,
    info: PeerInfo,
    _folder: TempDir,
}

impl Stranger {
    /// As a member that was given another secret: it has no use for a ticket, and offers nothing that could be planned with.
    pub fn start(members: &[&PeerInfo]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("stranger");
        let invite = invite(members);
        let store = Store::open(&data_dir).unwrap();
        store.set_swarm(&Belonging { swarm: invite.swarm, secret: Some(Secret([9; 32])) }).unwrap();
        drop(store);
        let mut args: Vec<String> = ["join", "--name", "stranger", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"]
            .map(str::to_owned)
            .into();
        args.extend(["--mdns=false", "--no-model", "--data-dir"].map(str::to_owned));
        args.push(data_dir.display().to_string());
        let process = Command::new(PathBuf::from(env!("CARGO_BIN_EXE_tsnode")))
            .args(&args)
            .args(["--invite", &invite.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let log = data_dir.join("log");
        let (name, pid) = ("stranger".to_owned(), process.id());
        let info = PeerInfo { name, id: String::new(), pid, data_dir, log, http: String::new(), gateway: true, args };
        Self { process, info, _folder: folder }
    }

    /// What it says once it says anything.
    pub async fn until_up(&mut self, patience: Duration) -> Sight {
        let until = Instant::now() + patience;
        loop {
            assert_eq!(self.process.try_wait().unwrap(), None, "it has ended");
            let written = std::fs::read_to_string(self.info.data_dir.join("http.addr")).unwrap_or_default();
            self.info.http = format!("http://{}", written.trim());
            if let Some(sight) = self.sight().await {
                return sight;
            }
            assert!(Instant::now() < until, "it is not up");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What it says.
    pub async fn sight(&self) -> Option<Sight> {
        Swarm::of([&self.info].into_iter()).look().await.pop().flatten()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An invite with the addresses of all.
fn invite(members: &[&PeerInfo]) -> Invite {
    let text = |p: &&PeerInfo| std::fs::read_to_string(p.data_dir.join("invite")).unwrap();
    let mut invites = members.iter().map(|p| text(p).trim().parse::<Invite>().unwrap());
    let mut first = invites.next().unwrap();
    first.addresses.extend(invites.flat_map(|invite| invite.addresses));
    first
}
