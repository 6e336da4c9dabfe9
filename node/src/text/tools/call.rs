//! One call as a JSON object, letter by letter: `{"name": …, "arguments": {…}}`.

use super::found::FoundPieces;

/// How far a call is after a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallProgress {
    /// More must come.
    More,
    /// It is whole.
    End,
    /// It had begun, and this letter is no part of it.
    Broken,
    /// It is no call; nothing of it was passed on.
    NotCall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallField {
    Name,
    Arguments,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Key,
    InKey,
    Colon(CallField),
    Value(CallField),
    Within(CallField),
    Behind,
}

/// Reads one call. Its arguments are passed on as they come once its name is known.
#[derive(Debug)]
pub(super) struct CallScanner {
    state: State,
    span: Span,
    /// The key or value that is read.
    text: String,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    is_begun: bool,
    /// There is nothing around its arguments.
    is_bare: bool,
}

impl CallScanner {
    /// From the brace that opens it.
    pub fn new() -> Self {
        let (state, span, text) = (State::Open, Span::default(), String::new());
        Self { state, span, text, name: None, early: None, is_begun: false, is_bare: false }
    }

    /// Of a tool whose name stands elsewhere: from the brace that opens its arguments.
    pub fn arguments_of(name: String) -> Self {
        Self { state: State::Value(CallField::Arguments), name: Some(name), is_bare: true, ..Self::new() }
    }

    /// Whether anything of it was passed on.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Takes a letter in; `names` are those that a tool may have, if that matters.
    pub fn push(&mut self, letter: char, names: Option<&[String]>, found: &mut FoundPieces) -> CallProgress {
        let step = self.step(letter, names, found);
        // What was passed on cannot be taken back.
        if step == CallProgress::NotCall && self.is_begun { CallProgress::Broken } else { step }
    }

    fn step(&mut self, letter: char, names: Option<&[String]>, found: &mut FoundPieces) -> CallProgress {
        let is_space = letter.is_whitespace();
        match (self.state, letter) {
            (State::Open | State::Key | State::Colon(_) | State::Value(_) | State::Behind, _) if is_space => {}
            (State::Open, '{') => self.state = State::Key,
            (State::Key, '"') => self.value(State::InKey, letter),
            (State::Key | State::Behind, '}') => return self.close(found),
            (State::InKey, _) => {
                self.text.push(letter);
                if self.span.push(letter) == ValueReach::Whole {
                    let Some(key) = self.string() else { return CallProgress::NotCall };
                    self.state = State::Colon(self.field(&key));
                }
            }
            (State::Colon(field), ':') => self.state = State::Value(field),
            (State::Value(field), _) => return self.begin_value(field, letter, found),
            (State::Within(field), _) => return self.within(field, letter, names, found),
            (State::Behind, ',') => self.state = State::Key,
            _ => return CallProgress::NotCall,
        }
        CallProgress::More
    }

    fn value(&mut self, state: State, first: char) {
        (self.state, self.span) = (state, Span::default());
        self.text.clear();
        self.text.push(first);
        self.span.push(first);
    }

    /// What a second time says nothing new.
    fn field(&self, key: &str) -> CallField {
        match key {
            "name" if self.name.is_none() => CallField::Name,
            "arguments" | "parameters" if !self.is_begun && self.early.is_none() => CallField::Arguments,
            _ => CallField::Other,
        }
    }

    fn begin_value(&mut self, field: CallField, first: char, found: &mut FoundPieces) -> CallProgress {
        let fits = match field {
            CallField::Name => first == '"',
            CallField::Arguments => matches!(first, '{' | '"' | 'n'),
            CallField::Other => !matches!(first, ',' | '}' | ']' | ':'),
        };
        if !fits {
            return CallProgress::NotCall;
        }
        self.value(State::Within(field), first);
        if field == CallField::Arguments && first == '{' && self.name.is_some() {
            self.begin(found);
            found.arguments("{");
        }
        CallProgress::More
    }

