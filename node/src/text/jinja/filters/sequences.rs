//! Filters of what can be gone through.

use super::super::args::{Args, int, some, text, truth};
use super::super::ast::Binary;
use super::super::error::{Error, Result, refuse};
use super::super::machine::Machine;
use super::super::operators::{binary, equal, order};
use super::super::value::{Items, Value, pair};
use super::super::{checks, display, functions, letters};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::rc::Rc;

/// The most that `slice` and `batch` make of one.
const MOST: usize = 100_000;

pub fn apply(machine: &mut Machine, name: &str, value: Value, given: Args) -> Result<Value> {
    match name {
        "map" => map(machine, &value, given).map(Value::iterator),
        "select" | "reject" | "selectattr" | "rejectattr" => select(machine, name, &value, given).map(Value::iterator),
        "join" => join(machine, &value, given).map(Value::text),
        "sum" => sum(machine, &value, given),
        "sort" => sort(machine, &value, given).map(Value::list),
        "min" | "max" => extreme(machine, name, &value, given),
        "unique" => unique(machine, &value, given).map(Value::iterator),
        "groupby" => groupby(machine, &value, given).map(Value::list),
        "dictsort" => dictsort(&value, given).map(Value::list),
        "batch" => batch(&value, given).map(Value::iterator),
        "slice" => slice(&value, given).map(Value::iterator),
        _ => {
            given.none(name)?;
            plain(name, value)
        }
    }
}

/// Filters that take nothing.
fn plain(name: &str, value: Value) -> Result<Value> {
    Ok(match name {
        "length" | "count" => match value.len() {
            Some(length) => Value::size(length),
            None => return refuse!("what is {} has no length", value.kind()),
        },
        "list" => Value::list(value.iter()?),
        "first" => match &value {
            Value::Iterator(items) => items.borrow_mut().pop_front(),
            other => other.iter()?.into_iter().next(),
        }
        .unwrap_or_else(|| Value::undefined("there is no first item")),
        "last" => {
            if matches!(value, Value::Iterator(_)) {
                return refuse!("an iterator has no last item; make a list of it");
            }
            value.iter()?.pop().unwrap_or_else(|| Value::undefined("there is no last item"))
        }
        "random" => {
            if !matches!(value, Value::Text(_) | Value::Markup(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_))
            {
                return refuse!("random does not choose from what is {}", value.kind());
            }
            let mut items = value.iter()?;
            let place = functions::random(items.len());
            if items.is_empty() { Value::undefined("there is no random item") } else { items.swap_remove(place) }
        }
        "reverse" => reverse(&value)?,
        // All that is left of them.
        _ => match &value {
            Value::Undefined(_) => Value::iterator(Vec::new()),
            Value::Dict(dict) => Value::iterator(dict.pairs().map(pair).collect()),
            other => return refuse!("items takes a dictionary, not {}", other.kind()),
        },
    })
}

fn reverse(value: &Value) -> Result<Value> {
    if let Some(text) = value.as_text() {
        return Ok(Value::text(text.chars().rev().collect::<String>()));
    }
    let mut items = value.iter()?;
    items.reverse();
    Ok(if matches!(value, Value::Iterator(_)) { Value::list(items) } else { Value::iterator(items) })
}

/// Names and numbers with dots between them, or one number.
enum PathPart {
    Place(Value),
    Name(Value),
}

struct AttributePath {
    parts: Vec<PathPart>,
    /// Instead of what is not defined.
    usual: Option<Value>,
    folds: bool,
}

impl AttributePath {
    fn new(attribute: Option<&Value>, folds: bool) -> Result<Self> {
        let parts = match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Int(place)) => vec![PathPart::Place(Value::Int(*place))],
            Some(other) => Self::read(&text("an attribute", other)?),
        };
        Ok(Self { parts, usual: None, folds })
    }

    fn read(text: &str) -> Vec<PathPart> {
        let part = |part: &str| match part.parse() {
            Ok(place) if part.chars().all(letters::is_digit) => PathPart::Place(Value::Int(place)),
            _ => PathPart::Name(Value::text(part)),
        };
        text.split('.').map(part).collect()
    }

    fn of(&self, machine: &mut Machine, item: &Value) -> Result<Value> {
        machine.step()?;
        let mut value = item.clone();
        for part in &self.parts {
            let (PathPart::Place(key) | PathPart::Name(key)) = part;
            value = machine.item(&value, key)?;
            if let (Some(usual), true) = (&self.usual, value.is_undefined()) {
                value = usual.clone();
            }
        }
        Ok(if self.folds { folded(value) } else { value })
    }
}

