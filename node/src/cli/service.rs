//! `tsnode service`: a peer that systemd keeps running.

use super::{ALL, is_set, json as json_flag, knobs, output, switch, verb};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::{BETWEEN, ConfigError, SettingOrigin, Settings, secrets::SECRETS},
    service::{Credential, Installed, Level, Purged, ServiceError, Status, Systemd, Unit, UnitError, launchd, windows},
};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::collections::BTreeMap;
use std::env;
use std::io;
use std::path::{Path, PathBuf, absolute};

/// Settings that are paths.
const PATHS: [&str; 3] = ["data-dir", "invite-file", "api-key-file"];
/// Settings that are paths if there is something.
const MODELS: [&str; 4] = ["model", "draft", "embedding-model", "rerank-model"];
/// Settings that may be said several times, by a flag each.
const SEVERAL: [&str; 2] = ["model", "keep"];
/// The settings file of a service of the system, if there is one.
const SYSTEM_FILE: &str = "/etc/tsnode/config.toml";

pub(super) fn command() -> Command {
    let system = || switch("system", "The system's service, from boot on, as root [default: this user's]");
    let install = "tsnode service install --invite-file invite.txt --memory 8GiB";
    let run_as = Arg::new("run-as").long("run-as").value_name("USER").requires("system");
    let one = |verb: Command| verb.arg(system()).arg(json_flag());
    Command::new("service")
        .about("Have systemd keep a peer running")
        .subcommand_required(true)
        .subcommand(
            one(verb("install", "Install the service and start it; its flags are those of tsnode join", install))
                .arg(run_as.help("Existing user that it runs as [default: one that is there only while it runs]"))
                .arg(switch("no-start", "Do not start it now"))
                .arg(switch("dry-run", "Print the unit, and change nothing"))
                .arg(
                    Arg::new("for")
                        .long("for")
                        .value_name("MANAGER")
                        .value_parser(["systemd", "launchd", "windows"])
                        .default_value("systemd")
                        .help("Whose words to print with --dry-run: launchd's and Windows' are printed only, with what installs them"),
                )
                .args(knobs(&ALL)),
        )
        .subcommand(one(verb("status", "Whether it is installed, and how it is", "tsnode service status")))
        .subcommand(
            one(verb("remove", "Leave the swarm in order, and remove the service", "tsnode service remove"))
                .arg(switch("purge", "Remove its data folder too: identity, measurements, models from peers")),
        )
}

pub(super) fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let level = if is_set(matches, "system") { Level::System } else { Level::User };
    let systemd = Systemd::here(level);
    match verb {
        "install" => install(settings, level, &systemd, matches),
        "remove" => remove(&systemd, matches),
        _ => status(level, &systemd, matches),
    }
}

fn install(settings: &Settings, level: Level, systemd: &Systemd, matches: &ArgMatches) -> Result<(), Exit> {
    let unit = unit(settings, level, matches)?;
    match matches.get_one::<String>("for").map(String::as_str) {
        Some("launchd") => {
            return elsewhere(level, matches, &launchd::path(), launchd::agent(&unit), launchd::commands());
        }
        Some("windows") => {
            return elsewhere(
                level,
                matches,
                &format!("{}.xml", windows::TASK),
                windows::task(&unit),
                windows::commands(),
            );
        }
        _ => {}
    }
    for line in unseen(env::vars_os().filter_map(|(name, _)| name.into_string().ok())) {
        note!("tsnode: note: {line}");
    }
    if is_set(matches, "dry-run") {
        let text = unit.text().map_err(|e| exit(e.into()))?;
        return match is_set(matches, "json") {
            true => output::print_json(&json!({ "path": systemd.path(), "unit": text })),
            false => {
                say!("{}", text.trim_end());
                Ok(())
            }
        };
    }
    let start = !is_set(matches, "no-start");
    let outcome = systemd.install(&unit, start).map_err(exit)?;
    if is_set(matches, "json") {
        return output::print_json(&json!({ "path": systemd.path(), "outcome": outcome, "started": start }));
    }
    let path = systemd.path();
    match outcome {
        Installed::Written => say!("installed: {}", path.display()),
        Installed::Unchanged => say!("installed already, as it is: {}", path.display()),
    }
    next(level, systemd);
    Ok(())
}

