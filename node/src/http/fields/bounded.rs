//! Fields of any kind, with an end to what they take together.

use super::ApiError;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Memory that a request's fields may take beside its prompts and messages (bytes): 128 tools with ten arguments each take
/// two thirds, 300 biases a thirtieth.
const MEMORY: usize = 2 << 20;
/// Of a value in a list, which grows by doubling.
const VALUE: usize = 2 * size_of::<Value>();
/// Of a name in a map, beside its letters: a map keeps its order, as a row of entries and a table of their places, and both
/// grow by doubling.
const NAME: usize = 2 * (size_of::<String>() + size_of::<Value>() + 2 * size_of::<usize>());
/// Of a map that is not empty, however little is in it.
const MAP: usize = 2 * NAME;

/// What is left of it.
#[derive(Debug)]
pub(super) struct ParseBudget {
    left: usize,
    /// The field that is read.
    field: String,
    is_exceeded: bool,
}

impl Default for ParseBudget {
    fn default() -> Self {
        Self { left: MEMORY, field: String::new(), is_exceeded: false }
    }
}

impl ParseBudget {
    /// So many bytes.
    pub fn of(left: usize) -> Self {
        Self { left, ..Self::default() }
    }

    /// A field begins.
    pub fn field<E: Error>(&mut self, name: &str) -> Result<(), E> {
        self.field = name.chars().take(64).collect();
        self.take(NAME + name.len())
    }

    /// The error to answer with, if that is why reading ended.
    pub fn exceeded(&self) -> Option<ApiError> {
        let why = || {
            let name = &self.field;
            format!(
                "'{name}' is too long: fields other than 'prompt' and 'messages' may take {} KiB together",
                MEMORY >> 10
            )
        };
        self.is_exceeded.then(|| ApiError::param(&self.field, why()))
    }

    fn take<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => {
                self.is_exceeded = true;
                return Err(E::custom("too long"));
            }
        }
        Ok(())
    }
}

/// Reads a value, if there is room for it.
pub(super) struct Within<'b>(pub &'b mut ParseBudget);

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.0.take(text.len())?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(Within(self.0))? {
            self.0.take(VALUE)?;
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            self.0.take(if object.is_empty() { MAP } else { NAME } + name.len())?;
            let value = map.next_value_seed(Within(self.0))?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