/// Texts in small letters, so that capitals are no others.
fn folded(value: Value) -> Value {
    match value {
        Value::Text(text) => Value::text(letters::lower(&text)),
        Value::Markup(text) => Value::Markup(letters::lower(&text).into()),
        other => other,
    }
}

fn map(machine: &mut Machine, value: &Value, mut given: Args) -> Result<Vec<Value>> {
    if !value.is_true() {
        return Ok(Vec::new());
    }
    let mut made = Vec::new();
    if given.positional.is_empty() {
        let Some(attribute) = given.take("attribute") else { return refuse!("map needs a filter or an attribute") };
        let usual = some(given.take("default"));
        given.none("map with an attribute")?;
        let path = AttributePath { usual, ..AttributePath::new(Some(&attribute), false)? };
        for item in value.iter()? {
            made.push(path.of(machine, &item)?);
        }
        return Ok(made);
    }
    let name = text("map", &given.positional.remove(0))?;
    for item in value.iter()? {
        made.push(machine.filter(&name, item, given.clone())?);
    }
    Ok(made)
}

fn select(machine: &mut Machine, name: &str, value: &Value, mut given: Args) -> Result<Vec<Value>> {
    if !value.is_true() {
        return Ok(Vec::new());
    }
    let path = if name.ends_with("attr") {
        if given.positional.is_empty() {
            return refuse!("{name} needs an attribute");
        }
        AttributePath::new(Some(&given.positional.remove(0)), false)?
    } else {
        AttributePath::new(None, false)?
    };
    let test = if given.positional.is_empty() { None } else { Some(text(name, &given.positional.remove(0))?) };
    if test.is_none() && !given.named.is_empty() {
        return refuse!("{name} without a test takes nothing by name");
    }
    let wanted = name.starts_with("select");
    let mut kept = Vec::new();
    for item in value.iter()? {
        let tested = path.of(machine, &item)?;
        let holds = match &test {
            Some(test) => checks::apply(test, &tested, given.clone())?,
            None => tested.is_true(),
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Ok(kept)
}

fn join(machine: &mut Machine, value: &Value, given: Args) -> Result<String> {
    let [between, attribute] = given.bind("join", ["d", "attribute"], 0)?;
    let between = between.map_or_else(|| Ok(String::new()), |between| display::text(&between))?;
    let path = AttributePath::new(attribute.as_ref(), false)?;
    let mut texts = Vec::new();
    for item in value.iter()? {
        texts.push(display::text(&path.of(machine, &item)?)?);
    }
    Ok(texts.join(&between))
}

fn sum(machine: &mut Machine, value: &Value, given: Args) -> Result<Value> {
    let [attribute, start] = given.bind("sum", ["attribute", "start"], 0)?;
    let path = AttributePath::new(attribute.as_ref(), false)?;
    let mut sum = start.unwrap_or(Value::Int(0));
    if sum.as_text().is_some() {
        return refuse!("sum does not join texts; join does");
    }
    for item in value.iter()? {
        sum = binary(Binary::Add, &sum, &path.of(machine, &item)?)?;
    }
    Ok(sum)
}

/// Sorts by keys; what has no order is an error.
fn sorted<T>(mut items: Vec<(Value, T)>, reverse: bool) -> Result<Vec<(Value, T)>> {
    let mut failed: Option<Error> = None;
    items.sort_by(|(left, _), (right, _)| {
        let found = order(left, right).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            None
        });
        let found = found.unwrap_or(Ordering::Equal);
        if reverse { found.reverse() } else { found }
    });
    failed.map_or(Ok(items), Err)
}

