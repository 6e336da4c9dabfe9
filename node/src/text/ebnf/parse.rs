//! EBNF read: rules `name ::= …` of texts, letters in brackets, groups, choices and repetitions, with comments from `#` on.

use super::EbnfError;
use std::fmt::{self, Display, Formatter};

/// Groups within groups.
const DEPTH: usize = 64;
/// The most that a repetition may say.
const TIMES: u32 = 10_000;

/// A rule, and its place in the text.
pub(super) struct EbnfRule {
    pub name: String,
    pub place: usize,
    pub expr: EbnfExpr,
}

/// What a rule may say.
pub(super) enum EbnfExpr {
    Text(String),
    /// One letter of these.
    Letters(Letters),
    /// Another rule, with the place where it is named.
    Rule(String, usize),
    Sequence(Vec<EbnfExpr>),
    Choice(Vec<EbnfExpr>),
    Repeat(Box<EbnfExpr>, Repetition),
}

impl EbnfExpr {
    /// Looks at it and all within.
    pub fn each<'e>(&'e self, look: &mut impl FnMut(&'e Self)) {
        look(self);
        match self {
            Self::Sequence(parts) | Self::Choice(parts) => parts.iter().for_each(|part| part.each(look)),
            Self::Repeat(inner, _) => inner.each(look),
            Self::Text(_) | Self::Letters(_) | Self::Rule(..) => {}
        }
    }
}

/// Letters, or all others.
pub(super) struct Letters {
    ranges: Vec<(char, char)>,
    is_negated: bool,
}

impl Letters {
    pub fn contains(&self, letter: char) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter)) != self.is_negated
    }

    /// As a regular expression has it.
    pub fn regex(&self) -> String {
        let ranges: String = self.ranges.iter().map(|(first, last)| range(*first, *last)).collect();
        match (ranges.is_empty(), self.is_negated) {
            (true, _) => "(?s:.)".into(),
            (false, false) => format!("[{ranges}]"),
            (false, true) => format!("[^{ranges}]"),
        }
    }
}

/// How often.
#[derive(Clone, Copy)]
pub(super) struct Repetition {
    pub least: u32,
    pub most: Option<u32>,
}

impl Display for Repetition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.least, self.most) {
            (0, None) => f.write_str("*"),
            (1, None) => f.write_str("+"),
            (0, Some(1)) => f.write_str("?"),
            (least, None) => write!(f, "{{{least},}}"),
            (least, Some(most)) => write!(f, "{{{least},{most}}}"),
        }
    }
}

/// Whether a letter can be part of a rule's name.
pub(super) fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "_-.".contains(letter)
}

