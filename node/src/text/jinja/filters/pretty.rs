//! `pprint`: values in lines of 80 letters, as Python's module of that name lays them out.

use super::super::display::{DEPTH, repr};
use super::super::error::{Result, refuse};
use super::super::letters::is_space;
use super::super::methods::lines;
use super::super::operators::order;
use super::super::value::Value;
use std::cmp::Ordering;

const WIDTH: usize = 80;

pub fn pformat(value: &Value) -> Result<String> {
    let mut out = String::new();
    format(&mut out, value, 0, 0, 0)?;
    Ok(out)
}

/// Python sorts keys, and by their types where they have no order.
fn sorted(pairs: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>> {
    let mut pairs = pairs;
    let mut failed = None;
    pairs.sort_by(|(left, _), (right, _)| {
        order(left, right)
            .unwrap_or_else(|error| {
                failed.get_or_insert(error);
                None
            })
            .unwrap_or(Ordering::Equal)
    });
    match failed {
        Some(_) => refuse!("pprint cannot sort keys that have no order"),
        None => Ok(pairs),
    }
}

fn dict_pairs(value: &Value) -> Option<Vec<(Value, Value)>> {
    match value {
        Value::Dict(dict) => Some(dict.pairs().map(|(key, value)| (key.clone(), value.clone())).collect()),
        _ => None,
    }
}

/// A value in one line, its keys in order.
fn line(value: &Value, depth: usize) -> Result<String> {
    if depth > DEPTH {
        return refuse!("values lie more than {DEPTH} deep in each other");
    }
    let row = |items: &[Value]| -> Result<String> {
        Ok(items.iter().map(|item| line(item, depth + 1)).collect::<Result<Vec<_>>>()?.join(", "))
    };
    Ok(match value {
        Value::Dict(_) => {
            let pairs = sorted(dict_pairs(value).unwrap_or_default())?;
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(key, value)| Ok(format!("{}: {}", line(key, depth + 1)?, line(value, depth + 1)?)))
                .collect::<Result<_>>()?;
            format!("{{{}}}", pairs.join(", "))
        }
        Value::List(items) => format!("[{}]", row(&items.0)?),
        Value::Tuple(items) if items.0.len() == 1 => format!("({},)", row(&items.0)?),
        Value::Tuple(items) => format!("({})", row(&items.0)?),
        other => repr(other)?,
    })
}

fn format(out: &mut String, value: &Value, indent: usize, rate_limit: usize, level: usize) -> Result<()> {
    let whole = line(value, level)?;
    if whole.chars().count() <= WIDTH.saturating_sub(indent + rate_limit) {
        out.push_str(&whole);
        return Ok(());
    }
    match value {
        Value::Dict(_) => {
            out.push('{');
            format_pairs(out, sorted(dict_pairs(value).unwrap_or_default())?, indent + 1, rate_limit + 1, level + 1)?;
            out.push('}');
        }
        Value::List(items) => {
            out.push('[');
            format_items(out, &items.0, indent + 1, rate_limit + 1, level + 1)?;
            out.push(']');
        }
        Value::Tuple(items) => {
            let close = if items.0.len() == 1 { ",)" } else { ")" };
            out.push('(');
            format_items(out, &items.0, indent + 1, rate_limit + close.len(), level + 1)?;
            out.push_str(close);
        }
        Value::Text(text) if !text.is_empty() => format_text(out, text, indent, rate_limit, level + 1)?,
        Value::Bytes(_) | Value::View(..) | Value::Markup(_) => {
            return refuse!("pprint does not lay out a long value of {}", value.kind());
        }
        _ => out.push_str(&whole),
    }
    Ok(())
}

fn between(out: &mut String, indent: usize) {
    out.push_str(",\n");
    out.extend(std::iter::repeat_n(' ', indent));
}

fn format_items(out: &mut String, items: &[Value], indent: usize, rate_limit: usize, level: usize) -> Result<()> {
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            between(out, indent);
        }
        format(out, item, indent, if place + 1 == items.len() { rate_limit } else { 1 }, level)?;
    }
    Ok(())
}

fn format_pairs(
    out: &mut String,
    pairs: Vec<(Value, Value)>,
    indent: usize,
    rate_limit: usize,
    level: usize,
) -> Result<()> {
    let last = pairs.len().saturating_sub(1);
    for (place, (key, value)) in pairs.iter().enumerate() {
        if place > 0 {
            between(out, indent);
        }
        let key = line(key, level)?;
        out.push_str(&key);
        out.push_str(": ");
        let inner = indent + key.chars().count() + 2;
        format(out, value, inner, if place == last { rate_limit } else { 1 }, level)?;
    }
    Ok(())
}

/// A text in several lines: at its line ends, and between its words.
fn format_text(out: &mut String, text: &str, indent: usize, rate_limit: usize, level: usize) -> Result<()> {
    let alone = level == 1;
    let (indent, rate_limit) = if alone { (indent + 1, rate_limit + 1) } else { (indent, rate_limit) };
    let width = WIDTH.saturating_sub(indent);
    let all = lines(text, true);
    let mut chunks = Vec::new();
    let quoted = |text: &str| repr(&Value::text(text));
    for (place, line) in all.iter().enumerate() {
        let is_last = place + 1 == all.len();
        let whole = quoted(line)?;
        if whole.chars().count() <= if is_last { width.saturating_sub(rate_limit) } else { width } {
            chunks.push(whole);
            continue;
        }
        let parts = parts(line);
        let mut current = String::new();
        for (part, is_end) in parts.iter().enumerate().map(|(place, part)| (part, place + 1 == parts.len())) {
            let candidate = format!("{current}{part}");
            let room = if is_end && is_last { width.saturating_sub(rate_limit) } else { width };
            if quoted(&candidate)?.chars().count() > room {
                if !current.is_empty() {
                    chunks.push(quoted(&current)?);
                }
                current = (*part).to_owned();
            } else {
                current = candidate;
            }
        }
        if !current.is_empty() {
            chunks.push(quoted(&current)?);
        }
    }
    let brackets = alone && chunks.len() > 1;
    let joined = chunks.join(&format!("\n{}", " ".repeat(indent)));
    out.push_str(&if brackets { format!("({joined})") } else { joined });
    Ok(())
}

/// Words, each with the space behind it.
fn parts(line: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), line);
    while !rest.is_empty() {
        let word = rest.find(is_space).unwrap_or(rest.len());
        let space = rest[word..].find(|letter| !is_space(letter)).map_or(rest.len(), |at| word + at);
        parts.push(&rest[..space]);
        rest = &rest[space..];
    }
    parts
}