fn sort(machine: &mut Machine, value: &Value, given: Args) -> Result<Vec<Value>> {
    let [reverse, sensitive, attribute] = given.bind("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let folds = !truth(sensitive.as_ref());
    let paths = match &attribute {
        Some(Value::Text(names)) => names
            .split(',')
            .map(|name| AttributePath::new(Some(&Value::text(name)), folds))
            .collect::<Result<Vec<_>>>()?,
        other => vec![AttributePath::new(other.as_ref(), folds)?],
    };
    let mut keyed = Vec::new();
    for item in value.iter()? {
        let mut key = Vec::new();
        for path in &paths {
            key.push(path.of(machine, &item)?);
        }
        keyed.push((Value::list(key), item));
    }
    Ok(sorted(keyed, truth(reverse.as_ref()))?.into_iter().map(|(_, item)| item).collect())
}

fn extreme(machine: &mut Machine, name: &str, value: &Value, given: Args) -> Result<Value> {
    let [sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"], 0)?;
    let path = AttributePath::new(attribute.as_ref(), !truth(sensitive.as_ref()))?;
    let better = if name == "min" { Ordering::Less } else { Ordering::Greater };
    let mut best: Option<(Value, Value)> = None;
    for item in value.iter()? {
        let key = path.of(machine, &item)?;
        let beats = match &best {
            Some((known, _)) => order(&key, known)? == Some(better),
            None => true,
        };
        if beats {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined(format!("there is no {name} of nothing")), |(_, item)| item))
}

fn unique(machine: &mut Machine, value: &Value, given: Args) -> Result<Vec<Value>> {
    let [sensitive, attribute] = given.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let path = AttributePath::new(attribute.as_ref(), !truth(sensitive.as_ref()))?;
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    for item in value.iter()? {
        if seen.insert(path.of(machine, &item)?.key()?) {
            kept.push(item);
        }
    }
    Ok(kept)
}

fn groupby(machine: &mut Machine, value: &Value, given: Args) -> Result<Vec<Value>> {
    let [attribute, usual, sensitive] = given.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let usual = some(usual);
    let folds = !truth(sensitive.as_ref());
    let path = AttributePath { usual: usual.clone(), ..AttributePath::new(attribute.as_ref(), folds)? };
    let shown = AttributePath { usual, ..AttributePath::new(attribute.as_ref(), false)? };
    let mut keyed = Vec::new();
    for item in value.iter()? {
        keyed.push((path.of(machine, &item)?, item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(keyed, false)? {
        match groups.last_mut() {
            Some((known, items)) if equal(known, &key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut made = Vec::new();
    for (key, items) in groups {
        let key = match items.first() {
            Some(first) if folds => shown.of(machine, first)?,
            _ => key,
        };
        made.push(Value::Group(Rc::new(Items(vec![key, Value::list(items)]))));
    }
    Ok(made)
}

fn dictsort(value: &Value, given: Args) -> Result<Vec<Value>> {
    let [sensitive, by, reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let by = by.map_or_else(|| Ok("key".into()), |by| text("dictsort", &by))?;
    let by_key = match &*by {
        "key" => true,
        "value" => false,
        _ => return refuse!("dictsort sorts by \"key\" or \"value\", not {by:?}"),
    };
    let Value::Dict(dict) = value else { return refuse!("dictsort takes a dictionary, not {}", value.kind()) };
    let sensitive = truth(sensitive.as_ref());
    let keyed = dict.pairs().map(|(key, value)| {
        let by = if by_key { key } else { value }.clone();
        (if sensitive { by } else { folded(by) }, pair((key, value)))
    });
    Ok(sorted(keyed.collect(), truth(reverse.as_ref()))?.into_iter().map(|(_, pair)| pair).collect())
}

fn bounded(name: &str, value: &Value) -> Result<usize> {
    let number = int(name, value)?;
    match usize::try_from(number) {
        Ok(number) if number <= MOST => Ok(number),
        _ => refuse!("{name} makes up to {MOST}, not {number}"),
    }
}

fn batch(value: &Value, given: Args) -> Result<Vec<Value>> {
    let [size, filler] = given.bind("batch", ["linecount", "fill_with"], 1)?;
    let size = bounded("batch", &size.unwrap_or(Value::None))?;
    if size == 0 {
        return refuse!("batch makes rows of at least one");
    }
    let mut rows: Vec<Vec<Value>> = value.iter()?.chunks(size).map(<[Value]>::to_vec).collect();
    if let (Some(filler), Some(last)) = (some(filler), rows.last_mut()) {
        last.resize(size, filler);
    }
    Ok(rows.into_iter().map(Value::list).collect())
}

fn slice(value: &Value, given: Args) -> Result<Vec<Value>> {
    let [slices, filler] = given.bind("slice", ["slices", "fill_with"], 1)?;
    let slices = bounded("slice", &slices.unwrap_or(Value::None))?;
    if slices == 0 {
        return refuse!("slice makes at least one");
    }
    let items = value.iter()?;
    let filler = some(filler);
    let (each, more) = (items.len() / slices, items.len() % slices);
    let (mut made, mut at) = (Vec::new(), 0);
    for place in 0..slices {
        let size = each + usize::from(place < more);
        let mut part = items[at..at + size].to_vec();
        at += size;
        part.extend(filler.clone().filter(|_| place >= more));
        made.push(Value::list(part));
    }
    Ok(made)
}
