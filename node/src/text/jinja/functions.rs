//! What a template may call by its name alone: Jinja's functions, and those of transformers.

use super::args::{Args, int, int_or, text, truth};
use super::display::{escaped, text as text_of};
use super::error::{Error, Result, refuse};
use super::letters;
use super::machine::Machine;
use super::objects::{Cycler, Function, Joiner, Namespace};
use super::value::{Dict, Range, Value};
use crate::text::clock;
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

/// The longest range that Jinja's sandbox makes.
const LONGEST_RANGE: usize = 100_000;
/// The most words that `lipsum` makes.
const MOST_WORDS: i128 = 100_000;
const WORDS: &str = "a ac accumsan ad adipiscing aenean aliquam aliquet amet ante aptent arcu at auctor augue bibendum \
    blandit class commodo condimentum congue consectetuer consequat conubia convallis cras cubilia cum curabitur curae \
    cursus dapibus diam dictum dictumst dignissim dis dolor donec dui duis egestas eget eleifend elementum elit enim erat \
    eros est et etiam eu euismod facilisi facilisis fames faucibus felis fermentum feugiat fringilla fusce gravida \
    habitant habitasse hac hendrerit hymenaeos iaculis id imperdiet in inceptos integer interdum ipsum justo lacinia \
    lacus laoreet lectus leo libero ligula litora lobortis lorem luctus maecenas magna magnis malesuada massa mattis \
    mauris metus mi molestie mollis montes morbi mus nam nascetur natoque nec neque netus nibh nisi nisl non nonummy \
    nostra nulla nullam nunc odio orci ornare parturient pede pellentesque penatibus per pharetra phasellus placerat \
    platea porta porttitor posuere potenti praesent pretium primis proin pulvinar purus quam quis quisque rhoncus \
    ridiculus risus rutrum sagittis sapien scelerisque sed sem semper senectus sit sociis sociosqu sodales sollicitudin \
    suscipit suspendisse taciti tellus tempor tempus tincidunt torquent tortor tristique turpis ullamcorper ultrices \
    ultricies urna ut varius vehicula vel velit venenatis vestibulum vitae vivamus viverra volutpat vulputate";

pub fn call(machine: &mut Machine, function: Function, given: Args) -> Result<Value> {
    match function {
        Function::Range => range(given),
        Function::Dict => dict(given),
        Function::Lipsum => lipsum(given),
        Function::Cycler => {
            if given.positional.is_empty() || !given.named.is_empty() {
                return refuse!("cycler takes at least one value, and none by name");
            }
            Ok(Value::Cycler(Rc::new(Cycler { items: given.positional, place: Cell::new(0) })))
        }
        Function::Joiner => {
            let [separator] = given.bind("joiner", ["sep"], 0)?;
            let separator = separator.unwrap_or_else(|| Value::text(", "));
            Ok(Value::Joiner(Rc::new(Joiner { separator, used: Cell::new(false) })))
        }
        Function::Namespace => namespace(machine, given),
        Function::RaiseException => {
            let [why] = given.bind("raise_exception", ["message"], 1)?;
            refuse!("the template refuses this: {}", why.map_or_else(|| Ok(String::new()), |why| text_of(&why))?)
        }
        Function::StrftimeNow => {
            let [format] = given.bind("strftime_now", ["format"], 1)?;
            let format = text("strftime_now", &format.unwrap_or(Value::None))?;
            let written = clock::strftime(&(machine.clock())(), &format);
            written
                .map(Value::text)
                .map_err(|error| Error::new(format!("strftime_now cannot write {format:?}: {error}")))
        }
    }
}