/// Prints what another system's manager is to be given, and what is said there.
fn elsewhere(
    level: Level,
    matches: &ArgMatches,
    path: &str,
    text: Result<String, UnitError>,
    commands: [(&'static str, String); 3],
) -> Result<(), Exit> {
    let wrong = |what: &str| Exit::new(ExitKind::Usage, what.to_owned());
    if !is_set(matches, "dry-run") {
        return Err(wrong(
            "--for: services are installed with systemd only; with --dry-run the words for another manager are printed",
        ));
    }
    if level == Level::System {
        return Err(wrong("--system: only systemd's words are there for a service of the system"));
    }
    let text = text.map_err(|e| exit(e.into()))?;
    if is_set(matches, "json") {
        let commands: BTreeMap<_, _> = commands.into_iter().collect();
        return output::print_json(&json!({ "path": path, "unit": text, "commands": commands }));
    }
    say!("{}", text.trim_end());
    note!("this belongs into {path}; to");
    commands.iter().for_each(|(what, command)| note!("  {what}: {command}"));
    Ok(())
}

/// What one wants to know of a service that is new.
fn next(level: Level, systemd: &Systemd) {
    let (folder, user) = match level {
        Level::User => ("", ""),
        Level::System => (" --data-dir /var/lib/tsnode", " --system"),
    };
    note!("its log:        {}", systemd.journal());
    note!("what it does:   {}tsnode status{folder}", if level == Level::System { "sudo " } else { "" });
    note!("to be rid of it: tsnode service remove{user}");
    if level == Level::User {
        note!("it runs while you are logged in; from boot on after: loginctl enable-linger");
    }
}

/// The unit that the command line asks for, of settings that a peer can use.
fn unit(settings: &Settings, level: Level, matches: &ArgMatches) -> Result<Unit, Exit> {
    let said: BTreeMap<&str, &str> = settings
        .iter()
        .filter(|(_, _, origin)| **origin == SettingOrigin::Flag)
        .map(|(name, value, _)| (name, value))
        .collect();
    if let Some(secret) = SECRETS.iter().find(|secret| said.contains_key(secret.name)) {
        let why = format!(
            "--{}: {} would be in a file that everybody can read; write it into a file of your own, and name that with --{}",
            secret.name, secret.what, secret.file
        );
        return Err(Exit::new(ExitKind::Usage, why));
    }
    if level == Level::System && said.contains_key("data-dir") {
        return Err(Exit::new(ExitKind::Usage, "--data-dir: a service of the system has its data in /var/lib/tsnode"));
    }
    let config = matches.get_one::<PathBuf>("config").map(|path| whole(path)).transpose()?;
    let mut unit = Unit {
        level,
        run_as: matches.get_one::<String>("run-as").cloned(),
        program: program()?,
        flags: config.iter().map(|path| format!("--config={}", path.display())).collect(),
        credentials: Vec::new(),
        data: whole(&settings.data_dir())?,
    };
    let sees = |path: &Path| unit.sees(path).map_err(|e| exit(e.into()));
    config.iter().try_for_each(|path| sees(path))?;
    let (mut flags, mut credentials) = (Vec::new(), Vec::new());
    let each = each(&said);
    // It is named as its model is.
    let is_kept = |name: &str, value: &str| name == "keep" && each.contains(&("model", value));
    for (name, value) in &each {
        let path = Path::new(value);
        let may_be_path = MODELS.contains(name) || is_kept(name, value);
        let is_path = PATHS.contains(name) || may_be_path && path.exists();
        let value = if is_path { whole(path)?.display().to_string() } else { (*value).to_owned() };
        if is_path {
            sees(Path::new(&value))?;
        }
        match SECRETS.iter().find(|secret| secret.file == *name) {
            Some(secret) if level == Level::System => {
                credentials.push(Credential { setting: secret.file, file: value.into() });
            }
            _ => flags.push(format!("--{name}={value}")),
        }
    }
    check(&said, level, config)?;
    unit.flags.extend(flags);
    unit.credentials = credentials;
    Ok(unit)
}

/// What was said, flag by flag.
fn each<'a>(said: &BTreeMap<&'a str, &'a str>) -> Vec<(&'a str, &'a str)> {
    let flags = |(name, value): (&&'a str, &&'a str)| -> Vec<(&'a str, &'a str)> {
        let (name, value) = (*name, *value);
        match SEVERAL.contains(&name) {
            true => value.split(BETWEEN).map(|value| (name, value)).collect(),
            false => vec![(name, value)],
        }
    };
    said.iter().flat_map(flags).collect()
}

/// Whether a peer can use the settings that the service will find: flags and a file, and none of this shell's variables.
fn check(said: &BTreeMap<&str, &str>, level: Level, config: Option<PathBuf>) -> Result<(), Exit> {
    let flags = said.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let named = config.is_some();
    let file = config.unwrap_or_else(|| match level {
        Level::System => SYSTEM_FILE.into(),
        Level::User => crate::config::usual_file(),
    });
    let wrong = |e: ConfigError| Exit::new(ExitKind::Config, e.to_string());
    let mut settings = Settings::gather(&flags, |_| None, &file, named).map_err(wrong)?;
    for secret in SECRETS {
        settings.read_secret(secret, &mut io::empty(), |_| {}).map_err(wrong)?;
    }
    settings.node().map(drop).map_err(wrong)
}

/// A path that means the same from everywhere.
fn whole(path: &Path) -> Result<PathBuf, Exit> {
    absolute(path).map_err(|error| Exit::file(ExitKind::Config, path, &error))
}

/// The program that runs here, which is the one that the service will run.
fn program() -> Result<PathBuf, Exit> {
    let own = env::current_exe().map_err(|error| Exit::file(ExitKind::Other, "this program", &error))?;
    if !own.exists() {
        return Err(Exit::new(ExitKind::Other, "this program's file has gone since it was started: start it anew"));
    }
    Ok(own)
}

/// Lines about variables of this shell that mean something to a peer here, and that the service will not have.
fn unseen(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("TSNODE_") && !name.starts_with("TSNODE_RELEASE")).collect();
    names.sort();
    match names.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "{} of this shell: the service will not have it; say it by a flag or in the settings file",
            names.join(", ")
        )],
    }
}

