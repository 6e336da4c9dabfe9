//! A template's text becomes tokens, with what dashes and line ends do to white space, as transformers sets Jinja up:
//! `trim_blocks` and `lstrip_blocks` are on.

use super::error::{Error, Result};
use super::letters::is_space;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub enum Lexeme {
    Data(Arc<str>),
    BlockBegin,
    BlockEnd,
    PrintBegin,
    PrintEnd,
    Name(Arc<str>),
    Text(Arc<str>),
    Int(i128),
    Float(f64),
    Sign(&'static str),
    End,
}

/// A token and the line it begins in.
#[derive(Clone, Debug)]
pub struct PlacedLexeme {
    pub token: Lexeme,
    pub line: u32,
}

/// Signs, those that begin with others first.
const SIGNS: [&str; 26] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "(", ")", "[", "]", "{", "}", "=", ">", "<", ".",
    ":", "|", ",", ";",
];

/// Reads a whole template.
pub fn tokens(source: &str) -> Result<Vec<PlacedLexeme>> {
    // Jinja knows one end of line, and leaves out a template's last.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line: 1, line_begins: true, tokens: Vec::new() };
    lexer.run()?;
    lexer.push(Lexeme::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    /// Whether what comes stands at the beginning of a line.
    line_begins: bool,
    tokens: Vec<PlacedLexeme>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TagOpening {
    Block,
    Print,
    Comment,
    Raw,
}

impl<'s> Lexer<'s> {
    fn run(&mut self) -> Result<()> {
        while let Some(at) = opening(self.rest) {
            let begins = self.line_begins;
            let text = self.take(at);
            let (kind, length, sign) = read_opening(self.rest);
            self.data(text, kind, sign, begins);
            let line = self.line;
            self.take(length);
            match kind {
                TagOpening::Comment => self.comment(line)?,
                TagOpening::Raw => self.raw(line)?,
                TagOpening::Block => self.inner(Lexeme::BlockBegin, Lexeme::BlockEnd, "%}")?,
                TagOpening::Print => self.inner(Lexeme::PrintBegin, Lexeme::PrintEnd, "}}")?,
            }
        }
        let text = self.take(self.rest.len());
        if !text.is_empty() {
            self.push(Lexeme::Data(text.into()));
        }
        Ok(())
    }

    fn push(&mut self, token: Lexeme) {
        self.tokens.push(PlacedLexeme { token, line: self.line });
    }

    /// Goes on by so many bytes.
    fn take(&mut self, length: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line = self.line.saturating_add(u32::try_from(taken.matches('\n').count()).unwrap_or(u32::MAX));
        if !taken.is_empty() {
            self.line_begins = taken.ends_with('\n');
        }
        taken
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(Error::new(why).at(self.line))
    }

    /// Text before what opens, less the white space that goes with it.
    fn data(&mut self, text: &str, next: TagOpening, sign: Option<char>, begins: bool) {
        let text = match sign {
            Some('-') => text.trim_end_matches(is_space),
            None if next != TagOpening::Print => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let alone = (line > 0 || begins) && text[line..].chars().all(is_space);
                if alone { &text[..line] } else { text }
            }
            _ => text,
        };
        if !text.is_empty() {
            self.push(Lexeme::Data(text.into()));
        }
    }

    fn comment(&mut self, line: u32) -> Result<()> {
        let Some(at) = self.rest.find("#}") else {
            return Err(Error::new("a remark has no end: {# needs #}").at(line));
        };
        let text = self.take(at);
        let closed = text.chars().next_back().filter(|sign| matches!(sign, '-' | '+'));
        self.close("#}".len(), closed, true);
        Ok(())
    }

    /// What closes has so many bytes; the sign before it says what becomes of the white space behind it.
    fn close(&mut self, length: usize, sign: Option<char>, trims: bool) {
        let behind = &self.rest[length..];
        let space = match sign {
            Some('-') => behind.len() - behind.trim_start_matches(is_space).len(),
            None if trims && behind.starts_with('\n') => 1,
            _ => 0,
        };
        self.take(length + space);
    }

    fn raw(&mut self, line: u32) -> Result<()> {
        let begins = self.line_begins;
        let mut from = 0;
        while let Some(at) = self.rest[from..].find("{%").map(|at| from + at) {
            if let Some((length, before, after)) = word_tag(&self.rest[at..], "endraw") {
                let text = self.take(at);
                self.data(text, TagOpening::Raw, before, begins);
                self.close(length, after, true);
                return Ok(());
            }
            from = at + "{%".len();
        }
        Err(Error::new("{% raw %} has no {% endraw %}").at(line))
    }

    /// Tokens between what opens and what closes.
    fn inner(&mut self, begin: Lexeme, end: Lexeme, close: &str) -> Result<()> {
        self.push(begin);
        let mut brackets = Vec::new();
        loop {
            let space = self.rest.len() - self.rest.trim_start_matches(is_space).len();
            self.take(space);
            if brackets.is_empty()
                && let Some(sign) = closing(self.rest, close)
            {
                self.push(end);
                self.take(sign.map_or(0, char::len_utf8));
                self.close(close.len(), sign, close == "%}");
                return Ok(());
            }
            self.token(&mut brackets)?;
        }
    }

    fn token(&mut self, brackets: &mut Vec<char>) -> Result<()> {
        let Some(first) = self.rest.chars().next() else { return self.fail("the template ends within a tag") };
        if first.is_ascii_digit() {
            self.number()
        } else if is_word(first) {
            self.name()
        } else if first == '\'' || first == '"' {
            self.text(first)
        } else {
            self.sign(first, brackets)
        }
    }

    fn name(&mut self) -> Result<()> {
        let length = self.rest.find(|letter| !is_word(letter)).unwrap_or(self.rest.len());
        let name: Arc<str> = self.rest[..length].into();
        self.push(Lexeme::Name(name));
        self.take(length);
        Ok(())
    }

    fn sign(&mut self, first: char, brackets: &mut Vec<char>) -> Result<()> {
        let Some(sign) = SIGNS.iter().copied().find(|sign| self.rest.starts_with(*sign)) else {
            return self.fail(format!("unexpected {first:?}"));
        };
        match first {
            '(' => brackets.push(')'),
            '[' => brackets.push(']'),
            '{' => brackets.push('}'),
            ')' | ']' | '}' => match brackets.pop() {
                Some(expected) if expected == first => {}
                Some(expected) => return self.fail(format!("unexpected {first:?}, expected {expected:?}")),
                None => return self.fail(format!("unexpected {first:?}")),
            },
            _ => {}
        }
        self.push(Lexeme::Sign(sign));
        self.take(sign.len());
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let after_dot = matches!(self.tokens.last(), Some(PlacedLexeme { token: Lexeme::Sign("."), .. }));
        let float = if after_dot { None } else { float_length(self.rest) };
        let (token, length) = match float {
            Some(length) => {
                let digits = self.rest[..length].replace('_', "");
                (digits.parse().ok().map(Lexeme::Float), length)
            }
            None => {
                let length =
                    self.rest.find(|l: char| !l.is_ascii_alphanumeric() && l != '_').unwrap_or(self.rest.len());
                (integer(&self.rest[..length]).map(Lexeme::Int), length)
            }
        };
        let Some(token) = token else {
            return self.fail(format!("{:?} is no number that can be computed with", &self.rest[..length]));
        };
        self.push(token);
        self.take(length);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let Some(length) = text_length(self.rest, quote) else { return self.fail("a text has no end") };
        match unescaped(&self.rest[1..length - 1]) {
            Ok(text) => self.push(Lexeme::Text(text.into())),
            Err(why) => return self.fail(why),
        }
        self.take(length);
        Ok(())
    }
}

/// Where the next tag, expression or remark begins.
fn opening(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|two| matches!(two, b"{%" | b"{{" | b"{#"))
}

