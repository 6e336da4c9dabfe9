//! Where in a JSON schema that is refused is what it is refused for.

use super::GrammarError;
use serde_json::Value;

/// Parts of a schema that are tried on their own, until the smallest is found that is refused for the same reason.
const TRIES: usize = 64;

/// What a schema compiles to, or why it does not and where: a JSON pointer stands before the reason.
pub(super) fn named<T>(schema: Value, compiles: impl Fn(Value) -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    let error = match compiles(schema.clone()) {
        Err(GrammarError::Refused(why)) => why,
        other => return other,
    };
    let refused_alike = |part: &Value| {
        let mut part = part.clone();
        lend_definitions(&schema, &mut part);
        matches!(compiles(part), Err(GrammarError::Refused(why)) if why == error)
    };
    let (mut place, mut part, mut tries) = (String::new(), &schema, TRIES);
    'deeper: loop {
        for (step, inner) in parts(part) {
            if tries == 0 {
                break 'deeper;
            }
            tries -= 1;
            if refused_alike(inner) {
                place += &step;
                part = inner;
                continue 'deeper;
            }
        }
        break;
    }
    let place = if place.is_empty() { "the schema".to_owned() } else { format!("the schema at #{place}") };
    Err(GrammarError::Refused(format!("{place}: {error}")))
}

/// A part refers to what the whole defines.
fn lend_definitions(whole: &Value, part: &mut Value) {
    let (Some(whole), Some(part)) = (whole.as_object(), part.as_object_mut()) else { return };
    for name in ["$schema", "$defs", "definitions"] {
        if let (Some(defined), None) = (whole.get(name), part.get(name)) {
            part.insert(name.to_owned(), defined.clone());
        }
    }
}

/// The schemas inside one, and the way to each.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let Some(object) = schema.as_object() else { return Vec::new() };
    let mut parts = Vec::new();
    for (name, value) in object {
        match (name.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(inner),
            ) => {
                parts.extend(inner.iter().map(|(key, inner)| (format!("/{name}/{}", escaped(key)), inner)));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(inner)) => {
                parts.extend(inner.iter().enumerate().map(|(n, inner)| (format!("/{name}/{n}"), inner)));
            }
            ("items" | "additionalProperties" | "additionalItems", Value::Object(_)) => {
                parts.push((format!("/{name}"), value));
            }
            _ => {}
        }
    }
    parts
}

/// A name as JSON pointers write it.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
