//! Parameters that a model writes as bare text, made JSON by the tool's own schema: `7` is a number for one tool and a text for
//! another. As vLLM's `qwen3_coder` reads them; what does not fit its type is passed on as a text, for the tool to refuse.

use serde_json::{Number, Value};
use std::collections::BTreeMap;

/// References, and choices within choices, that are followed.
const DEPTH: usize = 8;
/// Schemas and values that are looked at for one parameter: references to each other multiply. What more of them there are says
/// nothing.
const LOOKS: usize = 512;
/// The longest reference that is followed (bytes).
const REFERENCE: usize = 1024;

/// A tool that an answer may call, as far as reading its calls needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callable {
    /// What calls name.
    pub name: String,
    parameters: BTreeMap<String, ParameterType>,
}

impl Callable {
    /// By its name and the schema of its arguments.
    #[must_use]
    pub fn new(name: &str, schema: &Value) -> Self {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let kind = |part| ParameterType::of(part, schema, DEPTH, &mut { LOOKS });
        let parameters = properties.map(|(key, part)| (key.clone(), kind(part))).collect();
        Self { name: name.to_owned(), parameters }
    }

    /// What a parameter is read as: a text, where the schema says nothing of it.
    pub(super) fn kind(&self, key: &str) -> ParameterType {
        self.parameters.get(key).copied().unwrap_or(ParameterType::TEXT)
    }
}

/// How a parameter's text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParameterType {
    form: JsonType,
    /// Whether `null` may be meant where a text could be, too.
    may_be_null: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonType {
    Text,
    Integer,
    Number,
    Boolean,
    Null,
    /// An object or an array.
    Json,
}

impl ParameterType {
    pub const TEXT: Self = Self { form: JsonType::Text, may_be_null: false };

    /// Whether its text is the value as it is, so that no more of it need be known to pass it on.
    pub fn is_plain_text(self) -> bool {
        self == Self::TEXT
    }

    fn of(schema: &Value, whole: &Value, depth: usize, left: &mut usize) -> Self {
        let (Some(deeper), Some(less)) = (depth.checked_sub(1), left.checked_sub(1)) else { return Self::TEXT };
        *left = less;
        if let Some(target) = schema["$ref"].as_str() {
            let pointer = target.strip_prefix('#').filter(|pointer| pointer.len() <= REFERENCE);
            let place = pointer.and_then(|pointer| whole.pointer(pointer));
            return place.map_or(Self::TEXT, |place| Self::of(place, whole, deeper, left));
        }
        let of_lists = |key: &str| schema[key].as_array().filter(|list| !list.is_empty());
        match &schema["type"] {
            Value::String(name) => return Self::first([JsonType::named(name)]),
            Value::Array(names) => {
                return Self::first(looked(names, left).iter().filter_map(Value::as_str).map(JsonType::named));
            }
            _ => {}
        }
        if let Some(values) = of_lists("enum") {
            return Self::first(looked(values, left).iter().map(JsonType::of_value));
        }
        if let Some(value) = schema.get("const") {
            return Self::first([JsonType::of_value(value)]);
        }
        let Some(choices) = ["anyOf", "oneOf", "allOf"].iter().find_map(|key| of_lists(key)) else { return Self::TEXT };
        let choices = choices.iter().take(*left);
        let kinds: Vec<Self> = choices.map(|choice| Self::of(choice, whole, deeper, left)).collect();
        let first = Self::first(kinds.iter().map(|kind| kind.form));
        Self { may_be_null: first.may_be_null || kinds.iter().any(|kind| kind.may_be_null), ..first }
    }

    /// Of several forms the first that is not null, as vLLM does.
    fn first(forms: impl IntoIterator<Item = JsonType>) -> Self {
        let forms: Vec<JsonType> = forms.into_iter().collect();
        let form = forms.iter().copied().find(|form| *form != JsonType::Null);
        let may_be_null = forms.contains(&JsonType::Null);
        Self { form: form.unwrap_or(if may_be_null { JsonType::Null } else { JsonType::Text }), may_be_null }
    }

    /// The JSON of a parameter's text.
    pub fn json(self, text: &str) -> String {
        // Templates that print Python's values print it so.
        let says_null = ["null", "none"].contains(&text.trim().to_ascii_lowercase().as_str());
        if says_null && (self.may_be_null || self.form != JsonType::Text) {
            return "null".into();
        }
        let read = match self.form {
            JsonType::Text | JsonType::Null => None,
            JsonType::Integer => integer(text.trim()),
            JsonType::Number => number(text.trim()),
            JsonType::Boolean => Some((text.trim().eq_ignore_ascii_case("true")).to_string()),
            JsonType::Json => serde_json::from_str::<Value>(text).ok().map(unwrapped).map(|value| value.to_string()),
        };
        read.unwrap_or_else(|| Value::from(text).to_string())
    }
}

