//! `wordwrap`: lines of a certain width, as Python's `textwrap` makes them.

use super::super::args::{Args, int_or, some, text, truth};
use super::super::error::{Error, Result, refuse};
use super::super::letters::is_space;
use super::super::methods::lines;
use super::super::value::Value;
use fancy_regex::Regex;
use std::sync::LazyLock;

/// Where a line may break: at spaces, dashes between words, and hyphens within one.
static BREAKS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let (space, other) = (r"[\t\n\x0b\x0c\r ]", r"[^\t\n\x0b\x0c\r ]");
    let (punctuated, letter, word) = (r#"[\p{L}\p{N}_!"'&.,?]"#, r"[\p{L}\p{Nl}\p{No}_]", r"[\p{L}\p{N}_]");
    Regex::new(&format!(
        r"{space}+|(?<={punctuated})-{{2,}}(?={word})|{other}+?(?:-(?:(?<={letter}{letter}-)|(?<={letter}-{letter}-))(?={letter}-?{letter})|(?={space}|\z)|(?<={punctuated})(?=-{{2,}}{word}))"
    ))
    .ok()
});

pub fn wordwrap(value: &Value, given: Args) -> Result<Value> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, long, between, hyphens] = given.bind("wordwrap", names, 0)?;
    let of = match value {
        Value::Text(of) => of.clone(),
        other => return refuse!("wordwrap takes a plain text, not {}", other.kind()),
    };
    let width = usize::try_from(int_or("wordwrap", width.as_ref(), 79)?).unwrap_or(0);
    if width == 0 {
        return refuse!("wordwrap takes a width of at least one letter");
    }
    let between = some(between).map_or_else(|| Ok("\n".into()), |between| text("wordwrap", &between))?;
    let said = |given: Option<Value>| given.is_none_or(|given| truth(Some(&given)));
    let wrapper = Wrapper { width, long: said(long), hyphens: said(hyphens) };
    let wrapped: Vec<String> =
        lines(&of, false).into_iter().map(|line| Ok(wrapper.wrap(line)?.join(&between))).collect::<Result<_>>()?;
    Ok(Value::text(wrapped.join(&between)))
}

struct Wrapper {
    width: usize,
    /// Whether words that are too long are broken.
    long: bool,
    hyphens: bool,
}

impl Wrapper {
    fn wrap(&self, line: &str) -> Result<Vec<String>> {
        let mut chunks: Vec<String> = if self.hyphens { broken(line)? } else { spaced(line) };
        chunks.reverse();
        let is_blank = |chunk: &String| chunk.chars().all(is_space);
        let mut lines = Vec::new();
        while !chunks.is_empty() {
            let (mut current, mut length) = (Vec::new(), 0);
            if !lines.is_empty() && chunks.last().is_some_and(is_blank) {
                chunks.pop();
            }
            while let Some(chunk) = chunks.pop_if(|chunk| length + chunk.chars().count() <= self.width) {
                length += chunk.chars().count();
                current.push(chunk);
            }
            if chunks.last().is_some_and(|chunk| chunk.chars().count() > self.width) {
                self.break_word(&mut chunks, &mut current, self.width - length);
            }
            current.pop_if(|chunk| is_blank(chunk));
            if !current.is_empty() {
                lines.push(current.concat());
            }
        }
        Ok(lines)
    }

    /// A word that fits no line: as much of it as there is room for.
    fn break_word(&self, chunks: &mut Vec<String>, current: &mut Vec<String>, room: usize) {
        let Some(chunk) = chunks.pop() else { return };
        if !self.long {
            if current.is_empty() {
                current.push(chunk)
            } else {
                chunks.push(chunk)
            }
            return;
        }
        let letters: Vec<char> = chunk.chars().collect();
        let mut end = room.min(letters.len());
        if self.hyphens && letters.len() > room {
            let hyphen = letters[..room].iter().rposition(|letter| *letter == '-');
            if let Some(hyphen) = hyphen.filter(|at| letters[..*at].iter().any(|letter| *letter != '-')) {
                end = hyphen + 1;
            }
        }
        current.push(letters[..end].iter().collect());
        chunks.push(letters[end..].iter().collect());
    }
}

/// A line's parts and what is between them.
fn broken(line: &str) -> Result<Vec<String>> {
    let Some(breaks) = &*BREAKS else { return refuse!("wordwrap cannot break at hyphens") };
    let (mut parts, mut at) = (Vec::new(), 0);
    for found in breaks.find_iter(line) {
        let found = found.map_err(|_| Error::new("wordwrap cannot break such a long word"))?;
        parts.extend((found.start() > at).then(|| line[at..found.start()].to_owned()));
        parts.extend((!found.as_str().is_empty()).then(|| found.as_str().to_owned()));
        at = found.end();
    }
    parts.extend((at < line.len()).then(|| line[at..].to_owned()));
    Ok(parts)
}

fn spaced(line: &str) -> Vec<String> {
    let space = |letter: char| matches!(letter, '\t'..='\r' | ' ');
    let mut parts: Vec<String> = Vec::new();
    let mut before = None;
    for letter in line.chars() {
        match parts.last_mut() {
            Some(part) if before == Some(space(letter)) => part.push(letter),
            _ => parts.push(letter.into()),
        }
        before = Some(space(letter));
    }
    parts
}
