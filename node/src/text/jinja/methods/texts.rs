//! Methods of texts.

use super::super::args::{Args, int, int_or, some, text, truth};
use super::super::display::markup;
use super::super::error::{Error, Result, refuse};
use super::super::letters::{self, is_space};
use super::super::machine::Machine;
use super::super::value::{Dict, Value};
use super::super::{braces, spec};
use std::sync::Arc;

pub const NAMES: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// The widest that a text is filled up to.
const WIDEST: usize = 1 << 20;

pub fn call(machine: &mut Machine, of: &Arc<str>, name: &'static str, given: Args) -> Result<Value> {
    match name {
        "format" => return braces::format(machine, of, given).map(Value::text),
        "format_map" => {
            let Value::Dict(values) = given.one(name)? else { return refuse!("format_map takes a dictionary") };
            return braces::format_map(machine, of, &values).map(Value::text);
        }
        "join" => return join(of, &given.one(name)?).map(Value::text),
        "count" | "find" | "index" | "rfind" | "rindex" => return found(of, name, given),
        "startswith" | "endswith" => return affix(of, name, given).map(Value::Bool),
        "split" | "rsplit" => return split(of, name, given).map(Value::list),
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"], 0)?;
            return Ok(Value::list(lines(of, truth(keep.as_ref())).into_iter().map(Value::text).collect()));
        }
        "partition" | "rpartition" => return partition(of, name, given),
        "maketrans" => return maketrans(given),
        "encode" => return encode(of, given),
        _ if name.starts_with("is") => {
            given.none(name)?;
            return Ok(Value::Bool(is(of, name)));
        }
        _ => {}
    }
    changed(of, name, given).map(Value::text)
}

/// A text made of another.
fn changed(of: &str, name: &str, given: Args) -> Result<String> {
    match name {
        "strip" | "lstrip" | "rstrip" => strip(of, name, given),
        "center" | "ljust" | "rjust" => fill(of, name, given),
        "removeprefix" => {
            let prefix = text(name, &given.one(name)?)?;
            Ok(of.strip_prefix(&*prefix).unwrap_or(of).to_owned())
        }
        "removesuffix" => {
            let suffix = text(name, &given.one(name)?)?;
            Ok(of.strip_suffix(&*suffix).unwrap_or(of).to_owned())
        }
        "replace" => replace(of, given),
        "expandtabs" => {
            let [size] = given.bind(name, ["tabsize"], 0)?;
            expandtabs(of, int_or(name, size.as_ref(), 8)?)
        }
        "translate" => translate(of, &given.one(name)?),
        "zfill" => zfill(of, width(name, &given.one(name)?)?),
        _ => {
            given.none(name)?;
            Ok(match name {
                "capitalize" => letters::capitalize(of),
                "casefold" => letters::casefold(of),
                "lower" => letters::lower(of),
                "swapcase" => letters::swapcase(of),
                "title" => letters::title(of),
                "upper" => letters::upper(of),
                _ => return refuse!("a text has no {name:?}"),
            })
        }
    }
}

/// The same of escaped text: what comes of it is escaped too, and so is what is put into it.
pub fn call_markup(machine: &mut Machine, of: &Arc<str>, name: &'static str, mut given: Args) -> Result<Value> {
    let put_in = match name {
        "replace" | "center" | "ljust" | "rjust" => given.positional.get_mut(1),
        "format" | "format_map" | "encode" => return refuse!("escaped text has no {name:?} here"),
        "join" => {
            let items: Vec<String> = given.one(name)?.iter()?.iter().map(markup).collect::<Result<_>>()?;
            return Ok(Value::Markup(items.join(of).into()));
        }
        _ => None,
    };
    if let Some(value) = put_in {
        *value = Value::text(markup(value)?);
    }
    let marked = |value: Value| match value {
        Value::Text(text) => Value::Markup(text),
        other => other,
    };
    Ok(match call(machine, of, name, given)? {
        Value::List(items) => Value::list(items.0.iter().cloned().map(marked).collect()),
        Value::Tuple(items) => Value::tuple(items.0.iter().cloned().map(marked).collect()),
        other => marked(other),
    })
}

