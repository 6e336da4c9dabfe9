//! Numbers of a settings file, each within what a model can have.

use super::EncoderError;
use serde_json::Value;
use std::path::PathBuf;

/// A settings file.
pub(super) struct EncoderSettings {
    pub path: PathBuf,
    pub json: Value,
}

impl EncoderSettings {
    /// A number that must be there.
    pub fn number(&self, key: &str, most: usize) -> Result<usize, EncoderError> {
        self.number_or(key, most, None)
    }

    /// The same, with what is taken where it is not there.
    pub fn number_or(&self, key: &str, most: usize, usual: Option<usize>) -> Result<usize, EncoderError> {
        let number = match &self.json[key] {
            Value::Null => usual,
            value => value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=most).contains(n)),
        };
        number.ok_or_else(|| self.broken(format!("{key} must be an integer from 1 to {most}")))
    }

    pub fn real(&self, key: &str, usual: f64) -> Result<f64, EncoderError> {
        match &self.json[key] {
            Value::Null => Ok(usual),
            value => {
                let real = value.as_f64().filter(|x| x.is_finite() && (0.0..=1e12).contains(x));
                real.ok_or_else(|| self.broken(format!("{key} must be a number that is not negative")))
            }
        }
    }

    /// The base of rotary positions: newer files have all of them in one table, `rope_parameters`, older ones by names of their own.
    pub fn rope_theta(&self, in_table: &str, older: &str, usual: f64) -> Result<f64, EncoderError> {
        match self.json["rope_parameters"].pointer(in_table) {
            None | Some(Value::Null) => self.real(older, usual),
            Some(value) => {
                let theta = value.as_f64().filter(|theta| (1.0..1e12).contains(theta));
                theta.ok_or_else(|| self.broken(format!("rope_parameters{in_table} must be a number from 1")))
            }
        }
    }

    pub fn flag(&self, key: &str) -> bool {
        self.json[key].as_bool().unwrap_or(false)
    }

    /// A text, short enough to be repeated.
    pub fn text(&self, key: &str) -> Option<String> {
        self.json[key].as_str().map(|text| text.chars().take(60).collect())
    }

    /// The key's value must be this, or nothing may be said.
    pub fn only(&self, key: &str, only: &[Value]) -> Result<(), EncoderError> {
        let value = &self.json[key];
        if value.is_null() || only.contains(value) {
            return Ok(());
        }
        let said: String = value.to_string().chars().take(60).collect();
        Err(self.unsupported(format!("{key} is {said}, and that is not computed")))
    }

    pub fn broken(&self, error: String) -> EncoderError {
        EncoderError::Broken { path: self.path.clone(), error }
    }

    pub fn unsupported(&self, what: String) -> EncoderError {
        EncoderError::Unsupported { path: self.path.clone(), what }
    }
}
