//! The command line: one verb, one file.

/// Prints a line. A reader that has gone ends the verb quietly, as it does other programs.
macro_rules! say {
    ($($arg:tt)*) => { crate::cli::print_line(format_args!($($arg)*)) };
}

/// Says a line about what is printed, beside it: on standard error, which may be closed.
macro_rules! note {
    ($($arg:tt)*) => { crate::cli::exit::note(format_args!($($arg)*)) };
}

mod ask;
mod bench;
mod chat;
mod detached;
mod doctor;
mod earnings;
pub mod exit;
mod flags;
mod interrupts;
mod invite;
mod join;
mod keys;
mod limits;
mod links;
mod loading;
mod models;
mod output;
mod owner;
mod plan;
mod rates;
mod requests;
mod service;
mod show;
mod simulate;
mod status;
mod submit;
mod swarm_settings;
mod targets;
mod testnet;
mod text_layout;
mod top;
mod update;
mod ways;

use crate::{
    cli::exit::{Exit, ExitKind},
    config::{
        BETWEEN, HostSize, KNOBS, Settings,
        secrets::{API_KEY, INVITE, SECRETS, SecretSetting},
        unknown_variables, usual_file,
    },
    plain,
    store::spare,
    telemetry,
    text::sandbox,
};
use clap::{Arg, ArgMatches, Command, parser::ValueSource, value_parser};
use flags::{asking, asking_args, decimal, is_set, json, knobs, switch, verb, verbose, whole};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::task::JoinHandle;
use tsnode_kernels::{device::Host, environment};

/// See `say!`.
fn print_line(line: std::fmt::Arguments<'_>) {
    printed(writeln!(io::stdout(), "{line}"));
}

/// Prints a part of a line at once.
fn print_piece(piece: &str) {
    let mut out = io::stdout();
    printed(out.write_all(piece.as_bytes()).and_then(|()| out.flush()));
}

/// Why nothing is printed any more.
struct Unprinted(io::Error);

/// What cannot be printed ends the verb: from wherever it was said up to `main`, and everything on the way is put away as it is at
/// any other end: a testnet's processes above all. A task of its own, as the lines of a peer that serves on, ends alone.
fn printed(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        resume_unwind(Box::new(Unprinted(error)));
    }
}

/// What a task came to. One that could not print ends the verb as if it were no task of its own.
async fn joined<T>(task: JoinHandle<T>) -> Result<T, Exit> {
    task.await.map_err(|error| match error.try_into_panic() {
        Ok(thrown) => resume_unwind(thrown),
        Err(ended) => Exit::new(ExitKind::Other, ended.to_string()),
    })
}

/// Runs the command the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    // One provider of cryptography, named before anything asks for one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refused(&error),
    };
    match catch_unwind(AssertUnwindSafe(|| run(&matches))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(exit)) => exit.report(),
        Err(thrown) => match thrown.downcast::<Unprinted>() {
            // A reader that has what it wants is no error; a disk that is full is one.
            Ok(unprinted) if unprinted.0.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Ok(unprinted) => Exit::file(ExitKind::Other, "standard output", &unprinted.0).report(),
            Err(other) => resume_unwind(other),
        },
    }
}

/// Help, and words that are none of ours: they may be a secret that was written in the wrong place.
fn refused(error: &clap::Error) -> ExitCode {
    let said = error.render().to_string();
    let shown = plain::without_secrets(&said);
    if shown == said {
        error.exit();
    }
    note!("{}", shown.trim_end());
    ExitCode::from(ExitKind::Usage as u8)
}

fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    match verb {
        "completions" => return completions(matches),
        "version" => return show::version(matches),
        sandbox::VERB => return sandbox::run().map_err(|e| Exit::new(ExitKind::Other, e.to_string())),
        spare::VERB => return check_index(matches),
        _ => {}
    }
    nothing_is_empty(matches)?;
    warn(unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())));
    let settings = match verb {
        // What a peer here was told while it ran.
        "join" | "doctor" | "config" => {
            settings(matches)?.with_kept_limits().map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?
        }
        _ => settings(matches)?,
    };
    let settings = with_secrets(settings, verb)?;
    let sink = if verb == "join" { join::log(&settings, matches) } else { telemetry::Sink::StandardError };
    telemetry::start(settings.text("log"), settings.text("log-format"), sink)
        .map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?;
    if verb == "join"
        && let Some((compute, rest)) = settings.cores().map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?
    {
        // Before there is any other thread: they take it over.
        let stay = compute.check().and_then(|()| rest.stay());
        stay.map_err(|e| Exit::new(ExitKind::Config, format!("--cores: {}", plain::io_error(&e))))?;
    }
    if verb == "join" && !settings.encoders().is_empty() {
        bound_candle(settings.threads().map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?.count);
    }
    if verb == "join" {
        warn(settings.warnings(machine()));
    }
    let workers = workers(verb, &settings).map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let runtime = runtime.map_err(|e| Exit::new(ExitKind::Other, format!("no threads: {e}")))?;
    let done = runtime.block_on(async {
        match verb {
            "join" => join::run(&settings, matches).await,
            "submit" => submit::run(&settings, matches).await,
            "chat" => chat::run(&settings, matches).await,
            "leave" | "pause" | "resume" => owner::ask(verb, &settings, matches).await,
            "limits" => limits::run(&settings, matches).await,
            "keys" => keys::run(&settings, matches),
            "status" => status::show(&settings, matches).await,
            "peers" => show::peers(&settings, matches).await,
            "top" => top::run(&settings, matches).await,
            "plan" => plan::run(&settings, matches).await,
            "targets" => targets::targets(&settings, matches).await,
            "route" => targets::route(&settings, matches).await,
            "batch" => targets::batch(&settings, matches).await,
            "requests" => requests::run(&settings, matches).await,
            "earnings" => earnings::run(&settings, matches).await,
            "models" => models::run(&settings, matches).await,
            "invite" => invite::run(&settings, matches),
            "doctor" => doctor::run(&settings, matches).await,
            "service" => service::run(&settings, matches),
            "update" => update::run(matches).await,
            "config" => show::config(&settings, matches),
            "bench" => bench::run(&settings, matches).await,
            "simulate" => simulate::run(matches).await,
            "testnet" => testnet::run(&settings, matches).await,
            _ => Ok(()),
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    done
}

/// Settings with the secrets that a verb needs, wherever they are.
fn with_secrets(mut settings: Settings, verb: &str) -> Result<Settings, Exit> {
    for line in settings.exposed() {
        note!("tsnode: note: {line}");
    }
    let needed: &[SecretSetting] = match verb {
        "join" | "doctor" => &SECRETS,
        "keys" | "invite" | "config" | "service" | "simulate" | "update" => &[],
        _ => &[API_KEY],
    };
    let ask = |what: &str| {
        if io::stdin().is_terminal() {
            note!("paste {what}, and press Enter:");
        }
    };
    for secret in needed {
        let read = settings.read_secret(*secret, &mut io::stdin().lock(), ask);
        read.map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?;
    }
    Ok(settings)
}

/// Says what is accepted and hardly meant.
fn warn(lines: Vec<String>) {
    lines.iter().for_each(|line| note!("tsnode: warning: {line}"));
}

/// What settings are held against.
fn machine() -> HostSize {
    let Host { cpu, gpus } = Host::detect();
    let gpus = gpus.into_iter().flatten().map(|gpu| gpu.memory_bytes);
    HostSize { cores: cpu.cores, memory_bytes: gpus.fold(cpu.memory_bytes, u64::max) }
}

/// An empty value is most often a script's variable that was not set. Settings say the same of theirs wherever they come from.
fn nothing_is_empty(matches: &ArgMatches) -> Result<(), Exit> {
    for name in matches.ids() {
        let (name, given) = (name.as_str(), matches.value_source(name.as_str()) == Some(ValueSource::CommandLine));
        let mut values = matches.try_get_raw(name).ok().flatten().into_iter().flatten();
        let is_setting = KNOBS.iter().any(|knob| knob.name == name);
        if given && !is_setting && values.any(|value| value.to_string_lossy().trim().is_empty()) {
            return Err(Exit::new(
                ExitKind::Usage,
                format!("{name}: nothing is said; leave it out, or give it a value"),
            ));
        }
    }
    matches.subcommand().map_or(Ok(()), |(_, matches)| nothing_is_empty(matches))
}

/// Threads for all that does not compute: one for each connection that may share a KV transfer.
fn workers(verb: &str, settings: &Settings) -> Result<usize, crate::config::ConfigError> {
    const FEW: usize = 2;
    Ok(match verb {
        "join" => usize::from(settings.kv_streams()?.most()).max(FEW),
        // Both ends are here.
        "bench" => std::thread::available_parallelism().map_or(FEW, usize::from).clamp(FEW, 8),
        _ => FEW,
    })
}

fn completions(matches: &ArgMatches) -> Result<(), Exit> {
    if let Some(shell) = matches.get_one::<clap_complete::Shell>("shell") {
        // Its writer panics where nobody reads any more: what it writes is kept, and printed as everything else is.
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut command(), "tsnode", &mut script);
        print_piece(&String::from_utf8_lossy(&script));
    }
    Ok(())
}

fn settings(matches: &ArgMatches) -> Result<Settings, Exit> {
    // `config show`, `testnet up` and `bench link` have their flags one level down.
    let deepest = matches.subcommand().map_or(matches, |(_, m)| m);
    let mut flags = BTreeMap::new();
    for knob in KNOBS {
        let given = deepest.try_get_many::<String>(knob.name).ok().flatten();
        let given: Vec<&str> = given.into_iter().flatten().map(String::as_str).collect();
        if !given.is_empty() {
            flags.insert(knob.name.to_owned(), given.join(&BETWEEN.to_string()));
        }
    }
    if let Some(invite) = deepest.try_get_one::<String>(WITHOUT_FLAG).ok().flatten() {
        flags.insert(INVITE.name.to_owned(), invite.clone());
    }
    let named = deepest.try_get_one::<PathBuf>("config").ok().flatten();
    let variable = || std::env::var_os("TSNODE_CONFIG").map(PathBuf::from);
    if std::env::var_os("TSNODE_CONFIG").is_some_and(|file| file.is_empty()) {
        let what = "TSNODE_CONFIG: nothing is said; unset it, or let it name a settings file";
        return Err(Exit::new(ExitKind::Config, what));
    }
    let file = named.cloned().or_else(variable);
    let must_exist = file.is_some();
    let file = file.unwrap_or_else(usual_file);
    Settings::gather(&flags, |name| std::env::var(name).ok(), &file, must_exist)
        .map_err(|e| Exit::new(ExitKind::Config, e.to_string()))
}

/// The whole command line.
#[must_use]
pub fn command() -> Command {
    Command::new("tsnode")
        .about("Lend a GPU or CPU to a swarm that serves language models, and send it prompts")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(110)
        .subcommand(join::command().args(knobs(&ALL)).arg(
            // Everybody tries it without the flag first.
            Arg::new(WITHOUT_FLAG).value_name("INVITE").conflicts_with("invite").help("The same as --invite"),
        ))
        .subcommand(submit::command())
        .subcommand(chat::command())
        .subcommand(
            asking("leave", "Leave the swarm: what runs here goes on elsewhere, then the peer ends", "tsnode leave")
                .arg(switch("no-wait", "Do not wait until it has ended")),
        )
        .subcommand(asking(
            "pause",
            "Have this machine back for now: its peer lends nothing, and stays",
            "tsnode pause",
        ))
        .subcommand(asking("resume", "Lend this machine again", "tsnode resume"))
        .subcommand(limits::command())
        .subcommand(
            asking("status", "What this machine does for the swarm, for whom and how fast", "tsnode status --json")
                .arg(verbose("Also ids, terms, how times were foretold, and what was refused")),
        )
        .subcommand(
            asking("peers", "Who is in the swarm", "tsnode peers --links")
                .arg(verbose("Also ids, measured speeds, and how well times were foretold"))
                .arg(switch("links", "Show measured links"))
                .arg(
                    Arg::new("picture")
                        .long("picture")
                        .value_name("FILE")
                        .requires("links")
                        .value_parser(clap::value_parser!(PathBuf))
                        .help("Draw them to FILE (SVG) instead"),
                ),
        )
        .subcommand(top::command())
        .subcommand(plan::command())
        .subcommand(targets::targets_command())
        .subcommand(targets::route_command())
        .subcommand(targets::batch_command())
        .subcommand(requests::command())
        .subcommand(earnings::command())
        .subcommand(models::command())
        .subcommand(invite::command())
        .subcommand(keys::command())
        .subcommand(
            verb("doctor", "Check what this machine has and lacks", "tsnode doctor")
                .args(knobs(&[
                    "data-dir",
                    "http",
                    "listen",
                    "model",
                    "no-model",
                    "speculative-decoding",
                    "draft",
                    "device",
                    "threads",
                    "tensor-parallel",
                    "kv-dtype",
                    "allow-remote-http",
                    "api-key",
                    "api-key-file",
                    "invite",
                    "invite-file",
                ]))
                .arg(json()),
        )
        .subcommand(
            Command::new("config").about("Settings and where they come from").subcommand_required(true).subcommand(
                verb("show", "Print every setting with its value and origin", "tsnode config show")
                    .args(knobs(&ALL))
                    .arg(json()),
            ),
        )
        .subcommand(service::command())
        .subcommand(update::command())
        .subcommand(simulate::command())
        .subcommand(bench::command())
        .subcommand(testnet::command())
        .subcommand(render_template())
        .subcommand(check_index_command())
        .subcommand(
            verb("completions", "Print completions for a shell", "tsnode completions bash > tsnode.bash")
                .arg(Arg::new("shell").required(true).value_parser(clap::value_parser!(clap_complete::Shell))),
        )
        .subcommand(verb("version", "Print the version", "tsnode version --json").arg(json()))
}

/// Candle, which computes encoders, starts threads of its own for long tensors, as many as the host has cores unless these variables
/// say otherwise: they are held to what the owner lends. It has no other door for that.
fn bound_candle(threads: usize) {
    for name in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
        if std::env::var_os(name).is_none() && !environment::set_while_alone(name, &threads.to_string()) {
            tracing::warn!(
                "encoders may take more threads than --threads says: start with {name}={threads} in the environment"
            );
        }
    }
}

