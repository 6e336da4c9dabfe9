//! What stands between values: arithmetic, comparison, membership, and what lies in them.

use super::ast::{Binary, Comparison};
use super::display::{DEPTH, markup};
use super::error::{Error, Result, refuse};
use super::numbers::too_large;
use super::printf;
use super::value::{DictView, Items, Range, Value, letter};
use std::cmp::Ordering;
use std::rc::Rc;

/// The longest text or list that a product makes (bytes, items).
const LONGEST: usize = 64 << 20;
/// Whole numbers up to this are exact as floating-point ones.
const EXACT: u128 = 1 << 53;

pub fn binary(sign: Binary, left: &Value, right: &Value) -> Result<Value> {
    for side in [left, right] {
        if let Value::Undefined(why) = side {
            return Err(Error::new(&**why));
        }
    }
    let known = match (sign, left, right) {
        (Binary::Remainder, Value::Text(format), _) => Some(printf::format(format, right, false).map(Value::text)?),
        (Binary::Remainder, Value::Markup(format), _) => {
            Some(Value::Markup(printf::format(format, right, true)?.into()))
        }
        (Binary::Add, ..) => joined(left, right)?,
        (Binary::Multiply, ..) => repeated(left, right)?,
        _ => None,
    };
    if let Some(value) = known {
        return Ok(value);
    }
    match (left.as_int(), right.as_int(), left.as_float(), right.as_float()) {
        (Some(left), Some(right), ..) => ints(sign, left, right),
        (_, _, Some(left), Some(right)) => floats(sign, left, right).map(Value::Float),
        _ => refuse!("{} is not for {} and {}", sign.sign(), left.kind(), right.kind()),
    }
}

/// Texts, lists or tuples, one behind the other.
fn joined(left: &Value, right: &Value) -> Result<Option<Value>> {
    let both = |left: &Rc<Items>, right: &Rc<Items>| left.0.iter().chain(&right.0).cloned().collect();
    Ok(match (left, right) {
        (Value::Text(left), Value::Text(right)) => Some(Value::text(format!("{left}{right}"))),
        (Value::Text(_) | Value::Markup(_), Value::Text(_) | Value::Markup(_)) => {
            Some(Value::Markup(format!("{}{}", markup(left)?, markup(right)?).into()))
        }
        (Value::List(left), Value::List(right)) => Some(Value::list(both(left, right))),
        (Value::Tuple(left) | Value::Group(left), Value::Tuple(right) | Value::Group(right)) => {
            Some(Value::tuple(both(left, right)))
        }
        (Value::Bytes(left), Value::Bytes(right)) => Some(Value::Bytes([&**left, &**right].concat().into())),
        _ => None,
    })
}