impl JsonType {
    /// By a schema's name for it, and what others call it.
    fn named(name: &str) -> Self {
        let name = name.trim().to_ascii_lowercase();
        let begins = |with: &[&str]| with.iter().any(|with| name.starts_with(with));
        match name.as_str() {
            "null" => Self::Null,
            "boolean" | "bool" | "binary" => Self::Boolean,
            _ if begins(&["int", "uint", "long", "short", "unsigned"]) => Self::Integer,
            _ if begins(&["num", "float", "double"]) => Self::Number,
            _ if begins(&["object", "arr", "dict", "list"]) => Self::Json,
            _ => Self::Text,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(number) if number.is_f64() => Self::Number,
            Value::Number(_) => Self::Integer,
            Value::String(_) => Self::Text,
            Value::Array(_) | Value::Object(_) => Self::Json,
        }
    }
}

/// As many of these as are still looked at.
fn looked<'v>(values: &'v [Value], left: &mut usize) -> &'v [Value] {
    let (looked, _) = values.split_at(values.len().min(*left));
    *left -= looked.len();
    looked
}

fn integer(text: &str) -> Option<String> {
    text.parse::<i128>().ok().map(|number| number.to_string())
}

/// Whole ones without a point.
fn number(text: &str) -> Option<String> {
    if let Some(whole) = integer(text) {
        return Some(whole);
    }
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite())?;
    // Below this every whole number has its own float.
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return integer(&format!("{value:.0}"));
    }
    Number::from_f64(value).map(|number| number.to_string())
}

/// An object that was written as a text within the text.
fn unwrapped(value: Value) -> Value {
    let inner = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    inner.filter(|inner| inner.is_object() || inner.is_array()).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A thousand references to a thousand, four times over, would be a million millions.
    #[test]
    fn references_to_each_other_are_not_followed_for_ever() {
        let many = vec![json!({ "$ref": "#/properties/loop" }); 1000];
        let values: Vec<Value> = (0..400).map(Value::from).chain([Value::Null]).collect();
        let properties =
            json!({ "loop": { "anyOf": many }, "count": { "type": "integer" }, "level": { "enum": values } });
        let tool = Callable::new("all", &json!({ "properties": properties }));
        let json = |key: &str, text: &str| tool.kind(key).json(text);
        assert_eq!([json("loop", "7"), json("count", "7")], [r#""7""#, "7"]);
        assert_eq!([json("level", "7"), json("level", "null")], ["7", "null"]);
    }

    #[test]
    fn texts_are_what_the_schema_says() {
        let tool = Callable::new(
            "all",
            &json!({
                "properties": {
                    "text": { "type": "string" }, "count": { "type": "integer" }, "share": { "type": "number" },
                    "is": { "type": "boolean" }, "list": { "type": "array" }, "map": { "type": "object" },
                    "maybe": { "anyOf": [{ "type": "null" }, { "type": "string" }] }, "either": { "type": ["integer", "null"] },
                    "place": { "$ref": "#/$defs/Place" }, "level": { "enum": [1, 2] }, "nothing": { "type": "null" },
                    "loop": { "$ref": "#/properties/loop" }, "any": {}
                },
                "$defs": { "Place": { "type": "object" } }
            }),
        );
        for (key, text, json) in [
            ("text", "7", r#""7""#),
            ("text", "null", r#""null""#),
            ("text", "a\n\"b\"", r#""a\n\"b\"""#),
            ("unknown", "7", r#""7""#),
            ("any", "7", r#""7""#),
            ("loop", "7", r#""7""#),
            ("count", " 7 ", "7"),
            ("count", "-0", "0"),
            ("count", "seven", r#""seven""#),
            ("count", "7.5", r#""7.5""#),
            ("count", "None", "null"),
            ("share", "2.0", "2"),
            ("share", "2.5", "2.5"),
            ("share", "1e400", r#""1e400""#),
            ("share", "inf", r#""inf""#),
            ("share", "1e3", "1000"),
            ("is", "True", "true"),
            ("is", "no", "false"),
            ("list", "[1, {\"a\": null}]", r#"[1,{"a":null}]"#),
            ("list", "1, 2", r#""1, 2""#),
            ("map", "\"{\\\"a\\\": 1}\"", r#"{"a":1}"#),
            ("maybe", "null", "null"),
            ("maybe", "7", r#""7""#),
            ("either", "7", "7"),
            ("either", "null", "null"),
            ("place", "{\"town\": \"Bonn\"}", r#"{"town":"Bonn"}"#),
            ("level", "2", "2"),
            ("nothing", "none", "null"),
        ] {
            assert_eq!(tool.kind(key).json(text), json, "{key}: {text:?}");
        }
    }
}
