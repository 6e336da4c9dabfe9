//! Hermes, Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as often as there are calls.

use super::{
    Markers, Said, ToolParser,
    call::{CallScanner, Step},
    found::Found,
};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const MARKS: &[&str] = &[OPEN, CLOSE];

enum State {
    Outside(Markers),
    /// With all that came since the mark.
    Within(CallScanner, String),
    /// What may be the closing mark, with white space before it.
    Behind(String),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[OPEN]))
    }
}

pub(super) struct Hermes {
    state: State,
    found: Found,
}

impl Default for Hermes {
    fn default() -> Self {
        Self { state: State::outside(), found: Found::default() }
    }
}

impl Hermes {
    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(open) => {
                let (passed, mark) = open.push(letter);
                self.found.content(&passed);
                if let Some(mark) = mark {
                    self.state = State::Within(CallScanner::new(), mark.to_owned());
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
                        raw.pop();
                        self.found.content(raw);
                        self.state = State::outside();
                        self.letter(letter);
                    }
                }
            }
            State::Behind(held) => {
                held.push(letter);
                let said = held.trim_start();
                if said == CLOSE {
                    self.state = State::outside();
                } else if !CLOSE.starts_with(said) {
                    let held = std::mem::take(held);
                    self.state = State::outside();
                    held.chars().for_each(|letter| self.letter(letter));
                }
            }
        }
    }
}

impl ToolParser for Hermes {
    fn push(&mut self, text: &str) -> Vec<Said> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<Said> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut open) => self.found.content(&open.finish()),
            State::Within(call, raw) if !call.is_begun() => self.found.content(&raw),
            // Of what closes a call some was to come.
            State::Within(..) | State::Behind(_) => {}
        }
        self.found.finish()
    }
}
