//! DeepSeek: calls between special tokens. V3 and R1 write `function`, a separator, the name in a line and the arguments in a
//! fenced block; V3.1 the name, the separator and the arguments.

use super::{
    AnswerPart, Markers, ToolParser,
    body::{Body, Close, Rest},
    call::CallScanner,
    found::FoundPieces,
};

pub(super) const BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const END: &str = "<｜tool▁calls▁end｜>";
pub(super) const MARKS: &[&str] = &[BEGIN, CALL, SEPARATOR, CALL_END, END];
/// The longest head of a call (bytes).
const HEAD: usize = 256;

const CLOSE: Close = Close { mark: CALL_END, fence: "```" };

enum State {
    /// Outside of calls, or between them.
    Outside(Markers),
    /// Behind the mark of a call, with all that came since.
    Head(String),
    Within(Body),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[BEGIN, CALL, END]))
    }
}

pub(super) struct DeepSeek {
    state: State,
    found: FoundPieces,
}

impl Default for DeepSeek {
    fn default() -> Self {
        Self { state: State::outside(), found: FoundPieces::default() }
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
                        self.state = State::Within(Body::new(call, format!("{CALL}{said}"), CLOSE));
                    }
                    None => {
                        self.state = State::outside();
                        self.found.content(&format!("{CALL}{said}"));
                    }
                }
            }
            State::Within(body) => match body.push(letter, &mut self.found) {
                Rest::More => {}
                Rest::Closed => self.state = State::outside(),
                Rest::Before(text) => {
                    self.state = State::outside();
                    text.chars().for_each(|letter| self.letter(letter));
                }
            },
        }
    }
}

impl ToolParser for DeepSeek {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut marks) => self.found.content(&marks.finish()),
            State::Head(said) => self.found.content(&format!("{CALL}{said}")),
            State::Within(body) => body.finish(&mut self.found),
        }
        self.found.finish()
    }
}
