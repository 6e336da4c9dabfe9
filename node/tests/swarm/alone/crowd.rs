//! A crowd of idle connections that come again and again, more than a peer may have files open: it serves its clients and members, and
//! lets a newcomer in.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, turn};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tsnode::data_plane::doors;
use tsnode_testnet::{PeerConfig, Swarm};

/// Files that a peer may have open.
const FILES: usize = 512;
/// Idle connections to each of its ports, from so many addresses.
const CROWD: usize = 600;
const ADDRESSES: usize = 50;
/// How long a newcomer may take.
const IN: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(20);

/// The program, with few files.
fn with_few_files(folder: &Path) -> PathBuf {
    let script = folder.join("tsnode-with-few-files");
    let program = env!("CARGO_BIN_EXE_tsnode");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -n {FILES}\nexec '{program}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    script
}

/// Connections that say nothing, and come again when they are hung up on.
fn crowd(all: &mut JoinSet<()>, to: SocketAddr) {
    for n in 0..CROWD {
        all.spawn(async move {
            let from = Ipv4Addr::new(127, 0, 1, 1 + (n % ADDRESSES) as u8);
            loop {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(SocketAddr::new(from.into(), 0)).unwrap();
                if let Ok(mut stream) = socket.connect(to).await {
                    // Until it is hung up on, whatever is said before.
                    while stream.read(&mut [0; 256]).await.is_ok_and(|bytes| bytes > 0) {}
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    }
}

/// One that was told an invite.
struct InvitedPeer {
    process: Child,
    folder: TempDir,
}

impl InvitedPeer {
    fn start(invite: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_tsnode"))
            .args(["join", "--name", "newcomer", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--mdns=false"])
            .args(["--no-model", "--data-dir"])
            .arg(folder.path())
            .args(["--invite", invite])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    /// How many peers it sees.
    async fn sees(&mut self, client: &reqwest::Client) -> Option<usize> {
        assert_eq!(self.process.try_wait().unwrap(), None, "it has ended");
        let address = std::fs::read_to_string(self.folder.path().join("http.addr")).ok()?;
        let sight = client.get(format!("http://{}/api/swarm", address.trim())).send().await.ok()?;
        sight.json::<serde_json::Value>().await.ok()?["peers"].as_array().map(Vec::len)
    }
}

impl Drop for InvitedPeer {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The addresses of a peer's ports for connections of TCP: HTTP, the control plane, lifelines.
async fn ports(net: &Net) -> [SocketAddr; 3] {
    let peer = net.peer(0);
    let sight = Swarm::of(std::iter::once(&peer)).look().await.pop().flatten().unwrap();
    let own = sight.peers.iter().find(|p| p.id == sight.me).unwrap();
    let tcp = own.advert.addresses.iter().find_map(|a| a.strip_prefix("/ip4/127.0.0.1/tcp/"));
    let control: u16 = tcp.unwrap().split('/').next().unwrap().parse().unwrap();
    let data: SocketAddr = own.advert.data_addresses[0].parse().unwrap();
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    [peer.http.trim_start_matches("http://").parse().unwrap(), local(control), local(data.port() + 1)]
}

fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_idle_connections_keeps_nobody_from_being_served_or_from_coming_in() {
    assert!(doors::raise_files() > 3 * CROWD as u64 + 256, "this test needs files itself: ulimit -Hn");
    let folder = tempfile::tempdir().unwrap();
    let peers = PeerConfig::alike(2, 1, &[]);
    let net = Net::run_by(turn().await, with_few_files(folder.path()), peers, &[]).await;
    let peer = net.peer(0);
    let mut all = JoinSet::new();
    ports(&net).await.into_iter().for_each(|port| crowd(&mut all, port));
    let begun = Instant::now();
    let mut most = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        most = most.max(files(peer.pid));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{most} of {FILES} files were open");
    assert!(most < FILES, "it has no files left");

    let asked = Instant::now();
    let body = json!({ "prompt": PROMPT, "max_tokens": 40, "ignore_eos": true });
    let (status, answer) = net.complete(0, body).await;
    println!("a client was served in {:.1?}", asked.elapsed());
    assert_eq!(status, 200, "{answer}");
    assert!(asked.elapsed() < LONG, "{:?}", asked.elapsed());

    let invite = std::fs::read_to_string(peer.data_dir.join("invite")).unwrap();
    let come = Instant::now();
    let mut newcomer = InvitedPeer::start(invite.trim());
    while newcomer.sees(&net.client).await != Some(4) {
        assert!(come.elapsed() < IN, "the newcomer is not in after {:.1?}", come.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("a newcomer was in after {:.1?}", come.elapsed());
    let sights = Swarm::of(net.net.peers().into_iter()).look().await;
    assert!(sights.iter().all(|sight| sight.as_ref().is_some_and(|s| s.peers.len() >= 3)), "no member was lost");
    all.shutdown().await;
    net.down().await;
}
