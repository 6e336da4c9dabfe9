//! Calls with no mark around them: an answer that is nothing but `{"name": …, "arguments": {…}}`, or several of them. Only
//! names of the request's tools make a call of it.

use super::{
    AnswerPart, ToolParser,
    call::{CallProgress, CallScanner},
    found::FoundPieces,
};

pub(super) const PYTHON: &str = "<|python_tag|>";
/// What Llama calls arguments.
pub(super) const PARAMETERS: &str = "parameters";
pub(super) const MARKS: &[&str] = &[PYTHON];

/// What may stand before calls, between and behind them, beside white space.
#[derive(Clone, Copy)]
struct CallDelimiters {
    before: &'static [&'static str],
    between: &'static [&'static str],
}

const LLAMA: CallDelimiters = CallDelimiters { before: &[PYTHON], between: &[";", ",", PYTHON] };
const JSON: CallDelimiters = CallDelimiters { before: &["```json", "```", "["], between: &[",", ";", "]", "```"] };

enum State {
    /// With all that came since the last call.
    Before(String),
    Within(CallScanner, String),
    /// There are no more calls.
    Content,
}

pub(super) struct Bare {
    state: State,
    around: CallDelimiters,
    names: Vec<String>,
    calls: usize,
    found: FoundPieces,
}

impl Bare {
    pub fn llama(names: Vec<String>) -> Self {
        Self::new(LLAMA, names)
    }

    pub fn json(names: Vec<String>) -> Self {
        Self::new(JSON, names)
    }

    fn new(around: CallDelimiters, names: Vec<String>) -> Self {
        Self { state: State::Before(String::new()), around, names, calls: 0, found: FoundPieces::default() }
    }

    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Content => self.found.content(letter.encode_utf8(&mut [0; 4])),
            State::Before(held) => {
                held.push(letter);
                let around = if self.calls == 0 { self.around.before } else { self.around.between };
                let rest = without(held, around);
                if rest == "{" {
                    let raw = std::mem::take(held);
                    let mut call = CallScanner::new();
                    call.push('{', None, &mut self.found);
                    self.state = State::Within(call, raw);
                } else if !(rest.is_empty() || around.iter().any(|text| text.starts_with(rest))) {
                    self.found.content(held);
                    self.state = State::Content;
                }
            }
            State::Within(call, raw) => {
                raw.push(letter);
                match call.push(letter, Some(&self.names), &mut self.found) {
                    CallProgress::More => {}
                    CallProgress::End | CallProgress::Broken => {
                        self.calls += 1;
                        self.state = State::Before(String::new());
                    }
                    CallProgress::NotCall => {
                        self.found.content(raw);
                        self.state = State::Content;
                    }
                }
            }
        }
    }
}

/// What is left of a text after any of these and white space; what may become a longer one of them stays.
fn without<'t>(text: &'t str, around: &[&str]) -> &'t str {
    let mut rest = text.trim_start();
    while !around.iter().any(|text| text.len() > rest.len() && text.starts_with(rest)) {
        let Some(shorter) = around.iter().find_map(|text| rest.strip_prefix(text)) else { break };
        rest = shorter.trim_start();
    }
    rest
}

impl ToolParser for Bare {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::Content) {
            // Brackets behind calls are no content.
            State::Before(held) if self.calls == 0 || !without(&held, self.around.between).is_empty() => {
                self.found.content(&held);
            }
            // Behind calls it is the beginning of another, cut off.
            State::Within(call, raw) if !call.is_begun() && self.calls == 0 => self.found.content(&raw),
            _ => {}
        }
        self.found.finish()
    }
}
