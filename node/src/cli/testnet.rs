//! `tsnode testnet`: a whole swarm of real processes on this machine.

mod broken;
mod chaos;
mod replay;
mod sharing;

use super::{
    ask::PeerClient, decimal, detached::usual_folder, interrupts::Interrupts, is_set, json as json_flag,
    output::print_json, requests, submit, switch, verb, whole,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::{Settings, values},
    gateway::Trace,
    hardware::{ChoiceError, DeviceName},
};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tsnode_testnet::{PeerConfig, PeerInfo, Sight, Swarm, Testnet, TestnetConfig, TestnetError, TestnetState};

/// How long `down` waits for peers to leave.
const DOWN: Duration = Duration::from_secs(35);
/// How long a process may be seen after it was killed.
const KILLED: Duration = Duration::from_secs(2);

pub(super) fn command() -> Command {
    let example = "tsnode testnet up --peers 4 --link-mbit 100 --link-ms 5 --prompt \"It was a dark night\"";
    let up = swarm_args(verb("up", "Start a swarm; with --prompt, answer it and stop", example), "4", "0")
        .arg(Arg::new("prompt").long("prompt").value_name("TEXT").help("Answer this, say what ran where, and stop"))
        .arg(
            number("max-tokens", "Tokens of the answer")
                .value_parser(whole(1..=u32::MAX))
                .default_value("48")
                .requires("prompt"),
        )
        .arg(switch("detach", "Leave it running"))
        .arg(
            number("http-port", "Port of the first peer's HTTP, as 7448, where other commands look [default: any]")
                .value_parser(whole(1..=u16::MAX)),
        )
        .arg(json_flag());
    Command::new("testnet")
        .about("A whole swarm of real processes on this machine")
        .subcommand_required(true)
        .subcommand(up)
        .subcommand(
            verb("status", "What a detached swarm is doing", "tsnode testnet status").arg(dir()).arg(json_flag()),
        )
        .subcommand(chaos::command())
        .subcommand(replay::command())
        .subcommand(sharing::command())
        .subcommand(fault("kill", "Kill a peer of a detached swarm with -9").arg(dir()))
        .subcommand(fault("stop", "Stop a peer's process without ending it: its connections stay open").arg(dir()))
        .subcommand(fault("cont", "Let a stopped peer go on").arg(dir()))
        .subcommand(fault("restart", "Start a peer again, with its files; a running one is killed first").arg(dir()))
        .subcommands(broken::commands())
        .subcommand(verb("down", "Stop a detached swarm", "tsnode testnet down").arg(dir()).arg(json_flag()))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    match matches.subcommand() {
        Some(("up", matches)) => up(settings, matches).await,
        Some(("status", matches)) => status(matches).await,
        Some(("down", matches)) => down(matches).await,
        Some((fault @ ("kill" | "stop" | "cont"), matches)) => disturb(fault, matches),
        Some(("restart", matches)) => restart(matches).await,
        Some((fault @ ("partition" | "heal" | "slow" | "corrupt" | "lie" | "wedge"), matches)) => {
            broken::run(fault, matches).await
        }
        Some(("chaos", matches)) => chaos::run(settings, matches).await,
        Some(("replay", matches)) => replay::run(settings, matches).await,
        Some(("sharing", matches)) => sharing::run(settings, matches).await,
        _ => Ok(()),
    }
}

fn dir() -> Arg {
    Arg::new("dir")
        .long("dir")
        .value_name("FOLDER")
        .value_parser(value_parser!(PathBuf))
        .help("Where it lives [default: $XDG_STATE_HOME/tsnode/testnet]")
}

fn number(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("N").help(help)
}