/// What opens here, its bytes, and the sign in it.
fn read_opening(text: &str) -> (TagOpening, usize, Option<char>) {
    let kind = match text.as_bytes().get(1) {
        Some(b'%') => TagOpening::Block,
        Some(b'{') => TagOpening::Print,
        _ => TagOpening::Comment,
    };
    if let Some((length, before, after)) = word_tag(text, "raw").filter(|(_, _, after)| *after != Some('+')) {
        let behind = &text[length..];
        let space = if after == Some('-') { behind.len() - behind.trim_start_matches(is_space).len() } else { 0 };
        return (TagOpening::Raw, length + space, before);
    }
    let sign = text[2..].chars().next().filter(|sign| matches!(sign, '-' | '+'));
    (kind, 2 + sign.map_or(0, char::len_utf8), sign)
}

/// A tag of one word at the beginning: its bytes, and the signs in it.
fn word_tag(text: &str, word: &str) -> Option<(usize, Option<char>, Option<char>)> {
    let signed = |text: &str| text.chars().next().filter(|sign| matches!(sign, '-' | '+'));
    let rest = text.strip_prefix("{%")?;
    let before = signed(rest);
    let rest = rest[before.map_or(0, char::len_utf8)..].trim_start_matches(is_space);
    let rest = rest.strip_prefix(word)?.trim_start_matches(is_space);
    let after = signed(rest);
    let rest = rest[after.map_or(0, char::len_utf8)..].strip_prefix("%}")?;
    Some((text.len() - rest.len(), before, after))
}

