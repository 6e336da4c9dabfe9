//! Gemma 4: `<|tool_call>call:NAME{key:value,…}<tool_call|>`, one call straight behind the other.

mod arguments;

use super::{
    AnswerPart, Markers, ToolParser,
    body::{Close, Rest},
    found::FoundPieces,
};
use arguments::Arguments;

pub(super) const OPEN: &str = "<|tool_call>";
pub(super) const CALL: &str = "call:";
pub(super) const CLOSE: &str = "<tool_call|>";
pub(super) const MARKS: &[&str] = &[OPEN, CLOSE, arguments::QUOTE];
/// The longest name (bytes).
const NAME: usize = 256;

const END: Close = Close { mark: CLOSE, fence: "" };

enum State {
    Outside(Markers),
    /// Behind the mark of a call, with all that came since.
    Head(String),
    Within(Arguments),
    /// Behind a call's arguments, with what came since.
    Behind(String),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[OPEN]))
    }
}

pub(super) struct Gemma4 {
    state: State,
    found: FoundPieces,
}

impl Default for Gemma4 {
    fn default() -> Self {
        Self { state: State::outside(), found: FoundPieces::default() }
    }
}

/// The name in a head that ends with the brace of the arguments.
fn name(head: &str) -> Option<&str> {
    head.strip_prefix(CALL)?.strip_suffix('{').filter(|name| !name.is_empty())
}

/// Whether a head may go on with a name.
fn is_begun(head: &str) -> bool {
    let is_none = |letter: char| letter.is_whitespace() || "<>{}\"".contains(letter);
    CALL.starts_with(head) || head.strip_prefix(CALL).is_some_and(|name| name.len() <= NAME && !name.contains(is_none))
}

impl Gemma4 {
    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(open) => {
                let (passed, mark) = open.push(letter);
                self.found.content(&passed);
                if mark.is_some() {
                    self.state = State::Head(String::new());
                }
            }
            State::Head(head) => {
                head.push(letter);
                if let Some(name) = name(head) {
                    self.found.begin(name);
                    self.state = State::Within(Arguments::begin(&mut self.found));
                } else if !is_begun(head) {
                    let head = std::mem::take(head);
                    self.state = State::outside();
                    self.found.content(OPEN);
                    self.letters(&head);
                }
            }
            State::Within(arguments) => match arguments.push(letter, &mut self.found) {
                Rest::More => {}
                Rest::Closed => self.state = State::Behind(String::new()),
                Rest::Before(text) => {
                    self.state = State::Behind(String::new());
                    self.letters(&text);
                }
            },
            State::Behind(held) => match END.behind(held, letter) {
                Rest::More => {}
                Rest::Closed => self.state = State::outside(),
                Rest::Before(text) => {
                    self.state = State::outside();
                    self.letters(&text);
                }
            },
        }
    }

    fn letters(&mut self, text: &str) {
        text.chars().for_each(|letter| self.letter(letter));
    }
}

impl ToolParser for Gemma4 {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.letters(text);
        self.found.take()
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut open) => self.found.content(&open.finish()),
            State::Head(head) => self.found.content(&format!("{OPEN}{head}")),
            State::Within(arguments) => arguments.finish(&mut self.found),
            // Of what closes the call some may have been to come.
            State::Behind(_) => {}
        }
        self.found.finish()
    }
}
