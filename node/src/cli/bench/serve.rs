//! `tsnode bench serve`: load on a server that speaks OpenAI's API, ours or another, and what its clients see.

pub(in crate::cli) mod arrivals;
pub(in crate::cli) mod client;
pub(in crate::cli) mod load_args;
pub(in crate::cli) mod prompts;
pub(in crate::cli) mod report;
#[cfg(test)]
mod tests;
pub(in crate::cli) mod timed_answer;

use crate::{
    cli::{
        ask::{PeerClient, unanswered},
        decimal,
        exit::{Exit, ExitKind},
        is_set, output, switch, verb, whole,
    },
    config::{Settings, values},
};
use arrivals::{Arrivals, DrawnLengths, PlannedRequest, TraceScaling, drawn, traced};
use clap::{Arg, ArgMatches, Command, value_parser};
use client::{BenchTarget, Endpoint, LoadBounds, interrupted, load};
use indicatif::{ProgressBar, ProgressStyle};
use load_args::{LoadArgs, number, tokens};
use prompts::{PromptContent, Prompts, TokenFit};
use report::Report;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use timed_answer::{Failure, reason};
use tsnode_simulator::trace;

/// How long a server may take to say which models it has.
const PATIENCE: Duration = Duration::from_secs(10);
/// Words of the two prompts whose tokens are counted, where prompts are of words.
const COUNTED: [u32; 2] = [32, 160];
/// Largest trace that is read (bytes): ten times Azure's.
const TRACE_BYTES: u64 = 8 << 20;
/// Names of models that an error lists.
const LISTED: usize = 8;

pub(super) fn command() -> Command {
    let example = "tsnode bench serve --num-prompts 40 --request-rate 8 --input-len 256 --output-len 32 --ignore-eos\n  \
                   tsnode bench serve --base-url http://127.0.0.1:8000 --model NAME --goodput ttft:500 tpot:50 --json";
    verb("serve", "Load on a server with OpenAI's API, this one or another: times, goodput, tokens a second", example)
        .args(whom())
        .args(what())
        .args(when())
        .arg(load_args::goodput())
        .args(load_args::shown("Draw the times' percentiles (SVG)"))
}

fn whom() -> Vec<Arg> {
    let mut args = load_args::server();
    args.extend([
        Arg::new("endpoint")
            .long("endpoint")
            .value_name("PATH")
            .value_parser(Endpoint::ALL.map(Endpoint::path))
            .default_value(Endpoint::Completions.path())
            .help("Path that is asked"),
        number("model", "NAME", "Model [default: the only one that the server has]"),
    ]);
    args
}

fn what() -> Vec<Arg> {
    vec![
        number("num-prompts", "N", "Requests").value_parser(whole(1_usize..=1_000_000)).default_value("100"),
        tokens("input-len", "Tokens of a prompt").visible_alias("random-input-len").default_value("256"),
        tokens("output-len", "Most tokens of an answer").visible_alias("random-output-len").default_value("64"),
        number("random-range-ratio", "R", "Draw lengths from (1 − R) to (1 + R) of them")
            .value_parser(decimal(0.0..=1.0))
            .default_value("0"),
        tokens("random-prefix-len", "Tokens that all prompts begin with, a part of their lengths"),
        Arg::new("prompt-form").long("prompt-form").value_name("FORM").value_parser(["tokens", "words"]).help(
            "Prompts are ids of tokens, or words, whose tokens are counted first [default: tokens; chats are words]",
        ),
        switch("ignore-eos", "Go on behind the model's end, so that answers have their lengths"),
        number("temperature", "T", "0 is greedy [default: the server's]").value_parser(decimal(0.0..=2.0)),
        load_args::seed("Of arrivals, lengths and prompts"),
    ]
}