fn range(given: Args) -> Result<Value> {
    let [first, second, step] = given.bind("range", ["", "", ""], 1)?;
    let first = int("range", &first.unwrap_or(Value::None))?;
    let (start, stop) = match second {
        Some(stop) => (first, int("range", &stop)?),
        None => (0, first),
    };
    let step = int_or("range", step.as_ref(), 1)?;
    let small = |number: i128| number.unsigned_abs() < 1 << 100;
    if step == 0 || !small(start) || !small(stop) || !small(step) {
        return refuse!("a range from {start} to {stop} by {step} has no end");
    }
    let range = Range { start, stop, step };
    if range.len() > LONGEST_RANGE {
        return refuse!("a range is at most {LONGEST_RANGE} long, not {}", range.len());
    }
    Ok(Value::Range(range))
}

/// Pairs of a dictionary, or of a row of pairs; then of names.
fn pairs(of: &str, given: Args) -> Result<Vec<(Value, Value)>> {
    let mut pairs = Vec::new();
    let mut positional = given.positional.into_iter();
    match positional.next() {
        Some(Value::Dict(dict)) => pairs.extend(dict.pairs().map(|(key, value)| (key.clone(), value.clone()))),
        Some(Value::Undefined(why)) => return Err(Error::new(&*why)),
        Some(row) => {
            for pair in row.iter()? {
                let pair: [Value; 2] = match pair.iter()?.try_into() {
                    Ok(pair) => pair,
                    Err(_) => return refuse!("{of} takes pairs of a key and a value"),
                };
                let [key, value] = pair;
                pairs.push((key, value));
            }
        }
        None => {}
    }
    if positional.next().is_some() {
        return refuse!("{of} takes at most one argument without a name");
    }
    pairs.extend(given.named.into_iter().map(|(name, value)| (Value::Text(name), value)));
    Ok(pairs)
}

fn dict(given: Args) -> Result<Value> {
    Dict::from_pairs(pairs("dict", given)?).map(Value::dict)
}

fn namespace(machine: &mut Machine, given: Args) -> Result<Value> {
    let space = Namespace { values: RefCell::default() };
    for (name, value) in pairs("namespace", given)? {
        space.values.borrow_mut().insert(text("namespace", &name)?, value);
    }
    Ok(machine.namespace(space))
}

/// A number below this that nobody can foretell.
pub fn random(below: usize) -> usize {
    let below = u64::try_from(below.max(1)).unwrap_or(u64::MAX);
    usize::try_from(RandomState::new().hash_one(()) % below).unwrap_or(0)
}

fn lipsum(given: Args) -> Result<Value> {
    let [paragraphs, html, min, max] = given.bind("lipsum", ["n", "html", "min", "max"], 0)?;
    let paragraphs = int_or("lipsum", paragraphs.as_ref(), 5)?.max(0);
    let (min, max) = (int_or("lipsum", min.as_ref(), 20)?, int_or("lipsum", max.as_ref(), 100)?);
    if max <= min || paragraphs.saturating_mul(max) > MOST_WORDS {
        return refuse!("lipsum cannot make {paragraphs} paragraphs of {min} to {max} words");
    }
    let made: Vec<String> = (0..paragraphs).map(|_| paragraph(min, max)).collect();
    if html.as_ref().is_some_and(|html| !truth(Some(html))) {
        return Ok(Value::text(made.join("\n\n")));
    }
    let made: Vec<String> = made.iter().map(|text| format!("<p>{}</p>", escaped(text))).collect();
    Ok(Value::Markup(made.join("\n").into()))
}

/// Words with commas and full stops among them.
fn paragraph(min: i128, max: i128) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let many = min + random(usize::try_from(max - min).unwrap_or(1)) as i128;
    let (mut text, mut capital, mut comma, mut stop) = (String::new(), true, 0, 0);
    for place in 0..many {
        let word = words[random(words.len())];
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&if std::mem::take(&mut capital) { letters::capitalize(word) } else { word.to_owned() });
        if place - (3 + random(5) as i128) > comma {
            comma = place;
            stop += 2;
            text.push(',');
        }
        if place - (10 + random(10) as i128) > stop {
            (comma, stop, capital) = (place, place, true);
            text.push('.');
        }
    }
    let text = text.strip_suffix(',').unwrap_or(&text);
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}