/// Adds what says which swarm to start.
fn swarm_args(command: Command, peers: &'static str, gateways: &'static str) -> Command {
    command
        .arg(number("peers", "Peers with a model").value_parser(whole(1_u16..=64)).default_value(peers))
        .arg(
            Arg::new("devices")
                .long("devices")
                .value_name("LIST")
                .value_delimiter(',')
                .value_parser(device)
                .conflicts_with_all(["peers", "gateways"])
                .help(
                    "What each peer lends, as cpu:2,cpu:1:256MiB,cuda:0:4GiB,none: threads or a GPU's number, memory for KV pages; none is a gateway",
                ),
        )
        .arg(
            number("gateways", "Peers without a model")
                .value_parser(whole(0_u16..=64))
                .default_value(gateways),
        )
        .arg(number("link-mbit", "Bandwidth of every link in Mbit/s").value_parser(values::above_0))
        .arg(number("link-ms", "Latency of every link in milliseconds").value_parser(decimal(0.0..=60_000.0)))
        .arg(Arg::new("layout").long("layout").value_name("GROUPS").help("Groups to form, as prefill=2,decode=3"))
        .arg(Arg::new("model")
                .long("model")
                .value_name("PATH")
                .action(ArgAction::Append)
                .help("Model; several times for several, which each peer lends [default: the embedded one]"))
        .arg(
            Arg::new("kv-codec")
                .long("kv-codec")
                .value_name("CODEC")
                .help("KV on the wire: auto, raw, int8, int4 or int3"),
        )
        .arg(
            Arg::new("fixed-kv")
                .long("fixed-kv")
                .value_name("CODEC")
                .help("What every prompt's KV goes through, sent or not: raw, int8, int4 or int3"),
        )
        .arg(Arg::new("kv-dtype").long("kv-dtype").value_name("TYPE").help("Elements of KV pages: f16, bf16 or f32"))
        .arg(dir())
}

/// A verb that does something to one peer.
fn fault(name: &'static str, about: &'static str) -> Command {
    let peer = Arg::new("peer").value_name("PEER").required(true).help("Its name, as testnet status lists it");
    verb(name, about, &format!("tsnode testnet {name} peer1")).arg(peer).arg(json_flag())
}

fn asked_peer(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("peer").map_or("", String::as_str)
}

fn disturb(fault: &str, matches: &ArgMatches) -> Result<(), Exit> {
    let state = TestnetState::read(&folder(matches)).map_err(exit)?;
    let (signal, done) = match fault {
        "kill" => ("-KILL", "killed"),
        "stop" => ("-STOP", "stopped"),
        _ => ("-CONT", "goes on"),
    };
    let peer = state.signal(asked_peer(matches), signal).map_err(exit)?;
    let until = Instant::now() + KILLED;
    while fault == "kill" && peer.is_alive() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    say_peer(matches, peer, done)
}

async fn restart(matches: &ArgMatches) -> Result<(), Exit> {
    let folder = folder(matches);
    let mut state = TestnetState::read(&folder).map_err(exit)?;
    let peer = state.restart(asked_peer(matches), &folder, DOWN).await.map_err(exit)?;
    say_peer(matches, peer, "started")
}

fn say_peer(matches: &ArgMatches, peer: &PeerInfo, done: &str) -> Result<(), Exit> {
    if is_set(matches, "json") {
        return print_json(&json!({ "peer": peer, "done": done }));
    }
    say!("{} (process {}) {done}", peer.name, peer.pid);
    Ok(())
}

fn folder(matches: &ArgMatches) -> PathBuf {
    matches.get_one::<PathBuf>("dir").cloned().unwrap_or_else(usual_folder)
}

fn exit(error: TestnetError) -> Exit {
    error.into()
}

async fn up(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let config = config(settings, matches)?;
    let (started, mut interrupts) = (Instant::now(), Interrupts::heard());
    let bar = spinner(format!("starting {} peers", config.peers.len()));
    let up = async { Testnet::up_telling(&config, |far| bar.set_message(far.to_owned())).await.map_err(exit) };
    let net = interrupts.unless(Box::pin(up)).await;
    bar.finish_and_clear();
    let net = net?;
    let took = started.elapsed();
    let answer = match matches.get_one::<String>("prompt") {
        Some(prompt) => Some(interrupts.unless(Box::pin(answer(settings, matches, &net, prompt))).await?),
        None => None,
    };
    if is_set(matches, "detach") {
        let state = net.detach(&folder(matches)).map_err(exit)?;
        return detached(matches, &state, answer, took);
    }
    match answer {
        Some((text, trace)) => {
            let told = tell(matches, &net.peers(), &text, &trace, took);
            leave(net, &mut interrupts).await?;
            told
        }
        None => stay(matches, net, took, &mut interrupts).await,
    }
}

