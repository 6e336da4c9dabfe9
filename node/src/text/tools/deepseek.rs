//! DeepSeek: calls between special tokens. V3 and R1 write `function`, a separator, the name in a line and the arguments in a
//! fenced block; V3.1 the name, the separator and the arguments.

use super::{
    Markers, Said, ToolParser,
    call::{CallScanner, Step},
    found::Found,
};

pub(super) const BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const END: &str = "<｜tool▁calls▁end｜>";
pub(super) const MARKS: &[&str] = &[BEGIN, CALL, SEPARATOR, CALL_END, END];
/// The longest head of a call (bytes).
const HEAD: usize = 256;

enum State {
    /// Outside of calls, or between them.
    Outside(Markers),
    /// Behind the mark of a call, with all that came since.
    Head(String),
    Within(CallScanner, String),
    /// What closes a call: its mark, perhaps behind a fence.
    Behind(String),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[BEGIN, CALL, END]))
    }
}

pub(super) struct DeepSeek {
    state: State,
    found: Found,
}

impl Default for DeepSeek {
    fn default() -> Self {
        Self { state: State::outside(), found: Found::default() }
    }
}

/// The name in a head that ends with the brace of the arguments.
fn name(head: &str) -> Option<String> {
    let (before, behind) = head.strip_suffix('{')?.split_once(SEPARATOR)?;
    let name = match behind.trim() {
        "" | "```json" => before,
        _ => behind.trim_start().lines().next()?,
    };
    let name = name.trim();
    (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| name.to_owned())
}

impl DeepSeek {
    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(marks) => {
                let (passed, mark) = marks.push(letter);
                self.found.content(&passed);
                if mark == Some(CALL) {
                    self.state = State::Head(String::new());
                }
            }
            State::Head(said) => {
                said.push(letter);
                if letter != '{' && said.len() < HEAD {
                    return;
                }
                let said = std::mem::take(said);
                match name(&said) {
                    Some(name) => {
                        let mut call = CallScanner::arguments_of(name);
                        call.push('{', None, &mut self.found);
                        self.state = State::Within(call, format!("{CALL}{said}"));
                    }
                    None => {
                        self.state = State::outside();
                        self.found.content(&format!("{CALL}{said}"));
                    }
                }
            }
            State::Within(call, raw) => {
                raw.push(letter);
                match call.push(letter, None, &mut self.found) {
                    Step::More => {}
                    Step::End => self.state = State::Behind(String::new()),
                    Step::Broken => {
                        self.state = State::Behind(String::new());
                        self.letter(letter);
                    }
                    Step::NotCall => {
                        self.found.content(raw);
                        self.state = State::outside();
                    }
                }
            }
            State::Behind(held) => {
                held.push(letter);
                let said = held.trim_start();
                let behind_fence = said.strip_prefix("```").unwrap_or(said).trim_start();
                if behind_fence == CALL_END {
                    self.state = State::outside();
                } else if !CALL_END.starts_with(behind_fence) && !"```".starts_with(said) {
                    let held = std::mem::take(held);
                    self.state = State::outside();
                    held.chars().for_each(|letter| self.letter(letter));
                }
            }
        }
    }
}

impl ToolParser for DeepSeek {
    fn push(&mut self, text: &str) -> Vec<Said> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<Said> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut marks) => self.found.content(&marks.finish()),
            State::Head(said) => self.found.content(&format!("{CALL}{said}")),
            State::Within(call, raw) if !call.is_begun() => self.found.content(&raw),
            // Of what closes a call some was to come.
            State::Within(..) | State::Behind(_) => {}
        }
        self.found.finish()
    }
}