/// `--invite` without its flag.
const WITHOUT_FLAG: &str = "invite to join with";

/// Names of all settings.
const ALL: [&str; KNOBS.len() - 2] = {
    let mut names = [""; KNOBS.len() - 2];
    let mut i = 0;
    while i < names.len() {
        names[i] = KNOBS[i].name;
        i += 1;
    }
    names
};

/// No user's verb: peers start it themselves, and it is in no list.
fn render_template() -> Command {
    let template = r#"{"text":"{{ messages[0].content }}","bos":"","eos":""}"#;
    let conversation = r#"[{"role":"user","content":"Good day"}]"#;
    Command::new(sandbox::VERB)
        .about("Render a chat template for each conversation, a line of JSON each, with limits to memory and time")
        .after_help(format!("Example:\n  printf '{template}\\n{conversation}\\n' | tsnode {}", sandbox::VERB))
        .hide(true)
}

fn check_index_command() -> Command {
    Command::new(spare::VERB)
        .about("Open what a peer keeps and could do without, and read it, as another process does before the peer opens it")
        .after_help(format!("Example:\n  tsnode {} ~/.local/share/tsnode/weights.index", spare::VERB))
        .arg(Arg::new("folder").value_name("FOLDER").required(true).value_parser(value_parser!(OsString)))
        .hide(true)
}

