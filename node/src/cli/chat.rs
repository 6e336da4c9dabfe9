//! `tsnode chat`: a conversation at a terminal, or line by line for programs.

mod lines;

use self::lines::{InputLine, InputLines};
use super::{
    ask::PeerClient,
    asking, is_set,
    requests::{count, speed},
    submit::{self, Streamed},
    text_layout::{COLUMNS, fitted, harmless, time, width},
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    gateway::Trace,
    text::ChatMessage,
    view::SwarmView,
};
use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tsnode_protocol::Seconds;

const HELP: &str = "\
Enter      sends a line; Ctrl-C stops its answer
Up, Down   earlier lines, Ctrl-R looks for one; they are kept until chat ends
/reset     forgets what was said so far
/help      shows this
/exit      ends, as Ctrl-D does";

pub(super) fn command() -> Command {
    asking("chat", "Talk to a model; /help says how", "tsnode chat\n  printf 'Hello\\n' | tsnode chat --json")
        .arg(Arg::new("model").long("model").value_name("NAME").help("Model [default: the swarm's]"))
        .arg(
            Arg::new("max-tokens")
                .long("max-tokens")
                .value_name("N")
                .value_parser(super::whole(1..=u32::MAX))
                .default_value("256")
                .help("Most tokens of an answer"),
        )
        .mut_arg("json", |json| json.help("Print one JSON object for each answer, on a line of its own"))
}

/// Who reads the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChatReader {
    /// A person, at a terminal that lines are edited in.
    Person,
    /// Whoever reads text: there is no more in it than answers.
    Text,
    /// A program: one JSON object for each answer.
    Json,
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let view = peer.view().await?;
    let asked = matches.get_one::<String>("model").map(String::as_str);
    let greeting = greeting(&view, asked)?;
    let reader = match std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        _ if is_set(matches, "json") => ChatReader::Json,
        true => ChatReader::Person,
        false => ChatReader::Text,
    };
    if reader == ChatReader::Person {
        say!("{greeting}");
    }
    let mut lines = if reader == ChatReader::Person { InputLines::edited()? } else { InputLines::read() };
    let mut talk = ChatSession { peer, matches, reader, history: Vec::new() };
    loop {
        let said = tokio::select! {
            said = lines.next() => said,
            _ = tokio::signal::ctrl_c(), if reader != ChatReader::Person => std::process::exit(130),
        };
        match said {
            InputLine::Line(line) => {
                if !talk.hear(&line).await? {
                    return Ok(());
                }
            }
            InputLine::Interrupted => say!("(/exit or Ctrl-D ends)"),
            InputLine::End => return Ok(()),
            InputLine::Failed(why) => return Err(why),
        }
    }
}

/// Whom one talks to, in a line.
fn greeting(view: &SwarmView, asked: Option<&str>) -> Result<String, Exit> {
    let names: Vec<&str> = view.models.iter().map(|m| m.name.as_str()).collect();
    let is_there = |asked: &str| view.models.iter().any(|m| m.name == asked || m.id.to_string() == asked);
    if let Some(asked) = asked.filter(|asked| !is_there(asked)) {
        let all = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(Exit::new(ExitKind::Request, format!("no peer has a model {asked:?}; models there are: {all}")));
    }
    let model = match (asked, &names[..]) {
        (Some(asked), _) => harmless(asked),
        (None, [one]) => harmless(one),
        (None, []) => "no model yet".into(),
        (None, many) => {
            let default = view.models.iter().find(|m| Some(m.id) == view.default_model);
            let default = default.map_or(String::new(), |m| format!("{} of ", harmless(&m.name)));
            format!("{default}{} models", many.len())
        }
    };
    let peers = count(view.peers.len() as u32, "peer");
    let rest = format!(", {peers}; /help says how to talk, Ctrl-D ends");
    Ok(format!("{}{rest}", fitted(&model, COLUMNS.saturating_sub(width(&rest)))))
}