/// All rules of a text.
pub(super) fn parse(text: &str) -> Result<Vec<EbnfRule>, EbnfError> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let mut rules: Vec<EbnfRule> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    reader.spaces();
    while reader.peek().is_some() {
        let place = reader.at;
        let name = reader.name();
        reader.spaces();
        if name.is_empty() || !reader.eat("::=") {
            return Err(EbnfError::at(text, place, "a rule begins as 'name ::='"));
        }
        if !seen.insert(name.clone()) {
            return Err(EbnfError::at(text, place, format!("there are two rules '{name}'")));
        }
        let expr = reader.choice()?;
        rules.push(EbnfRule { name, place, expr });
    }
    Ok(rules)
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.at += letter.len_utf8();
        Some(letter)
    }

    fn eat(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    fn wrong<T>(&self, why: impl Into<String>) -> Result<T, EbnfError> {
        Err(EbnfError::at(self.text, self.at, why))
    }

    /// White space and comments.
    fn spaces(&mut self) {
        while let Some(letter) = self.peek() {
            match letter {
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                _ if letter.is_whitespace() => self.at += letter.len_utf8(),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> String {
        let end = self.rest().find(|letter| !is_name(letter)).unwrap_or(self.rest().len());
        let name = self.rest()[..end].to_owned();
        self.at += end;
        name
    }

    /// Whether the next rule begins here.
    fn is_rule(&self) -> bool {
        let rest = self.rest().trim_start_matches(is_name);
        rest.len() < self.rest().len() && rest.trim_start().starts_with("::=")
    }

    fn choice(&mut self) -> Result<EbnfExpr, EbnfError> {
        let mut parts = vec![self.sequence()?];
        while self.eat("|") {
            parts.push(self.sequence()?);
        }
        Ok(match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => only,
            (last, _) => EbnfExpr::Choice(parts.into_iter().chain(last).collect()),
        })
    }

    fn sequence(&mut self) -> Result<EbnfExpr, EbnfError> {
        let mut parts = Vec::new();
        loop {
            self.spaces();
            match self.peek() {
                None | Some('|') => break,
                Some(')') if self.depth > 0 => break,
                Some(letter) if is_name(letter) && letter != '.' && self.is_rule() => break,
                Some(_) => {}
            }
            let part = self.atom()?;
            parts.push(self.repeated(part)?);
        }
        Ok(match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => only,
            (last, _) => EbnfExpr::Sequence(parts.into_iter().chain(last).collect()),
        })
    }

    fn atom(&mut self) -> Result<EbnfExpr, EbnfError> {
        let place = self.at;
        match self.peek() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote),
            Some('[') => self.letters(),
            Some('.') => {
                self.next();
                Ok(EbnfExpr::Letters(Letters { ranges: Vec::new(), is_negated: true }))
            }
            Some('(') => {
                if self.rest().starts_with("(=") || self.rest().starts_with("(!") {
                    return self.wrong("what follows cannot be looked at ahead: '(=' is not built");
                }
                if self.depth == DEPTH {
                    return self.wrong(format!("there are more than {DEPTH} groups within one another"));
                }
                self.next();
                self.depth += 1;
                let inner = self.choice()?;
                self.depth -= 1;
                match self.eat(")") {
                    true => Ok(inner),
                    false => self.wrong("a ')' is missing"),
                }
            }
            Some(letter) if is_name(letter) => {
                let name = self.name();
                self.spaces_in_line();
                match self.peek() {
                    Some('(') if name.ends_with("Dispatch") => {
                        Err(EbnfError::at(self.text, place, format!("'{name}(…)' is not built")))
                    }
                    _ => Ok(EbnfExpr::Rule(name, place)),
                }
            }
            Some('<' | '!') => self.wrong("tokens cannot be named by '<…>': write their text"),
            Some('*' | '+' | '?' | '{') => self.wrong("there is nothing to repeat"),
            Some(letter) => self.wrong(format!("'{letter}' cannot stand here")),
            None => self.wrong("it ends too early"),
        }
    }

    fn spaces_in_line(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches([' ', '\t']).len();
    }

    fn repeated(&mut self, part: EbnfExpr) -> Result<EbnfExpr, EbnfError> {
        self.spaces_in_line();
        let sign = |least, most| Repetition { least, most };
        let times = match self.peek() {
            Some('{') => self.counted()?,
            Some(letter @ ('*' | '+' | '?')) => {
                self.next();
                match letter {
                    '*' => sign(0, None),
                    '+' => sign(1, None),
                    _ => sign(0, Some(1)),
                }
            }
            _ => return Ok(part),
        };
        Ok(match times.most {
            Some(0) => EbnfExpr::Text(String::new()),
            _ => EbnfExpr::Repeat(part.into(), times),
        })
    }

    /// `{2}`, `{2,}`, `{,3}`, `{2,3}`.
    fn counted(&mut self) -> Result<Repetition, EbnfError> {
        let Some(end) = self.rest().find('}') else { return self.wrong("a '}' is missing") };
        let inner: String = self.rest()[1..end].chars().filter(|letter| !letter.is_whitespace()).collect();
        let number = |text: &str| text.parse::<u32>().ok().filter(|times| *times <= TIMES);
        let (least, most) = inner.split_once(',').map_or((&*inner, None), |(least, most)| (least, Some(most)));
        let times = match (least, most) {
            ("", Some("")) => None,
            ("", Some(most)) => number(most).map(|most| Repetition { least: 0, most: Some(most) }),
            (least, None) => number(least).map(|least| Repetition { least, most: Some(least) }),
            (least, Some("")) => number(least).map(|least| Repetition { least, most: None }),
            (least, Some(most)) => number(least)
                .zip(number(most))
                .filter(|(least, most)| least <= most)
                .map(|(least, most)| Repetition { least, most: Some(most) }),
        };
        let Some(times) = times else {
            return self.wrong(format!("a repetition is {{2}}, {{2,}} or {{2,3}}, of numbers up to {TIMES}"));
        };
        self.at += end + 1;
        Ok(times)
    }

    fn quoted(&mut self, quote: char) -> Result<EbnfExpr, EbnfError> {
        let place = self.at;
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                Some(letter) if letter == quote => break,
                None | Some('\n') => return Err(EbnfError::at(self.text, place, "this text is not closed")),
                Some(_) => text.push(self.one_letter()?),
            }
        }
        self.next();
        Ok(EbnfExpr::Text(text))
    }

    /// One letter, perhaps escaped.
    fn one_letter(&mut self) -> Result<char, EbnfError> {
        let place = self.at;
        let letter = self.next();
        if letter != Some('\\') {
            return letter.map_or_else(|| self.wrong("it ends too early"), Ok);
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(letter) if !letter.is_ascii_alphanumeric() => return Ok(letter),
            _ => return Err(EbnfError::at(self.text, place, "this is no escape: \\n, \\r, \\t, \\x41, \\u0041 are")),
        };
        let code = self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(letter) = code.and_then(char::from_u32) else {
            return Err(EbnfError::at(self.text, place, format!("{digits} digits of a letter's number must follow")));
        };
        self.at += digits;
        Ok(letter)
    }

    /// Letters in brackets.
    fn letters(&mut self) -> Result<EbnfExpr, EbnfError> {
        let place = self.at;
        self.next();
        let is_negated = self.eat("^");
        let mut ranges: Vec<(char, char)> = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(EbnfError::at(self.text, place, "this '[' is not closed")),
                Some(']') => break,
                Some(_) => {}
            }
            let begins = self.at;
            let first = self.one_letter()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = match is_range {
                true => {
                    self.next();
                    self.one_letter()?
                }
                false => first,
            };
            if last < first {
                return Err(EbnfError::at(self.text, begins, "this range ends before it begins"));
            }
            ranges.push((first, last));
        }
        self.next();
        if ranges.is_empty() && !is_negated {
            return Err(EbnfError::at(self.text, place, "there are no letters in '[]'"));
        }
        Ok(EbnfExpr::Letters(Letters { ranges, is_negated }))
    }
}

/// As a regular expression has it; only letters and digits need no escape.
fn range(first: char, last: char) -> String {
    let one = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter.to_string(),
        false => format!("\\x{{{:x}}}", u32::from(letter)),
    };
    if first == last { one(first) } else { format!("{}-{}", one(first), one(last)) }
}
