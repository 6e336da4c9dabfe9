//! A call between marks: what is in it, and what closes it.

use super::{
    call::{CallProgress, CallScanner},
    found::FoundPieces,
};

/// What closes a call: its mark, perhaps behind a fence, with white space before either.
#[derive(Clone, Copy, Debug)]
pub(super) struct Close {
    pub mark: &'static str,
    /// Empty where there is none.
    pub fence: &'static str,
}

impl Close {
    /// After one more letter behind a call: `held` is what came there.
    pub fn behind(self, held: &mut String, letter: char) -> Rest {
        if letter.is_whitespace() && held.ends_with(char::is_whitespace) {
            // However much of it comes, it is not looked through again.
            held.push(letter);
            return Rest::More;
        }
        held.push(letter);
        let said = held.trim_start();
        let behind_fence = said.strip_prefix(self.fence).unwrap_or(said).trim_start();
        if behind_fence == self.mark {
            Rest::Closed
        } else if self.mark.starts_with(behind_fence) || self.fence.starts_with(said) {
            Rest::More
        } else {
            Rest::Before(std::mem::take(held))
        }
    }
}

/// How far a call is after a letter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// More of it must come.
    More,
    /// It is closed.
    Closed,
    /// It ended before this text, which is to be read anew.
    Before(String),
}

enum State {
    /// With all that came since the mark that opened it.
    Within(CallScanner, String),
    /// What may be its end.
    Behind(String),
}

/// Reads a call from its first letter to its end.
pub(super) struct Body {
    state: State,
    close: Close,
}

impl Body {
    /// `raw` is what came of it: its mark, and what the scanner has read.
    pub fn new(call: CallScanner, raw: String, close: Close) -> Self {
        Self { state: State::Within(call, raw), close }
    }

    pub fn push(&mut self, letter: char, found: &mut FoundPieces) -> Rest {
        match &mut self.state {
            State::Behind(_) => self.behind(letter),
            State::Within(call, raw) => match call.push(letter, None, found) {
                CallProgress::More => {
                    raw.push(letter);
                    Rest::More
                }
                CallProgress::End => {
                    self.state = State::Behind(String::new());
                    Rest::More
                }
                CallProgress::Broken => {
                    self.state = State::Behind(String::new());
                    self.behind(letter)
                }
                CallProgress::NotCall => {
                    found.content(raw);
                    Rest::Before(letter.to_string())
                }
            },
        }
    }

    fn behind(&mut self, letter: char) -> Rest {
        let State::Behind(held) = &mut self.state else { return Rest::More };
        self.close.behind(held, letter)
    }

    /// Nothing follows: of what closes a call some may have been to come.
    pub fn finish(self, found: &mut FoundPieces) {
        if let State::Within(call, raw) = self.state
            && !call.is_begun()
        {
            found.content(&raw);
        }
    }
}
