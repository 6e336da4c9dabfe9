//! systemd as it is asked: units that are written, enabled, looked at and removed.

use super::{
    NAME, ServiceError,
    unit::{Level, Unit, folder_of, is_ours},
};
use crate::{
    plain, platform,
    store::{disk, folders::xdg, identity::KEY_FILE},
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest unit that is read (bytes).
const UNIT_BYTES: u64 = 64 << 10;
/// So long a peer must have run to count as started: what it cannot use it says within a moment.
const STARTING: Duration = Duration::from_secs(2);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(200);
/// Where packages have units.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
/// Is there where systemd runs the system.
const BOOTED: &str = "/run/systemd/system";

/// The systemd of the system, or of a user.
pub struct Systemd {
    level: Level,
    /// Where units are written.
    units: PathBuf,
    /// Where packages have theirs.
    packaged: Vec<PathBuf>,
    /// What asks it.
    systemctl: PathBuf,
    /// Whether it runs this system.
    is_running: bool,
}

/// What installing came to.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Installed {
    /// The unit is new, or another than before.
    Written,
    /// It was there as it is.
    Unchanged,
}

/// What became of the data.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purged {
    /// It stays.
    Kept(Option<PathBuf>),
    /// It is gone.
    Gone(PathBuf),
}

/// What was removed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// The unit, if there was one.
    pub unit: Option<PathBuf>,
    /// The data folder.
    pub data: Purged,
}

/// How the service is.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Where its unit is, if there is one.
    pub unit: Option<PathBuf>,
    /// Whether `tsnode service install` wrote it.
    pub ours: bool,
    /// Whether systemd runs this system.
    pub systemd: bool,
    /// `enabled`, `disabled` …: whether it starts by itself.
    pub enabled: Option<String>,
    /// `active`, `inactive`, `failed` …
    pub active: Option<String>,
    /// The running peer's process.
    pub pid: Option<u32>,
    /// How the last one ended, if none runs.
    pub exit_code: Option<i32>,
    /// Times that systemd started it again.
    pub restarts: Option<u32>,
    /// Its data folder.
    pub data: Option<PathBuf>,
}

impl Systemd {
    /// The one of this machine, or of this user.
    #[must_use]
    pub fn here(level: Level) -> Self {
        let units = match level {
            Level::System => "/etc/systemd/system".into(),
            Level::User => xdg("XDG_CONFIG_HOME", ".config").join("systemd/user"),
        };
        let packaged = if level == Level::System { PACKAGED.map(PathBuf::from).to_vec() } else { Vec::new() };
        Self { level, units, packaged, systemctl: "systemctl".into(), is_running: Path::new(BOOTED).exists() }
    }