/// `str.islower` and its like.
pub fn is(of: &str, name: &str) -> bool {
    let all = |test: fn(char) -> bool| !of.is_empty() && of.chars().all(test);
    let cased = |good: fn(char) -> bool| {
        of.chars().any(good) && of.chars().all(|letter| good(letter) || !letters::is_cased(letter))
    };
    match name {
        "isalnum" => all(letters::is_alnum),
        "isalpha" => all(letters::is_alpha),
        "isascii" => of.is_ascii(),
        "isdecimal" => all(letters::is_decimal),
        "isdigit" => all(letters::is_digit),
        "isidentifier" => letters::is_identifier(of),
        "islower" => cased(char::is_lowercase),
        "isnumeric" => all(letters::is_numeric),
        "isprintable" => of.chars().all(letters::is_printable),
        "isspace" => all(is_space),
        "istitle" => is_title(of),
        _ => cased(char::is_uppercase),
    }
}

fn is_title(of: &str) -> bool {
    let (mut within, mut any) = (false, false);
    for letter in of.chars() {
        let begins = letter.is_uppercase() || letters::is_title(letter);
        if (begins && within) || (letter.is_lowercase() && !within) {
            return false;
        }
        within = letters::is_cased(letter);
        any |= within;
    }
    any
}

fn join(of: &str, items: &Value) -> Result<String> {
    let mut joined = String::new();
    for (place, item) in items.iter()?.iter().enumerate() {
        if place > 0 {
            joined.push_str(of);
        }
        match item.as_text() {
            Some(text) => joined.push_str(text),
            None => return refuse!("join takes texts, not {}", item.kind()),
        }
    }
    Ok(joined)
}

