//! Methods of numbers.

use super::super::args::Args;
use super::super::error::{Result, refuse};
use super::super::numbers::too_large;
use super::super::value::Value;

pub fn call(of: &Value, name: &str, given: Args) -> Result<Value> {
    given.none(name)?;
    match (name, of, of.as_int()) {
        ("conjugate", Value::Float(number), _) => Ok(Value::Float(*number)),
        ("conjugate", _, Some(number)) => Ok(Value::Int(number)),
        ("as_integer_ratio", Value::Float(number), _) => ratio(*number),
        ("as_integer_ratio", _, Some(number)) => Ok(Value::tuple(vec![Value::Int(number), Value::Int(1)])),
        ("is_integer", Value::Float(number), _) => Ok(Value::Bool(number.is_finite() && number.fract() == 0.0)),
        ("hex", Value::Float(number), _) => Ok(Value::text(hex(*number))),
        ("bit_count", _, Some(number)) => Ok(Value::Int(number.unsigned_abs().count_ones().into())),
        ("bit_length", _, Some(number)) => Ok(Value::Int((u128::BITS - number.unsigned_abs().leading_zeros()).into())),
        _ => refuse!("what is {} has no {name:?}", of.kind()),
    }
}

/// A number as a fraction of whole numbers.
fn ratio(number: f64) -> Result<Value> {
    if !number.is_finite() {
        return refuse!("what is no finite number is no fraction");
    }
    let (mut above, mut below) = (number, 1_i128);
    while above.fract() != 0.0 {
        above *= 2.0;
        match below.checked_mul(2) {
            Some(double) => below = double,
            None => return too_large(),
        }
    }
    if above.abs() >= 1.7e38 {
        return too_large();
    }
    Ok(Value::tuple(vec![Value::Int(above as i128), Value::Int(below)]))
}

/// A number's bits, as C writes them.
fn hex(number: f64) -> String {
    if !number.is_finite() {
        return super::super::numbers::float_text(number);
    }
    let bits = number.to_bits();
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let (power, fraction) = ((bits >> 52) & 0x7ff, bits & ((1 << 52) - 1));
    match (power, fraction) {
        (0, 0) => format!("{sign}0x0.0p+0"),
        (0, _) => format!("{sign}0x0.{fraction:013x}p-1022"),
        _ => format!("{sign}0x1.{fraction:013x}p{:+}", power as i64 - 1023),
    }
}
