//! What a unit says, as text, and what is read of it again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The section that systemd leaves alone, by which a unit is known as ours.
const SECTION: &str = "[X-Tsnode]";
/// Before the folder with the peer's data.
const DATA: &str = "Data=";
/// Where a service of the system keeps its data.
const SYSTEM_DATA: &str = "/var/lib/tsnode";
/// Where it keeps models that come from the hub.
const SYSTEM_CACHE: &str = "/var/cache/tsnode";
/// Folders that no service of the system sees (`ProtectHome`).
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Whose service it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A user's: it runs as that user, while there is a session or the user lingers.
    User,
    /// The system's: it runs from boot, as a user with nothing else.
    System,
}

/// A file with a secret that the system's service is given to read, whoever else may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The setting that names the file.
    pub setting: &'static str,
    /// The file.
    pub file: PathBuf,
}

/// What a unit is made of.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Whose it is.
    pub level: Level,
    /// As whom the system's service runs, if not as a user that is there only while it runs.
    pub run_as: Option<String>,
    /// The program.
    pub program: PathBuf,
    /// What follows `tsnode join`: `--name=value`.
    pub flags: Vec<String>,
    /// Secrets of the system's service.
    pub credentials: Vec<Credential>,
    /// The data folder of a user's service; the system's is `/var/lib/tsnode`.
    pub data: PathBuf,
}

/// What a unit cannot say.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A line has no line within.
    #[error("{0:?} cannot be written into a unit: it has a line break, or another sign without a picture")]
    Control(String),
    /// The system's service does not see homes.
    #[error("{}: a service of the system does not see it, for it is in somebody's home; copy it elsewhere, as to {instead}", .path.display())]
    Home {
        /// What.
        path: PathBuf,
        /// Where it could be.
        instead: &'static str,
    },
    /// A relative path means nothing there.
    #[error("{}: a path from / is needed", .0.display())]
    Relative(PathBuf),
}

impl Unit {
    /// The unit's text.
    ///
    /// # Errors
    /// When it cannot say where things are.
    pub fn text(&self) -> Result<String, UnitError> {
        let mut out = String::from("# Written by `tsnode service install`; `tsnode service remove` removes it.\n");
        self.begin(&mut out);
        let _ = writeln!(out, "ExecStart={}", self.command()?);
        out.push_str(COMMON);
        match self.level {
            Level::User => {}
            Level::System => self.confined(&mut out)?,
        }
        out.push_str(SECCOMP);
        let target = if self.level == Level::System { "multi-user.target" } else { "default.target" };
        let _ = write!(out, "\n[Install]\nWantedBy={target}\n\n{SECTION}\n{DATA}{}\n", self.data_folder()?);
        Ok(out)
    }

    fn begin(&self, out: &mut String) {
        out.push_str("[Unit]\nDescription=tsnode peer\n");
        // There is no such target among a user's.
        if self.level == Level::System {
            out.push_str("Wants=network-online.target\nAfter=network-online.target\n");
        }
        out.push_str("\n[Service]\nType=exec\n");
    }

    fn command(&self) -> Result<String, UnitError> {
        let program = self.seen(&self.program, "/usr/local/bin")?;
        let mut words = vec![quoted(&program)?, "join".into()];
        for flag in &self.flags {
            words.push(quoted(flag)?);
        }
        if self.level == Level::System {
            words.push(format!("--data-dir={SYSTEM_DATA}"));
        }
        // Not quoted: systemd puts the folder in the place of the variable.
        let of = |c: &Credential| format!("--{0}=${{CREDENTIALS_DIRECTORY}}/{0}", c.setting);
        words.extend(self.credentials.iter().map(of));
        Ok(words.join(" "))
    }

    /// The system's service sees and may do what it needs, and nothing else.
    fn confined(&self, out: &mut String) -> Result<(), UnitError> {
        match &self.run_as {
            Some(user) => out.push_str(&format!("User={}\n", plain(user)?)),
            None => out.push_str("DynamicUser=yes\n"),
        }
        let _ = writeln!(out, "Environment=HOME={SYSTEM_DATA} XDG_CONFIG_HOME=/etc XDG_CACHE_HOME={SYSTEM_CACHE}");
        for Credential { setting, file } in &self.credentials {
            let _ = writeln!(out, "LoadCredential={setting}:{}", plain(&self.seen(file, "/etc/tsnode")?)?);
        }
        out.push_str(CONFINED);
        Ok(())
    }

    fn data_folder(&self) -> Result<String, UnitError> {
        match self.level {
            Level::System => Ok(SYSTEM_DATA.into()),
            // systemd does not read it: its signs are itself.
            Level::User => plain(&absolute(&self.data)?).map(|said| said.replace("%%", "%")),
        }
    }

    /// A path that the service will see.
    fn seen(&self, path: &Path, instead: &'static str) -> Result<String, UnitError> {
        if self.level == Level::System && HOMES.iter().any(|home| path.starts_with(home)) {
            return Err(UnitError::Home { path: path.to_owned(), instead });
        }
        absolute(path)
    }

    /// Whether what a setting names will be seen.
    ///
    /// # Errors
    /// When it is in somebody's home, and the service is the system's.
    pub fn sees(&self, path: &Path) -> Result<(), UnitError> {
        self.seen(path, SYSTEM_DATA).map(drop)
    }
}

/// SIGTERM leaves in order within 30 s, and goes to the peer alone: the processes that render templates serve on meanwhile. Endings
/// by a configuration, a folder, a model or a key that cannot be used stay so.
const COMMON: &str = "\
KillMode=mixed
TimeoutStopSec=45
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 3 5 6 10
LimitNOFILE=65536
";