    /// Where the unit is, or would be.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.units.join(NAME)
    }

    /// Writes the unit, and has it started now and from now on. Where all of that is so already, nothing changes.
    ///
    /// # Errors
    /// When systemd cannot be asked or refuses, this user may not, somebody else's unit is there, or the peer ends at once.
    pub fn install(&self, unit: &Unit, start: bool) -> Result<Installed, ServiceError> {
        let (path, text) = (self.path(), unit.text()?);
        let before = self.read()?;
        if before.as_deref().is_some_and(|text| !is_ours(text)) {
            return Err(ServiceError::Foreign(path));
        }
        if let Some(packaged) = self.packaged.iter().map(|folder| folder.join(NAME)).find(|path| path.exists()) {
            return Err(ServiceError::Packaged(packaged));
        }
        self.answers()?;
        let outcome = if before.as_ref() == Some(&text) { Installed::Unchanged } else { Installed::Written };
        if outcome == Installed::Written {
            self.write(&text)?;
            self.ask(&["daemon-reload"])?;
        }
        self.ask(&["enable", NAME])?;
        if start {
            // One that runs by the unit before is started anew.
            self.ask(&[if outcome == Installed::Written { "restart" } else { "start" }, NAME])?;
            self.stays()?;
        }
        Ok(outcome)
    }

    fn write(&self, text: &str) -> Result<(), ServiceError> {
        let path = self.path();
        let written = disk::make_folder(&self.units)
            .and_then(|_| disk::write_whole(&path, text.as_bytes()))
            .and_then(|()| platform::let_all_read(&path));
        written.map_err(|error| self.denied(error, path))
    }

    fn denied(&self, error: io::Error, path: PathBuf) -> ServiceError {
        match error.kind() {
            io::ErrorKind::PermissionDenied if self.level == Level::System => ServiceError::NotRoot(path),
            _ => ServiceError::Disk { path, error },
        }
    }

    /// Waits until the peer has run for a moment.
    fn stays(&self) -> Result<(), ServiceError> {
        let until = Instant::now() + STARTING;
        while Instant::now() < until {
            std::thread::sleep(LOOK);
            let status = self.status()?;
            // One that failed waits to be started again (`activating`), or is left alone.
            if status.active.as_deref() == Some("failed") || status.exit_code.is_some_and(|code| code != 0) {
                return Err(ServiceError::Ended { code: status.exit_code, journal: self.journal() });
            }
        }
        Ok(())
    }

    /// What shows the peer's log.
    #[must_use]
    pub fn journal(&self) -> &'static str {
        match self.level {
            Level::User => "journalctl --user -u tsnode -n 20",
            Level::System => "journalctl -u tsnode -n 20",
        }
    }

    /// How the service is.
    ///
    /// # Errors
    /// When the unit cannot be read.
    pub fn status(&self) -> Result<Status, ServiceError> {
        let text = self.read()?;
        let packaged = || self.packaged.iter().map(|folder| folder.join(NAME)).find(|path| path.exists());
        let mut status = Status {
            unit: text.as_ref().map(|_| self.path()).or_else(packaged),
            ours: text.as_deref().is_some_and(is_ours),
            systemd: self.is_running,
            data: text.as_deref().and_then(folder_of),
            ..Status::default()
        };
        if status.unit.is_some() && self.is_running {
            let asked = "--property=ActiveState,UnitFileState,MainPID,ExecMainStatus,ExecMainCode,NRestarts";
            if let Ok(said) = self.ask(&["show", asked, NAME]) {
                status.take(&said);
            }
        }
        Ok(status)
    }

    /// Stops the service, which leaves the swarm in order, and removes its unit and whatever belongs to it; with `purge` the data
    /// folder too. Where nothing is, nothing is done.
    ///
    /// # Errors
    /// When systemd refuses, this user may not, or the unit is somebody else's.
    pub fn remove(&self, purge: bool) -> Result<Removed, ServiceError> {
        let Some(text) = self.read()? else { return Ok(Removed { unit: None, data: Purged::Kept(None) }) };
        let (path, folder) = (self.path(), folder_of(&text));
        if !is_ours(&text) {
            return Err(ServiceError::Foreign(path));
        }
        if self.is_running {
            self.answers()?;
            self.ask(&["disable", "--now", NAME])?;
            if purge && self.level == Level::System {
                self.ask(&["clean", "--what=state", "--what=cache", NAME])?;
            }
        }
        fs::remove_file(&path).map_err(|error| self.denied(error, path.clone()))?;
        // The folders of a user's units are made for them; others' units keep them.
        if self.level == Level::User {
            disk::unmake(&[self.units.join("default.target.wants")]);
            disk::unmake(&self.units.ancestors().take(3).map(Path::to_owned).collect::<Vec<_>>());
        }
        if self.is_running {
            self.ask(&["daemon-reload"])?;
            // It answers with an error where there is nothing to forget.
            let _ = self.ask(&["reset-failed", NAME]);
        }
        let data = match folder {
            Some(folder) if purge => self.purge(folder)?,
            folder => Purged::Kept(folder),
        };
        Ok(Removed { unit: Some(path), data })
    }

    /// Removes the data folder of a user's service: if it is one.
    fn purge(&self, folder: PathBuf) -> Result<Purged, ServiceError> {
        if self.level == Level::System {
            // systemd has removed it, if it is there.
            return Ok(if self.is_running { Purged::Gone(folder) } else { Purged::Kept(Some(folder)) });
        }
        let about = match fs::symlink_metadata(&folder) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Purged::Gone(folder)),
            Err(error) => return Err(ServiceError::Disk { path: folder, error }),
        };
        if !about.is_dir() || !folder.join(KEY_FILE).is_file() {
            return Err(ServiceError::NoDataFolder(folder));
        }
        fs::remove_dir_all(&folder).map_err(ServiceError::disk(&folder))?;
        Ok(Purged::Gone(folder))
    }

    fn read(&self) -> Result<Option<String>, ServiceError> {
        let path = self.path();
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ServiceError::Disk { path, error }),
            // Ours is never so long.
            Ok(about) if about.len() > UNIT_BYTES => return Err(ServiceError::Foreign(path)),
            Ok(_) => {}
        }
        fs::read_to_string(&path).map(Some).map_err(ServiceError::disk(&path))
    }

    /// Whether it runs this system, and answers this user.
    fn answers(&self) -> Result<(), ServiceError> {
        if !self.is_running {
            return Err(ServiceError::NoSystemd);
        }
        match self.ask(&["show-environment"]) {
            Err(ServiceError::Refused { said, .. }) if self.level == Level::User => {
                Err(ServiceError::NoSession { said })
            }
            other => other.map(drop),
        }
    }

    /// Asks, and gives what it says.
    fn ask(&self, words: &[&str]) -> Result<String, ServiceError> {
        let mut command = Command::new(&self.systemctl);
        if self.level == Level::User {
            command.arg("--user");
        }
        let done = command.args(["--no-ask-password", "--no-pager"]).args(words).stdin(Stdio::null()).output();
        let refused = |said: String| ServiceError::Refused { what: words.join(" "), said };
        let Output { status, stdout, stderr } = done.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ServiceError::NoSystemd,
            _ => refused(plain::io_error(&error)),
        })?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Err(if self.is_denied(&said) { ServiceError::NotRoot(self.path()) } else { refused(said.join("; ")) })
    }

    fn is_denied(&self, said: &[&str]) -> bool {
        let words = ["authentication required", "Access denied", "Permission denied"];
        self.level == Level::System && said.iter().any(|line| words.iter().any(|word| line.contains(word)))
    }
}