/// A part of a text by letters, and how many are before it; none if it begins behind its end.
fn window<'t>(of: &'t str, name: &str, start: Option<&Value>, end: Option<&Value>) -> Result<Option<(&'t str, usize)>> {
    if start.is_none() && end.is_none() {
        return Ok(Some((of, 0)));
    }
    let length = of.chars().count();
    let bound = |given: Option<&Value>, usual: usize| -> Result<usize> {
        let place = match given {
            None | Some(Value::None) => usual as i128,
            Some(value) => int(name, value)?,
        };
        let place = if place < 0 { (place + length as i128).max(0) } else { place };
        Ok(usize::try_from(place).unwrap_or(usize::MAX))
    };
    let (start, end) = (bound(start, 0)?, bound(end, length)?.min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |place: usize| of.char_indices().nth(place).map_or(of.len(), |(at, _)| at);
    Ok(Some((&of[byte(start)..byte(end)], start)))
}

fn found(of: &str, name: &str, given: Args) -> Result<Value> {
    let [part, start, end] = given.bind(name, ["", "", ""], 1)?;
    let part = text(name, &part.unwrap_or(Value::None))?;
    let window = window(of, name, start.as_ref(), end.as_ref())?;
    if name == "count" {
        return Ok(Value::size(window.map_or(0, |(window, _)| window.matches(&*part).count())));
    }
    let at = window.and_then(|(window, before)| {
        let at = if name.starts_with('r') { window.rfind(&*part) } else { window.find(&*part) };
        at.map(|at| before + window[..at].chars().count())
    });
    match at {
        Some(at) => Ok(Value::size(at)),
        None if name.ends_with("index") => refuse!("{name}: {part:?} is not in the text"),
        None => Ok(Value::Int(-1)),
    }
}

fn affix(of: &str, name: &str, given: Args) -> Result<bool> {
    let [affix, start, end] = given.bind(name, ["", "", ""], 1)?;
    let affix = affix.unwrap_or(Value::None);
    let affixes = match &affix {
        Value::Tuple(items) => items.0.iter().map(|item| text(name, item)).collect::<Result<Vec<_>>>()?,
        one => vec![text(name, one)?],
    };
    let Some((window, _)) = window(of, name, start.as_ref(), end.as_ref())? else { return Ok(false) };
    let fits =
        |affix: &Arc<str>| if name == "endswith" { window.ends_with(&**affix) } else { window.starts_with(&**affix) };
    Ok(affixes.iter().any(fits))
}

fn split(of: &str, name: &str, given: Args) -> Result<Vec<Value>> {
    let [separator, most] = given.bind(name, ["sep", "maxsplit"], 0)?;
    let most = usize::try_from(int_or(name, most.as_ref(), -1)?).unwrap_or(usize::MAX - 1);
    let from_end = name == "rsplit";
    let Some(separator) = some(separator) else { return Ok(words(of, most, from_end)) };
    let separator = text(name, &separator)?;
    if separator.is_empty() {
        return refuse!("{name} by nothing");
    }
    if from_end {
        let mut parts: Vec<Value> = of.rsplitn(most + 1, &*separator).map(Value::text).collect();
        parts.reverse();
        return Ok(parts);
    }
    Ok(of.splitn(most + 1, &*separator).map(Value::text).collect())
}

/// Words between spaces; what is left when enough have been parted keeps its spaces on the far side.
fn words(of: &str, most: usize, from_end: bool) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = of;
    loop {
        rest = if from_end { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        let end = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(end) = end.filter(|_| parts.len() < most) else {
            parts.push(Value::text(rest));
            break;
        };
        if from_end {
            let space = rest[end..].chars().next().map_or(0, char::len_utf8);
            parts.push(Value::text(&rest[end + space..]));
            rest = &rest[..end];
        } else {
            parts.push(Value::text(&rest[..end]));
            rest = &rest[end..];
        }
    }
    if from_end {
        parts.reverse();
    }
    parts
}

/// Lines as Python parts them.
pub fn lines(of: &str, keep: bool) -> Vec<&str> {
    let ends = |letter: char| matches!(letter, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut parts, mut rest) = (Vec::new(), of);
    while let Some(at) = rest.find(ends) {
        let length =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        parts.push(&rest[..if keep { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn partition(of: &str, name: &str, given: Args) -> Result<Value> {
    let separator = text(name, &given.one(name)?)?;
    if separator.is_empty() {
        return refuse!("{name} by nothing");
    }
    let parted = if name == "partition" { of.split_once(&*separator) } else { of.rsplit_once(&*separator) };
    let [before, between, after] = match parted {
        Some((before, after)) => [before, &*separator, after],
        None if name == "partition" => [of, "", ""],
        None => ["", "", of],
    };
    Ok(Value::tuple(vec![Value::text(before), Value::text(between), Value::text(after)]))
}

fn strip(of: &str, name: &str, given: Args) -> Result<String> {
    let [chars] = given.bind(name, [""], 0)?;
    let chars = some(chars).map(|chars| text(name, &chars)).transpose()?;
    let goes = |letter: char| chars.as_ref().map_or_else(|| is_space(letter), |chars| chars.contains(letter));
    let kept = if name == "rstrip" { of } else { of.trim_start_matches(goes) };
    Ok(if name == "lstrip" { kept } else { kept.trim_end_matches(goes) }.to_owned())
}

fn width(name: &str, value: &Value) -> Result<usize> {
    let width = int(name, value)?.max(0);
    match usize::try_from(width) {
        Ok(width) if width <= WIDEST => Ok(width),
        _ => refuse!("{name} fills up to at most {WIDEST} letters, not {width}"),
    }
}

fn fill(of: &str, name: &str, given: Args) -> Result<String> {
    let [wide, filler] = given.bind(name, ["", ""], 1)?;
    let wide = width(name, &wide.unwrap_or(Value::None))?;
    let filler = filler.map(|filler| text(name, &filler)).transpose()?;
    let mut letters = filler.as_deref().unwrap_or(" ").chars();
    let (Some(filler), None) = (letters.next(), letters.next()) else { return refuse!("{name} fills with one letter") };
    Ok(match name {
        "ljust" => spec::pad(of, filler, '<', wide),
        "rjust" => spec::pad(of, filler, '>', wide),
        _ => center(of, wide, filler),
    })
}

/// Python puts what cannot be halved before a text if it will be of odd width.
fn center(of: &str, width: usize, filler: char) -> String {
    let missing = width.saturating_sub(of.chars().count());
    let before = missing / 2 + (missing & width & 1);
    let repeated = |times: usize| std::iter::repeat_n(filler, times);
    repeated(before).chain(of.chars()).chain(repeated(missing - before)).collect()
}

fn replace(of: &str, given: Args) -> Result<String> {
    let [old, new, most] = given.bind("replace", ["", "", ""], 2)?;
    let (old, new) = (text("replace", &old.unwrap_or(Value::None))?, text("replace", &new.unwrap_or(Value::None))?);
    Ok(replaced(of, &old, &new, int_or("replace", most.as_ref(), -1)?))
}

/// All of them for a number below naught.
pub fn replaced(of: &str, old: &str, new: &str, most: i128) -> String {
    usize::try_from(most).map_or_else(|_| of.replace(old, new), |most| of.replacen(old, new, most))
}

fn expandtabs(of: &str, size: i128) -> Result<String> {
    let size = usize::try_from(size.max(0)).ok().filter(|size| *size <= spec::WIDEST);
    let Some(size) = size else { return refuse!("expandtabs takes at most {}", spec::WIDEST) };
    let (mut out, mut column) = (String::with_capacity(of.len()), 0);
    for letter in of.chars() {
        if letter == '\t' {
            let spaces = if size == 0 { 0 } else { size - column % size };
            out.extend(std::iter::repeat_n(' ', spaces));
            column += spaces;
        } else {
            out.push(letter);
            column = if matches!(letter, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(out)
}

fn zfill(of: &str, width: usize) -> Result<String> {
    let sign = usize::from(of.starts_with(['+', '-']));
    let missing = width.saturating_sub(of.chars().count());
    Ok(format!("{}{}{}", &of[..sign], "0".repeat(missing), &of[sign..]))
}

fn translate(of: &str, table: &Value) -> Result<String> {
    let Value::Dict(table) = table else { return refuse!("translate takes a dictionary") };
    let mut out = String::with_capacity(of.len());
    for letter in of.chars() {
        match table.get(&Value::Int(u32::from(letter).into()))? {
            None => out.push(letter),
            Some(Value::None) => {}
            Some(other) => match (other.as_text(), other.as_int()) {
                (Some(text), _) => out.push_str(text),
                (None, Some(number)) => {
                    let letter = u32::try_from(number).ok().and_then(char::from_u32);
                    out.push(letter.ok_or_else(|| Error::new(format!("translate: {number} is no letter")))?);
                }
                _ => return refuse!("translate takes letters, numbers and none"),
            },
        }
    }
    Ok(out)
}

fn maketrans(given: Args) -> Result<Value> {
    let [from, to, without] = given.bind("maketrans", ["", "", ""], 1)?;
    let number = |letter: char| Value::Int(u32::from(letter).into());
    let mut table = Dict::default();
    match (from.unwrap_or(Value::None), to) {
        (Value::Dict(pairs), None) => {
            for (key, value) in pairs.pairs() {
                let key = match key.as_text().map(|text| (text.chars().next(), text.chars().nth(1))) {
                    Some((Some(one), None)) => number(one),
                    Some(_) => return refuse!("maketrans takes single letters"),
                    None => key.clone(),
                };
                table.insert(key, value.clone())?;
            }
        }
        (from, Some(to)) => {
            let (from, to) = (text("maketrans", &from)?, text("maketrans", &to)?);
            if from.chars().count() != to.chars().count() {
                return refuse!("maketrans takes two texts of one length");
            }
            for (from, to) in from.chars().zip(to.chars()) {
                table.insert(number(from), number(to))?;
            }
            let without = without.map_or_else(|| Ok("".into()), |without| text("maketrans", &without))?;
            for letter in without.chars() {
                table.insert(number(letter), Value::None)?;
            }
        }
        _ => return refuse!("maketrans takes a dictionary or two texts"),
    }
    Ok(Value::dict(table))
}

fn encode(of: &str, given: Args) -> Result<Value> {
    let [encoding, errors] = given.bind("encode", ["encoding", "errors"], 0)?;
    let encoding = encoding.map_or_else(|| Ok("utf-8".into()), |value| text("encode", &value))?;
    let errors = errors.map_or_else(|| Ok("strict".into()), |value| text("encode", &value))?;
    let last = match &*encoding.to_ascii_lowercase().replace('_', "-") {
        "utf-8" | "utf8" => return Ok(Value::Bytes(of.as_bytes().into())),
        "ascii" => '\u{7f}',
        "latin-1" | "latin1" | "iso-8859-1" => '\u{ff}',
        _ => return refuse!("encode does not know {encoding:?}"),
    };
    let mut bytes = Vec::with_capacity(of.len());
    for letter in of.chars() {
        match (u8::try_from(letter).ok().filter(|_| letter <= last), &*errors) {
            (Some(byte), _) => bytes.push(byte),
            (None, "ignore") => {}
            (None, "replace") => bytes.push(b'?'),
            (None, "strict") => return refuse!("{letter:?} is not in {encoding}"),
            _ => return refuse!("encode does not know errors={errors:?}"),
        }
    }
    Ok(Value::Bytes(bytes.into()))
}