fn when() -> Vec<Arg> {
    let factor = |name, help| number(name, "F", help).value_parser(values::above_0).requires("trace");
    vec![
        number("request-rate", "R", "Requests a second, or inf: all at once").value_parser(rate).default_value("inf"),
        number("burstiness", "SHAPE", "Of the gaps' gamma distribution: 1 is Poisson, below it come bursts")
            .value_parser(decimal(0.01..=1000.0))
            .default_value("1"),
        number("trace", "FILE", "Requests of a trace at their times, as simulate --trace reads them")
            .value_parser(value_parser!(PathBuf))
            .conflicts_with_all(["request-rate", "burstiness", "input-len", "output-len", "random-range-ratio"]),
        factor("trace-speed", "Play the trace so many times as fast"),
        factor("trace-lengths", "Of each length of the trace so much, as 0.1"),
        load_args::concurrency("Most requests at once"),
        number("max-seconds", "S", "End the run after so long, whatever is running")
            .value_parser(whole(1_u64..=86_400))
            .default_value("600"),
    ]
}

fn rate(text: &str) -> Result<f64, String> {
    if text.trim() == "inf" { Ok(f64::INFINITY) } else { values::above_0(text).map_err(|e| format!("{e}, or inf")) }
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let MeasuredRun { target, report, requests, args } = measured(settings, matches).await?;
    let title = format!("{} at {}{}", target.model, target.peer.base(), target.endpoint.path());
    if let Some(file) = &args.svg {
        std::fs::write(file, report.svg(&title)).map_err(|e| Exit::file(ExitKind::Other, file, &e))?;
    }
    if args.json {
        output::print_json(&report.json(&about(&target, matches, &args, requests)))?;
    } else {
        say!("{title}");
        report.lines().iter().for_each(|line| say!("{line}"));
        output::table(&report.rows())?;
    }
    answered(&report)
}

/// A run with whom it was of.
struct MeasuredRun {
    target: Arc<BenchTarget>,
    report: Report,
    /// How many were planned.
    requests: usize,
    args: LoadArgs,
}

async fn measured(settings: &Settings, matches: &ArgMatches) -> Result<MeasuredRun, Exit> {
    let args = LoadArgs::of(matches)?;
    let planned = planned(matches, args.seed)?;
    let target = Arc::new(target(settings, matches).await?);
    let prompts = Prompts {
        form: form(&target, matches, args.seed).await?,
        shared: matches.get_one("random-prefix-len").copied().unwrap_or(0),
        seed: args.seed,
    };
    let bounds = LoadBounds {
        concurrency: args.concurrency,
        longest: Duration::from_secs(matches.get_one("max-seconds").copied().unwrap_or(1)),
    };
    let bar = bar(planned.len(), args.hides_bar);
    let run = load(&target, prompts, &planned, bounds, interrupted(), |ended, running| {
        bar.set_position(ended as u64);
        bar.set_message(format!("{running} running"));
    })
    .await;
    bar.finish_and_clear();
    let report = Report::new(&run, |n| planned[n].prompt, args.goodput.clone());
    Ok(MeasuredRun { target, report, requests: planned.len(), args })
}

async fn target(settings: &Settings, matches: &ArgMatches) -> Result<BenchTarget, Exit> {
    let endpoint = match matches.get_one::<String>("endpoint") {
        Some(path) if path == Endpoint::Chat.path() => Endpoint::Chat,
        _ => Endpoint::Completions,
    };
    let peer = PeerClient::find(settings, matches)?;
    let model = match matches.get_one::<String>("model") {
        Some(name) => name.clone(),
        None => only_model(&peer).await?,
    };
    let temperature = matches.get_one("temperature").copied();
    Ok(BenchTarget { peer, endpoint, model, temperature, ignore_eos: is_set(matches, "ignore-eos") })
}

