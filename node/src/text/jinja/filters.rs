//! Jinja's filters: what stands behind `|`. Each does what Jinja 3.1 does with `autoescape` off, `tojson` what
//! transformers makes of it.

mod entities;
mod html;
mod numbers;
mod pretty;
mod sequences;
mod texts;
mod wrap;

use super::args::{Args, truth};
use super::display;
use super::error::{Result, refuse};
use super::json;
use super::machine::Machine;
use super::methods;
use super::value::Value;

const NAMES: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

pub fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

pub fn apply(machine: &mut Machine, name: &str, value: Value, given: Args) -> Result<Value> {
    match name {
        "abs" | "filesizeformat" | "float" | "int" | "round" => numbers::apply(name, &value, given),
        "e" | "escape" | "forceescape" | "safe" | "striptags" | "urlencode" | "urlize" | "xmlattr" => {
            html::apply(name, &value, given)
        }
        "capitalize" | "center" | "format" | "indent" | "lower" | "replace" | "string" | "title" | "trim"
        | "truncate" | "upper" | "wordcount" | "wordwrap" => texts::apply(machine, name, value, given),
        "d" | "default" => default(value, given),
        "attr" => attr(&value, given),
        "pprint" => {
            given.none(name)?;
            pretty::pformat(&value).map(Value::text)
        }
        "tojson" => json::tojson(&value, given).map(Value::text),
        _ if exists(name) => sequences::apply(machine, name, value, given),
        _ => refuse!("there is no filter {name:?}"),
    }
}

fn default(value: Value, given: Args) -> Result<Value> {
    let [usual, boolean] = given.bind("default", ["default_value", "boolean"], 0)?;
    let missing = value.is_undefined() || (truth(boolean.as_ref()) && !value.is_true());
    Ok(if missing { usual.unwrap_or_else(|| Value::text("")) } else { value })
}

/// What a value has of itself, and never what lies in it.
fn attr(value: &Value, given: Args) -> Result<Value> {
    let [name] = given.bind("attr", ["name"], 1)?;
    let name = super::args::text("attr", &name.unwrap_or(Value::None))?;
    let found = methods::attribute(value, &name)?;
    Ok(found.unwrap_or_else(|| Value::undefined(format!("what is {} has no {name:?}", value.kind()))))
}

/// A value's text, which stays escaped if it is.
fn soft(value: Value) -> Result<Value> {
    Ok(match value {
        Value::Text(_) | Value::Markup(_) => value,
        other => Value::text(display::text(&other)?),
    })
}
