//! `tsnode chat`.

use super::{ask::Peer, asking, submit};
use crate::{config::Settings, exit::Exit, text::ChatMessage};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::json;
use std::io::BufRead;
use tokio::sync::mpsc;

pub(super) fn command() -> Command {
    asking("chat", "Talk to a model; Ctrl-C stops an answer, /reset forgets, /exit ends", "tsnode chat")
        .arg(Arg::new("model").long("model").value_name("NAME").help("Model [default: the swarm's]"))
        .arg(
            Arg::new("max-tokens")
                .long("max-tokens")
                .value_name("N")
                .value_parser(value_parser!(u32))
                .default_value("256")
                .help("Most tokens of an answer"),
        )
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = Peer::find(settings, matches)?;
    peer.view().await?;
    let mut lines = read_lines();
    let mut history: Vec<ChatMessage> = Vec::new();
    loop {
        super::print_piece("> ");
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(line) = line else {
            say!("");
            return Ok(());
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/reset" => {
                history.clear();
                continue;
            }
            text => history.push(ChatMessage { role: "user".into(), content: text.to_owned() }),
        }
        let said = answer(&peer, matches, &history).await;
        match said {
            Some(said) => history.push(ChatMessage { role: "assistant".into(), content: said }),
            None => drop(history.pop()),
        }
    }
}

/// Streams one answer. What was read before Ctrl-C stays in the history; a question without an answer does not.
async fn answer(peer: &Peer, matches: &ArgMatches, history: &[ChatMessage]) -> Option<String> {
    let body = json!({
        "model": matches.get_one::<String>("model"),
        "messages": history,
        "max_tokens": matches.get_one::<u32>("max-tokens"),
        "stream": true,
    });
    let mut seen = String::new();
    let outcome = tokio::select! {
        outcome = submit::stream(peer, "/v1/chat/completions", &body, |piece| {
            super::print_piece(piece);
            seen.push_str(piece);
        }) => Some(outcome),
        _ = tokio::signal::ctrl_c() => None,
    };
    say!("");
    if let Some(Err(exit)) = outcome {
        eprintln!("{exit}");
    }
    (!seen.is_empty()).then_some(seen)
}

/// Lines of standard input, read beside the runtime; the channel ends with them.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
