//! `str.format`: texts with values in braces.

use super::args::Args;
use super::display;
use super::error::{Error, Result, refuse};
use super::machine::Machine;
use super::spec::FormatSpec;
use super::value::{Dict, Value};
use std::iter::Peekable;
use std::rc::Rc;
use std::str::Chars;

/// Fields within fields' formats, as Python has it.
const DEPTH: usize = 2;

struct Values<'v> {
    positional: &'v [Value],
    named: NamedValues<'v>,
    /// The next field without a number; none once fields have numbers.
    next: Option<usize>,
    numbered: bool,
}

enum NamedValues<'v> {
    Args(&'v Args),
    Dict(&'v Dict),
}

pub fn format(machine: &mut Machine, text: &str, given: Args) -> Result<String> {
    let mut values =
        Values { positional: &given.positional, named: NamedValues::Args(&given), next: Some(0), numbered: false };
    write(machine, text, &mut values, DEPTH)
}

pub fn format_map(machine: &mut Machine, text: &str, given: &Rc<Dict>) -> Result<String> {
    let mut values = Values { positional: &[], named: NamedValues::Dict(given), next: Some(0), numbered: false };
    write(machine, text, &mut values, DEPTH)
}

fn write(machine: &mut Machine, text: &str, values: &mut Values, depth: usize) -> Result<String> {
    let Some(depth) = depth.checked_sub(1) else { return refuse!("fields lie too deep in each other") };
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '}' if letters.next_if_eq(&letter).is_some() => out.push(letter),
            '{' => out.push_str(&field(machine, &mut letters, values, depth)?),
            '}' => return refuse!("a format has a single }}"),
            _ => out.push(letter),
        }
    }
    Ok(out)
}

fn field(machine: &mut Machine, letters: &mut Peekable<Chars>, values: &mut Values, depth: usize) -> Result<String> {
    let (name, conversion, spec) = parts(letters)?;
    let value = values.find(machine, &name)?;
    let value = match conversion {
        None => value,
        Some('s') => Value::text(display::text(&value)?),
        Some('r') => Value::text(display::repr(&value)?),
        Some('a') => Value::text(display::ascii(&value)?),
        Some(other) => return refuse!("a format has !{other}, which is none"),
    };
    let spec = if spec.contains('{') { write(machine, &spec, values, depth)? } else { spec };
    FormatSpec::read(&spec)?.format(&value)
}

/// A field's name, conversion and format.
fn parts(letters: &mut Peekable<Chars>) -> Result<(String, Option<char>, String)> {
    let (mut name, mut depth) = (String::new(), 0);
    let mut conversion = None;
    loop {
        match letters.next() {
            Some('[') => {
                depth += 1;
                name.push('[');
            }
            Some(']') => {
                depth = 0;
                name.push(']');
            }
            Some('}') if depth == 0 => return Ok((name, None, String::new())),
            Some('!') if depth == 0 => {
                conversion = Some(letters.next().ok_or_else(|| Error::new("a format ends in !"))?);
                match letters.next() {
                    Some('}') => return Ok((name, conversion, String::new())),
                    Some(':') => break,
                    _ => return refuse!("a format has more than a letter behind !"),
                }
            }
            Some(':') if depth == 0 => break,
            Some('{') if depth == 0 => return refuse!("a field's name has a brace"),
            Some(letter) => name.push(letter),
            None => return refuse!("a format has a single {{"),
        }
    }
    let (mut spec, mut depth) = (String::new(), 0);
    for letter in letters.by_ref() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => return Ok((name, conversion, spec)),
            '}' => depth -= 1,
            _ => {}
        }
        spec.push(letter);
    }
    refuse!("a format has a single {{")
}

impl Values<'_> {
    fn find(&mut self, machine: &mut Machine, path: &str) -> Result<Value> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (first, mut rest) = path.split_at(end);
        let mut value = self.first(first)?;
        while !rest.is_empty() {
            if let Some(index) = rest.strip_prefix('[') {
                let Some((index, after)) = index.split_once(']') else {
                    return refuse!("{path:?} has [ without an end");
                };
                let key = index.parse().map_or_else(|_| Value::text(index), Value::Int);
                value = machine.item(&value, &key)?;
                rest = after;
            } else if let Some(name) = rest.strip_prefix('.') {
                let end = name.find(['.', '[']).unwrap_or(name.len());
                value = machine.attribute(&value, &name[..end])?;
                rest = &name[end..];
            } else {
                return refuse!("{path:?} is no field");
            }
        }
        Ok(value)
    }

    fn first(&mut self, name: &str) -> Result<Value> {
        let place = match (name.is_empty(), name.parse::<usize>()) {
            (true, _) if self.numbered => return refuse!("fields of a format are numbered, or none is"),
            (true, _) => {
                let place = self.next.unwrap_or(0);
                self.next = Some(place + 1);
                place
            }
            (false, Ok(place)) => {
                if self.next != Some(0) {
                    return refuse!("fields of a format are numbered, or none is");
                }
                self.numbered = true;
                place
            }
            (false, Err(_)) => return self.by_name(name),
        };
        let value = self.positional.get(place).cloned();
        value.ok_or_else(|| Error::new(format!("a format has no value for field {place}")))
    }

    fn by_name(&self, name: &str) -> Result<Value> {
        let value = match &self.named {
            NamedValues::Args(args) => args.named.iter().find(|(known, _)| **known == *name).map(|(_, value)| value),
            NamedValues::Dict(dict) => dict.get_text(name),
        };
        value.cloned().ok_or_else(|| Error::new(format!("a format has no value for {name:?}")))
    }
}
