//! What a function, method, filter or test is called with.

use super::error::{Result, refuse};
use super::value::Value;
use std::sync::Arc;

#[derive(Clone, Default)]
pub struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl From<Vec<Value>> for Args {
    fn from(positional: Vec<Value>) -> Self {
        Self { positional, named: Vec::new() }
    }
}

impl Args {
    /// By the names of parameters, of which so many must be given. One without a name can only be given by its place.
    pub fn bind<const N: usize>(self, of: &str, names: [&str; N], required: usize) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return refuse!("{of} takes at most {N} arguments, not {}", self.positional.len());
        }
        for (place, value) in self.positional.into_iter().enumerate() {
            bound[place] = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| *known == &*name && !name.is_empty()) {
                Some(place) if bound[place].is_none() => bound[place] = Some(value),
                Some(_) => return refuse!("{of} is given {name:?} twice"),
                None => return refuse!("{of} has no parameter {name:?}"),
            }
        }
        if let Some(missing) = (0..required).find(|place| bound[*place].is_none()) {
            return refuse!("{of} needs argument {} {}", missing + 1, names[missing]);
        }
        Ok(bound)
    }

    /// Of what takes nothing.
    pub fn none(self, of: &str) -> Result<()> {
        self.bind::<0>(of, [], 0).map(|[]| ())
    }

    /// One that must be given, and by its place.
    pub fn one(self, of: &str) -> Result<Value> {
        match self.bind(of, [""], 1)? {
            [Some(value)] => Ok(value),
            [None] => refuse!("{of} needs an argument"),
        }
    }

    /// Takes one out by its name.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let place = self.named.iter().position(|(known, _)| &**known == name)?;
        Some(self.named.remove(place).1)
    }
}

/// A whole number that was given.
pub fn int(of: &str, value: &Value) -> Result<i128> {
    match value.as_int() {
        Some(number) => Ok(number),
        None => refuse!("{of} takes a whole number, not {}", value.kind()),
    }
}

/// A whole number that was given or is this.
pub fn int_or(of: &str, value: Option<&Value>, usual: i128) -> Result<i128> {
    value.map_or(Ok(usual), |value| int(of, value))
}

/// A text that was given.
pub fn text(of: &str, value: &Value) -> Result<Arc<str>> {
    match value.as_text() {
        Some(text) => Ok(text.clone()),
        None => refuse!("{of} takes a text, not {}", value.kind()),
    }
}

/// A truth, whatever was given for it.
pub fn truth(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}

/// Anything but none.
pub fn some(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !matches!(value, Value::None))
}
