//! A call's arguments in Gemma 4's notation, letter by letter, as JSON: keys are bare, or between the marks that stand around
//! texts; numbers, truths, lists and objects are as in JSON. JSON's own keys and texts are read too.

use super::super::{Markers, body::Rest, found::FoundPieces};
use serde_json::{Number, Value};

/// Stands before and behind a text.
pub(super) const QUOTE: &str = "<|\"|>";
/// The longest key with its marks (bytes).
const KEY: usize = 1024;

enum State {
    /// Before a key or in it, with what came of it.
    Key(String),
    /// Before a value.
    Value,
    /// In the mark before a text, with what came of it.
    Quote(String),
    Text(Markers),
    /// In a text as JSON has it.
    JsonText {
        is_escaped: bool,
    },
    /// In a number or a word, with what came of it.
    Bare(String),
    /// Behind a value.
    Behind,
}

/// A list or an object.
struct Nesting {
    end: char,
    is_empty: bool,
}

/// Reads them from the brace that opens them; what is written of them as JSON is passed on as it comes.
pub(super) struct Arguments {
    place: State,
    /// What the place is in, the outermost first.
    levels: Vec<Nesting>,
}

impl Arguments {
    /// Behind their brace.
    pub fn begin(found: &mut FoundPieces) -> Self {
        let mut arguments = Self { place: State::Behind, levels: Vec::new() };
        arguments.open("{", '}', State::Key(String::new()), found);
        arguments
    }

    pub fn push(&mut self, letter: char, found: &mut FoundPieces) -> Rest {
        let is_space = letter.is_whitespace();
        match &mut self.place {
            State::Value | State::Behind if is_space => Rest::More,
            State::Key(key) if is_space && key.is_empty() => Rest::More,
            State::Key(_) => self.key(letter, found),
            State::Value => self.value(letter, found),
            State::Behind => self.behind(letter, found),
            State::Quote(mark) => {
                mark.push(letter);
                if mark.as_str() == QUOTE {
                    found.arguments("\"");
                    self.place = State::Text(Markers::new(&[QUOTE]));
                } else if !QUOTE.starts_with(mark.as_str()) {
                    return Rest::Before(std::mem::take(mark));
                }
                Rest::More
            }
            State::Text(end) => {
                let (passed, mark) = end.push(letter);
                found.within_text(&passed);
                if mark.is_some() {
                    found.arguments("\"");
                    self.place = State::Behind;
                }
                Rest::More
            }
            State::JsonText { is_escaped } => {
                if letter.is_ascii_control() {
                    // As it stands in the family's own texts; JSON has it escaped only.
                    found.within_text(letter.encode_utf8(&mut [0; 4]));
                } else {
                    found.arguments(letter.encode_utf8(&mut [0; 4]));
                }
                match letter {
                    _ if *is_escaped => *is_escaped = false,
                    '\\' => *is_escaped = true,
                    '"' => self.place = State::Behind,
                    _ => {}
                }
                Rest::More
            }
            State::Bare(said) => {
                if !",}]<".contains(letter) {
                    said.push(letter);
                    return Rest::More;
                }
                found.arguments(&bare(said.trim_end()));
                self.place = State::Behind;
                self.behind(letter, found)
            }
        }
    }

    /// Nothing follows: what could have been the mark behind a text is of the text.
    pub fn finish(self, found: &mut FoundPieces) {
        if let State::Text(mut end) = self.place {
            found.within_text(&end.finish());
        }
    }

    fn key(&mut self, letter: char, found: &mut FoundPieces) -> Rest {
        let State::Key(said) = &mut self.place else { return Rest::Before(letter.to_string()) };
        if letter == '}' && said.is_empty() {
            return self.close(letter, found);
        }
        if letter == ':'
            && let Some(key) = key(said)
        {
            let comma = self.comma();
            found.arguments(&format!("{comma}{}: ", Value::from(key)));
            self.place = State::Value;
            return Rest::More;
        }
        said.push(letter);
        let is_marked = said.starts_with('"') || said.starts_with(QUOTE) || QUOTE.starts_with(said.as_str());
        // Another mark, as that behind the call, is no key.
        let is_bare = !said.starts_with('<') && !"{}[]<,:".contains(letter);
        if (is_marked || is_bare) && said.len() <= KEY { Rest::More } else { Rest::Before(std::mem::take(said)) }
    }

    fn value(&mut self, letter: char, found: &mut FoundPieces) -> Rest {
        let is_list = self.is_list();
        match letter {
            ']' if is_list => return self.close(letter, found),
            ',' | ':' | '}' | ']' => return Rest::Before(letter.to_string()),
            _ if is_list => found.arguments(self.comma()),
            _ => {}
        }
        match letter {
            '{' => self.open("{", '}', State::Key(String::new()), found),
            '[' => self.open("[", ']', State::Value, found),
            '<' => self.place = State::Quote(letter.to_string()),
            '"' => {
                found.arguments("\"");
                self.place = State::JsonText { is_escaped: false };
            }
            _ => self.place = State::Bare(letter.to_string()),
        }
        Rest::More
    }

    fn behind(&mut self, letter: char, found: &mut FoundPieces) -> Rest {
        if letter != ',' {
            return self.close(letter, found);
        }
        self.place = if self.is_list() { State::Value } else { State::Key(String::new()) };
        Rest::More
    }

    fn open(&mut self, begin: &str, end: char, place: State, found: &mut FoundPieces) {
        found.arguments(begin);
        self.levels.push(Nesting { end, is_empty: true });
        self.place = place;
    }

    fn close(&mut self, letter: char, found: &mut FoundPieces) -> Rest {
        if self.levels.last().is_none_or(|level| level.end != letter) {
            return Rest::Before(letter.to_string());
        }
        self.levels.pop();
        found.arguments(letter.encode_utf8(&mut [0; 4]));
        self.place = State::Behind;
        if self.levels.is_empty() { Rest::Closed } else { Rest::More }
    }

    fn is_list(&self) -> bool {
        self.levels.last().is_some_and(|level| level.end == ']')
    }

    /// What stands before the next of a list or an object.
    fn comma(&mut self) -> &'static str {
        let is_first = self.levels.last_mut().is_none_or(|level| std::mem::take(&mut level.is_empty));
        if is_first { "" } else { ", " }
    }
}

/// The key that stands before a colon, if that is no letter of it.
fn key(said: &str) -> Option<String> {
    let said = said.trim_end();
    if said.starts_with('"') {
        return serde_json::from_str(said).ok();
    }
    match said.strip_prefix(QUOTE) {
        Some(marked) => marked.strip_suffix(QUOTE).map(str::to_owned),
        None => (!said.is_empty() && !said.starts_with('<')).then(|| said.to_owned()),
    }
}

/// The JSON of a value without marks. As vLLM reads it, what is no number, no truth and not nothing is a text.
fn bare(said: &str) -> String {
    let is_nothing = ["null", "none", "nil"].iter().any(|nothing| said.eq_ignore_ascii_case(nothing));
    match said {
        _ if is_nothing => "null".to_owned(),
        "true" | "false" => said.to_owned(),
        _ if serde_json::from_str::<Number>(said).is_ok() => said.to_owned(),
        _ => Value::from(said).to_string(),
    }
}
