//! Keys of `config.json` that only some families have.

use super::{Activation, ConfigError};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Everything `config.json` says, or a part of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Keys(Map<String, Value>);

/// What a layer of `layer_types` is called when it has no window, and when it has one.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

impl Keys {
    /// The value of `key`; `null` is none.
    fn value(&self, key: &'static str) -> Option<&Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    fn read<'k, T>(
        &'k self,
        key: &'static str,
        read: impl Fn(&'k Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        self.value(key).map(|v| read(v).ok_or_else(|| unsupported(key, v))).transpose()
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &'static str) -> Result<Option<f32>, ConfigError> {
        self.read(key, |v| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite()))
    }

    /// A finite number, `usual` where the key is missing; `null` says that there is none.
    pub(crate) fn number_or(&self, key: &'static str, usual: f32) -> Result<Option<f32>, ConfigError> {
        if self.0.contains_key(key) { self.number(key) } else { Ok(Some(usual)) }
    }

    /// Whether `key` is missing or `null`.
    pub(crate) fn is_null(&self, key: &'static str) -> bool {
        self.value(key).is_none()
    }

    /// A whole number from 1 on.
    pub(crate) fn count(&self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        self.read(key, |v| v.as_u64().filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok()).map(|n| n as usize))
    }

    /// Yes or no.
    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        self.read(key, Value::as_bool)
    }

    /// A word.
    pub(crate) fn text(&self, key: &'static str) -> Result<Option<&str>, ConfigError> {
        self.read(key, Value::as_str)
    }

    /// Finite numbers.
    pub(crate) fn numbers(&self, key: &'static str) -> Result<Option<Vec<f32>>, ConfigError> {
        let number = |v: &Value| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        self.read(key, |v| v.as_array()?.iter().map(number).collect())
    }

    /// Keys within `key`.
    pub(crate) fn within(&self, key: &'static str) -> Result<Option<Keys>, ConfigError> {
        self.read(key, |v| v.as_object().cloned().map(Keys))
    }

    /// The activation, under any of its names; `usual` where none is there.
    pub(crate) fn activation(&self, usual: Activation) -> Result<Activation, ConfigError> {
        for key in ["hidden_activation", "hidden_act", "activation_function"] {
            match self.text(key)? {
                None => {}
                Some("silu") => return Ok(Activation::Silu),
                Some("gelu_pytorch_tanh") => return Ok(Activation::GeluTanh),
                Some("relu") => return Ok(Activation::Relu),
                Some(_) => return Err(self.refusal(key)),
            }
        }
        Ok(usual)
    }

    /// The activation of a gated MLP.
    pub(crate) fn gate(&self, usual: Activation) -> Result<Activation, ConfigError> {
        match self.activation(usual)? {
            Activation::Relu => Err(self.refusal("hidden_act")),
            gate => Ok(gate),
        }
    }

    /// The window of each of `layers` layers: of those that `layer_types` names, or, without it, that `has_one` picks.
    pub(crate) fn windows(
        &self,
        layers: usize,
        has_one: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, ConfigError> {
        let Some(window) = self.count("sliding_window")? else { return Ok(vec![None; layers]) };
        let types = self.read("layer_types", |v| {
            let one = |v: &Value| v.as_str().and_then(|v| LAYER_TYPES.iter().position(|t| *t == v));
            v.as_array()?.iter().map(one).collect::<Option<Vec<usize>>>().filter(|types| types.len() == layers)
        })?;
        let has_one = |i: usize| types.as_ref().map_or_else(|| has_one(i), |types| types[i] == 1);
        Ok((0..layers).map(|i| has_one(i).then_some(window)).collect())
    }

    /// Says that the value of `key` is not written.
    pub(crate) fn refusal(&self, key: &'static str) -> ConfigError {
        unsupported(key, self.value(key).unwrap_or(&Value::Null))
    }
}

fn unsupported(what: &'static str, value: &Value) -> ConfigError {
    ConfigError::Unsupported { what, value: value.to_string().chars().take(64).collect() }
}
