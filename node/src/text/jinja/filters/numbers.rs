//! Filters that make numbers, or text of one.

use super::super::args::{Args, int_or, text, truth};
use super::super::ast::Binary;
use super::super::error::{Error, Result, refuse};
use super::super::numbers::{parse_float, parse_int, round, truncated};
use super::super::operators::{binary, negative};
use super::super::value::Value;

const DECIMAL: [&str; 8] = ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"];
const BINARY: [&str; 8] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"];

pub fn apply(name: &str, value: &Value, given: Args) -> Result<Value> {
    match name {
        "abs" => {
            given.none(name)?;
            match value.as_float() {
                Some(number) if number.is_sign_negative() => negative(value),
                Some(_) => Ok(value.as_int().map_or_else(|| value.clone(), Value::Int)),
                None => refuse!("abs takes a number, not {}", value.kind()),
            }
        }
        "int" => int(value, given),
        "float" => {
            let [usual] = given.bind(name, ["default"], 0)?;
            let made = float(value)?;
            Ok(made.map_or_else(|| usual.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => rounded(value, given),
        _ => size(value, given).map(Value::text),
    }
}

/// `float(value)`; none of what is no number.
fn float(value: &Value) -> Result<Option<f64>> {
    match value {
        Value::Undefined(why) => Err(Error::new(&**why)),
        Value::Bytes(_) => refuse!("bytes are not read as a number"),
        Value::Text(text) | Value::Markup(text) => Ok(parse_float(text).ok()),
        other => Ok(other.as_float()),
    }
}

fn int(value: &Value, given: Args) -> Result<Value> {
    let [usual, base] = given.bind("int", ["default", "base"], 0)?;
    let base = int_or("int", base.as_ref(), 10)?;
    if let Some(number) = value.as_int() {
        return Ok(Value::Int(number));
    }
    if let Some(text) = value.as_text()
        && let Ok(number) = parse_int(text, base)
    {
        return Ok(Value::Int(number));
    }
    let made = match (value, float(value)?) {
        // What is too large is an error of a number, and none of a text.
        (Value::Float(number), _) if number.is_infinite() => return truncated(*number).map(Value::Int),
        (_, Some(number)) if number.is_finite() => Some(truncated(number)?),
        _ => None,
    };
    Ok(made.map_or_else(|| usual.unwrap_or(Value::Int(0)), Value::Int))
}

fn rounded(value: &Value, given: Args) -> Result<Value> {
    let [precision, method] = given.bind("round", ["precision", "method"], 0)?;
    let precision = int_or("round", precision.as_ref(), 0)?;
    let method = method.map_or_else(|| Ok("common".into()), |method| text("round", &method))?;
    let whole: fn(f64) -> f64 = match &*method {
        "common" => return round(value, precision),
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        _ => return refuse!("round knows \"common\", \"ceil\" and \"floor\", not {method:?}"),
    };
    let power = binary(Binary::Power, &Value::Int(10), &Value::Int(precision))?;
    let whole = match binary(Binary::Multiply, value, &power)? {
        Value::Float(number) => Value::Int(truncated(whole(number))?),
        other => other,
    };
    binary(Binary::Divide, &whole, &power)
}

fn size(value: &Value, given: Args) -> Result<String> {
    let [binary] = given.bind("filesizeformat", ["binary"], 0)?;
    let (base, names) = if truth(binary.as_ref()) { (1024.0, BINARY) } else { (1000.0, DECIMAL) };
    let Some(bytes) = float(value)? else { return refuse!("filesizeformat takes a number") };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", truncated(bytes)?));
    }
    let mut unit: f64 = base;
    let mut text = String::new();
    for name in names {
        unit *= base;
        text = format!("{:.1} {name}", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    Ok(text)
}