/// Nothing measured is an error.
fn answered(report: &Report) -> Result<(), Exit> {
    if report.completed > 0 {
        return Ok(());
    }
    let why = match report.reasons.first() {
        Some((why, _)) => why.clone(),
        None => "none ended in time; give it longer with --max-seconds, or ask for shorter answers".into(),
    };
    Err(Exit::new(ExitKind::Request, format!("no request was answered: {why}")))
}

/// What the figures are of.
fn about(target: &BenchTarget, matches: &ArgMatches, args: &LoadArgs, requests: usize) -> Value {
    let rate = matches.get_one::<f64>("request-rate").filter(|_| matches.get_one::<PathBuf>("trace").is_none());
    json!({
        "base_url": target.peer.base(), "endpoint": target.endpoint.path(), "model_id": target.model,
        "num_prompts": requests,
        // JSON has no infinity.
        "request_rate": rate.map(|rate| if rate.is_finite() { json!(rate) } else { json!("inf") }),
        "burstiness": matches.get_one::<f64>("burstiness"), "max_concurrency": args.concurrency,
        "seed": args.seed, "trace": matches.get_one::<PathBuf>("trace"),
    })
}

fn planned(matches: &ArgMatches, seed: u64) -> Result<Vec<PlannedRequest>, Exit> {
    let requests = matches.get_one::<usize>("num-prompts").copied().unwrap_or(1);
    let number = |name: &str, usual: f64| matches.get_one::<f64>(name).copied().unwrap_or(usual);
    if let Some(file) = matches.get_one::<PathBuf>("trace") {
        let whole = matches.value_source("num-prompts") != Some(clap::parser::ValueSource::CommandLine);
        let requests = if whole { usize::MAX } else { requests };
        let changed = TraceScaling { speed: number("trace-speed", 1.0), lengths: number("trace-lengths", 1.0) };
        let arrivals = trace::read(&text(file)?);
        let arrivals = arrivals.map_err(|e| Exit::new(ExitKind::Usage, format!("{}: {e}", file.display())))?;
        return Ok(traced(&arrivals, requests, changed));
    }
    let length = |name: &str| matches.get_one::<u32>(name).copied().unwrap_or(1);
    let lengths = DrawnLengths {
        prompt: length("input-len"),
        answer: length("output-len"),
        ratio: number("random-range-ratio", 0.0),
    };
    let rate = number("request-rate", f64::INFINITY);
    let is_bursty = matches.value_source("burstiness") == Some(clap::parser::ValueSource::CommandLine);
    if is_bursty && !rate.is_finite() {
        note!("tsnode: note: --burstiness has no effect: all requests come at once; say a --request-rate");
    }
    let arrivals =
        if rate.is_finite() { Arrivals::Gamma { rate, shape: number("burstiness", 1.0) } } else { Arrivals::AtOnce };
    Ok(drawn(arrivals, lengths, requests, seed))
}

/// A trace, as it is written.
pub(in crate::cli) fn text(file: &Path) -> Result<String, Exit> {
    let wrong = |e: &std::io::Error| Exit::file(ExitKind::Usage, file, e);
    let bytes = std::fs::metadata(file).map_err(|e| wrong(&e))?.len();
    if bytes > TRACE_BYTES {
        let what = format!("{}: {} MiB, more than is read; cut it", file.display(), bytes >> 20);
        return Err(Exit::new(ExitKind::Usage, what));
    }
    std::fs::read_to_string(file).map_err(|e| wrong(&e))
}

/// Found out before anything runs.
pub(in crate::cli) fn drawable(file: &Path) -> Result<(), Exit> {
    match file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(Exit::new(ExitKind::Usage, format!("--svg: there is no folder {}", folder.display()))),
        None => Ok(()),
    }
}

