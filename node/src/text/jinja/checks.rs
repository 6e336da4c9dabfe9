//! Jinja's tests: what stands behind `is`.

use super::args::Args;
use super::ast::{Binary, Comparison};
use super::display;
use super::error::{Result, refuse};
use super::filters;
use super::methods::is;
use super::operators::{binary, compare, equal};
use super::value::Value;
use std::rc::Rc;

const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

pub fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

pub fn apply(name: &str, value: &Value, given: Args) -> Result<bool> {
    if let Some(how) = comparison(name) {
        return compare(how, value, &given.one(name)?);
    }
    match name {
        "divisibleby" => return rest(value, &given.one(name)?, 0),
        "sameas" => return same(value, &given.one(name)?),
        _ => given.none(name)?,
    }
    Ok(match name {
        "boolean" => matches!(value, Value::Bool(_)),
        "callable" => is_callable(value),
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "escaped" => matches!(value, Value::Markup(_)),
        "even" => rest(value, &Value::Int(2), 0)?,
        "odd" => rest(value, &Value::Int(2), 1)?,
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "filter" => value.as_text().is_some_and(|name| filters::exists(name)),
        "test" => value.as_text().is_some_and(|name| exists(name)),
        "float" => matches!(value, Value::Float(_)),
        "integer" => matches!(value, Value::Int(_)),
        "number" => value.as_float().is_some(),
        "iterable" => value.is_iterable(),
        "lower" => is(&display::text(value)?, "islower"),
        "upper" => is(&display::text(value)?, "isupper"),
        "mapping" => matches!(value, Value::Dict(_)),
        "none" => matches!(value, Value::None),
        "sequence" => is_sequence(value),
        "string" => value.as_text().is_some(),
        _ => return refuse!("there is no test {name:?}"),
    })
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "==" | "eq" | "equalto" => Comparison::Equal,
        "!=" | "ne" => Comparison::Unequal,
        "<" | "lt" | "lessthan" => Comparison::Less,
        "<=" | "le" => Comparison::LessOrEqual,
        ">" | "gt" | "greaterthan" => Comparison::Greater,
        ">=" | "ge" => Comparison::GreaterOrEqual,
        "in" => Comparison::In,
        _ => return None,
    })
}

/// Whether a division leaves this.
fn rest(value: &Value, by: &Value, left: i128) -> Result<bool> {
    equal(&binary(Binary::Remainder, value, by)?, &Value::Int(left))
}

fn is_callable(value: &Value) -> bool {
    matches!(
        value,
        Value::Function(_)
            | Value::Method(_)
            | Value::Macro(_)
            | Value::Joiner(_)
            | Value::Loop(_)
            | Value::BlockOf(_)
            // What is not defined has a method for being called, which refuses.
            | Value::Undefined(_)
    )
}

/// What has a length and parts.
fn is_sequence(value: &Value) -> bool {
    match value {
        Value::Undefined(_) => true,
        Value::View(..) | Value::Loop(_) => false,
        other => other.len().is_some(),
    }
}

/// Whether two values are one and the same in memory. Python keeps some equal texts and numbers once and others twice, so
/// these are refused.
fn same(value: &Value, other: &Value) -> Result<bool> {
    Ok(match (value, other) {
        (Value::None, Value::None) => true,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Int(one), Value::Int(other)) if (-5..=256).contains(one) || one != other => one == other,
        (Value::List(one), Value::List(other)) => Rc::ptr_eq(one, other),
        (Value::Dict(one), Value::Dict(other)) => Rc::ptr_eq(one, other),
        (Value::Namespace(one), Value::Namespace(other)) => Rc::ptr_eq(one, other),
        (Value::Macro(one), Value::Macro(other)) => Rc::ptr_eq(one, other),
        (one, other) if std::mem::discriminant(one) != std::mem::discriminant(other) => false,
        (one, other) if !equal(one, other)? => false,
        _ => return refuse!("whether two equal values of {} are one is not known", value.kind()),
    })
}
