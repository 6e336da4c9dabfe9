//! JSON as the text that it was, but for white space: what is passed on need not be values in memory.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Adds any value to a text.
pub(super) struct JsonText<'t>(pub &'t mut String);

impl<'de> DeserializeSeed<'de> for JsonText<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl JsonText<'_> {
    fn scalar<E: Error>(self, value: impl serde::Serialize) -> Result<(), E> {
        self.0.push_str(&serde_json::to_string(&value).map_err(E::custom)?);
        Ok(())
    }
}

impl<'de> Visitor<'de> for JsonText<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.scalar(())
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<(), E> {
        self.scalar(flag)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.scalar(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.scalar(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.scalar(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.scalar(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.push('[');
        while seq.next_element_seed(JsonText(self.0))?.is_some() {
            self.0.push(',');
        }
        end(self.0, ']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.push('{');
        while map.next_key_seed(JsonText(self.0))?.is_some() {
            self.0.push(':');
            map.next_value_seed(JsonText(self.0))?;
            self.0.push(',');
        }
        end(self.0, '}');
        Ok(())
    }
}

/// The last item has no comma behind it.
fn end(text: &mut String, close: char) {
    if text.ends_with(',') {
        text.pop();
    }
    text.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_were_read() {
        for (read, written) in [
            (
                r#" { "a" : [ 1 , -2, 3.5, {} , [] ], "b,": {"c\n": null, "d": "x,\"\u00e9"}, "e": true } "#,
                r#"{"a":[1,-2,3.5,{},[]],"b,":{"c\n":null,"d":"x,\"é"},"e":true}"#,
            ),
            ("{}", "{}"),
            ("[]", "[]"),
            ("\",\"", "\",\""),
        ] {
            let mut text = String::new();
            JsonText(&mut text).deserialize(&mut serde_json::Deserializer::from_str(read)).unwrap();
            assert_eq!(text, written);
        }
    }
}