pub(in crate::cli) fn bar(requests: usize, hidden: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} requests, {msg}, {elapsed}");
    let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new(requests as u64) };
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The server's model, if it has one.
async fn only_model(peer: &PeerClient) -> Result<String, Exit> {
    const NAME: &str = "name one with --model";
    let at = peer.base();
    let broken = |e: reqwest::Error| {
        Exit::new(ExitKind::Unreachable, format!("{at}: {}; is a server up there?", unanswered(&e)))
    };
    let response = peer.request("/v1/models").timeout(PATIENCE).send().await.map_err(broken)?;
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    if !status.is_success() {
        let said = reason(&body).unwrap_or_else(|| status.canonical_reason().unwrap_or_default().to_owned());
        return Err(refused(peer, status.as_u16(), &format!("/v1/models: {said}")));
    }
    let names: Vec<&str> = body["data"].as_array().into_iter().flatten().filter_map(|m| m["id"].as_str()).collect();
    match names[..] {
        [name] => Ok(name.to_owned()),
        [] => Err(Exit::new(ExitKind::Unserved, format!("{at} lists no model; {NAME}, if it has any"))),
        _ => {
            let listed = names[..names.len().min(LISTED)].join(", ");
            Err(Exit::new(ExitKind::Usage, format!("{at} has {} models, as {listed}; {NAME}", names.len())))
        }
    }
}

fn refused(peer: &PeerClient, status: u16, said: &str) -> Exit {
    let advice = if matches!(status, 401 | 403) { format!("; {}", peer.advice()) } else { String::new() };
    let kind = if status == 503 { ExitKind::Unserved } else { ExitKind::Request };
    Exit::new(kind, format!("{}: {said} ({status}){advice}", peer.base()))
}

/// Asks for a token once or twice before anything is measured: whether the server answers at all, and how many tokens words are.
async fn form(target: &BenchTarget, matches: &ArgMatches, seed: u64) -> Result<PromptContent, Exit> {
    let named = matches.get_one::<String>("prompt-form").map(String::as_str);
    if named == Some("tokens") && target.endpoint == Endpoint::Chat {
        return Err(Exit::new(ExitKind::Usage, "--prompt-form tokens: a chat's messages are words"));
    }
    let of_words = named == Some("words") || target.endpoint == Endpoint::Chat;
    if !of_words {
        let prompts = Prompts { form: PromptContent::Tokens, shared: 0, seed };
        probe(target, &prompts, COUNTED[0]).await?;
        return Ok(PromptContent::Tokens);
    }
    let prompts = Prompts { form: PromptContent::Words(TokenFit::PLAIN), shared: 0, seed };
    let mut counted = [(0, 0); 2];
    for (counted, words) in counted.iter_mut().zip(COUNTED) {
        let Some(tokens) = probe(target, &prompts, words).await? else {
            note!("tsnode: note: the server does not say how many tokens a prompt has: each word is taken for one");
            return Ok(PromptContent::Words(TokenFit::PLAIN));
        };
        *counted = (words, tokens);
    }
    Ok(PromptContent::Words(TokenFit::through(counted).unwrap_or(TokenFit::PLAIN)))
}

/// Tokens of a prompt, as the server counts them; its prompt is none of the run's.
async fn probe(target: &BenchTarget, prompts: &Prompts, length: u32) -> Result<Option<u64>, Exit> {
    let asked = target.ask(prompts.nth(u64::MAX, length), 1);
    let at = target.peer.base();
    let failed = |failure: Failure| match failure {
        Failure::Unanswered(why) => Exit::new(ExitKind::Unreachable, format!("{at}: {why}; is a server up there?")),
        Failure::Refused { status, said } => refused(&target.peer, status, &said),
        other => Exit::new(ExitKind::Request, format!("{at}{}: {other}", target.endpoint.path())),
    };
    let late =
        |_| Exit::new(ExitKind::Request, format!("{at}: no answer to a short prompt within {} s", READY.as_secs()));
    let answer = tokio::time::timeout(READY, asked).await.map_err(late)?.map_err(failed)?;
    Ok(answer.prompt_tokens)
}

/// How long a server may take for the first answer, which may have to load something.
const READY: Duration = Duration::from_secs(120);
