//! Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`, with values as bare text.
//! Some leave `<tool_call>` out, or write JSON in it as Hermes does; both are read.

use super::{
    AnswerPart, Callable, Markers, ToolParser,
    body::{Body, Rest},
    call::CallScanner,
    found::FoundPieces,
    hermes,
    parameter::ParameterType,
};
use serde_json::Value;
use std::sync::Arc;

pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// The longest name (bytes).
const NAME: usize = 256;

enum State {
    /// Outside of functions; whether a call was opened, or just closed its function.
    Outside(Markers),
    /// Behind the mark of a call, with all that came since.
    Opened(String),
    /// In a function's name, with all that came of the call.
    Head {
        raw: String,
        name: String,
        is_marked: bool,
    },
    /// In a function, between parameters.
    Between(Markers),
    /// In a parameter's name.
    Key(String),
    Value(Parameter),
    /// JSON, as Hermes writes it.
    Json(Body),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[hermes::OPEN, FUNCTION]))
    }

    /// What closes the call of a function that is closed is no content.
    fn behind_function() -> Self {
        Self::Outside(Markers::new(&[hermes::CLOSE, hermes::OPEN, FUNCTION]))
    }

    fn between() -> Self {
        Self::Between(Markers::new(&[PARAMETER, FUNCTION_END, hermes::CLOSE]))
    }
}

/// The value of a parameter, as far as it has come.
struct Parameter {
    ends: Markers,
    kind: ParameterType,
    /// Said already, or to be left out: the second of one name.
    is_said: bool,
    /// All of it, or where it is passed on as it comes what may be the line's end before its mark.
    held: String,
    is_first: bool,
}

impl Parameter {
    fn new(kind: ParameterType, is_said: bool) -> Self {
        let ends = Markers::new(&[PARAMETER_END, PARAMETER, FUNCTION_END, hermes::CLOSE]);
        Self { ends, kind, is_said, held: String::new(), is_first: true }
    }

    /// Its next letters. A line's end behind the opening mark and one before the closing one are no part of it.
    fn push(&mut self, text: &str, found: &mut FoundPieces) {
        for letter in text.chars() {
            if std::mem::take(&mut self.is_first) && letter == '\n' {
                continue;
            }
            if self.is_said {
                continue;
            }
            if self.kind.is_plain_text() && !self.held.is_empty() {
                found.within_text(&std::mem::take(&mut self.held));
            }
            match letter {
                '\n' => self.held.push(letter),
                _ if !self.kind.is_plain_text() => self.held.push(letter),
                _ => found.within_text(letter.encode_utf8(&mut [0; 4])),
            }
        }
    }

    fn close(self, found: &mut FoundPieces) {
        if self.is_said {
            return;
        }
        match self.kind.is_plain_text() {
            true => found.arguments("\""),
            false => found.arguments(&self.kind.json(self.held.strip_suffix('\n').unwrap_or(&self.held))),
        }
    }
}

pub(super) struct Qwen3Coder {
    state: State,
    tools: Arc<[Callable]>,
    /// Which of the tools is called, if it is one, and its parameters so far.
    called: Option<usize>,
    keys: Vec<String>,
    /// Its function is closed, and the call may yet be.
    is_open: bool,
    found: FoundPieces,
}

