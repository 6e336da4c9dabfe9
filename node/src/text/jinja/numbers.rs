//! Numbers from text and to text, as Python reads and writes them.

use super::error::{Error, Result, refuse};
use super::letters::ascii_number;
use super::value::Value;

/// The fewest digits that are read back as the same: Rust lays them out as Python does but for exponents.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    exponent(&format!("{value:?}"))
}

/// Writes an exponent as C does: with its sign and two digits.
pub fn exponent(text: &str) -> String {
    let Some((digits, power)) = text.split_once('e') else { return text.to_owned() };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

/// `int(text, base)`
pub fn parse_int(text: &str, base: i128) -> Result<i128> {
    let plain = ascii_number(text)?.to_ascii_lowercase();
    let bad = || Error::new(format!("{text:?} is no whole number of base {base}"));
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let prefixed = |prefix: &str, of: i128| (base == of || base == 0).then(|| digits.strip_prefix(prefix)).flatten();
    let (digits, base) = [("0b", 2), ("0o", 8), ("0x", 16)]
        .into_iter()
        .find_map(|(prefix, of)| Some((prefixed(prefix, of)?, of)))
        .unwrap_or((digits, if base == 0 { 10 } else { base }));
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)).ok_or_else(bad)?;
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return Err(bad());
    }
    let Ok(number) = i128::from_str_radix(digits, base) else { return too_large() };
    Ok(if negative { -number } else { number })
}

/// `float(text)`
pub fn parse_float(text: &str) -> Result<f64> {
    let plain = ascii_number(text)?;
    let known = plain.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    let bare = plain.trim_start_matches(['+', '-']).to_ascii_lowercase();
    if !known && !matches!(&*bare, "inf" | "infinity" | "nan") {
        return refuse!("{text:?} is no number");
    }
    plain.parse().map_err(|_| Error::new(format!("{text:?} is no number")))
}

/// `int(value)` of what is a number.
pub fn truncated(value: f64) -> Result<i128> {
    if !value.is_finite() {
        return refuse!("{} is no whole number", float_text(value));
    }
    if value.abs() >= 1.7e38 { too_large() } else { Ok(value.trunc() as i128) }
}

/// Whole numbers here have 128 bits, where Python's have no end.
pub fn too_large<T>() -> Result<T> {
    refuse!("a whole number has more than 128 bits")
}

/// `round(value, digits)`
pub fn round(value: &Value, digits: i128) -> Result<Value> {
    match (value, value.as_int()) {
        (_, Some(number)) => round_int(number, digits).map(Value::Int),
        (Value::Float(number), _) => round_float(*number, digits).map(Value::Float),
        (other, _) => refuse!("what is {} cannot be rounded", other.kind()),
    }
}

fn round_int(number: i128, digits: i128) -> Result<i128> {
    if digits >= 0 {
        return Ok(number);
    }
    let power = u32::try_from(-digits).ok().and_then(|digits| 10_i128.checked_pow(digits));
    let Some(power) = power else { return Ok(0) };
    let (below, rest) = (number.div_euclid(power), number.rem_euclid(power));
    let up = rest * 2 > power || (rest * 2 == power && below % 2 != 0);
    match (below + i128::from(up)).checked_mul(power) {
        Some(number) => Ok(number),
        None => too_large(),
    }
}

fn round_float(number: f64, digits: i128) -> Result<f64> {
    if !number.is_finite() || digits > 323 {
        return Ok(number);
    }
    if let Ok(digits) = usize::try_from(digits) {
        // Written exactly and read back, which is how Python does it.
        return parse_float(&format!("{number:.digits$}"));
    }
    let Ok(digits) = i32::try_from(-digits) else { return Ok(0.0 * number) };
    let power = 10_f64.powi(digits);
    let scaled = number / power;
    Ok(scaled.round_ties_even() * power)
}