/// Says what is waited for.
fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar.with_message(message)
}

/// Ends a swarm and removes its folder: logs of a run that ended well are of no use.
async fn leave(net: Testnet, interrupts: &mut Interrupts) -> Result<(), Exit> {
    let folder = net.folder().to_owned();
    interrupts.down(net).await?;
    std::fs::remove_dir_all(&folder).map_err(|e| Exit::file(ExitKind::Other, &folder, &e))
}

fn config(settings: &Settings, matches: &ArgMatches) -> Result<TestnetConfig, Exit> {
    let folder = folder(matches);
    match TestnetState::read(&folder) {
        Ok(state) if state.alive().next().is_some() => {
            let what = format!("{}: a testnet is up here already; stop it with: tsnode testnet down", folder.display());
            return Err(Exit::new(ExitKind::DataDir, what));
        }
        Err(error @ TestnetError::Broken { .. }) => return Err(exit(error)),
        _ => {}
    }
    let executable = std::env::current_exe().map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
    let number = |name: &str| usize::from(matches.get_one::<u16>(name).copied().unwrap_or_default());
    let models = matches.get_many::<String>("model").into_iter().flatten();
    let model: Vec<String> = models.flat_map(|path| ["--model".into(), path.clone()]).collect();
    let peers = match matches.get_many::<PeerConfig>("devices") {
        Some(devices) => devices.cloned().map(|device| with_flags(device, &model)).collect(),
        None => PeerConfig::alike(number("peers"), number("gateways"), &model),
    };
    let flags = flags(matches, settings.text("log"));
    // Each run has a folder of its own below, so that peers of an earlier one do not linger in it.
    Ok(TestnetConfig {
        executable,
        folder: folder.join(format!("run-{}", std::process::id())),
        peers,
        link_mbit: matches.get_one::<f64>("link-mbit").copied(),
        link_ms: matches.get_one::<f64>("link-ms").copied(),
        http_port: matches.try_get_one::<u16>("http-port").ok().flatten().copied(),
        flags,
    })
}

/// What every peer is started with.
fn flags(matches: &ArgMatches, log: &str) -> Vec<String> {
    // Phases are split however short the prompt, unless something else is asked for: that is what a testnet is there to show.
    let split = matches.try_get_one::<String>("split").ok().flatten().map_or("always", String::as_str);
    let mut flags = ["--split", split, "--log", log].map(str::to_owned).to_vec();
    for name in ["layout", "kv-codec", "fixed-kv", "kv-dtype"] {
        if let Some(value) = matches.get_one::<String>(name) {
            flags.extend([format!("--{name}"), value.clone()]);
        }
    }
    flags
}