impl Qwen3Coder {
    pub fn new(tools: Arc<[Callable]>) -> Self {
        Self {
            state: State::outside(),
            tools,
            called: None,
            keys: Vec::new(),
            is_open: false,
            found: FoundPieces::default(),
        }
    }

    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(marks) => {
                let (passed, mark) = marks.push(letter);
                self.is_open &= passed.trim().is_empty() && mark.is_none();
                self.found.content(&passed);
                match mark {
                    Some(hermes::OPEN) => self.state = State::Opened(String::new()),
                    Some(FUNCTION) => self.head(FUNCTION.to_owned(), false),
                    Some(_) => self.state = State::outside(),
                    None => {}
                }
            }
            State::Opened(held) => {
                held.push(letter);
                let said = held.trim_start();
                if said == "{" {
                    let raw = format!("{}{}", hermes::OPEN, &held[..held.len() - 1]);
                    let mut body = Body::new(CallScanner::new(), raw, hermes::END);
                    body.push(letter, &mut self.found);
                    self.state = State::Json(body);
                } else if said == FUNCTION {
                    let raw = format!("{}{held}", hermes::OPEN);
                    self.head(raw, true);
                } else if !FUNCTION.starts_with(said) {
                    let held = std::mem::take(held);
                    self.not_call(hermes::OPEN, &held);
                }
            }
            State::Head { raw, name, is_marked } => {
                if letter != '>' && !letter.is_whitespace() && letter != '<' && name.len() < NAME {
                    raw.push(letter);
                    name.push(letter);
                    return;
                }
                let called = self.tools.iter().position(|tool| tool.name == *name);
                if letter == '>' && !name.is_empty() && (called.is_some() || *is_marked) {
                    self.found.begin(name);
                    self.found.arguments("{");
                    self.called = called;
                    self.keys.clear();
                    self.state = State::between();
                } else {
                    let raw = std::mem::take(raw);
                    self.not_call(&raw, letter.encode_utf8(&mut [0; 4]));
                }
            }
            State::Between(marks) => match marks.push(letter).1 {
                Some(PARAMETER) => self.state = State::Key(String::new()),
                Some(mark) => self.end_function(mark),
                None => {}
            },
            State::Key(key) => match letter {
                '>' => {
                    let key = std::mem::take(key);
                    self.begin_value(key);
                }
                // Nothing that a schema calls a property.
                '\n' | '<' => self.state = State::between(),
                _ if key.len() < NAME => key.push(letter),
                _ => self.state = State::between(),
            },
            State::Value(value) => {
                let (passed, mark) = value.ends.push(letter);
                value.push(&passed, &mut self.found);
                if let Some(mark) = mark {
                    self.end_value(mark);
                }
            }
            State::Json(body) => match body.push(letter, &mut self.found) {
                Rest::More => {}
                Rest::Closed => self.state = State::outside(),
                Rest::Before(text) => {
                    self.state = State::outside();
                    text.chars().for_each(|letter| self.letter(letter));
                }
            },
        }
    }

    fn head(&mut self, raw: String, is_marked: bool) {
        self.state = State::Head { raw, name: String::new(), is_marked };
    }

    /// What was taken for the beginning of a call is content; what came behind it may begin one.
    fn not_call(&mut self, raw: &str, behind: &str) {
        self.found.content(raw);
        self.state = State::outside();
        behind.chars().for_each(|letter| self.letter(letter));
    }

    fn begin_value(&mut self, key: String) {
        let kind = self.called.map_or(ParameterType::TEXT, |at| self.tools[at].kind(&key));
        let is_said = self.keys.contains(&key);
        if !is_said {
            let comma = if self.keys.is_empty() { "" } else { ", " };
            let quote = if kind.is_plain_text() { "\"" } else { "" };
            self.found.arguments(&format!("{comma}{}: {quote}", Value::from(key.as_str())));
            self.keys.push(key);
        }
        self.state = State::Value(Parameter::new(kind, is_said));
    }

    fn end_value(&mut self, mark: &str) {
        if let State::Value(value) = std::mem::replace(&mut self.state, State::between()) {
            value.close(&mut self.found);
        }
        match mark {
            PARAMETER_END => {}
            // Its own mark was left out.
            PARAMETER => self.state = State::Key(String::new()),
            mark => self.end_function(mark),
        }
    }

    fn end_function(&mut self, mark: &str) {
        self.found.arguments("}");
        self.is_open = mark == FUNCTION_END;
        self.state = if self.is_open { State::behind_function() } else { State::outside() };
    }
}

impl ToolParser for Qwen3Coder {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut marks) => {
                let held = marks.finish();
                // Of what closes a call some may have been to come.
                if !(self.is_open && hermes::CLOSE.starts_with(&held)) {
                    self.found.content(&held);
                }
            }
            State::Opened(held) => self.found.content(&format!("{}{held}", hermes::OPEN)),
            State::Head { raw, .. } => self.found.content(&raw),
            State::Json(body) => body.finish(&mut self.found),
            // Cut off; what was held back is the beginning of a mark.
            State::Value(_) | State::Between(_) | State::Key(_) => {}
        }
        self.found.finish()
    }
}
