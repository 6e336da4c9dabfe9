//! One peer of a testnet: its process and its files.

use crate::{PeerConfig, TestnetConfig, TestnetError, platform};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// Between looks at a file that is about to appear.
const LOOK: Duration = Duration::from_millis(25);
/// What is shown of a log.
const LOG_LINES: usize = 15;

/// Where a peer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its name.
    pub name: String,
    /// Its id (`12D3KooW…`); empty until the swarm is up.
    pub id: String,
    /// Its process.
    pub pid: u32,
    /// Its data folder.
    pub data_dir: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Where its HTTP listens; empty until it does.
    pub http: String,
    /// Whether it has no model.
    pub gateway: bool,
    /// What it was started with, but for its invite.
    pub args: Vec<String>,
}

impl PeerInfo {
    /// Whether the process is still that peer: numbers are used again.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let line = platform::command_line(self.pid);
        let folder = self.data_dir.to_string_lossy();
        line.split(|b| *b == 0).any(|arg| arg == folder.as_bytes())
    }

    /// As its owner asks it: where it wants keys, the token in its data folder does.
    pub(crate) fn authorised(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match std::fs::read_to_string(self.data_dir.join(TOKEN_FILE)) {
            Ok(token) => request.bearer_auth(token.trim()),
            Err(_) => request,
        }
    }

    /// Forgets where its HTTP was, so that it can be waited for.
    fn forget_http(&self) -> Result<(), TestnetError> {
        let address = self.data_dir.join(HTTP_FILE);
        match std::fs::remove_file(&address) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(TestnetError::Io { what: address.display().to_string(), error })
            }
            _ => Ok(()),
        }
    }
}

/// An invite to the swarm by one of these that is alive: the others' addresses are stale.
pub(crate) fn invite_of<'p>(peers: impl Iterator<Item = &'p PeerInfo>) -> Option<String> {
    let invite = |p: &PeerInfo| std::fs::read_to_string(p.data_dir.join(INVITE_FILE)).ok();
    let text = peers.filter(|p| p.is_alive()).find_map(invite)?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

/// Files a peer writes when it is reachable.
const HTTP_FILE: &str = "http.addr";
const INVITE_FILE: &str = "invite";
const TOKEN_FILE: &str = "http.token";
/// What a peer has measured of the machine that all of them run on.
const MEASURED_FILE: &str = "measured.json";
/// By which a peer is told of its invite.
const INVITE_VARIABLE: &str = "TSNODE_INVITE";

pub(crate) struct Process {
    pub info: PeerInfo,
    child: Child,
    killed: bool,
}

/// Puts what was measured into another peer's folder. One that has measured nothing, as a gateway, has nothing to hand on.
fn hand_on(from: &Path, to: &Path) -> Result<(), TestnetError> {
    let io = |error| TestnetError::Io { what: to.display().to_string(), error };
    let Ok(measured) = std::fs::read(from.join(MEASURED_FILE)) else { return Ok(()) };
    platform::make_folder_for_owner(to).and_then(|()| std::fs::write(to.join(MEASURED_FILE), measured)).map_err(io)
}

/// What peers are called, in their order.
pub(crate) fn names(peers: &[PeerConfig]) -> Vec<String> {
    let is_gateway = |peer: &PeerConfig| *peer == PeerConfig::Gateway;
    let name = |index: usize| {
        let gateway = is_gateway(&peers[index]);
        let before = peers[..index].iter().filter(|p| is_gateway(p) == gateway).count();
        format!("{}{before}", if gateway { "gateway" } else { "peer" })
    };
    (0..peers.len()).map(name).collect()
}

/// What a peer is before it runs.
fn planned(config: &TestnetConfig, index: usize) -> PeerInfo {
    let peer = &config.peers[index];
    let gateway = *peer == PeerConfig::Gateway;
    let name = names(&config.peers).swap_remove(index);
    let data_dir = config.folder.join(&name);
    let http = format!("127.0.0.1:{}", config.http_port.filter(|_| index == 0).unwrap_or(0));
    let fixed =
        ["join", "--name", &name, "--http", &http, "--listen", "127.0.0.1:0", "--mdns=false", "--faults", "--data-dir"];
    let mut args: Vec<String> = fixed.map(str::to_owned).into();
    args.push(data_dir.display().to_string());
    args.extend(config.flags.iter().cloned());
    match peer {
        PeerConfig::Gateway => args.push("--no-model".into()),
        PeerConfig::Host { flags } => {
            args.extend(flags.iter().cloned());
            // Whatever GPUs there are: the first of several peers would take all of a GPU's memory.
            if !args.iter().any(|flag| flag == "--device") {
                args.extend(["--device".to_owned(), "cpu".to_owned()]);
            }
        }
    }
    for (flag, value) in [("--shape-mbit", config.link_mbit), ("--shape-ms", config.link_ms)] {
        args.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value.to_string()]));
    }
    let log = config.folder.join(format!("{name}.log"));
    PeerInfo { name, id: String::new(), pid: 0, data_dir, log, http: String::new(), gateway, args }
}

