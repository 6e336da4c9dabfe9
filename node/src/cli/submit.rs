//! `tsnode submit`.

use super::{
    ask::{PeerClient, unanswered},
    asking, decimal, is_set, print_piece, requests, switch, whole,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    gateway::Trace,
    plain,
};
use clap::{Arg, ArgMatches, Command, value_parser};
use futures::StreamExt;
use serde_json::{Value, json};
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use tsnode_protocol::limits;

pub(super) fn command() -> Command {
    asking("submit", "Send a prompt and print the answer", "tsnode submit \"It was a dark night\" --max-tokens 40")
        .arg(Arg::new("prompt").help("The prompt; - reads standard input"))
        .arg(
            Arg::new("file")
                .long("file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("prompt")
                .help("Read the prompt from a file"),
        )
        .arg(Arg::new("model").long("model").value_name("NAME").help("Model [default: the swarm's]"))
        .arg(
            Arg::new("max-tokens")
                .long("max-tokens")
                .value_name("N")
                .value_parser(whole(1..=u32::MAX))
                .default_value("128")
                .help("Most tokens to generate"),
        )
        .arg(
            Arg::new("temperature")
                .long("temperature")
                .value_name("T")
                .value_parser(decimal(0.0..=2.0))
                .allow_negative_numbers(true)
                .help("0 is greedy"),
        )
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .value_parser(whole(i64::MIN..=i64::MAX))
                .allow_negative_numbers(true)
                .help("The same seed gives the same answer"),
        )
        .arg(switch("ignore-eos", "Go on behind the model's end"))
        .arg(switch("chat", "Send it as a user's message"))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let prompt = prompt(matches)?;
    let mut body = json!({ "stream": true, "max_tokens": matches.get_one::<u32>("max-tokens") });
    for (flag, value) in [
        ("temperature", json!(matches.get_one::<f64>("temperature"))),
        ("seed", json!(matches.get_one::<i64>("seed"))),
        ("model", json!(matches.get_one::<String>("model"))),
        ("ignore_eos", json!(is_set(matches, "ignore-eos"))),
    ] {
        body[flag] = value;
    }
    let path = if is_set(matches, "chat") {
        body["messages"] = json!([{ "role": "user", "content": prompt }]);
        "/v1/chat/completions"
    } else {
        body["prompt"] = json!(prompt);
        "/v1/completions"
    };
    let quiet = is_set(matches, "json");
    let answer = stream(&peer, path, &body, |piece| {
        if !quiet {
            print_piece(piece);
        }
    })
    .await?;
    if quiet {
        say!("{}", json!({ "text": answer.text, "trace": answer.trace }));
    } else {
        say!("");
        if let Some(trace) = answer.trace {
            requests::lines(&trace).iter().for_each(|line| note!("{line}"));
        }
    }
    Ok(())
}

fn prompt(matches: &ArgMatches) -> Result<String, Exit> {
    if let Some(file) = matches.get_one::<PathBuf>("file") {
        let opened = std::fs::File::open(file).map_err(|e| Exit::file(ExitKind::Usage, file, &e))?;
        return read(&file.display().to_string(), opened);
    }
    match matches.get_one::<String>("prompt").map(String::as_str) {
        Some("-") => read_stdin(),
        None if !std::io::stdin().is_terminal() => read_stdin(),
        Some(prompt) => Ok(prompt.to_owned()),
        None => Err(Exit::new(ExitKind::Usage, "no prompt; write it behind submit, or pipe it in")),
    }
}

fn read_stdin() -> Result<String, Exit> {
    read("standard input", std::io::stdin())
}

/// A prompt, unless it is longer than any peer takes.
fn read(name: &str, from: impl Read) -> Result<String, Exit> {
    const LONGEST: usize = limits::HTTP_BODY_BYTES;
    let wrong = |why: &str| Exit::new(ExitKind::Usage, format!("{name}: {why}"));
    let mut text = Vec::new();
    from.take(LONGEST as u64 + 1).read_to_end(&mut text).map_err(|e| wrong(&plain::io_error(&e)))?;
    if text.len() > LONGEST {
        return Err(wrong(&format!("a prompt of more than {} MiB, which no peer takes; shorten it", LONGEST >> 20)));
    }
    String::from_utf8(text).map_err(|_| wrong("it is not text"))
}

/// An answer that has been read to its end.
pub(super) struct Streamed {
    pub text: String,
    pub trace: Option<Trace>,
    /// The model that answered.
    pub model: Option<String>,
    /// Why it ended, in OpenAI's words.
    pub finish: Option<String>,
}

/// Streams an answer, handing every piece of text to `show`.
pub(super) async fn stream(
    peer: &PeerClient,
    path: &str,
    body: &Value,
    mut show: impl FnMut(&str),
) -> Result<Streamed, Exit> {
    let response = peer.send(peer.post(path, body).header("x-tsnode-trace", "1")).await?;
    let mut bytes = response.bytes_stream();
    let (mut buffer, mut text, mut trace, mut done) = (Vec::new(), String::new(), None, false);
    let (mut model, mut finish) = (None, None);
    while let Some(chunk) = bytes.next().await {
        let chunk =
            chunk.map_err(|e| Exit::new(ExitKind::Request, format!("the answer broke off: {}", unanswered(&e))))?;
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                done = true;
                continue;
            }
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            if let Some(why) = event["error"]["message"].as_str() {
                return Err(Exit::new(ExitKind::Request, format!("the answer broke off: {why}")));
            }
            let choice = &event["choices"][0];
            model = event["model"].as_str().map(str::to_owned).or(model);
            finish = choice["finish_reason"].as_str().map(str::to_owned).or(finish);
            if let Some(piece) = choice["text"].as_str().or(choice["delta"]["content"].as_str()) {
                show(piece);
                text.push_str(piece);
            }
            if let Ok(found) = serde_json::from_value(event["tsnode"].clone()) {
                trace = Some(found);
            }
        }
    }
    if !done {
        return Err(Exit::new(ExitKind::Request, "the answer broke off without an end"));
    }
    Ok(Streamed { text, trace, model, finish })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_no_peer_takes_is_refused_and_not_cut() {
        assert_eq!(read("it", &b"It was"[..]).unwrap(), "It was");
        let long = vec![b'a'; limits::HTTP_BODY_BYTES + 1];
        assert_eq!(read("it", &long[1..]).unwrap().len(), limits::HTTP_BODY_BYTES);
        let refused = |text: &[u8]| read("it", text).unwrap_err().message;
        assert_eq!(refused(&long), "it: a prompt of more than 8 MiB, which no peer takes; shorten it");
        assert_eq!(refused(b"a\xff"), "it: it is not text");
    }
}