impl Status {
    /// Takes what `systemctl show` says.
    fn take(&mut self, said: &str) {
        let all: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once('=')).collect();
        let text = |name: &str| all.get(name).filter(|value| !value.is_empty()).map(|value| (*value).to_owned());
        let number = |name: &str| all.get(name).and_then(|value| value.parse::<i64>().ok());
        self.enabled = text("UnitFileState");
        self.active = text("ActiveState");
        self.pid = number("MainPID").and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        self.restarts = number("NRestarts").and_then(|n| u32::try_from(n).ok());
        // Before the first run both are 0.
        let has_ended = self.pid.is_none() && number("ExecMainCode").is_some_and(|code| code != 0);
        self.exit_code = number("ExecMainStatus").filter(|_| has_ended).and_then(|code| i32::try_from(code).ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user's systemd whose `systemctl` notes what it is asked, and says what `show` holds.
    struct FakeSystemd {
        folder: tempfile::TempDir,
        systemd: Systemd,
    }

    impl FakeSystemd {
        fn new(level: Level) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = folder.path();
            let systemctl = at.join("systemctl");
            let script = format!(
                "#!/bin/sh\n[ \"$1\" != --user ] || shift\nshift 2\necho \"$*\" >> {0}/asked\ncase $1 in\n\
                 show) cat {0}/show;;\n*) [ ! -e {0}/refuse ] || {{ cat {0}/refuse >&2; exit 1; }};;\nesac\n",
                at.display()
            );
            fs::write(at.join("script"), script).unwrap();
            platform::let_all_run(&at.join("script")).unwrap();
            // Written by another process: what this one has open another test's child may have open too, and then it cannot be run.
            assert!(Command::new("cp").args([at.join("script"), systemctl.clone()]).status().unwrap().success());
            let units = at.join("config/systemd/user");
            let systemd = Systemd { level, units, packaged: vec![at.join("packaged")], systemctl, is_running: true };
            let double = Self { folder, systemd };
            double.show(
                "ActiveState=active\nUnitFileState=enabled\nMainPID=7\nExecMainCode=0\nExecMainStatus=0\nNRestarts=0\n",
            );
            double
        }

        fn show(&self, said: &str) {
            fs::write(self.folder.path().join("show"), said).unwrap();
        }

        fn asked(&self) -> Vec<String> {
            let path = self.folder.path().join("asked");
            let said = fs::read_to_string(&path).unwrap_or_default();
            let _ = fs::remove_file(path);
            said.lines().filter(|line| !line.starts_with("show")).map(str::to_owned).collect()
        }

        fn unit(&self) -> Unit {
            Unit {
                level: self.systemd.level,
                run_as: None,
                program: "/usr/local/bin/tsnode".into(),
                flags: Vec::new(),
                credentials: Vec::new(),
                data: self.folder.path().join("data"),
            }
        }
    }

