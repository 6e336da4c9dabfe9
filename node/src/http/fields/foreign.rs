//! A body in another API's words: all of its fields as JSON values, in memory that its length bounds.

use super::{
    ApiError, Fields,
    bounded::{ParseBudget, Within},
    unparsed,
};
use serde::de::DeserializeSeed as _;
use serde_json::{Map, Value};

/// Memory beside a body's own length that its values may take, in its lengths: what places for long bodies count with.
const COPIES: usize = 3;
/// And for the shortest (bytes).
const LEAST: usize = 1 << 20;

impl Fields {
    /// Reads a body whose prompts and messages are not where completions have them.
    pub(in crate::http) fn foreign(body: &[u8]) -> Result<Self, ApiError> {
        let wrong = |message: String| ApiError::Invalid { message, param: None };
        if let Err(error) = std::str::from_utf8(body) {
            return Err(wrong(format!("The body is not UTF-8: {error}")));
        }
        let mut budget = ParseBudget::of(COPIES * body.len() + LEAST);
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = Within(&mut budget).deserialize(&mut json).and_then(|read| json.end().map(|()| read));
        match read {
            Ok(Value::Object(others)) => Ok(Self::of(others)),
            Ok(_) => Err(wrong("The body must be a JSON object".into())),
            Err(_) if budget.exceeded().is_some() => {
                Err(wrong("The body has too many values for its length: send fewer, longer ones".into()))
            }
            Err(error) => Err(wrong(unparsed(&error))),
        }
    }

    /// Of an object that has been read.
    pub(in crate::http) fn of(others: Map<String, Value>) -> Self {
        Self { others, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_body_says_is_there_and_bounded() {
        let mut read = Fields::foreign(br#"{"messages":[{"role":"user"}],"input":"x"}"#).unwrap();
        assert_eq!(read.take("messages"), Some(serde_json::json!([{ "role": "user" }])));
        assert_eq!(read.text("input").unwrap().as_deref(), Some("x"));
        assert!(read.finish().is_ok());
        let refused = |body: &[u8]| Fields::foreign(body).unwrap_err().to_string();
        assert_eq!(refused(b"[1]"), "The body must be a JSON object");
        assert!(refused(b"{").starts_with("The body could not be parsed as JSON"));
        let many = format!(r#"{{"messages":[{}0]}}"#, r#"{"":0},"#.repeat(1 << 18));
        assert!(refused(many.as_bytes()).contains("too many values"), "seventy times its length");
        let text = format!(r#"{{"input":"{}"}}"#, "a ".repeat(1 << 20));
        assert!(Fields::foreign(text.as_bytes()).is_ok());
    }
}