/// A text, list or tuple, so many times.
fn repeated(left: &Value, right: &Value) -> Result<Option<Value>> {
    let (value, times) = match (left.as_int(), right.as_int()) {
        (None, Some(times)) => (left, times),
        (Some(times), None) => (right, times),
        _ => return Ok(None),
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let size = match value {
        Value::Text(text) | Value::Markup(text) => text.len(),
        Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.0.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => return Ok(None),
    };
    if size.checked_mul(times).is_none_or(|size| size > LONGEST) {
        return refuse!("{times} times {size} is too long");
    }
    let items = |items: &Rc<Items>| (0..times).flat_map(|_| items.0.iter().cloned()).collect();
    Ok(Some(match value {
        Value::Text(text) => Value::text(text.repeat(times)),
        Value::Markup(text) => Value::Markup(text.repeat(times).into()),
        Value::List(list) => Value::list(items(list)),
        Value::Tuple(list) | Value::Group(list) => Value::tuple(items(list)),
        Value::Bytes(bytes) => Value::Bytes(bytes.repeat(times).into()),
        _ => return Ok(None),
    }))
}

fn ints(sign: Binary, left: i128, right: i128) -> Result<Value> {
    let naught = || Error::new(format!("{left} {} 0 has no value", sign.sign()));
    let made = match sign {
        Binary::Add => left.checked_add(right),
        Binary::Subtract => left.checked_sub(right),
        Binary::Multiply => left.checked_mul(right),
        Binary::Divide => return divided(left, right).map(Value::Float),
        Binary::FloorDivide | Binary::Remainder if right == 0 => return Err(naught()),
        Binary::FloorDivide => floor_divided(left, right),
        Binary::Remainder => floor_divided(left, right).and_then(|whole| left.checked_sub(whole.checked_mul(right)?)),
        Binary::Power if right < 0 => return floats(sign, left as f64, right as f64).map(Value::Float),
        Binary::Power => u32::try_from(right).ok().and_then(|right| left.checked_pow(right)).or(match left {
            0 | 1 => Some(left),
            -1 => Some(if right % 2 == 0 { 1 } else { -1 }),
            _ => None,
        }),
    };
    made.map_or_else(too_large, |number| Ok(Value::Int(number)))
}

fn floor_divided(left: i128, right: i128) -> Option<i128> {
    let whole = left.checked_div(right)?;
    Some(if left % right != 0 && (left < 0) != (right < 0) { whole - 1 } else { whole })
}

fn divided(left: i128, right: i128) -> Result<f64> {
    if right == 0 {
        return refuse!("{left} / 0 has no value");
    }
    if left % right == 0 {
        return Ok((left / right) as f64);
    }
    if left.unsigned_abs().max(right.unsigned_abs()) > EXACT {
        return refuse!("{left} / {right} is not computed exactly");
    }
    Ok(left as f64 / right as f64)
}

fn floats(sign: Binary, left: f64, right: f64) -> Result<f64> {
    if matches!(sign, Binary::Divide | Binary::FloorDivide | Binary::Remainder) && right == 0.0 {
        return refuse!("a number {} 0 has no value", sign.sign());
    }
    Ok(match sign {
        Binary::Add => left + right,
        Binary::Subtract => left - right,
        Binary::Multiply => left * right,
        Binary::Divide => left / right,
        Binary::FloorDivide => float_floor(left, right).0,
        Binary::Remainder => float_floor(left, right).1,
        Binary::Power => return power(left, right),
    })
}

/// The whole quotient and the rest, by Python's own steps.
fn float_floor(left: f64, right: f64) -> (f64, f64) {
    let mut rest = left % right;
    let mut quotient = (left - rest) / right;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(right);
    } else if (right < 0.0) != (rest < 0.0) {
        rest += right;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(left / right), rest);
    }
    let whole = quotient.floor();
    (if quotient - whole > 0.5 { whole + 1.0 } else { whole }, rest)
}

fn power(left: f64, right: f64) -> Result<f64> {
    let made = left.powf(right);
    if left == 0.0 && right < 0.0 {
        return refuse!("0 has no negative power");
    }
    if made.is_nan() && !left.is_nan() && !right.is_nan() {
        return refuse!("a power of a negative number is complex");
    }
    if made.is_infinite() && left.is_finite() && right.is_finite() {
        return refuse!("a power is too large");
    }
    Ok(made)
}

pub fn negative(value: &Value) -> Result<Value> {
    match (value, value.as_int()) {
        (_, Some(number)) => number.checked_neg().map_or_else(too_large, |number| Ok(Value::Int(number))),
        (Value::Float(number), _) => Ok(Value::Float(-number)),
        (Value::Undefined(why), _) => Err(Error::new(&**why)),
        _ => refuse!("- is not for {}", value.kind()),
    }
}

pub fn positive(value: &Value) -> Result<Value> {
    match (value, value.as_int()) {
        (_, Some(number)) => Ok(Value::Int(number)),
        (Value::Float(number), _) => Ok(Value::Float(*number)),
        (Value::Undefined(why), _) => Err(Error::new(&**why)),
        _ => refuse!("+ is not for {}", value.kind()),
    }
}

pub fn compare(how: Comparison, left: &Value, right: &Value) -> Result<bool> {
    Ok(match how {
        Comparison::Equal => equal(left, right)?,
        Comparison::Unequal => !equal(left, right)?,
        Comparison::In => contains(right, left)?,
        Comparison::NotIn => !contains(right, left)?,
        Comparison::Less => order(left, right)? == Some(Ordering::Less),
        Comparison::Greater => order(left, right)? == Some(Ordering::Greater),
        Comparison::LessOrEqual => order(left, right)?.is_some_and(Ordering::is_le),
        Comparison::GreaterOrEqual => order(left, right)?.is_some_and(Ordering::is_ge),
    })
}

