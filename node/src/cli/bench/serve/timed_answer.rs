//! One answer as it is streamed: when its tokens came, and what is wrong with it.

use serde_json::Value;
use std::time::Duration;

/// Longest line of a stream that is taken (bytes): one with log-probabilities of twenty tokens is far below.
const LINE_BYTES: usize = 1 << 20;
/// Most pieces of an answer that are timed.
const PIECES: usize = 1 << 20;
/// Letters of what a server says that are repeated.
const SAID: usize = 200;

/// Why an answer does not count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(in crate::cli) enum Failure {
    /// No connection, or one that broke.
    #[error("{0}")]
    Unanswered(String),
    /// Another status than success.
    #[error("{status}: {said}")]
    Refused { status: u16, said: String },
    /// An error in the stream.
    #[error("the answer broke off: {0}")]
    Said(String),
    /// It ended, and did not say so.
    #[error("the answer ended without an end")]
    NoEnd,
    /// What came is no stream of events.
    #[error("no stream of events, as stream: true asks for")]
    NoStream,
    /// An event that is not JSON.
    #[error("an event that is no JSON")]
    Unreadable,
    /// More than anybody sends.
    #[error("a longer answer than is taken")]
    TooLong,
}

/// An answer that ended as it should.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::cli) struct TimedAnswer {
    /// From sending to the first piece: of text, or of a completion to its first token, whatever its text; to the end, where there was
    /// none.
    pub first: Duration,
    /// From sending to the end.
    pub whole: Duration,
    /// Between a piece and the next.
    pub gaps: Vec<Duration>,
    /// Tokens of the prompt, as the server says.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer, as the server says.
    pub answer_tokens: Option<u64>,
    /// What the server calls the request (`x-request-id`).
    pub request: Option<String>,
}

impl TimedAnswer {
    /// Tokens of the answer: what the server says, else the pieces that came.
    pub fn tokens(&self) -> u64 {
        let pieces = if self.gaps.is_empty() { u64::from(self.first < self.whole) } else { self.gaps.len() as u64 + 1 };
        self.answer_tokens.unwrap_or(pieces)
    }

    /// Time per token after the first, until the end: the last ones may have no text. `None` of fewer than two.
    pub fn per_token(&self) -> Option<Duration> {
        let steps = self.tokens().checked_sub(1).filter(|steps| *steps > 0)?;
        Some(self.whole.saturating_sub(self.first).div_f64(steps as f64))
    }
}

/// Reads a stream of events, as it comes.
#[derive(Debug, Default)]
pub(in crate::cli) struct EventReader {
    line: Vec<u8>,
    answer: TimedAnswer,
    /// When the last piece of text came.
    last: Option<Duration>,
    has_events: bool,
    has_end: bool,
}

impl EventReader {
    /// Takes what came at this time after sending.
    pub fn take(&mut self, bytes: &[u8], at: Duration) -> Result<(), Failure> {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            if self.line.len() + part.len() > LINE_BYTES {
                return Err(Failure::TooLong);
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.whole_line(&String::from_utf8_lossy(&line), at)?;
            }
        }
        Ok(())
    }

    /// The answer, after the last byte.
    pub fn end(self) -> Result<TimedAnswer, Failure> {
        match (self.has_events, self.has_end) {
            (false, _) => Err(Failure::NoStream),
            (true, false) => Err(Failure::NoEnd),
            (true, true) => {
                let first = if self.last.is_some() { self.answer.first } else { self.answer.whole };
                Ok(TimedAnswer { first, ..self.answer })
            }
        }
    }

    fn whole_line(&mut self, line: &str, at: Duration) -> Result<(), Failure> {
        // Comments, which keep connections awake, and names of events say nothing of interest.
        let Some(data) = line.trim_end().strip_prefix("data:").map(str::trim_start) else { return Ok(()) };
        self.has_events = true;
        if data == "[DONE]" {
            self.has_end = true;
            return Ok(());
        }
        let event: Value = serde_json::from_str(data).map_err(|_| Failure::Unreadable)?;
        if let Some(why) = reason(&event) {
            return Err(Failure::Said(why));
        }
        self.event(&event, at)
    }

    fn event(&mut self, event: &Value, at: Duration) -> Result<(), Failure> {
        let usage = &event["usage"];
        self.answer.prompt_tokens = usage["prompt_tokens"].as_u64().or(self.answer.prompt_tokens);
        self.answer.answer_tokens = usage["completion_tokens"].as_u64().or(self.answer.answer_tokens);
        for choice in event["choices"].as_array().into_iter().flatten() {
            self.answer.whole = at;
            self.has_end |= choice["finish_reason"].is_string();
            if says_something(choice) {
                self.piece(at)?;
            }
        }
        Ok(())
    }

    fn piece(&mut self, at: Duration) -> Result<(), Failure> {
        match self.last.replace(at) {
            None => self.answer.first = at,
            Some(_) if self.answer.gaps.len() >= PIECES => return Err(Failure::TooLong),
            Some(last) => self.answer.gaps.push(at.saturating_sub(last)),
        }
        Ok(())
    }
}