/// A conversation.
struct ChatSession<'a> {
    peer: PeerClient,
    matches: &'a ArgMatches,
    reader: ChatReader,
    history: Vec<ChatMessage>,
}

impl ChatSession<'_> {
    /// Does what a line says; whether it goes on. What fails ends it, unless a person can say something else.
    async fn hear(&mut self, line: &str) -> Result<bool, Exit> {
        let line = line.trim();
        match line {
            "" => return Ok(true),
            "/exit" | "/quit" => return Ok(false),
            "/reset" => self.history.clear(),
            "/help" if self.reader == ChatReader::Person => say!("{HELP}"),
            word if self.reader == ChatReader::Person
                && word.starts_with('/')
                && !word.contains(char::is_whitespace) =>
            {
                say!("{word} is no command; /help lists them");
            }
            _ => {
                self.history.push(ChatMessage::new("user", line));
                let outcome = self.answer().await;
                return outcome.map(|()| true).or_else(|why| self.failed(why));
            }
        }
        Ok(true)
    }

    fn failed(&self, why: Exit) -> Result<bool, Exit> {
        match self.reader {
            ChatReader::Person => {
                note!("{why}");
                Ok(true)
            }
            ChatReader::Text => Err(why),
            ChatReader::Json => {
                say!("{}", json!({ "error": { "message": why.message, "exit_code": why.kind as i32 } }));
                Err(why)
            }
        }
    }

    /// Streams one answer. What was read before it broke off stays in the history; a question without an answer does not.
    async fn answer(&mut self) -> Result<(), Exit> {
        let body = json!({
            "model": self.matches.get_one::<String>("model"),
            "messages": self.history,
            "max_tokens": self.matches.get_one::<u32>("max-tokens"),
            "stream": true,
        });
        let (mut seen, mut first, asked) = (String::new(), None, Instant::now());
        let outcome = tokio::select! {
            outcome = submit::stream(&self.peer, "/v1/chat/completions", &body, |piece| {
                first.get_or_insert_with(|| asked.elapsed());
                self.reader.show(piece);
                seen.push_str(piece);
            }) => Some(outcome),
            _ = tokio::signal::ctrl_c() => None,
        };
        let took = Took { first: first.unwrap_or_default(), all: asked.elapsed() };
        if self.reader != ChatReader::Json && !(seen.is_empty() && matches!(outcome, Some(Err(_)))) {
            say!("");
        }
        match seen.is_empty() {
            true => drop(self.history.pop()),
            false => self.history.push(ChatMessage::new("assistant", seen)),
        }
        match outcome {
            Some(Err(why)) => Err(why),
            Some(Ok(answer)) => {
                match self.reader {
                    ChatReader::Person => note!("{}", took.line(&answer)),
                    ChatReader::Text => {}
                    ChatReader::Json => say!("{}", took.object(&answer)),
                }
                Ok(())
            }
            None if self.reader == ChatReader::Person => {
                note!("[stopped]");
                Ok(())
            }
            None => std::process::exit(130),
        }
    }
}

impl ChatReader {
    fn show(self, piece: &str) {
        match self {
            // What a model says is no command to the terminal.
            Self::Person => {
                let is_text = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
                super::print_piece(&piece.chars().filter(is_text).collect::<String>());
            }
            Self::Text => super::print_piece(piece),
            Self::Json => {}
        }
    }
}

/// How long an answer took, as its reader saw it.
struct Took {
    /// Until its first piece.
    first: Duration,
    all: Duration,
}

impl Took {
    /// For people.
    fn line(&self, answer: &Streamed) -> String {
        let first = format!("first after {}", time(Seconds(self.first.as_secs_f64())));
        let tokens = answer.trace.as_ref().map(|trace| trace.new_tokens);
        let rate = answer.trace.as_ref().and_then(|trace| speed(trace.new_tokens, behind_first(trace)));
        let cut = (answer.finish.as_deref() == Some("length")).then(|| "cut at the limit (--max-tokens)".to_owned());
        let parts: Vec<String> =
            [tokens.map(|n| count(n, "token")), rate, Some(first), cut].into_iter().flatten().collect();
        format!("[{}]", parts.join(", "))
    }

