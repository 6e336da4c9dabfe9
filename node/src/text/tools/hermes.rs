//! Hermes, Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as often as there are calls.

use super::{
    AnswerPart, Markers, ToolParser,
    body::{Body, Close, Rest},
    call::CallScanner,
    found::FoundPieces,
};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const MARKS: &[&str] = &[OPEN, CLOSE];

pub(super) const END: Close = Close { mark: CLOSE, fence: "" };

enum State {
    Outside(Markers),
    Within(Body),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[OPEN]))
    }
}

pub(super) struct Hermes {
    state: State,
    found: FoundPieces,
}

impl Default for Hermes {
    fn default() -> Self {
        Self { state: State::outside(), found: FoundPieces::default() }
    }
}

impl Hermes {
    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(open) => {
                let (passed, mark) = open.push(letter);
                self.found.content(&passed);
                if let Some(mark) = mark {
                    self.state = State::Within(Body::new(CallScanner::new(), mark.to_owned(), END));
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

impl ToolParser for Hermes {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut open) => self.found.content(&open.finish()),
            State::Within(body) => body.finish(&mut self.found),
        }
        self.found.finish()
    }
}
