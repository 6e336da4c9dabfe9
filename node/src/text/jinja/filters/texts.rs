//! Filters of texts.

use super::super::args::{Args, int, int_or, some, text, truth};
use super::super::display;
use super::super::error::{Result, refuse};
use super::super::letters;
use super::super::machine::Machine;
use super::super::methods;
use super::super::operators::binary;
use super::super::spec::WIDEST;
use super::super::value::{Dict, Value};
use super::super::{ast::Binary, printf};
use super::{soft, wrap};
use std::sync::Arc;

/// How much longer than it may be a text is that is not cut, as Jinja's policy has it.
const LEEWAY: i128 = 5;

pub fn apply(machine: &mut Machine, name: &str, value: Value, given: Args) -> Result<Value> {
    let method = |machine: &mut Machine, name, given| methods::call(machine, &soft(value.clone())?, name, given);
    match name {
        "capitalize" | "lower" | "upper" => {
            given.none(name)?;
            let name = match name {
                "capitalize" => "capitalize",
                "lower" => "lower",
                _ => "upper",
            };
            method(machine, name, Args::default())
        }
        "center" => {
            let [width] = given.bind(name, ["width"], 0)?;
            method(machine, "center", vec![width.unwrap_or(Value::Int(80))].into())
        }
        "trim" => {
            let [chars] = given.bind(name, ["chars"], 0)?;
            method(machine, "strip", vec![chars.unwrap_or(Value::None)].into())
        }
        "string" => {
            given.none(name)?;
            soft(value)
        }
        "format" => format(value, given),
        "replace" => replace(&value, given),
        "title" => {
            given.none(name)?;
            Ok(Value::text(title(&display::text(&value)?)))
        }
        "wordcount" => {
            given.none(name)?;
            Ok(Value::size(words(&display::text(&value)?)))
        }
        "truncate" => truncate(&value, given),
        "indent" => indent(value, given),
        _ => wrap::wordwrap(&value, given),
    }
}

fn format(value: Value, given: Args) -> Result<Value> {
    if !given.positional.is_empty() && !given.named.is_empty() {
        return refuse!("format takes values or names, not both");
    }
    let values = if given.named.is_empty() {
        Value::tuple(given.positional)
    } else {
        Value::dict(Dict::from_pairs(given.named.into_iter().map(|(name, value)| (Value::Text(name), value)))?)
    };
    match soft(value)? {
        Value::Markup(format) => Ok(Value::Markup(printf::format(&format, &values, true)?.into())),
        other => printf::format(&display::text(&other)?, &values, false).map(Value::text),
    }
}

fn replace(value: &Value, given: Args) -> Result<Value> {
    let [old, new, most] = given.bind("replace", ["old", "new", "count"], 2)?;
    let part = |part: Option<Value>| display::text(&part.unwrap_or(Value::None));
    let most = int_or("replace", some(most).as_ref(), -1)?;
    Ok(Value::text(methods::replaced(&display::text(value)?, &part(old)?, &part(new)?, most)))
}

/// Words begin behind dashes, spaces and opening brackets.
fn title(of: &str) -> String {
    let parts = |letter: char| letters::is_space(letter) || "-({[<".contains(letter);
    let mut made = String::with_capacity(of.len());
    let mut rest = of;
    while !rest.is_empty() {
        let word = rest.find(parts).unwrap_or(rest.len());
        push_word(&mut made, &rest[..word]);
        rest = &rest[word..];
        let space = rest.find(|letter| !parts(letter)).unwrap_or(rest.len());
        push_word(&mut made, &rest[..space]);
        rest = &rest[space..];
    }
    made
}

fn push_word(made: &mut String, word: &str) {
    let mut letters = word.chars();
    if let Some(first) = letters.next() {
        made.extend(first.to_uppercase());
        made.push_str(&letters::lower(letters.as_str()));
    }
}

/// Runs of letters, numbers and underscores.
fn words(of: &str) -> usize {
    let mut within = false;
    let begins = |letter: char| {
        let before = std::mem::replace(&mut within, letters::is_alnum(letter) || letter == '_');
        within && !before
    };
    of.chars().map(begins).filter(|begins| *begins).count()
}

fn truncate(value: &Value, given: Args) -> Result<Value> {
    let [length, kill, end, leeway] = given.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let of = text("truncate", value)?;
    let end = end.map_or_else(|| Ok("...".into()), |end| text("truncate", &end))?;
    let (length, leeway) =
        (int_or("truncate", length.as_ref(), 255)?, int_or("truncate", some(leeway).as_ref(), LEEWAY)?);
    let ending = end.chars().count() as i128;
    if length < ending || leeway < 0 {
        return refuse!("truncate to {length} letters with {ending} at the end and a leeway of {leeway}");
    }
    if of.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let cut: String = of.chars().take(usize::try_from(length - ending).unwrap_or(usize::MAX)).collect();
    let cut = match cut.rsplit_once(' ') {
        Some((before, _)) if !truth(kill.as_ref()) => before.to_owned(),
        _ => cut,
    };
    let like = |text: String| -> Value {
        if matches!(value, Value::Markup(_)) { Value::Markup(text.into()) } else { Value::text(text) }
    };
    binary(Binary::Add, &like(cut), &Value::Text(end))
}

fn indent(value: Value, given: Args) -> Result<Value> {
    let [width, first, blank] = given.bind("indent", ["width", "first", "blank"], 0)?;
    let of: Arc<str> = match &value {
        Value::Text(of) => of.clone(),
        other => return refuse!("indent takes a plain text, not {}", other.kind()),
    };
    let indention = match width {
        Some(Value::Text(indention)) => indention.to_string(),
        other => " ".repeat(width_of(other.as_ref())?),
    };
    let whole = format!("{of}\n");
    let lines = methods::lines(&whole, false);
    let mut made = if truth(first.as_ref()) { indention.clone() } else { String::new() };
    for (place, line) in lines.iter().enumerate() {
        if place > 0 {
            made.push('\n');
            if truth(blank.as_ref()) || !line.is_empty() {
                made.push_str(&indention);
            }
        }
        made.push_str(line);
    }
    Ok(Value::text(made))
}

fn width_of(width: Option<&Value>) -> Result<usize> {
    let width = width.map_or(Ok(4), |width| int("indent", width))?.max(0);
    match usize::try_from(width) {
        Ok(width) if width <= WIDEST => Ok(width),
        _ => refuse!("indent takes at most {WIDEST} spaces, not {width}"),
    }
}