    /// For programs.
    fn object(&self, answer: &Streamed) -> Value {
        let (first, all) = (self.first.as_secs_f64(), self.all.as_secs_f64());
        let tokens = answer.trace.as_ref().map(|trace| trace.new_tokens);
        let rate = answer.trace.as_ref().filter(|trace| trace.new_tokens > 1 && behind_first(trace).0 > 0.0);
        let rate = rate.map(|trace| f64::from(trace.new_tokens - 1) / behind_first(trace).0);
        json!({
            "model": answer.model,
            "text": answer.text,
            "finish_reason": answer.finish,
            "prompt_tokens": answer.trace.as_ref().map(|trace| trace.prompt_tokens),
            "new_tokens": tokens,
            "first_token_s": first,
            "total_s": all,
            "tokens_per_second": rate,
            "request": answer.trace.as_ref().map(|trace| trace.request),
        })
    }
}

/// From an answer's first token to its end, where it was made: short answers come in one piece.
fn behind_first(trace: &Trace) -> Seconds {
    Seconds(trace.total - trace.ttft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_kernels::source::ModelSource;

    fn view(models: &[&str]) -> SwarmView {
        let card = ModelSource::embedded().unwrap().card().clone();
        let card = |name: &&str| tsnode_protocol::ModelCard { name: (*name).to_owned(), ..card.clone() };
        SwarmView { models: models.iter().map(card).collect(), ..crate::view::tests::view() }
    }

    #[test]
    fn a_greeting_names_the_model_and_another_one_is_refused_with_all_names() {
        let greeted = greeting(&view(&["tiny"]), None).unwrap();
        assert_eq!(greeted, "tiny, 0 peers; /help says how to talk, Ctrl-D ends");
        assert!(greeting(&view(&["a", "b"]), Some("b")).unwrap().starts_with("b, "));
        let two = SwarmView { default_model: Some(view(&["a"]).models[0].id), ..view(&["a", "b"]) };
        assert!(greeting(&two, None).unwrap().starts_with("a of 2 models, "));
        assert!(greeting(&view(&["a", "b"]), None).unwrap().starts_with("2 models, "));
        assert!(greeting(&view(&[]), None).unwrap().starts_with("no model yet, "));
        let refused = greeting(&view(&["a", "b"]), Some("c")).unwrap_err();
        assert_eq!(
            (refused.kind, refused.message),
            (ExitKind::Request, "no peer has a model \"c\"; models there are: a, b".to_owned())
        );
        let wide = greeting(&view(&["模型".repeat(40).as_str()]), None).unwrap();
        assert!(width(&wide) <= COLUMNS, "{wide}");
        assert!(HELP.lines().all(|line| width(line) <= COLUMNS));
    }

    #[test]
    fn an_answers_speed_is_of_the_tokens_behind_its_first() {
        let trace = crate::cli::requests::tests::trace(["a", "b", "c", "d"]);
        let took = Took { first: Duration::from_millis(40), all: Duration::from_millis(2040) };
        let answer = |finish: &str, trace| Streamed {
            text: "Hello".into(),
            model: Some("tiny".into()),
            finish: Some(finish.into()),
            trace,
        };
        let cut = "[41 tokens, 11 tokens/s, first after 40 ms, cut at the limit (--max-tokens)]";
        assert_eq!(took.line(&answer("length", Some(trace.clone()))), cut);
        assert_eq!(took.line(&answer("stop", None)), "[first after 40 ms]");
        let object = took.object(&answer("stop", Some(trace)));
        let expected = json!({
            "model": "tiny", "text": "Hello", "finish_reason": "stop", "prompt_tokens": 61, "new_tokens": 41,
            "first_token_s": 0.04, "total_s": 2.04, "tokens_per_second": 40.0 / (3.652 - 0.04),
            "request": "req-05050505050505050505050505050505",
        });
        assert_eq!(object, expected);
    }
}