/// Whether a choice of an event has text of any kind, or is a completion's token that has none: part of a letter, or no letter at all.
/// The first event of a chat may only say who speaks, and the last one of an answer only that it ends.
fn says_something(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
    let is_some = |text: &Value| text.as_str().is_some_and(|t| !t.is_empty());
    let is_token = choice["text"].is_string() && !choice["finish_reason"].is_string();
    is_token || texts.into_iter().any(is_some) || delta["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

/// Why a server refuses, in the forms that servers have for it.
pub(in crate::cli) fn reason(body: &Value) -> Option<String> {
    let error = body.get("error").filter(|e| !e.is_null());
    let texts = [error.map(|e| &e["message"]), error, body.get("detail"), body.get("message")];
    let said = texts.into_iter().flatten().find_map(Value::as_str).map(str::to_owned);
    let said = said.or_else(|| error.map(Value::to_string))?;
    Some(said.chars().take(SAID).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn read(chunks: &[(&str, u32)]) -> Result<TimedAnswer, Failure> {
        let mut reader = EventReader::default();
        for (text, at) in chunks {
            reader.take(text.as_bytes(), *at * MS)?;
        }
        reader.end()
    }

    #[test]
    fn pieces_are_timed_and_tokens_are_the_servers() {
        let completions = [
            (": awake\n\ndata: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\nda", 20),
            ("ta: {\"choices\":[{\"text\":\"bc\"}]}\r\n\r\n", 30),
            ("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n", 35),
            ("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n", 36),
        ];
        let answer = read(&completions).unwrap();
        let expected = TimedAnswer {
            first: 20 * MS,
            whole: 35 * MS,
            gaps: vec![10 * MS],
            prompt_tokens: Some(9),
            answer_tokens: Some(3),
            request: None,
        };
        assert_eq!((answer.tokens(), answer.per_token()), (3, Some(15 * MS / 2)));
        assert_eq!(answer, expected);
        // The first chunk of a chat says who speaks, and is no token; a server may leave out what it counted, or the last line.
        let chat = [
            ("data:{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", 1),
            ("data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}\n\n", 8),
            ("data:{\"choices\":[{\"delta\":{\"content\":\"y\"},\"finish_reason\":\"stop\"}]}\n\n", 12),
        ];
        let answer = read(&chat).unwrap();
        assert_eq!((answer.first, answer.tokens(), answer.per_token()), (8 * MS, 2, Some(4 * MS)));
    }

    /// A token that is half of a letter, or none, has an event without text where it is the first.
    #[test]
    fn the_first_token_of_a_completion_counts_whatever_its_text() {
        let answer = read(&[
            ("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\n\n", 20),
            ("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n", 50),
            ("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n", 60),
            ("data: {\"choices\":[],\"usage\":{\"completion_tokens\":5}}\n\n", 61),
        ]);
        let answer = answer.unwrap();
        assert_eq!((answer.first, answer.whole, answer.per_token()), (20 * MS, 60 * MS, Some(10 * MS)));
    }

    #[test]
    fn an_answer_without_a_word_has_the_time_of_its_end() {
        let answer = read(&[("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n", 7)]).unwrap();
        assert_eq!((answer.first, answer.whole, answer.tokens(), answer.per_token()), (7 * MS, 7 * MS, 0, None));
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_said() {
        let piece = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        let wrong = |chunks: &[(&str, u32)]| read(chunks).unwrap_err();
        assert_eq!(wrong(&[]), Failure::NoStream);
        assert_eq!(wrong(&[("<html>", 1)]), Failure::NoStream);
        assert_eq!(wrong(&[("{\"choices\":[{\"text\":\"a\"}]}", 1)]), Failure::NoStream, "a whole answer");
        assert_eq!(wrong(&[(piece, 1)]), Failure::NoEnd);
        assert_eq!(wrong(&[(piece, 1), ("data: {oops\n\n", 2)]), Failure::Unreadable);
        assert_eq!(wrong(&[("data: {\"error\":{\"message\":\"no room\"}}\n\n", 2)]), Failure::Said("no room".into()));
        assert_eq!(wrong(&[(&"x".repeat(LINE_BYTES + 1), 1)]), Failure::TooLong);
        assert_eq!(wrong(&[("data: 1\n", 1)]), Failure::NoEnd);
    }

    #[test]
    fn reasons_are_found_where_servers_put_them() {
        for (body, said) in [
            (r#"{"error":{"message":"a","code":400}}"#, Some("a")),
            (r#"{"error":"b"}"#, Some("b")),
            (r#"{"detail":"c"}"#, Some("c")),
            (r#"{"object":"error","message":"d"}"#, Some("d")),
            (r#"{"error":{"code":5}}"#, Some(r#"{"code":5}"#)),
            (r#"{"error":null}"#, None),
            ("[]", None),
        ] {
            assert_eq!(reason(&serde_json::from_str(body).unwrap()).as_deref(), said, "{body}");
        }
    }
}
