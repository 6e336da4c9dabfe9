//! Values as text: Python's `str` and `repr`.

use super::ast;
use super::error::{Result, refuse};
use super::letters::is_printable;
use super::numbers::float_text;
use super::value::{DictView, Value, pair};
use std::fmt::Write;

/// Values within each other; templates can put more into each other than a stack holds.
pub const DEPTH: usize = 200;

/// `str(value)`
pub fn text(value: &Value) -> Result<String> {
    match value {
        Value::Undefined(_) => Ok(String::new()),
        Value::Text(text) | Value::Markup(text) => Ok(text.to_string()),
        other => repr(other),
    }
}

/// `repr(value)`
pub fn repr(value: &Value) -> Result<String> {
    let mut text = String::new();
    write_repr(&mut text, value, 0)?;
    Ok(text)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<()> {
    if depth > DEPTH {
        return refuse!("values lie more than {DEPTH} deep in each other");
    }
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(truth) => out.push_str(if *truth { "True" } else { "False" }),
        Value::Int(number) => _ = write!(out, "{number}"),
        Value::Float(number) => out.push_str(&float_text(*number)),
        Value::Text(text) => quote(out, text),
        Value::Markup(text) => {
            out.push_str("Markup(");
            quote(out, text);
            out.push(')');
        }
        Value::Bytes(bytes) => quote_bytes(out, bytes),
        Value::List(items) => row(out, ["[", "]"], &items.0, depth)?,
        Value::Tuple(items) | Value::Group(items) => {
            row(out, ["(", if items.0.len() == 1 { ",)" } else { ")" }], &items.0, depth)?;
        }
        Value::Dict(dict) => pairs(out, dict.pairs(), depth)?,
        Value::View(view, dict) => view_repr(out, *view, dict.pairs(), depth)?,
        Value::Range(range) => {
            _ = write!(out, "range({}, {}", range.start, range.stop);
            if range.step != 1 {
                _ = write!(out, ", {}", range.step);
            }
            out.push(')');
        }
        Value::Namespace(space) => {
            let values = space.values.borrow();
            let values: Vec<_> =
                values.iter().map(|(name, value)| (Value::Text(name.clone()), value.clone())).collect();
            out.push_str("<Namespace ");
            pairs(out, values.iter().map(|(name, value)| (name, value)), depth)?;
            out.push('>');
        }
        Value::Loop(state) => _ = write!(out, "<LoopContext {}/{}>", state.place.get() + 1, state.items.len()),
        Value::Macro(object) => macro_repr(out, &object.definition),
        other => return refuse!("what is {} has no text but an address in memory", other.kind()),
    }
    Ok(())
}

fn macro_repr(out: &mut String, definition: &ast::Macro) {
    out.push_str("<Macro ");
    match &definition.name {
        Some(name) => quote(out, name),
        None => out.push_str("'caller'"),
    }
    out.push('>');
}

fn row(out: &mut String, [open, close]: [&str; 2], items: &[Value], depth: usize) -> Result<()> {
    out.push_str(open);
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            out.push_str(", ");
        }
        write_repr(out, item, depth + 1)?;
    }
    out.push_str(close);
    Ok(())
}

fn pairs<'v>(out: &mut String, of: impl Iterator<Item = (&'v Value, &'v Value)>, depth: usize) -> Result<()> {
    out.push('{');
    for (place, (key, value)) in of.enumerate() {
        if place > 0 {
            out.push_str(", ");
        }
        write_repr(out, key, depth + 1)?;
        out.push_str(": ");
        write_repr(out, value, depth + 1)?;
    }
    out.push('}');
    Ok(())
}

fn view_repr<'v>(
    out: &mut String,
    view: DictView,
    of: impl Iterator<Item = (&'v Value, &'v Value)>,
    depth: usize,
) -> Result<()> {
    let (name, items): (_, Vec<Value>) = match view {
        DictView::Keys => ("dict_keys", of.map(|(key, _)| key.clone()).collect()),
        DictView::Values => ("dict_values", of.map(|(_, value)| value.clone()).collect()),
        DictView::Items => ("dict_items", of.map(pair).collect()),
    };
    out.push_str(name);
    row(out, ["([", "])"], &items, depth)
}

/// A text in quotes.
pub fn quote(out: &mut String, text: &str) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for letter in text.chars() {
        match letter {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if letter == mark => {
                out.push('\\');
                out.push(letter);
            }
            _ if is_printable(letter) => out.push(letter),
            _ => escape(out, letter),
        }
    }
    out.push(mark);
}

/// A letter by its number.
fn escape(out: &mut String, letter: char) {
    _ = match u32::from(letter) {
        number @ ..=0xff => write!(out, "\\x{number:02x}"),
        number @ ..=0xffff => write!(out, "\\u{number:04x}"),
        number => write!(out, "\\U{number:08x}"),
    };
}

fn quote_bytes(out: &mut String, bytes: &[u8]) {
    let mark = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    out.push('b');
    out.push(mark);
    for byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' if char::from(*byte) == mark => {
                out.push('\\');
                out.push(mark);
            }
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => _ = write!(out, "\\x{byte:02x}"),
        }
    }
    out.push(mark);
}

/// `ascii(value)`
pub fn ascii(value: &Value) -> Result<String> {
    let mut out = String::new();
    for letter in repr(value)?.chars() {
        if letter.is_ascii() { out.push(letter) } else { escape(&mut out, letter) }
    }
    Ok(out)
}

/// A text with the signs of HTML escaped, as markupsafe does it.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(letter),
        }
    }
    out
}

/// Any value as escaped text.
pub fn markup(value: &Value) -> Result<String> {
    match value {
        Value::Markup(text) => Ok(text.to_string()),
        other => Ok(escaped(&text(other)?)),
    }
}