/// Reads `cpu`, `cpu:THREADS`, `cpu:THREADS:MEMORY`, `cuda:NUMBER`, `cuda:NUMBER:MEMORY` or `none`.
fn device(text: &str) -> Result<PeerConfig, String> {
    if let Some(gpu) = text.strip_prefix("cuda:") {
        let (number, memory) = gpu.split_once(':').map_or((gpu, None), |(number, memory)| (number, Some(memory)));
        let name: DeviceName = format!("cuda:{number}").parse().map_err(|e: ChoiceError| e.to_string())?;
        let memory = memory.into_iter().flat_map(|memory| ["--kv-memory".to_owned(), memory.to_owned()]);
        let flags = ["--threads".to_owned(), "1".into(), "--device".into(), name.to_string()].into_iter();
        return Ok(PeerConfig::Host { flags: flags.chain(memory).collect() });
    }
    let mut flags = Vec::new();
    match text.split(':').collect::<Vec<_>>()[..] {
        ["none"] => return Ok(PeerConfig::Gateway),
        ["cpu"] => flags.extend(["--threads", "1"]),
        ["cpu", threads] => flags.extend(["--threads", threads]),
        ["cpu", threads, memory] => flags.extend(["--threads", threads, "--kv-memory", memory]),
        _ => {
            return Err(
                "a device is cpu, cpu:THREADS, cpu:THREADS:MEMORY, cuda:NUMBER, cuda:NUMBER:MEMORY or none".into()
            );
        }
    }
    if !flags[..].get(1).is_none_or(|t| t.parse::<u16>().is_ok_and(|n| n > 0)) {
        return Err("threads are a number above 0".into());
    }
    Ok(PeerConfig::Host { flags: flags.into_iter().map(str::to_owned).collect() })
}

fn with_flags(device: PeerConfig, more: &[String]) -> PeerConfig {
    match device {
        PeerConfig::Host { flags } => PeerConfig::Host { flags: [&flags, more].concat() },
        PeerConfig::Gateway => PeerConfig::Gateway,
    }
}

/// Sends the prompt to the last peer: a gateway if there is one.
async fn answer(
    settings: &Settings,
    matches: &ArgMatches,
    net: &Testnet,
    prompt: &str,
) -> Result<(String, Trace), Exit> {
    let asked = net.peers().last().copied().ok_or_else(|| Exit::new(ExitKind::Other, "no peers to ask"))?;
    let body = json!({
        "prompt": prompt,
        "max_tokens": matches.get_one::<u32>("max-tokens"),
        "seed": 1,
        "stream": true,
    });
    let peer = PeerClient::of(settings, asked.http.clone(), &asked.data_dir)?;
    let answer = submit::stream(&peer, "/v1/completions", &body, |_| {}).await?;
    let trace = answer.trace.ok_or_else(|| Exit::new(ExitKind::Request, "the peer did not say what ran where"))?;
    Ok((answer.text, trace))
}

/// Prints the answer and what ran where; an error if prefill and decode ran on one peer.
fn tell(matches: &ArgMatches, peers: &[&PeerInfo], text: &str, trace: &Trace, took: Duration) -> Result<(), Exit> {
    if is_set(matches, "json") {
        print_json(&document(peers, Some((text, trace)), took))?;
    } else {
        let prompt = matches.get_one::<String>("prompt").map_or("", String::as_str);
        say!("{prompt}{text}\n");
        say!("{} peers of one mind after {:.1} s", peers.len(), took.as_secs_f64());
        requests::lines(trace).iter().for_each(|line| say!("{line}"));
    }
    apart(trace)
}

fn apart(trace: &Trace) -> Result<(), Exit> {
    if trace.prefill == trace.decode {
        let why = format!("prefill and decode ran on one peer: {}", trace.reason);
        return Err(Exit::new(ExitKind::Request, why));
    }
    Ok(())
}

fn document(peers: &[&PeerInfo], answer: Option<(&str, &Trace)>, took: Duration) -> Value {
    let mut document = json!({ "peers": peers, "up_after": took.as_secs_f64() });
    if let Some((text, trace)) = answer {
        document["text"] = json!(text);
        document["request"] = json!(trace.request);
        document["prefill"] = json!(trace.prefill);
        document["decode"] = json!(trace.decode);
        document["kv_bytes"] = json!(trace.kv_bytes);
        document["trace"] = json!(trace);
    }
    document
}

fn detached(
    matches: &ArgMatches,
    state: &TestnetState,
    answer: Option<(String, Trace)>,
    took: Duration,
) -> Result<(), Exit> {
    let peers: Vec<&PeerInfo> = state.peers.iter().collect();
    let told = match &answer {
        Some((text, trace)) => tell(matches, &peers, text, trace, took),
        None if is_set(matches, "json") => print_json(&document(&peers, None, took)),
        None => Ok(()),
    };
    if !is_set(matches, "json") {
        list(&peers);
        let (dir, first) = (dir_flag(matches), peers.first().map_or("", |peer| peer.http.as_str()));
        say!("ask it with:  tsnode submit --api {first} \"It was a dark night\"");
        say!("look at it:   tsnode testnet status{dir}");
        say!("stop it with: tsnode testnet down{dir}");
    }
    told
}