    fn within(
        &mut self,
        field: CallField,
        letter: char,
        names: Option<&[String]>,
        found: &mut FoundPieces,
    ) -> CallProgress {
        let reach = self.span.push(letter);
        if reach == ValueReach::Never {
            return CallProgress::NotCall;
        }
        let streams = field == CallField::Arguments && self.is_begun;
        if reach != ValueReach::Beyond {
            match streams {
                true => found.arguments(letter.encode_utf8(&mut [0; 4])),
                false => self.text.push(letter),
            }
        }
        if reach == ValueReach::Within {
            return CallProgress::More;
        }
        if !self.end_value(field, names, found) {
            return CallProgress::NotCall;
        }
        self.state = State::Behind;
        match reach {
            _ if self.is_bare => CallProgress::End,
            ValueReach::Beyond => self.step(letter, names, found),
            _ => CallProgress::More,
        }
    }

    /// Whether a value is one that may stand there.
    fn end_value(&mut self, field: CallField, names: Option<&[String]>, found: &mut FoundPieces) -> bool {
        match field {
            CallField::Other => true,
            CallField::Name => {
                let name = self.string().filter(|name| !name.is_empty());
                self.name = name.filter(|name| names.is_none_or(|names| names.contains(name)));
                self.name.is_some()
            }
            CallField::Arguments if self.is_begun => true,
            CallField::Arguments => {
                let arguments = match self.text.as_bytes().first() {
                    // Some write them as a text within the text.
                    Some(b'"') => self.string().filter(|text| text.trim_start().starts_with('{')),
                    Some(b'{') => Some(std::mem::take(&mut self.text)),
                    _ => (self.text == "null").then(|| "{}".to_owned()),
                };
                self.early = arguments;
                if self.early.is_some() && self.name.is_some() {
                    self.begin(found);
                }
                self.early.is_some() || self.is_begun
            }
        }
    }

    fn begin(&mut self, found: &mut FoundPieces) {
        if let Some(name) = &self.name {
            self.is_begun = true;
            found.begin(name);
            if let Some(early) = self.early.take() {
                found.arguments(&early);
            }
        }
    }

    fn close(&mut self, found: &mut FoundPieces) -> CallProgress {
        if !self.is_begun {
            if self.name.is_none() {
                return CallProgress::NotCall;
            }
            self.early.get_or_insert_with(|| "{}".to_owned());
            self.begin(found);
        }
        CallProgress::End
    }

    /// The text of a JSON string.
    fn string(&self) -> Option<String> {
        serde_json::from_str(&self.text).ok()
    }
}

/// How far a value reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueReach {
    /// Beyond this letter.
    Within,
    /// To this letter.
    Whole,
    /// It ended before this letter.
    Beyond,
    /// No value has this letter here.
    Never,
}

/// Where a JSON value ends.
#[derive(Debug, Default)]
struct Span {
    depth: usize,
    is_string: bool,
    is_escaped: bool,
    is_scalar: bool,
}

impl Span {
    fn push(&mut self, letter: char) -> ValueReach {
        if self.is_string {
            match letter {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' => self.is_escaped = true,
                '"' => {
                    self.is_string = false;
                    return if self.depth == 0 { ValueReach::Whole } else { ValueReach::Within };
                }
                _ => {}
            }
            return ValueReach::Within;
        }
        match letter {
            '"' if !self.is_scalar => self.is_string = true,
            '{' | '[' if !self.is_scalar => self.depth += 1,
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return ValueReach::Whole;
                }
            }
            ',' | '}' | ']' => return if self.depth == 0 { ValueReach::Beyond } else { ValueReach::Within },
            _ if self.depth == 0 && letter.is_whitespace() => return ValueReach::Beyond,
            _ if letter.is_ascii_alphanumeric() || "+-.:".contains(letter) || letter.is_whitespace() => {
                self.is_scalar = self.depth == 0;
            }
            _ => return ValueReach::Never,
        }
        ValueReach::Within
    }
}