    #[test]
    fn what_is_installed_twice_changes_nothing_and_what_is_removed_leaves_nothing() {
        let double = FakeSystemd::new(Level::User);
        let (systemd, unit) = (&double.systemd, double.unit());
        assert_eq!(systemd.install(&unit, true).unwrap(), Installed::Written);
        assert_eq!(double.asked(), ["daemon-reload", "enable tsnode.service", "restart tsnode.service"]);
        let mode = platform::mode(&fs::metadata(systemd.path()).unwrap());
        assert_eq!(mode, Some(0o644));
        assert_eq!(systemd.install(&unit, true).unwrap(), Installed::Unchanged);
        assert_eq!(double.asked(), ["enable tsnode.service", "start tsnode.service"]);
        let status = systemd.status().unwrap();
        assert!(status.ours && status.pid == Some(7) && status.exit_code.is_none(), "{status:?}");
        let removed = systemd.remove(false).unwrap();
        assert_eq!(removed.data, Purged::Kept(Some(unit.data.clone())));
        assert_eq!(double.asked(), ["disable --now tsnode.service", "daemon-reload", "reset-failed tsnode.service"]);
        assert!(!double.folder.path().join("config/systemd").exists(), "folders that were made for the unit");
        assert_eq!(systemd.remove(false).unwrap(), Removed { unit: None, data: Purged::Kept(None) });
        assert_eq!(systemd.status().unwrap().unit, None);
    }

    #[test]
    fn a_unit_of_somebody_else_stays() {
        let double = FakeSystemd::new(Level::User);
        fs::create_dir_all(&double.systemd.units).unwrap();
        fs::write(double.systemd.path(), "[Service]\nExecStart=/bin/true\n").unwrap();
        assert!(matches!(double.systemd.install(&double.unit(), true), Err(ServiceError::Foreign(_))));
        assert!(matches!(double.systemd.remove(true), Err(ServiceError::Foreign(_))));
        assert!(double.systemd.path().exists() && double.asked().is_empty());
        fs::remove_file(double.systemd.path()).unwrap();
        let packaged = double.folder.path().join("packaged");
        fs::create_dir(&packaged).unwrap();
        fs::write(packaged.join(NAME), "").unwrap();
        assert!(matches!(double.systemd.install(&double.unit(), true), Err(ServiceError::Packaged(_))));
    }

    #[test]
    fn only_a_data_folder_is_purged() {
        let double = FakeSystemd::new(Level::User);
        let (systemd, unit) = (&double.systemd, double.unit());
        for is_one in [false, true] {
            systemd.install(&unit, false).unwrap();
            fs::create_dir_all(&unit.data).unwrap();
            if is_one {
                fs::write(unit.data.join(KEY_FILE), "").unwrap();
                assert_eq!(systemd.remove(true).unwrap().data, Purged::Gone(unit.data.clone()));
            } else {
                assert!(matches!(systemd.remove(true), Err(ServiceError::NoDataFolder(_))));
            }
            assert_eq!(unit.data.exists(), !is_one);
            assert!(!systemd.path().exists());
        }
    }

    #[test]
    fn a_peer_that_ends_at_once_is_told_with_its_code() {
        let double = FakeSystemd::new(Level::User);
        double.show("ActiveState=failed\nMainPID=0\nExecMainCode=1\nExecMainStatus=3\n");
        let error = double.systemd.install(&double.unit(), true).unwrap_err();
        assert!(matches!(error, ServiceError::Ended { code: Some(3), .. }), "{error}");
        assert!(error.to_string().contains("exit code 3: journalctl --user -u tsnode"), "{error}");
    }

    #[test]
    fn what_systemd_does_not_let_be_done_is_said_with_what_to_do() {
        let mut double = FakeSystemd::new(Level::User);
        let refuse = double.folder.path().join("refuse");
        fs::write(&refuse, "Failed to connect to bus: No medium found\n").unwrap();
        let said = double.systemd.install(&double.unit(), true).unwrap_err().to_string();
        assert!(said.contains("No medium found") && said.contains("loginctl enable-linger"), "{said}");
        assert!(!double.systemd.path().exists(), "nothing is written before it answers");
        double.systemd.level = Level::System;
        fs::write(&refuse, "Failed to reload daemon: Interactive authentication required.\n").unwrap();
        let said = double.systemd.install(&double.unit(), true).unwrap_err().to_string();
        assert!(said.contains("by sudo"), "{said}");
        double.systemd.is_running = false;
        let said = double.systemd.install(&double.unit(), true).unwrap_err().to_string();
        assert!(said.contains("systemd does not run this system") && said.contains("--dry-run"), "{said}");
    }
}
