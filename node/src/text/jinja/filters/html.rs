//! Filters for web pages.

use super::super::args::{Args, int, some, text, truth};
use super::super::display::{self, escaped, markup};
use super::super::error::{Result, refuse};
use super::super::letters::is_space;
use super::super::value::Value;
use super::entities;
use fancy_regex::Regex;
use std::fmt::Write;
use std::sync::LazyLock;

/// The relation that Jinja's policy gives every link.
const RELATION: &str = "noopener";
static LINK: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let word = r"\p{L}\p{N}_";
    Regex::new(&format!(
        r"(?i)\A((https?://|www\.)(([{word}%-]+\.)+)?([a-z]{{2,63}}|xn--[{word}%]{{2,59}})|([{word}%-]{{2,63}}\.)+(com|net|int|edu|gov|org|info|mil)|(https?://)((([\p{{Nd}}]{{1,3}})(\.[\p{{Nd}}]{{1,3}}){{3}})|(\[([\p{{Nd}}a-f]{{0,4}}:){{2}}([\p{{Nd}}a-f]{{0,4}}:?){{1,6}}\])))(?::[\p{{Nd}}]{{1,5}})?(?:[/?\#]\S*)?\z"
    ))
    .ok()
});
static MAIL: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\A\S+@[\p{L}\p{N}_][\p{L}\p{N}_.-]*\.[\p{L}\p{N}_]+\z").ok());

pub fn apply(name: &str, value: &Value, given: Args) -> Result<Value> {
    match name {
        "urlize" => return urlize(value, given).map(Value::text),
        "xmlattr" => return attributes(value, given).map(Value::text),
        _ => given.none(name)?,
    }
    Ok(match name {
        "e" | "escape" => Value::Markup(markup(value)?.into()),
        "forceescape" => Value::Markup(escaped(&display::text(value)?).into()),
        "safe" => Value::Markup(display::text(value)?.into()),
        "striptags" => Value::text(without_tags(&display::text(value)?)?),
        _ => Value::text(urlencode(value)?),
    })
}

fn urlencode(value: &Value) -> Result<String> {
    let pairs = match value {
        Value::Text(_) | Value::Markup(_) => return Ok(quoted(&display::text(value)?, false)),
        other if !other.is_iterable() => return Ok(quoted(&display::text(other)?, false)),
        Value::Dict(dict) => dict.pairs().map(|(key, value)| vec![key.clone(), value.clone()]).collect(),
        other => other.iter()?.iter().map(Value::iter).collect::<Result<Vec<_>>>()?,
    };
    let mut parts = Vec::new();
    for pair in &pairs {
        let [key, value] = &pair[..] else { return refuse!("urlencode takes pairs of a name and a value") };
        parts.push(format!("{}={}", quoted(&display::text(key)?, true), quoted(&display::text(value)?, true)));
    }
    Ok(parts.join("&"))
}