fn check_index(matches: &ArgMatches) -> Result<(), Exit> {
    let folder = matches.get_one::<OsString>("folder");
    folder.map_or(Ok(()), |folder| spare::check(folder)).map_err(|e| Exit::new(ExitKind::Other, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_and_a_file_are_not_both_taken() {
        let asked = |words: &[&str]| command().try_get_matches_from(words).is_ok();
        assert!(asked(&["tsnode", "submit", "a"]) && asked(&["tsnode", "submit", "--file", "f"]));
        assert!(!asked(&["tsnode", "submit", "a", "--file", "f"]), "one of them would be dropped");
    }

    #[test]
    fn an_empty_value_is_an_error_everywhere() {
        let parsed = |words: &[&str]| command().try_get_matches_from(words).map_err(|e| e.to_string());
        let said = |words: &[&str]| {
            let matches = parsed(words)?;
            nothing_is_empty(&matches).map_err(|e| e.to_string())?;
            // What has a setting's name is refused with the settings.
            let (_, verb) = matches.subcommand().unwrap();
            settings(verb).map(drop).map_err(|e| e.to_string())
        };
        for words in [
            &["tsnode", "submit", ""][..],
            &["tsnode", "submit", "a", "--model", ""],
            &["tsnode", "submit", "a", "--api", " "],
            &["tsnode", "submit", "--file", ""],
            &["tsnode", "status", "--config", ""],
            &["tsnode", "testnet", "up", "--prompt", ""],
            &["tsnode", "testnet", "up", "--layout="],
            &["tsnode", "testnet", "kill", ""],
            &["tsnode", "keys", "add", ""],
            &["tsnode", "plan", "--cluster", ""],
        ] {
            assert!(said(words).is_err(), "{words:?}");
        }
        for words in
            [&["tsnode", "submit", "a", "--model", "b", "--json"][..], &["tsnode", "testnet", "up", "--detach"]]
        {
            assert!(nothing_is_empty(&parsed(words).unwrap()).is_ok(), "{words:?}");
        }
    }

    #[test]
    fn every_verb_has_an_example() {
        fn walk(command: &Command) {
            for sub in command.get_subcommands() {
                if sub.get_subcommands().next().is_none() {
                    let after = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                    assert!(after.contains("Example"), "{}", sub.get_name());
                }
                walk(sub);
            }
        }
        command().debug_assert();
        walk(&command());
    }
}
