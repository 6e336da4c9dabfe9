//! Launches swarms of real `tsnode` processes on one machine.
//!
//! Every peer has a data folder and ports of its own; links may be shaped slow ([`TestnetConfig::link_mbit`]). The
//! testnet knows a peer only as others do: by its process, its files and its HTTP interface.

mod answers;
pub mod chaos;
pub mod client;
mod faults;
mod load_generator;
mod peer;
mod platform;
mod state;
mod watch;

pub use answers::Answers;
pub use faults::{Flaw, Network, Noise, Wall};
pub use peer::{PeerInfo, machine_processor_time, own_processor_time};
pub use state::{EndedPeers, STATE_FILE, TestnetState};
pub use watch::{SeenModel, SeenPath, SeenPeer, Sight, Swarm};

use peer::Process;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How long a swarm may take to be of one mind, and how much longer for each of its peers: they measure their hardware, find each
/// other and load on the same processors.
const UP: Duration = Duration::from_secs(30);
const UP_EACH: Duration = Duration::from_secs(4);
/// Peers that start at the same time, for each core and at least: each takes a second of one, and where all started together none
/// would be in before the last, while others wait for its answers.
const AT_ONCE_EACH: usize = 4;
const AT_ONCE: usize = 8;
/// How long peers may take to leave by themselves.
const DOWN: Duration = Duration::from_secs(5);

/// How long a swarm of so many peers may take.
fn patience(peers: usize) -> Duration {
    UP + UP_EACH.saturating_mul(u32::try_from(peers).unwrap_or(u32::MAX))
}

/// Peers that start at the same time.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(AT_ONCE, |cores| AT_ONCE.max(cores.get() * AT_ONCE_EACH))
}

/// What to launch.
#[derive(Clone, Debug)]
pub struct TestnetConfig {
    /// The `tsnode` executable.
    pub executable: PathBuf,
    /// Where the peers' data folders go; made if it does not exist.
    pub folder: PathBuf,
    /// The peers, the first of which starts the swarm.
    pub peers: Vec<PeerConfig>,
    /// Where the first peer's HTTP listens on this host; any free port where nothing is said.
    pub http_port: Option<u16>,
    /// Bandwidth of every link, if shaped.
    pub link_mbit: Option<f64>,
    /// Latency of every link in milliseconds, if shaped.
    pub link_ms: Option<f64>,
    /// Flags passed to every peer, as `--layout prefill=1,decode=1`.
    pub flags: Vec<String>,
}

/// One peer to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerConfig {
    /// It computes.
    Host {
        /// Flags passed to it, as `--threads 2`.
        flags: Vec<String>,
    },
    /// It has no model.
    Gateway,
}

impl PeerConfig {
    /// Hosts of one thread each, with these flags, and then gateways.
    #[must_use]
    pub fn alike(hosts: usize, gateways: usize, flags: &[String]) -> Vec<Self> {
        let flags = [&["--threads".to_owned(), "1".to_owned()], flags].concat();
        let hosts = std::iter::repeat_n(Self::Host { flags }, hosts);
        hosts.chain(std::iter::repeat_n(Self::Gateway, gateways)).collect()
    }
}

