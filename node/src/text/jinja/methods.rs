//! What values have of themselves: methods, which change nothing here, and attributes. Those that change a list or a
//! dictionary are refused, as the sandbox of transformers refuses them.

mod containers;
mod numbers;
mod objects;
mod texts;

pub use texts::{is, lines, replaced};

use super::args::Args;
use super::error::{Error, Result, refuse};
use super::machine::Machine;
use super::value::Value;

/// Methods of lists and dictionaries that would change them.
const LIST_CHANGES: [&str; 8] = ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];
const DICT_CHANGES: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// What `value.name` is, if the value has it of itself.
pub fn attribute(value: &Value, name: &str) -> Result<Option<Value>> {
    if let Value::Undefined(why) = value {
        return Err(Error::new(&**why));
    }
    let changes = match value {
        Value::List(_) => LIST_CHANGES.contains(&name),
        Value::Dict(_) => DICT_CHANGES.contains(&name),
        _ => false,
    };
    if changes || (name.starts_with("__") && name.ends_with("__")) {
        return Ok(Some(Value::undefined(format!("{name:?} of {} is not for templates", value.kind()))));
    }
    if let Some(name) = names(value).iter().find(|known| **known == name) {
        return Ok(Some(Value::Method((value.clone(), *name).into())));
    }
    Ok(objects::property(value, name))
}

fn names(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Text(_) | Value::Markup(_) => &texts::NAMES,
        Value::Bytes(_) => &["decode", "hex"],
        Value::List(_) => &["copy", "count", "index"],
        Value::Tuple(_) | Value::Group(_) | Value::Range(_) => &["count", "index"],
        Value::Dict(_) => &["copy", "fromkeys", "get", "items", "keys", "values"],
        Value::View(..) => &["isdisjoint"],
        Value::Int(_) | Value::Bool(_) => &["as_integer_ratio", "bit_count", "bit_length", "conjugate"],
        Value::Float(_) => &["as_integer_ratio", "conjugate", "hex", "is_integer"],
        Value::Loop(_) => &["changed", "cycle"],
        Value::Cycler(_) => &["next", "reset"],
        _ => &[],
    }
}

pub fn call(machine: &mut Machine, of: &Value, name: &'static str, given: Args) -> Result<Value> {
    match of {
        Value::Text(text) => texts::call(machine, text, name, given),
        Value::Markup(text) => texts::call_markup(machine, text, name, given),
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => numbers::call(of, name, given),
        Value::Loop(state) => objects::call_loop(state, name, given),
        Value::Cycler(cycler) => {
            given.none(name)?;
            Ok(objects::call_cycler(cycler, name))
        }
        Value::Bytes(_)
        | Value::List(_)
        | Value::Tuple(_)
        | Value::Group(_)
        | Value::Range(_)
        | Value::Dict(_)
        | Value::View(..) => containers::call(of, name, given),
        other => refuse!("what is {} has no {name:?}", other.kind()),
    }
}