fn remove(systemd: &Systemd, matches: &ArgMatches) -> Result<(), Exit> {
    let removed = systemd.remove(is_set(matches, "purge")).map_err(exit)?;
    if is_set(matches, "json") {
        return output::print_json(&removed);
    }
    match &removed.unit {
        None => say!("there is no service to remove: nothing is at {}", systemd.path().display()),
        Some(unit) => say!("removed: {}", unit.display()),
    }
    match removed.data {
        Purged::Gone(folder) => say!("removed: {}", folder.display()),
        Purged::Kept(Some(folder)) => say!("its data stays in {}", folder.display()),
        Purged::Kept(None) => {}
    }
    Ok(())
}

fn status(level: Level, systemd: &Systemd, matches: &ArgMatches) -> Result<(), Exit> {
    let status = systemd.status().map_err(exit)?;
    if is_set(matches, "json") {
        return output::print_json(&status);
    }
    say!("{}", described(&status, level, systemd.journal()));
    Ok(())
}

/// The status in a few lines.
fn described(status: &Status, level: Level, journal: &str) -> String {
    let flag = if level == Level::System { " --system" } else { "" };
    let Some(unit) = &status.unit else { return format!("not installed; tsnode service install{flag} does") };
    let mut lines = vec![format!("unit     {}", unit.display())];
    let active = status.active.as_deref().unwrap_or("unknown");
    let pid = status.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    let ended =
        status.exit_code.map_or_else(String::new, |code| format!(", ended with code {code}: {journal} says why"));
    lines.push(match status.systemd {
        true => format!("state    {active}{pid}{ended}"),
        false => "state    systemd does not run this system: the unit does nothing".into(),
    });
    if let Some(enabled) = &status.enabled {
        lines.push(format!("starts   {}", if enabled == "enabled" { "by itself" } else { enabled }));
    }
    if let Some(again) = status.restarts.filter(|n| *n > 0) {
        lines.push(format!("restarts {again} since it was started: {journal} says why"));
    }
    lines.extend(status.data.iter().map(|data| format!("data     {}", data.display())));
    if !status.ours {
        lines.push("`tsnode service install` did not write it, and `tsnode service remove` leaves it".into());
    }
    lines.join("\n")
}