/// Whether this closes, and by which sign.
fn closing(text: &str, close: &str) -> Option<Option<char>> {
    if text.starts_with(close) {
        return Some(None);
    }
    let sign = text.chars().next().filter(|sign| *sign == '-' || (*sign == '+' && close == "%}"))?;
    text[1..].starts_with(close).then_some(Some(sign))
}

fn is_word(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

/// Bytes of digits that may be parted by single underscores.
fn digits(text: &str) -> usize {
    let mut end = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => end = at + 1,
            b'_' if at > 0 && end == at => {}
            _ => break,
        }
    }
    end
}

fn float_length(text: &str) -> Option<usize> {
    let whole = digits(text);
    let fraction = text[whole..].strip_prefix('.').map_or(0, digits);
    let mantissa = if fraction > 0 { whole + 1 + fraction } else { whole };
    let power = text[mantissa..].strip_prefix(['e', 'E']).map_or(0, |power| {
        let sign = usize::from(power.starts_with(['+', '-']));
        match digits(&power[sign..]) {
            0 => 0,
            digits => 1 + sign + digits,
        }
    });
    (fraction > 0 || power > 0).then_some(mantissa + power)
}

fn integer(text: &str) -> Option<i128> {
    let bare = text.replace('_', "").to_ascii_lowercase();
    let based = [("0b", 2), ("0o", 8), ("0x", 16)];
    if let Some((digits, base)) = based.iter().find_map(|(prefix, base)| Some((bare.strip_prefix(prefix)?, *base))) {
        return i128::from_str_radix(digits, base).ok();
    }
    // A number does not begin with naught, unless it is.
    if bare.len() > 1 && bare.starts_with('0') && bare.bytes().any(|digit| digit != b'0') {
        return None;
    }
    bare.parse().ok()
}

/// Bytes of a text with its quotes.
fn text_length(text: &str, quote: char) -> Option<usize> {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if letter == quote {
            return Some(at + 1);
        }
    }
    None
}

/// A text without Python's escapes.
fn unescaped(text: &str) -> std::result::Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let Some(kind) = escape.chars().next() else { return Err("a text ends in a backslash".into()) };
        let simple = match kind {
            'n' => Some("\n"),
            't' => Some("\t"),
            'r' => Some("\r"),
            '\\' => Some("\\"),
            '\'' => Some("'"),
            '"' => Some("\""),
            '\n' => Some(""),
            'a' => Some("\u{7}"),
            'b' => Some("\u{8}"),
            'f' => Some("\u{c}"),
            'v' => Some("\u{b}"),
            _ => None,
        };
        let length = if let Some(simple) = simple {
            plain.push_str(simple);
            1
        } else {
            coded(escape, kind, &mut plain)?
        };
        rest = &escape[length..];
    }
    plain.push_str(rest);
    Ok(plain)
}

/// Adds a letter that is written by its number, and says how long that is.
fn coded(escape: &str, kind: char, plain: &mut String) -> std::result::Result<usize, String> {
    let (from, length, base) = match kind {
        'x' => (1, 2, 16),
        'u' => (1, 4, 16),
        'U' => (1, 8, 16),
        '0'..='7' => (0, escape.bytes().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count(), 8),
        'N' => return Err("a letter cannot be written by its name".into()),
        _ => {
            plain.push('\\');
            plain.push(kind);
            return Ok(kind.len_utf8());
        }
    };
    let digits = escape.get(from..from + length).filter(|digits| digits.bytes().all(|b| b.is_ascii_alphanumeric()));
    let number = digits.and_then(|digits| u32::from_str_radix(digits, base).ok());
    let letter = number.and_then(char::from_u32).ok_or_else(|| format!("\\{kind} is before what is no letter"))?;
    plain.push(letter);
    Ok(from + length)
}
