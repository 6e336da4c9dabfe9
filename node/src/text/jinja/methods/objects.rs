//! Attributes of what is no plain value, and methods of loops and cyclers.

use super::super::args::Args;
use super::super::error::{Result, refuse};
use super::super::objects::{Cycler, Loop, MacroObject};
use super::super::operators::equal;
use super::super::value::{DictView, Value};
use std::sync::Arc;

/// An attribute that is no method.
pub fn property(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Namespace(space) => space.values.borrow().get(name).cloned(),
        Value::Loop(state) => loop_property(state, name),
        Value::Macro(object) => macro_property(object, name),
        Value::Cycler(cycler) => match name {
            "current" => Some(current(cycler)),
            "items" => Some(Value::tuple(cycler.items.clone())),
            "pos" => Some(Value::size(cycler.place.get())),
            _ => None,
        },
        Value::Joiner(joiner) => match name {
            "sep" => Some(joiner.separator.clone()),
            "used" => Some(Value::Bool(joiner.used.get())),
            _ => None,
        },
        Value::Group(items) => match name {
            "grouper" => items.0.first().cloned(),
            "list" => items.0.get(1).cloned(),
            _ => None,
        },
        Value::Range(range) => match name {
            "start" => Some(Value::Int(range.start)),
            "stop" => Some(Value::Int(range.stop)),
            "step" => Some(Value::Int(range.step)),
            _ => None,
        },
        Value::View(DictView::Keys | DictView::Values | DictView::Items, dict) if name == "mapping" => {
            Some(Value::Dict(dict.clone()))
        }
        Value::Float(number) => match name {
            "real" => Some(Value::Float(*number)),
            "imag" => Some(Value::Float(0.0)),
            _ => None,
        },
        other => match (name, other.as_int()?) {
            ("real" | "numerator", number) => Some(Value::Int(number)),
            ("imag", _) => Some(Value::Int(0)),
            ("denominator", _) => Some(Value::Int(1)),
            _ => None,
        },
    }
}

fn loop_property(state: &Loop, name: &str) -> Option<Value> {
    let (place, length) = (state.place.get(), state.items.len());
    let neighbour = |at: Option<usize>, why: &str| {
        at.and_then(|at| state.items.get(at).cloned()).unwrap_or_else(|| Value::undefined(why))
    };
    Some(match name {
        "index" => Value::size(place + 1),
        "index0" => Value::size(place),
        "revindex" => Value::size(length - place),
        "revindex0" => Value::size(length - place - 1),
        "first" => Value::Bool(place == 0),
        "last" => Value::Bool(place + 1 == length),
        "length" => Value::size(length),
        "depth" => Value::size(state.depth + 1),
        "depth0" => Value::size(state.depth),
        "previtem" => neighbour(place.checked_sub(1), "there is no item before the first"),
        "nextitem" => neighbour(Some(place + 1), "there is no item behind the last"),
        _ => return None,
    })
}

fn macro_property(object: &MacroObject, name: &str) -> Option<Value> {
    let definition = &object.definition;
    let text = |text: &Arc<str>| Value::Text(text.clone());
    Some(match name {
        "name" => definition.name.as_ref().map_or(Value::None, text),
        "arguments" => Value::tuple(definition.parameters.iter().map(text).collect()),
        "catch_kwargs" => Value::Bool(definition.uses.kwargs),
        "catch_varargs" => Value::Bool(definition.uses.varargs),
        "caller" => Value::Bool(definition.uses.caller || explicit_caller(object)),
        "explicit_caller" => Value::Bool(explicit_caller(object)),
        _ => return None,
    })
}

fn explicit_caller(object: &MacroObject) -> bool {
    object.definition.parameters.iter().any(|parameter| **parameter == *"caller")
}

fn current(cycler: &Cycler) -> Value {
    cycler.items.get(cycler.place.get()).cloned().unwrap_or(Value::None)
}

pub fn call_cycler(cycler: &Cycler, name: &str) -> Value {
    if name == "reset" {
        cycler.place.set(0);
        return Value::None;
    }
    let value = current(cycler);
    cycler.place.set((cycler.place.get() + 1) % cycler.items.len().max(1));
    value
}

pub fn call_loop(state: &Loop, name: &str, given: Args) -> Result<Value> {
    if !given.named.is_empty() {
        return refuse!("loop.{name} takes nothing by name");
    }
    let values = given.positional;
    if name == "cycle" {
        return match values.len() {
            0 => refuse!("loop.cycle needs values"),
            many => Ok(values[state.place.get() % many].clone()),
        };
    }
    let (asked, mut before) = (Value::tuple(values.clone()), state.changed.borrow_mut());
    let same = match before.take() {
        Some(before) => equal(&Value::tuple(before), &asked)?,
        None => false,
    };
    *before = Some(values);
    Ok(Value::Bool(!same))
}