fn exit(error: ServiceError) -> Exit {
    let kind = match error {
        ServiceError::Unit(_) => ExitKind::Config,
        ServiceError::NoDataFolder(_) => ExitKind::DataDir,
        _ => ExitKind::Other,
    };
    Exit::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    /// The unit of a command line.
    fn asked(words: &[&str]) -> Result<Unit, String> {
        let matches =
            cli::command().try_get_matches_from(["tsnode", "service", "install"].iter().chain(words)).unwrap();
        let deepest = matches.subcommand().unwrap().1.subcommand().unwrap().1;
        let level = if is_set(deepest, "system") { Level::System } else { Level::User };
        let settings = cli::settings(matches.subcommand().unwrap().1).map_err(|e| e.to_string())?;
        unit(&settings, level, deepest).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_those_of_join_and_paths_mean_the_same_from_everywhere() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("d");
        let unit = asked(&["--data-dir", data.to_str().unwrap(), "--memory", "8GiB", "--no-model"]).unwrap();
        assert_eq!(
            unit.flags,
            [format!("--data-dir={}", data.display()), "--memory=8GiB".into(), "--no-model=true".into()]
        );
        assert_eq!(unit.data, data);
        let unit = asked(&["--data-dir", "here"]).unwrap();
        assert!(unit.data.is_absolute() && unit.data.ends_with("here"), "{unit:?}");
    }

    #[test]
    fn each_of_several_models_has_a_flag_and_is_kept_by_what_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let words = ["--model", &path, "--model", "org/other", "--swap-models", "--keep", "tiny", "--keep", &path];
        let unit = asked(&words).unwrap();
        let flags = ["--keep=tiny", &format!("--keep={path}"), &format!("--model={path}"), "--model=org/other"];
        assert_eq!(unit.flags[..4], flags.map(String::from));
        assert!(unit.text().is_ok(), "{unit:?}");
    }

    #[test]
    fn what_a_peer_could_not_use_is_not_installed() {
        let secret = format!("ts1{}", "a".repeat(60));
        for (words, why) in [
            (&["--memory", "much"][..], "--memory much"),
            (&["--invite", &secret], "--invite-file"),
            (&["--invite", "-"], "--invite-file"),
            (&["--invite-file", "/nowhere/at/all"], "there is no such file"),
            (&["--config", "/nowhere/at/all"], "/nowhere/at/all"),
            (&["--system", "--data-dir", "/srv/x"], "/var/lib/tsnode"),
            (&["--system", "--model", "/root"], "somebody's home"),
        ] {
            let said = asked(words).unwrap_err();
            assert!(said.contains(why) && !said.contains("aaaa"), "{words:?}: {said}");
        }
    }

    #[test]
    fn variables_that_the_service_will_not_have_are_named() {
        let names = ["HOME", "TSNODE_THREADS", "TSNODE_HTTP"].map(String::from);
        assert!(unseen(names.into_iter())[0].starts_with("TSNODE_HTTP, TSNODE_THREADS of this shell"));
        assert!(unseen(["HOME".to_owned()].into_iter()).is_empty());
    }

    #[test]
    fn a_status_says_what_to_look_at() {
        let mut status = Status { unit: Some("/u".into()), ours: true, systemd: true, ..Status::default() };
        status.active = Some("failed".into());
        status.exit_code = Some(6);
        let said = described(&status, Level::User, "journalctl -n 20");
        assert!(said.contains("failed, ended with code 6: journalctl -n 20 says why"), "{said}");
        assert!(described(&Status::default(), Level::System, "").contains("tsnode service install --system"));
    }
}