/// What needs no rights, and so is a user's too. Compiled kernels of GPUs need memory that is written and run.
const SECCOMP: &str = "\
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

/// Neither PrivateDevices nor ProtectClock: both would hide GPUs.
const CONFINED: &str = "\
StateDirectory=tsnode
StateDirectoryMode=0700
CacheDirectory=tsnode
CacheDirectoryMode=0700
UMask=0077
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateTmp=yes
";

/// Whether a unit was written here.
#[must_use]
pub fn is_ours(text: &str) -> bool {
    text.lines().any(|line| line == SECTION)
}

/// The data folder that a unit of ours names.
#[must_use]
pub fn folder_of(text: &str) -> Option<PathBuf> {
    let after = text.lines().skip_while(|line| *line != SECTION);
    let folder = after.filter_map(|line| line.strip_prefix(DATA)).next()?;
    Some(PathBuf::from(folder)).filter(|folder| folder.is_absolute())
}

pub(super) fn absolute(path: &Path) -> Result<String, UnitError> {
    if !path.is_absolute() {
        return Err(UnitError::Relative(path.to_owned()));
    }
    path.to_str().map(str::to_owned).ok_or_else(|| UnitError::Control(path.display().to_string()))
}

fn plain(text: &str) -> Result<String, UnitError> {
    match text.chars().any(char::is_control) {
        true => Err(UnitError::Control(text.to_owned())),
        // What follows it means something to systemd.
        false => Ok(text.replace('%', "%%")),
    }
}

/// A word of a command, of which systemd takes nothing for something else.
fn quoted(word: &str) -> Result<String, UnitError> {
    let escaped = plain(word)?.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$");
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%$".contains(c);
    Ok(if !escaped.is_empty() && escaped.chars().all(is_bare) { escaped } else { format!("\"{escaped}\"") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(level: Level) -> Unit {
        Unit {
            level,
            run_as: None,
            program: "/usr/local/bin/tsnode".into(),
            flags: vec!["--memory=8GiB".into()],
            credentials: Vec::new(),
            data: "/home/ann/.local/share/tsnode".into(),
        }
    }

    #[test]
    fn nothing_in_a_value_means_something_to_systemd() {
        let flags = ["--name=a b", "--name=100%", "--name=$HOME", "--name=\"q\\\"", "--name=a;b", "--name=it's"];
        let unit = Unit { flags: flags.map(String::from).to_vec(), ..unit(Level::User) };
        let said = unit.text().unwrap();
        let line = said.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        let words = r#"/usr/local/bin/tsnode join "--name=a b" --name=100%% --name=$$HOME "--name=\"q\\\"" "--name=a;b" "--name=it's""#;
        assert_eq!(line, format!("ExecStart={words}"));
        let wrong = Unit { flags: vec!["--name=a\nExecStartPre=/bin/evil".into()], ..unit };
        assert!(matches!(wrong.text(), Err(UnitError::Control(_))));
    }

    #[test]
    fn a_service_of_the_system_needs_nothing_of_a_home() {
        let system = unit(Level::System);
        let said = system.text().unwrap();
        assert!(
            said.contains("join --memory=8GiB --data-dir=/var/lib/tsnode\n") && said.contains("DynamicUser=yes\n"),
            "{said}"
        );
        for home in ["/home/ann/.cargo/bin/tsnode", "/root/tsnode"] {
            let wrong = Unit { program: home.into(), ..system.clone() };
            assert!(matches!(wrong.text(), Err(UnitError::Home { .. })), "{home}");
        }
        assert!(unit(Level::User).sees(Path::new("/home/ann/model")).is_ok());
        let named = Unit { run_as: Some("tsnode".into()), ..system };
        assert!(named.text().unwrap().contains("\nUser=tsnode\n") && !named.text().unwrap().contains("DynamicUser"));
    }

    #[test]
    fn secrets_are_handed_over_by_systemd() {
        let file = || Credential { setting: "invite-file", file: "/etc/tsnode/invite".into() };
        let said = Unit { credentials: vec![file()], ..unit(Level::System) }.text().unwrap();
        assert!(said.contains(" --invite-file=${CREDENTIALS_DIRECTORY}/invite-file\n"), "{said}");
        assert!(said.contains("\nLoadCredential=invite-file:/etc/tsnode/invite\n"), "{said}");
    }

    #[test]
    fn a_unit_of_ours_is_known_again() {
        let said = unit(Level::User).text().unwrap();
        assert!(is_ours(&said) && folder_of(&said) == Some("/home/ann/.local/share/tsnode".into()));
        assert_eq!(folder_of(&unit(Level::System).text().unwrap()), Some(SYSTEM_DATA.into()));
        assert!(!is_ours("[Unit]\nDescription=tsnode peer\n") && folder_of("[X-Tsnode]\nData=relative\n").is_none());
    }

    #[test]
    fn what_is_in_the_tree_is_what_is_written() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let committed = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let user = Unit {
            program: "/home/you/.local/bin/tsnode".into(),
            flags: Vec::new(),
            data: "/home/you/.local/share/tsnode".into(),
            ..unit(Level::User)
        };
        let system = Unit {
            program: "/usr/bin/tsnode".into(),
            flags: Vec::new(),
            run_as: Some("tsnode".into()),
            ..unit(Level::System)
        };
        for (unit, path) in [(user, "docs/examples/tsnode.service"), (system, "scripts/debian/tsnode.service")] {
            // Without the first line: who wrote it is no matter there.
            let rest = |text: &str| text.split_once('\n').map(|(_, rest)| rest.to_owned());
            assert_eq!(
                rest(&committed(path)),
                rest(&unit.text().unwrap()),
                "{path} is to be what `tsnode service install --dry-run` prints"
            );
        }
    }
}