pub fn equal(left: &Value, right: &Value) -> Result<bool> {
    equal_within(left, right, 0)
}

fn equal_within(left: &Value, right: &Value, depth: usize) -> Result<bool> {
    if depth > DEPTH {
        return refuse!("values lie more than {DEPTH} deep in each other");
    }
    let rows = |left: &[Value], right: &[Value]| -> Result<bool> {
        if left.len() != right.len() {
            return Ok(false);
        }
        for (left, right) in left.iter().zip(right) {
            if !equal_within(left, right, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Text(left) | Value::Markup(left), Value::Text(right) | Value::Markup(right)) => left == right,
        (Value::Bytes(left), Value::Bytes(right)) => left == right,
        (Value::List(left), Value::List(right)) => rows(&left.0, &right.0)?,
        (Value::Tuple(left) | Value::Group(left), Value::Tuple(right) | Value::Group(right)) => {
            rows(&left.0, &right.0)?
        }
        (Value::Dict(left), Value::Dict(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for (key, value) in left.pairs() {
                match right.get(key)? {
                    Some(other) if equal_within(value, other, depth + 1)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(left), Value::Range(right)) => {
            left.len() == right.len() && left.iter().map(int).eq(right.iter().map(int))
        }
        (Value::View(DictView::Keys | DictView::Items, _), Value::View(DictView::Keys | DictView::Items, _)) => {
            return refuse!("views of dictionaries are not compared; make lists of them");
        }
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        _ => numbers(left, right) == Some(Some(Ordering::Equal)),
    })
}

fn int(value: Value) -> Option<i128> {
    value.as_int()
}

/// How two numbers lie, if they are numbers, and neither is none at all.
fn numbers(left: &Value, right: &Value) -> Option<Option<Ordering>> {
    Some(match (left.as_int(), right.as_int()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        (Some(left), None) => int_and_float(left, right.as_float()?),
        (None, Some(right)) => int_and_float(right, left.as_float()?).map(Ordering::reverse),
        (None, None) => left.as_float()?.partial_cmp(&right.as_float()?),
    })
}

fn int_and_float(left: i128, right: f64) -> Option<Ordering> {
    if right.is_nan() || right.abs() >= 1.7e38 {
        return 0.0_f64.partial_cmp(&right);
    }
    Some(left.cmp(&(right.trunc() as i128)).then(0.0_f64.partial_cmp(&right.fract())?))
}

/// How two values lie; none if they are numbers that do not.
pub fn order(left: &Value, right: &Value) -> Result<Option<Ordering>> {
    order_within(left, right, 0)
}

fn order_within(left: &Value, right: &Value, depth: usize) -> Result<Option<Ordering>> {
    if depth > DEPTH {
        return refuse!("values lie more than {DEPTH} deep in each other");
    }
    for side in [left, right] {
        if let Value::Undefined(why) = side {
            return Err(Error::new(&**why));
        }
    }
    let (left_items, right_items) = match (left, right) {
        (Value::Text(left) | Value::Markup(left), Value::Text(right) | Value::Markup(right)) => {
            return Ok(Some(left.cmp(right)));
        }
        (Value::Bytes(left), Value::Bytes(right)) => return Ok(Some(left.cmp(right))),
        (Value::List(left), Value::List(right)) => (left, right),
        (Value::Tuple(left) | Value::Group(left), Value::Tuple(right) | Value::Group(right)) => (left, right),
        _ => match numbers(left, right) {
            Some(order) => return Ok(order),
            None => return refuse!("{} and {} have no order", left.kind(), right.kind()),
        },
    };
    for (left, right) in left_items.0.iter().zip(&right_items.0) {
        if !equal_within(left, right, depth + 1)? {
            return order_within(left, right, depth + 1);
        }
    }
    Ok(Some(left_items.0.len().cmp(&right_items.0.len())))
}

/// `item in container`
pub fn contains(container: &Value, item: &Value) -> Result<bool> {
    let among = |items: &[Value]| -> Result<bool> {
        for other in items {
            if equal(other, item)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    match container {
        Value::Text(text) | Value::Markup(text) => match item.as_text() {
            Some(part) => Ok(text.contains(&**part)),
            None => refuse!("a text holds texts, not {}", item.kind()),
        },
        Value::Dict(dict) | Value::View(DictView::Keys, dict) => Ok(dict.get(item)?.is_some()),
        Value::Range(range) => Ok(item.as_float().is_some() && among(&range.iter().collect::<Vec<_>>())?),
        Value::Iterator(items) => {
            while let Some(other) = { items.borrow_mut().pop_front() } {
                if equal(&other, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => among(&other.iter()?),
    }
}

/// `value[key]` of what has numbered or named parts; none if it has not.
pub fn item(value: &Value, key: &Value) -> Result<Option<Value>> {
    if let Value::Undefined(why) = value {
        return Err(Error::new(&**why));
    }
    if let Value::Dict(dict) = value {
        return Ok(key.key().ok().and_then(|_| dict.get(key).ok().flatten().cloned()));
    }
    let (Some(place), Some(length)) = (key.as_int(), value.len()) else { return Ok(None) };
    let place = if place < 0 { place + length as i128 } else { place };
    let Ok(place) = usize::try_from(place) else { return Ok(None) };
    Ok(match value {
        Value::Text(text) => text.chars().nth(place).map(letter),
        Value::Markup(text) => text.chars().nth(place).map(|letter| Value::Markup(String::from(letter).into())),
        Value::Bytes(bytes) => bytes.get(place).map(|byte| Value::Int((*byte).into())),
        Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.0.get(place).cloned(),
        Value::Range(range) => range.get(place).map(Value::Int),
        _ => None,
    })
}

/// `value[start:stop:step]`
pub fn slice(value: &Value, bounds: [Option<Value>; 3]) -> Result<Value> {
    if let Value::Undefined(why) = value {
        return Err(Error::new(&**why));
    }
    let sliced = matches!(
        value,
        Value::Text(_)
            | Value::Markup(_)
            | Value::Bytes(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Group(_)
            | Value::Range(_)
    );
    let Some(length) = value.len().filter(|_| sliced) else { return refuse!("what is {} has no slices", value.kind()) };
    let places = places(length, bounds)?;
    if let Value::Range(range) = value {
        return Ok(range_slice(*range, &places));
    }
    let pick = |items: &[Value]| places.iter().filter_map(|place| items.get(*place).cloned()).collect();
    Ok(match value {
        Value::Text(text) => Value::text(letters_at(text, &places)),
        Value::Markup(text) => Value::Markup(letters_at(text, &places).into()),
        Value::Bytes(bytes) => Value::Bytes(places.iter().filter_map(|place| bytes.get(*place).copied()).collect()),
        Value::List(items) => Value::list(pick(&items.0)),
        Value::Tuple(items) | Value::Group(items) => Value::tuple(pick(&items.0)),
        other => return refuse!("what is {} has no slices", other.kind()),
    })
}

fn letters_at(text: &str, places: &[usize]) -> String {
    let letters: Vec<char> = text.chars().collect();
    places.iter().filter_map(|place| letters.get(*place)).collect()
}

fn range_slice(range: Range, places: &[usize]) -> Value {
    let at = |place: Option<&usize>| place.map_or(range.start, |place| range.start + range.step * *place as i128);
    let step = match places {
        [first, second, ..] => range.step * (*second as i128 - *first as i128),
        _ => range.step,
    };
    let start = at(places.first());
    let stop = if places.is_empty() { start } else { at(places.last()) + step };
    Value::Range(Range { start, stop, step })
}

/// The places that a slice takes.
fn places(length: usize, [start, stop, step]: [Option<Value>; 3]) -> Result<Vec<usize>> {
    let number = |bound: Option<Value>| match bound {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_int() {
            Some(number) => Ok(Some(number)),
            None => refuse!("a slice goes by whole numbers, not {}", value.kind()),
        },
    };
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return refuse!("a slice has no step of 0");
    }
    let length = length as i128;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |given: Option<i128>, usual: i128| {
        given.map_or(usual, |at| (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high))
    };
    let (mut at, stop) =
        if step > 0 { (bound(start, low), bound(stop, high)) } else { (bound(start, high), bound(stop, low)) };
    let mut places = Vec::new();
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        places.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    Ok(places)
}