async fn stay(matches: &ArgMatches, net: Testnet, took: Duration, interrupts: &mut Interrupts) -> Result<(), Exit> {
    if is_set(matches, "json") {
        print_json(&document(&net.peers(), None, took))?;
    } else {
        say!("{} peers of one mind after {:.1} s; Ctrl-C stops them", net.peers().len(), took.as_secs_f64());
        list(&net.peers());
    }
    interrupts.next().await;
    leave(net, interrupts).await
}

/// What names the same swarm to another command.
fn dir_flag(matches: &ArgMatches) -> String {
    matches.get_one::<PathBuf>("dir").map_or_else(String::new, |dir| format!(" --dir {}", dir.display()))
}

fn list(peers: &[&PeerInfo]) {
    for peer in peers {
        say!("{:<10} process {:<8} {}  {}", peer.name, peer.pid, peer.http, peer.id);
    }
}

async fn status(matches: &ArgMatches) -> Result<(), Exit> {
    let state = TestnetState::read(&folder(matches)).map_err(exit)?;
    let alive: Vec<&PeerInfo> = state.alive().collect();
    let sights = Swarm::of(alive.iter().copied()).look().await;
    let ended: Vec<&PeerInfo> = state.peers.iter().filter(|peer| !alive.iter().any(|a| a.name == peer.name)).collect();
    if is_set(matches, "json") {
        let row = |(peer, sight): (&&PeerInfo, &Option<Sight>)| {
            let plan = sight.as_ref().and_then(|s| s.plan_id.clone());
            json!({ "peer": peer, "plan": plan, "sees": sight.as_ref().map(|s| s.peers.len()) })
        };
        let rows: Vec<Value> = alive.iter().zip(&sights).map(row).collect();
        return print_json(&json!({ "launched": state.peers.len(), "alive": rows, "ended": ended }));
    }
    say!("{} of {} peers run", alive.len(), state.peers.len());
    // In the order of their names, whether they run or not.
    for peer in &state.peers {
        let what = match alive.iter().position(|a| a.name == peer.name) {
            None => {
                format!("has ended; start it again with: tsnode testnet restart {}{}", peer.name, dir_flag(matches))
            }
            Some(at) => match sights.get(at).and_then(Option::as_ref) {
                Some(s) => format!("sees {} peers, plan {}", s.peers.len(), s.plan_id.as_deref().unwrap_or("none")),
                None => "does not answer".into(),
            },
        };
        say!("{:<10} process {:<8} {}  {what}", peer.name, peer.pid, peer.http);
    }
    Ok(())
}

async fn down(matches: &ArgMatches) -> Result<(), Exit> {
    let folder = folder(matches);
    let state = TestnetState::read(&folder).map_err(exit)?;
    let down = state.down(&folder, DOWN).await;
    if !down.stayed.is_empty() {
        let first = down.stayed.first().map_or("", String::as_str);
        let what = format!("{} did not leave in {} s", down.stayed.join(", "), DOWN.as_secs());
        let next = format!("tsnode testnet kill {first}{}", dir_flag(matches));
        return Err(Exit::new(
            ExitKind::Other,
            format!("{what}; end each with: {next}, and then: tsnode testnet down"),
        ));
    }
    if is_set(matches, "json") {
        return print_json(&json!({ "down": down, "removed": state.folder }));
    }
    let ended = match down.ended.len() {
        0 => String::new(),
        _ => format!(", {} had ended before", down.ended.join(", ")),
    };
    say!("{} of {} peers have left{ended}; {} is removed", down.left.len(), state.peers.len(), state.folder.display());
    Ok(())
}
