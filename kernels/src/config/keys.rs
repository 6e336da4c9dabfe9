//! Keys of `config.json` that only some families have.

use super::{Activation, ModelConfigError};
use crate::{json, rope::RopePairs};
use serde::Deserialize as _;
use serde_json::{Map, Value};
use std::{cell::RefCell, collections::BTreeSet};

/// Everything `config.json` says, or a part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    said: Map<String, Value>,
    /// What was asked for: the rest is nothing that a family reads.
    asked: RefCell<BTreeSet<&'static str>>,
}

/// What a layer of `layer_types` is called when it has no window, and when it has one.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

impl Keys {
    /// Reads `config.json`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, ModelConfigError> {
        let said = serde_json::from_slice(&json::plain(text));
        let said =
            said.map_err(|error| ModelConfigError::Json(json::fault(&error, "an object with the model's settings")))?;
        Ok(Self::of(said))
    }

    fn of(said: Map<String, Value>) -> Self {
        Self { said, asked: RefCell::default() }
    }

    /// The value of `key`; `null` is none.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.said.get(key).filter(|v| !v.is_null())
    }

    /// Says `value` of `key`, where nothing is said.
    pub(super) fn fill(&mut self, key: &str, value: Value) {
        if self.value(key).is_none() {
            self.said.insert(key.to_owned(), value);
        }
    }

    /// Whether nothing is said.
    fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// All that is said.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.said.iter()
    }

    /// Whether somebody asked for the value of `key`.
    pub(super) fn was_asked(&self, key: &str) -> bool {
        self.asked.borrow().contains(key)
    }

    fn read<'k, T>(
        &'k self,
        key: &'static str,
        read: impl Fn(&'k Value) -> Option<T>,
    ) -> Result<Option<T>, ModelConfigError> {
        self.asked.borrow_mut().insert(key);
        self.value(key).map(|v| read(v).ok_or_else(|| unsupported(key, v))).transpose()
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &'static str) -> Result<Option<f32>, ModelConfigError> {
        self.read(key, |v| decimal(v).map(|x| x as f32).filter(|x| x.is_finite()))
    }

    /// A finite number, `usual` where the key is missing; `null` says that there is none.
    pub(crate) fn number_or(&self, key: &'static str, usual: f32) -> Result<Option<f32>, ModelConfigError> {
        if self.said.contains_key(key) { self.number(key) } else { Ok(Some(usual)) }
    }

    /// Whether `key` is missing or `null`.
    pub(crate) fn is_null(&self, key: &'static str) -> bool {
        self.asked.borrow_mut().insert(key);
        self.value(key).is_none()
    }

    /// A whole number from 1 on.
    pub(crate) fn count(&self, key: &'static str) -> Result<Option<usize>, ModelConfigError> {
        self.read(key, |v| whole(v).filter(|n| *n > 0).map(|n| n as usize))
    }

    /// A whole number, which a model must say.
    pub(super) fn needed(&self, key: &'static str) -> Result<u32, ModelConfigError> {
        self.read(key, whole)?.ok_or(ModelConfigError::Missing(key))
    }

    /// A whole number, if it is said.
    pub(super) fn optional(&self, key: &'static str) -> Result<Option<u32>, ModelConfigError> {
        self.read(key, whole)
    }

    /// A number of tokens from 1 on, which may be out of all bounds: some write it where there is no bound.
    pub(super) fn length(&self, key: &'static str) -> Result<Option<f64>, ModelConfigError> {
        self.read(key, |v| decimal(v).filter(|x| *x >= 1.0 && (x.is_infinite() || x.fract() == 0.0)))
    }

    /// Yes or no; Python's 1 and 0 are these too.
    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, ModelConfigError> {
        self.read(key, |v| v.as_bool().or_else(|| whole(v).filter(|n| *n < 2).map(|n| n == 1)))
    }

    /// The words of a list; whatever else is there is none.
    pub(crate) fn words(&self, key: &'static str) -> Vec<&str> {
        self.asked.borrow_mut().insert(key);
        match self.value(key) {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(word)) => vec![word],
            _ => Vec::new(),
        }
    }

    /// Ours, in what is made of a GGUF file's metadata.
    pub(super) fn rope_pairs(&self) -> Result<RopePairs, ModelConfigError> {
        Ok(self.read("tsnode_rope_pairs", |v| RopePairs::deserialize(v).ok())?.unwrap_or_default())
    }

    /// A word.
    pub(crate) fn text(&self, key: &'static str) -> Result<Option<&str>, ModelConfigError> {
        self.read(key, Value::as_str)
    }

    /// Finite numbers.
    pub(crate) fn numbers(&self, key: &'static str) -> Result<Option<Vec<f32>>, ModelConfigError> {
        let number = |v: &Value| decimal(v).map(|x| x as f32).filter(|x| x.is_finite());
        self.read(key, |v| v.as_array()?.iter().map(number).collect())
    }

    /// Parameters of rotary positions, under either of their names; where a file has both, transformers 5 takes the old one too.
    pub(crate) fn rope(&self) -> Result<Option<Keys>, ModelConfigError> {
        let new = self.within("rope_parameters")?;
        Ok(self.within("rope_scaling")?.filter(|old| !old.is_empty()).or(new))
    }

    /// Keys within `key`.
    pub(crate) fn within(&self, key: &'static str) -> Result<Option<Keys>, ModelConfigError> {
        self.read(key, |v| v.as_object().cloned().map(Self::of))
    }

    /// The activation, under the name that the family has for it; `usual` where it is not said.
    pub(crate) fn activation(&self, key: &'static str, usual: Activation) -> Result<Activation, ModelConfigError> {
        match self.text(key)? {
            None => Ok(usual),
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some("relu") => Ok(Activation::Relu),
            Some(_) => Err(self.refusal(key)),
        }
    }

    /// The activation of a gated MLP.
    pub(crate) fn gate(&self, key: &'static str, usual: Activation) -> Result<Activation, ModelConfigError> {
        match self.activation(key, usual)? {
            Activation::Relu => Err(self.refusal(key)),
            gate => Ok(gate),
        }
    }

    /// The window of each of `layers` layers: of those that `layer_types` names, or, without it, that `has_one` picks.
    /// `usual` is the window where the key is missing; `null` says that there is none.
    pub(crate) fn windows(
        &self,
        layers: usize,
        usual: Option<usize>,
        has_one: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, ModelConfigError> {
        let said = self.said.contains_key("sliding_window");
        let window = if said { self.count("sliding_window")? } else { usual };
        let types = self.read("layer_types", |v| {
            let one = |v: &Value| v.as_str().and_then(|v| LAYER_TYPES.iter().position(|t| *t == v));
            v.as_array()?.iter().map(one).collect::<Option<Vec<usize>>>().filter(|types| types.len() == layers)
        })?;
        let has_one = |i: usize| types.as_ref().map_or_else(|| has_one(i), |types| types[i] == 1);
        if window.is_none() && types.as_ref().is_some_and(|types| types.contains(&1)) {
            return Err(self.refusal("sliding_window"));
        }
        Ok((0..layers).map(|i| window.filter(|_| has_one(i))).collect())
    }

    /// Keys within `key`, which may be any.
    pub(super) fn part(&self, key: &str) -> Result<Option<Keys>, ModelConfigError> {
        let part = |v: &Value| v.as_object().cloned().map(Self::of).ok_or_else(|| unsupported("per_layer_config", v));
        self.value(key).map(part).transpose()
    }

    /// Whether something is said beside these.
    pub(super) fn has_more_than(&self, keys: &[&str]) -> bool {
        self.said.keys().any(|key| !keys.contains(&key.as_str()))
    }

    /// Says that the value of `key` is not written.
    pub(crate) fn refusal(&self, key: &'static str) -> ModelConfigError {
        unsupported(key, self.value(key).unwrap_or(&Value::Null))
    }
}

fn unsupported(what: &'static str, value: &Value) -> ModelConfigError {
    ModelConfigError::Unsupported { what, value: value.to_string().chars().take(64).collect() }
}

/// Whether a value says no, none, zero or nothing.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.iter().all(is_off),
        Value::Object(map) => map.is_empty(),
    }
}

/// A number, in quotes or not.
pub(super) fn decimal(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A number without a fraction, however it is written.
fn whole(value: &Value) -> Option<u32> {
    decimal(value).filter(|x| x.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(x)).map(|x| x as u32)
}