/// A text in a link: of a query if it says so.
fn quoted(text: &str, query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if !query => out.push('/'),
            b' ' if query => out.push('+'),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

fn attributes(value: &Value, given: Args) -> Result<String> {
    let [space] = given.bind("xmlattr", ["autospace"], 0)?;
    let Value::Dict(dict) = value else { return refuse!("xmlattr takes a dictionary, not {}", value.kind()) };
    let mut parts = Vec::new();
    for (key, value) in dict.pairs().filter(|(_, value)| !matches!(value, Value::None | Value::Undefined(_))) {
        let name = text("xmlattr", key)?;
        if name.contains(|letter: char| matches!(letter, '\t'..='\r' | ' ' | '/' | '>' | '=')) {
            return refuse!("{name:?} is no name of an attribute");
        }
        parts.push(format!("{}=\"{}\"", markup(key)?, markup(value)?));
    }
    let spaced = space.is_none_or(|space| truth(Some(&space))) && !parts.is_empty();
    Ok(format!("{}{}", if spaced { " " } else { "" }, parts.join(" ")))
}

/// Without remarks and tags, spaces drawn together, entities read.
fn without_tags(text: &str) -> Result<String> {
    let cut = |mut text: String, open: &str, close: &str| {
        while let Some(start) = text.find(open)
            && let Some(end) = text[start..].find(close)
        {
            text.replace_range(start..start + end + close.len(), "");
        }
        text
    };
    let text = cut(cut(text.to_owned(), "<!--", "-->"), "<", ">");
    unescaped(&text.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

/// Entities as letters, as Python's `html.unescape` reads them.
fn unescaped(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let used = match rest.strip_prefix('#') {
            Some(number) => numbered(number, &mut out)?,
            None => named(rest, &mut out)?,
        };
        rest = &rest[used..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Adds the letter of a number, and says how many bytes behind the `&` that was.
fn numbered(number: &str, out: &mut String) -> Result<usize> {
    let hex = number.starts_with(['x', 'X']);
    let digits = &number[usize::from(hex)..];
    let length = digits.find(|d: char| !d.is_digit(if hex { 16 } else { 10 })).unwrap_or(digits.len());
    if length == 0 {
        out.push('&');
        return Ok(0);
    }
    let code = u32::from_str_radix(&digits[..length], if hex { 16 } else { 10 }).unwrap_or(u32::MAX);
    match code {
        0x80..=0x9f => return refuse!("striptags does not read letter {code} of an old code page"),
        0 | 0xd800..=0xdfff | 0x11_0000.. => out.push('\u{fffd}'),
        0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef => {}
        code if code & 0xfffe == 0xfffe => {}
        code => out.extend(char::from_u32(code)),
    }
    Ok(1 + usize::from(hex) + length + usize::from(digits[length..].starts_with(';')))
}

/// The same of a name.
fn named(rest: &str, out: &mut String) -> Result<usize> {
    let ends = |letter: char| matches!(letter, '\t' | '\n' | '\x0c' | ' ' | '<' | '&' | '#' | ';');
    let end = rest.char_indices().take(32).find(|(_, letter)| ends(*letter)).map(|(at, _)| at);
    let end = end.unwrap_or_else(|| rest.char_indices().nth(32).map_or(rest.len(), |(at, _)| at));
    let name = &rest[..end];
    if rest[end..].starts_with(';') {
        if let Some(letter) = entities::long(name) {
            out.push(letter);
            return Ok(end + 1);
        }
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return refuse!("striptags does not know &{name};");
        }
    }
    for (at, letter) in name.char_indices().rev() {
        let length = at + letter.len_utf8();
        if let Some(letter) = entities::short(&name[..length]) {
            out.push(letter);
            return Ok(length);
        }
    }
    out.push('&');
    Ok(0)
}

struct LinkOptions {
    /// Letters of a link that are shown.
    shown: Option<usize>,
    /// Attributes of every link.
    more: String,
}

fn urlize(value: &Value, given: Args) -> Result<String> {
    let names = ["trim_url_limit", "nofollow", "target", "rel", "extra_schemes"];
    let [shown, nofollow, target, relation, schemes] = given.bind("urlize", names, 0)?;
    let shown = some(shown).map(|shown| int("urlize", &shown)).transpose()?;
    let relation = some(relation).map_or_else(|| Ok("".into()), |relation| text("urlize", &relation))?;
    let mut relations: Vec<&str> = relation.split(is_space).filter(|part| !part.is_empty()).collect();
    relations.extend(truth(nofollow.as_ref()).then_some("nofollow"));
    relations.push(RELATION);
    relations.sort_unstable();
    relations.dedup();
    let mut more = format!(" rel=\"{}\"", escaped(&relations.join(" ")));
    if let Some(target) = some(target).filter(Value::is_true) {
        _ = write!(more, " target=\"{}\"", markup(&target)?);
    }
    if some(schemes).is_some() {
        return refuse!("urlize takes no further schemes here");
    }
    let links = LinkOptions { shown: shown.map(|shown| usize::try_from(shown).unwrap_or(0)), more };
    let text = markup(value)?;
    let mut out = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let word = rest.find(is_space).unwrap_or(rest.len());
        out.push_str(&links.word(&rest[..word]));
        let space = rest[word..].find(|letter| !is_space(letter)).map_or(rest.len(), |at| word + at);
        out.push_str(&rest[word..space]);
        rest = &rest[space..];
    }
    Ok(out)
}

fn matches(of: &LazyLock<Option<Regex>>, text: &str) -> bool {
    of.as_ref().is_some_and(|of| of.is_match(text).unwrap_or(false))
}

impl LinkOptions {
    fn word(&self, word: &str) -> String {
        let mut middle = word;
        while let Some(rest) = ["(", "<", "&lt;"].iter().find_map(|open| middle.strip_prefix(open)) {
            middle = rest;
        }
        let head = &word[..word.len() - middle.len()];
        let whole = middle;
        while let Some(rest) = [")", ">", ".", ",", "\n", "&gt;"].iter().find_map(|close| middle.strip_suffix(close)) {
            middle = rest;
        }
        let (middle, tail) = balanced(whole, middle.len());
        format!("{head}{}{tail}", self.link(middle))
    }

    fn link(&self, text: &str) -> String {
        let shown = match self.shown.and_then(|shown| text.char_indices().nth(shown)) {
            Some((at, _)) => format!("{}...", &text[..at]),
            None => text.to_owned(),
        };
        if matches(&LINK, text) {
            let whole = text.starts_with("https://") || text.starts_with("http://");
            return format!("<a href=\"{}{text}\"{}>{shown}</a>", if whole { "" } else { "https://" }, self.more);
        }
        if let Some(mail) = text.strip_prefix("mailto:").filter(|mail| matches(&MAIL, mail)) {
            return format!("<a href=\"{text}\">{mail}</a>");
        }
        let address = text.contains('@') && !text.starts_with("www.") && !text.starts_with('@') && !text.contains(':');
        if address && matches(&MAIL, text) {
            return format!("<a href=\"mailto:{text}\">{text}</a>");
        }
        text.to_owned()
    }
}

/// A link takes back as many closing brackets as it opens.
fn balanced(whole: &str, middle: usize) -> (&str, &str) {
    let mut end = middle;
    for (open, close) in [("(", ")"), ("<", ">"), ("&lt;", "&gt;")] {
        let (opened, closed) = (whole[..end].matches(open).count(), whole[..end].matches(close).count());
        if opened <= closed {
            continue;
        }
        for _ in 0..opened.min(whole[end..].matches(close).count()) {
            end = whole[end..].find(close).map_or(end, |at| end + at + close.len());
        }
    }
    whole.split_at(end)
}