/// Why a testnet is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum TestnetError {
    /// A file or process cannot be had.
    #[error("{what}: {error}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        error: std::io::Error,
    },
    /// A peer ended instead of starting.
    #[error("peer {name} ended ({status}); the end of its log:\n{log}")]
    Died {
        /// Which.
        name: String,
        /// How.
        status: String,
        /// What it said last.
        log: String,
    },
    /// The swarm is not of one mind in time.
    #[error("the swarm is not up after {seconds:.0} s: {why}; logs are in {folder}")]
    NotUp {
        /// How long it had.
        seconds: f64,
        /// What is missing.
        why: String,
        /// Where to look.
        folder: PathBuf,
    },
    /// No peer has that name.
    #[error("no peer is called {name}; there are: {names}")]
    NoPeer {
        /// The name.
        name: String,
        /// Those there are.
        names: String,
    },
    /// A peer's process has ended.
    #[error("{0} does not run; start it again with: tsnode testnet restart {0}")]
    NotRunning(String),
    /// A peer's network cannot be broken.
    #[error("{name} is not to be broken: {why}")]
    NotBroken {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// It answers wrongly.
    #[error(transparent)]
    Wrong(client::BadStream),
    /// The note of one that was launched is damaged.
    #[error("{}: {error}; its peers may still run: end them by hand, and remove this file", path.display())]
    Broken {
        /// The note.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// No testnet was launched there.
    #[error("{0}: no testnet is up here; start one with: tsnode testnet up --detach")]
    Absent(PathBuf),
}

/// A running swarm. Dropped, it kills its processes, unless [`Testnet::detach`]ed.
pub struct Testnet {
    config: TestnetConfig,
    processes: Vec<Process>,
    detached: bool,
}

impl Testnet {
    /// Launches the peers and waits until all of them follow one plan whose groups are up.
    ///
    /// # Errors
    /// When a peer ends, or the swarm is not up in time.
    pub async fn up(config: &TestnetConfig) -> Result<Self, TestnetError> {
        Self::up_telling(config, |_| {}).await
    }

    /// The same, and says meanwhile how far it is.
    ///
    /// # Errors
    /// When a peer ends, or the swarm is not up in time.
    pub async fn up_telling(config: &TestnetConfig, mut tell: impl FnMut(&str)) -> Result<Self, TestnetError> {
        let (all, patience) = (config.peers.len(), patience(config.peers.len()));
        let io = |error| TestnetError::Io { what: config.folder.display().to_string(), error };
        std::fs::create_dir_all(&config.folder).map_err(io)?;
        let mut net = Self { config: config.clone(), processes: Vec::new(), detached: false };
        let mut invite = None;
        let (at_once, mut started) = (at_once(), 0);
        let gather_until = Instant::now() + patience / 2;
        for index in 0..all {
            // In the order of their launch: one that is slower than those behind it is waited for a little longer.
            while index - started >= at_once {
                net.processes[started].invite(patience).await?;
                net.await_company(started, patience, gather_until).await?;
                started += 1;
                tell(&format!("{started} of {all} peers have started"));
            }
            let handed_on = net.processes.first().map(|first| first.info.data_dir.clone());
            // Among those that end with this, before anything is waited for.
            net.processes.push(Process::launch(config, index, invite.as_deref(), handed_on.as_deref())?);
            if invite.is_none() {
                invite = Some(net.processes[index].invite(patience).await?);
            }
        }
        for (n, process) in net.processes.iter_mut().enumerate() {
            process.await_http(patience).await?;
            tell(&format!("{} of {all} peers have started", (n + 1).max(started)));
        }
        net.await_mind(all, tell).await?;
        net.name_peers().await;
        Ok(net)
    }

    /// Waits until a peer has met most of those before it, or it is time for the rest to start. Where all came at once, those who are
    /// in would be busy with newcomers, and too late for each other.
    async fn await_company(&mut self, index: usize, patience: Duration, until: Instant) -> Result<(), TestnetError> {
        self.processes[index].await_http(patience).await?;
        let swarm = Swarm::of(std::iter::once(&self.processes[index].info));
        let met = |sights: &[Option<Sight>]| match sights {
            [Some(sight)] if 2 * sight.peers.len() > index => Ok(()),
            _ => Err(format!("peer {index} has met few")),
        };
        // Who has met few by then is waited for with all others.
        let _ = swarm.await_that(until.saturating_duration_since(Instant::now()), met).await;
        self.processes[index].check()
    }

    /// Waits until every living peer sees `peers` peers and follows the same plan, with all its groups up.
    ///
    /// # Errors
    /// When that takes too long, or a peer has ended.
    pub async fn await_one_mind(&mut self, peers: usize) -> Result<(), TestnetError> {
        self.await_mind(peers, |_| {}).await
    }

    async fn await_mind(&mut self, peers: usize, tell: impl FnMut(&str)) -> Result<(), TestnetError> {
        let (swarm, patience) =
            (Swarm::of(self.processes.iter().filter(|p| !p.is_gone()).map(|p| &p.info)), patience(peers));
        let outcome = swarm.await_one_mind_telling(peers, patience, tell).await;
        for process in &mut self.processes {
            process.check()?;
        }
        outcome.map_err(|why| TestnetError::NotUp {
            seconds: patience.as_secs_f64(),
            why,
            folder: self.config.folder.clone(),
        })
    }

    /// Writes down the peers' ids as they say them.
    async fn name_peers(&mut self) {
        let sights = Swarm::of(self.processes.iter().map(|p| &p.info)).look().await;
        for (process, sight) in self.processes.iter_mut().zip(sights) {
            process.info.id = sight.map(|s| s.me).unwrap_or_default();
        }
    }

    /// Everyone who was launched.
    #[must_use]
    pub fn peers(&self) -> Vec<&PeerInfo> {
        self.processes.iter().map(|p| &p.info).collect()
    }

    /// Kills a peer with -9.
    ///
    /// # Errors
    /// When the system does not let it.
    pub async fn kill(&mut self, index: usize) -> Result<(), TestnetError> {
        self.processes[index].kill().await
    }

    /// Starts a peer that was killed again, with its files, and waits until its HTTP listens.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn restart(&mut self, index: usize) -> Result<(), TestnetError> {
        let info = self.processes[index].info.clone();
        let invite = peer::invite_of(self.processes.iter().map(|p| &p.info));
        let mut process = Process::relaunch(&self.config.executable, info, invite.as_deref())?;
        process.await_http(patience(self.processes.len())).await?;
        self.processes[index] = process;
        Ok(())
    }

    /// Sends a peer's process a signal, as `-STOP`.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn signal(&self, index: usize, signal: &str) -> Result<(), TestnetError> {
        platform::signal(self.processes[index].info.pid, signal)
    }

    /// Memory a peer has in use (bytes), and processor time it has used (seconds), as the system counts them.
    #[must_use]
    pub fn usage(&self, index: usize) -> Option<(u64, f64)> {
        self.processes[index].usage()
    }

    /// What was launched.
    #[must_use]
    pub fn config(&self) -> &TestnetConfig {
        &self.config
    }

    /// Where everything is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.config.folder
    }

    /// Leaves the processes running, and writes down in `folder` where they are.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn detach(mut self, folder: &Path) -> Result<TestnetState, TestnetError> {
        let peers = self.processes.iter().map(|p| p.info.clone()).collect();
        let state =
            TestnetState { folder: self.config.folder.clone(), executable: self.config.executable.clone(), peers };
        state.write(folder)?;
        self.detached = true;
        Ok(state)
    }

    /// Lets every peer leave, and kills those that do not.
    ///
    /// # Errors
    /// When the system does not let it.
    pub async fn down(self) -> Result<(), TestnetError> {
        self.down_unless(std::future::pending()).await
    }

    /// The same, and kills those at once that are still there when `hurry` comes: somebody does not want to wait for them.
    ///
    /// # Errors
    /// As [`Self::down`].
    pub async fn down_unless(mut self, hurry: impl Future<Output = ()>) -> Result<(), TestnetError> {
        for process in &mut self.processes {
            process.ask_to_leave();
        }
        let (mut hurry, mut hurries) = (std::pin::pin!(hurry), false);
        for process in &mut self.processes {
            if !hurries {
                tokio::select! {
                    biased;
                    ended = process.await_end(DOWN) => ended?,
                    () = &mut hurry => hurries = true,
                }
            }
            if hurries {
                process.start_kill();
                process.await_end(DOWN).await?;
            }
        }
        Ok(())
    }
}

impl Drop for Testnet {
    fn drop(&mut self) {
        if !self.detached {
            for process in &mut self.processes {
                process.start_kill();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use tokio::{
        io::{AsyncBufReadExt as _, BufReader},
        process::Command,
    };

    #[tokio::test]
    async fn who_hurries_waits_for_no_peer_that_does_not_leave_and_leaves_no_process() {
        // Whoever asks it to leave is not heard, from when it says so on.
        let stays = ["-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"];
        let mut child = Command::new("sh").args(stays).stdout(Stdio::piped()).spawn().unwrap();
        let (pid, mut line) = (child.id().unwrap(), String::new());
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        assert_eq!(line.trim(), "deaf");
        let config = TestnetConfig {
            executable: PathBuf::new(),
            folder: PathBuf::new(),
            peers: Vec::new(),
            http_port: None,
            link_mbit: None,
            link_ms: None,
            flags: Vec::new(),
        };
        let net = Testnet { config, processes: vec![Process::running(child)], detached: false };
        let began = Instant::now();
        net.down_unless(std::future::ready(())).await.unwrap();
        assert!(began.elapsed() < DOWN, "{:?}", began.elapsed());
        assert!(platform::command_line(pid).is_empty(), "it still runs");
    }
}