impl Process {
    /// Starts a peer for the first time: the first founds the swarm, the others are invited. What was measured by the peer of that
    /// folder they need not measure, all at once on the same processors.
    pub fn launch(
        config: &TestnetConfig,
        index: usize,
        invite: Option<&str>,
        measured_in: Option<&Path>,
    ) -> Result<Self, TestnetError> {
        let into: &[&str] = if invite.is_none() { &["--private"] } else { &[] };
        let info = planned(config, index);
        if let Some(folder) = measured_in {
            hand_on(folder, &info.data_dir)?;
        }
        Self::start(&config.executable, info, into, invite)
    }

    /// Any process, as if it were one.
    #[cfg(test)]
    pub fn running(child: Child) -> Self {
        let info = PeerInfo {
            name: "process".into(),
            id: String::new(),
            pid: child.id().unwrap_or_default(),
            data_dir: PathBuf::new(),
            log: PathBuf::new(),
            http: String::new(),
            gateway: false,
            args: Vec::new(),
        };
        Self { info, child, killed: false }
    }

    /// Starts it again, with its files. Where nobody is there to invite it, it remembers its swarm itself.
    pub fn relaunch(executable: &Path, info: PeerInfo, invite: Option<&str>) -> Result<Self, TestnetError> {
        info.forget_http()?;
        Self::start(executable, info, &[], invite)
    }

    fn start(executable: &Path, mut info: PeerInfo, into: &[&str], invite: Option<&str>) -> Result<Self, TestnetError> {
        let io = |what: &Path| {
            let what = what.display().to_string();
            move |error| TestnetError::Io { what, error }
        };
        // A peer that starts again writes on.
        let out = File::options().create(true).append(true).open(&info.log).map_err(io(&info.log))?;
        let err = out.try_clone().map_err(io(&info.log))?;
        let mut command = Command::new(executable);
        command.args(&info.args).args(into).stdin(Stdio::null()).stdout(out).stderr(err);
        // Not as a flag: those are in the list of processes, which everybody can read.
        command.env_remove(INVITE_VARIABLE).envs(invite.map(|invite| (INVITE_VARIABLE, invite)));
        let child = command.spawn().map_err(io(executable))?;
        info.pid = child.id().unwrap_or_default();
        Ok(Self { info, child, killed: false })
    }

    /// The invite to its swarm, once it has written it.
    pub async fn invite(&mut self, patience: Duration) -> Result<String, TestnetError> {
        self.await_file(INVITE_FILE, patience).await
    }

    pub async fn await_http(&mut self, patience: Duration) -> Result<(), TestnetError> {
        self.info.http = format!("http://{}", self.await_file(HTTP_FILE, patience).await?);
        Ok(())
    }

    async fn await_file(&mut self, file: &str, patience: Duration) -> Result<String, TestnetError> {
        let (path, until) = (self.info.data_dir.join(file), Instant::now() + patience);
        loop {
            if let Ok(text) = std::fs::read_to_string(&path)
                && !text.trim().is_empty()
            {
                return Ok(text.trim().to_owned());
            }
            self.check()?;
            if Instant::now() > until {
                let why = format!("{} has not written {file}", self.info.name);
                let folder = self.info.data_dir.clone();
                return Err(TestnetError::NotUp { seconds: patience.as_secs_f64(), why, folder });
            }
            sleep(LOOK).await;
        }
    }

    /// An error if the process has ended without being told to.
    pub fn check(&mut self) -> Result<(), TestnetError> {
        match self.child.try_wait() {
            Ok(Some(status)) if !self.killed => {
                let text = std::fs::read_to_string(&self.info.log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let log = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
                Err(TestnetError::Died { name: self.info.name.clone(), status: status.to_string(), log })
            }
            _ => Ok(()),
        }
    }

    pub fn is_gone(&self) -> bool {
        self.killed
    }

    pub async fn kill(&mut self) -> Result<(), TestnetError> {
        self.killed = true;
        self.child.kill().await.map_err(|error| TestnetError::Io { what: self.info.name.clone(), error })
    }

    pub fn start_kill(&mut self) {
        // One that has ended needs no killing.
        let _ = self.child.start_kill();
    }

    pub fn ask_to_leave(&mut self) {
        self.killed = true;
        terminate(self.info.pid);
    }

    pub async fn await_end(&mut self, patience: Duration) -> Result<(), TestnetError> {
        match timeout(patience, self.child.wait()).await {
            Ok(_) => Ok(()),
            Err(_) => self.kill().await,
        }
    }

    pub fn usage(&self) -> Option<(u64, f64)> {
        platform::usage(&self.info.pid.to_string())
    }
}

/// Processor time that this process has used (s), as the system counts it.
#[must_use]
pub fn own_processor_time() -> Option<f64> {
    platform::usage("self").map(|(_, seconds)| seconds)
}

/// Processor time that everything on this machine has used (s), as the system counts it.
#[must_use]
pub fn machine_processor_time() -> Option<f64> {
    platform::machine_usage()
}

/// Asks a process to leave.
pub(crate) fn terminate(pid: u32) {
    // One that has ended needs no telling.
    let _ = platform::signal(pid, "-TERM");
}
