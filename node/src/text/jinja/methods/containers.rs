//! Methods of lists, tuples, dictionaries, ranges and bytes.

use super::super::args::{Args, int_or, text};
use super::super::error::{Error, Result, refuse};
use super::super::operators::{contains, equal};
use super::super::value::{Dict, DictView, Value};
use std::rc::Rc;

pub fn call(of: &Value, name: &str, given: Args) -> Result<Value> {
    match (of, name) {
        (Value::Bytes(bytes), _) => call_bytes(bytes, name, given),
        (Value::Dict(dict), _) => call_dict(dict, name, given),
        (Value::View(view, _), _) => {
            if *view == DictView::Values {
                return refuse!("values of a dictionary have no {name:?}");
            }
            for item in given.one(name)?.iter()? {
                if contains(of, &item)? {
                    return Ok(Value::Bool(false));
                }
            }
            Ok(Value::Bool(true))
        }
        (Value::List(list), "copy") => {
            given.none(name)?;
            Ok(Value::list(list.0.clone()))
        }
        (_, "count") => count(of, &given.one(name)?),
        (_, "index") => index(of, given),
        _ => refuse!("what is {} has no {name:?}", of.kind()),
    }
}

fn count(of: &Value, item: &Value) -> Result<Value> {
    let mut count = 0;
    for other in of.iter()? {
        count += i128::from(equal(&other, item)?);
    }
    Ok(Value::Int(count))
}

fn index(of: &Value, given: Args) -> Result<Value> {
    let [item, start, stop] = given.bind("index", ["", "", ""], 1)?;
    let (items, item) = (of.iter()?, item.unwrap_or(Value::None));
    let bound = |given: Option<&Value>, usual: usize| -> Result<usize> {
        let place = int_or("index", given, usual as i128)?;
        let place = if place < 0 { place + items.len() as i128 } else { place };
        Ok(usize::try_from(place.max(0)).unwrap_or(usize::MAX))
    };
    let (start, stop) = (bound(start.as_ref(), 0)?, bound(stop.as_ref(), items.len())?);
    for (place, other) in items.iter().enumerate().take(stop).skip(start) {
        if equal(other, &item)? {
            return Ok(Value::size(place));
        }
    }
    refuse!("index: the value is not in the {}", of.kind())
}

fn call_dict(dict: &Rc<Dict>, name: &str, given: Args) -> Result<Value> {
    match name {
        "get" => {
            let [key, usual] = given.bind("get", ["", ""], 1)?;
            let found = dict.get(&key.unwrap_or(Value::None))?.cloned();
            Ok(found.or(usual).unwrap_or(Value::None))
        }
        "fromkeys" => {
            let [keys, value] = given.bind("fromkeys", ["", ""], 1)?;
            let value = value.unwrap_or(Value::None);
            let keys = keys.unwrap_or(Value::None).iter()?;
            Dict::from_pairs(keys.into_iter().map(|key| (key, value.clone()))).map(Value::dict)
        }
        _ => {
            given.none(name)?;
            Ok(match name {
                "copy" => Value::dict(dict.copy()),
                "keys" => Value::View(DictView::Keys, dict.clone()),
                "values" => Value::View(DictView::Values, dict.clone()),
                _ => Value::View(DictView::Items, dict.clone()),
            })
        }
    }
}

fn call_bytes(bytes: &[u8], name: &str, given: Args) -> Result<Value> {
    if name == "hex" {
        given.none(name)?;
        return Ok(Value::text(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()));
    }
    let [encoding, errors] = given.bind(name, ["encoding", "errors"], 0)?;
    let encoding = encoding.map_or_else(|| Ok("utf-8".into()), |value| text(name, &value))?;
    if errors.is_some_and(|errors| errors.as_text().is_none_or(|errors| &**errors != "strict")) {
        return refuse!("decode knows only strict errors");
    }
    let bad = || Error::new(format!("bytes are no {encoding}"));
    match &*encoding.to_ascii_lowercase().replace('_', "-") {
        "utf-8" | "utf8" => std::str::from_utf8(bytes).map(Value::text).map_err(|_| bad()),
        "ascii" if bytes.is_ascii() => std::str::from_utf8(bytes).map(Value::text).map_err(|_| bad()),
        "ascii" => Err(bad()),
        "latin-1" | "latin1" | "iso-8859-1" => {
            Ok(Value::text(bytes.iter().map(|byte| char::from(*byte)).collect::<String>()))
        }
        _ => refuse!("decode does not know {encoding:?}"),
    }
}
