//! Fields that say what form an answer has: OpenAI's `response_format`, and vLLM's `guided_*` and `structured_outputs`.
//!
//! Whatever they say becomes one grammar, which is compiled here before anything is submitted: what is no grammar is the
//! client's error, and costs nobody else anything.

use super::{ApiError, fields::Fields};
use crate::text::{TextModel, ebnf, grammar::GrammarError};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tsnode_protocol::{Constraint, Grammar, limits};

/// Texts that an answer can be one of.
const CHOICES: usize = 1024;

/// A grammar, and the field that it comes from.
#[derive(Debug, PartialEq, Eq)]
struct AskedGrammar {
    grammar: Grammar,
    param: &'static str,
}

/// What answers must be, if the client says so; seen to be a grammar.
pub(super) async fn constraint(fields: &mut Fields, model: &TextModel) -> Result<Option<Box<Constraint>>, ApiError> {
    match asked(fields)? {
        Some(AskedGrammar { grammar, param }) => {
            compiled(model, grammar, param).await.map(|found| Some(Box::new(found)))
        }
        None => Ok(None),
    }
}

/// A grammar that a field asks for, seen to be one.
pub(super) async fn compiled(model: &TextModel, grammar: Grammar, param: &str) -> Result<Constraint, ApiError> {
    let bytes = grammar.text().len();
    if bytes > limits::GRAMMAR_BYTES {
        let most = limits::GRAMMAR_BYTES;
        return Err(ApiError::param(
            param,
            format!("'{param}' is too long: {bytes} bytes, of {most} that it may have"),
        ));
    }
    model.constraint(grammar).await.map_err(|error| match error {
        GrammarError::Refused(why) => ApiError::param(param, format!("'{param}' cannot be used: {why}")),
        // Before the first token.
        GrammarError::Stuck(why) => ApiError::param(param, format!("'{param}' allows no answer: {why}")),
        GrammarError::NoVocabulary(_) => ApiError::Model(error.to_string()),
        GrammarError::Busy => ApiError::Unserved { reason: error.to_string(), retry_after: Duration::from_secs(1) },
    })
}

/// One form at most.
fn asked(fields: &mut Fields) -> Result<Option<AskedGrammar>, ApiError> {
    let mut found: Option<AskedGrammar> = None;
    for (param, read) in FIELDS {
        let Some(value) = fields.take(param) else { continue };
        let Some(grammar) = read(param, value)? else { continue };
        if let Some(other) = &found {
            let message =
                format!("'{param}' and '{}' both say what the answer is to be: send one of them", other.param);
            return Err(ApiError::param(param, message));
        }
        found = Some(AskedGrammar { grammar, param });
    }
    // Which library does it is this server's business.
    fields.take("guided_decoding_backend");
    match fields.text(WHITE_SPACE)? {
        None => Ok(found),
        Some(pattern) => Ok(Some(spaced(found, &pattern, WHITE_SPACE)?)),
    }
}

/// vLLM's field: what may stand between JSON's signs.
const WHITE_SPACE: &str = "guided_whitespace_pattern";

/// The same with this white space, a regular expression.
fn spaced(asked: Option<AskedGrammar>, pattern: &str, said_by: &str) -> Result<AskedGrammar, ApiError> {
    let refused = |why: &str| ApiError::param(said_by, format!("'{said_by}' {why}"));
    let Some(AskedGrammar { grammar: Grammar::JsonSchema(text), param }) = asked else {
        return Err(refused("is for JSON schemas alone"));
    };
    let wrong =
        |error: serde_json::Error| ApiError::param(param, format!("'{param}': the schema is not JSON: {error}"));
    let mut schema = match serde_json::from_str(&text).map_err(wrong)? {
        Value::Bool(true) => Map::new(),
        Value::Object(schema) => schema,
        _ => return Err(ApiError::param(param, format!("'{param}': a JSON schema is an object, or true"))),
    };
    // llguidance's own keyword.
    if schema.insert("x-guidance".into(), json!({ "whitespace_pattern": pattern })).is_some() {
        return Err(refused("cannot go with a schema that has its own 'x-guidance'"));
    }
    Ok(AskedGrammar { grammar: Grammar::JsonSchema(Value::Object(schema).to_string()), param })
}

type ReadGrammar = fn(&'static str, Value) -> Result<Option<Grammar>, ApiError>;

/// What each field's value asks for.
const FIELDS: [(&str, ReadGrammar); 6] = [
    ("response_format", response_format),
    ("guided_json", |param, value| schema(param, value).map(Some)),
    ("guided_regex", |param, value| regex(param, value).map(Some)),
    ("guided_choice", |param, value| choice(param, &value).map(Some)),
    ("guided_grammar", |param, value| lark(param, value).map(Some)),
    ("structured_outputs", structured_outputs),
];

fn response_format(param: &'static str, value: Value) -> Result<Option<Grammar>, ApiError> {
    let wrong = |message: &str| Err(ApiError::param(param, message));
    let Value::Object(mut format) = value else { return wrong("'response_format' must be an object") };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(any_object())),
        Some("json_schema") => match format.remove("json_schema") {
            Some(Value::Object(mut named)) => match named.remove("schema").or_else(|| named.remove("json_schema")) {
                Some(given) => schema(param, given).map(Some),
                None => wrong("'response_format.json_schema.schema' is missing"),
            },
            _ => wrong("'response_format.json_schema' must be an object with a 'schema'"),
        },
        _ => wrong("'response_format.type' must be text, json_object or json_schema"),
    }
}

/// vLLM's object, of which one of these is set.
fn structured_outputs(param: &'static str, value: Value) -> Result<Option<Grammar>, ApiError> {
    let Value::Object(object) = value else {
        return Err(ApiError::param(param, "'structured_outputs' must be an object"));
    };
    let says_something = |(name, value): &(String, Value)| {
        let hint = name.starts_with("disable_") && *value == Value::Bool(false);
        !(value.is_null() || hint || name == "json_object" && *value == Value::Bool(false))
    };
    let mut set: Vec<(String, Value)> = object.into_iter().filter(says_something).collect();
    let pattern = set.iter().position(|(name, _)| name == "whitespace_pattern").map(|at| set.remove(at).1);
    let (name, value) = match (set.pop(), set.is_empty()) {
        (Some(one), true) => one,
        _ => return Err(ApiError::param(param, ONE_OF)),
    };
    let grammar = match name.as_str() {
        "json" => schema(param, value)?,
        "regex" => regex(param, value)?,
        "choice" => choice(param, &value)?,
        "grammar" => lark(param, value)?,
        "json_object" if value == Value::Bool(true) => any_object(),
        _ => return Err(ApiError::param(param, ONE_OF)),
    };
    let Some(pattern) = pattern else { return Ok(Some(grammar)) };
    let pattern = text("structured_outputs.whitespace_pattern", pattern)?;
    spaced(Some(AskedGrammar { grammar, param }), &pattern, "structured_outputs.whitespace_pattern")
        .map(|spaced| Some(spaced.grammar))
}

const ONE_OF: &str =
    "'structured_outputs' must have one of json, regex, choice, grammar and json_object, and nothing else";

fn any_object() -> Grammar {
    Grammar::JsonSchema(json!({ "type": "object" }).to_string())
}

/// A JSON schema, or one in a string.
fn schema(param: &'static str, value: Value) -> Result<Grammar, ApiError> {
    Ok(Grammar::JsonSchema(match value {
        Value::String(text) => text,
        Value::Object(_) | Value::Bool(_) => value.to_string(),
        _ => return Err(ApiError::param(param, format!("'{param}': a JSON schema is an object, or true"))),
    }))
}

fn regex(param: &'static str, value: Value) -> Result<Grammar, ApiError> {
    text(param, value).map(Grammar::Regex)
}

fn lark(param: &'static str, value: Value) -> Result<Grammar, ApiError> {
    let text = text(param, value)?;
    // Telling it in another notation takes no longer than it is long, which is seen to first.
    if text.len() > limits::GRAMMAR_BYTES || !ebnf::is_ebnf(&text) {
        return Ok(Grammar::Lark(text));
    }
    let wrong = |error| ApiError::param(param, format!("'{param}' cannot be used: as EBNF: {error}"));
    ebnf::to_lark(&text).map(Grammar::Lark).map_err(wrong)
}

fn text(param: &'static str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        _ => Err(ApiError::param(param, format!("'{param}' must be a string that is not empty"))),
    }
}

/// One of some texts.
fn choice(param: &'static str, value: &Value) -> Result<Grammar, ApiError> {
    let texts: Option<Vec<&str>> = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    match texts {
        Some(texts) if (1..=CHOICES).contains(&texts.len()) && !texts.contains(&"") => Ok(one_of(&texts)),
        _ => {
            let message = format!("'{param}' must be a list of 1 to {CHOICES} strings that are not empty");
            Err(ApiError::param(param, message))
        }
    }
}

/// The texts as a regular expression: what they hold stands for itself.
fn one_of(texts: &[&str]) -> Grammar {
    let literal = |text: &&str| {
        let escaped = |letter: char| match letter {
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            _ if r"\.+*?()|[]{}^$".contains(letter) => format!("\\{letter}"),
            _ => letter.to_string(),
        };
        text.chars().map(escaped).collect::<String>()
    };
    Grammar::Regex(texts.iter().map(literal).collect::<Vec<_>>().join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Option<AskedGrammar>, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes(), 3).unwrap();
        let read = asked(&mut fields).map_err(|error| error.to_string());
        fields.finish().unwrap();
        read
    }

    fn grammar(body: &Value) -> Option<Grammar> {
        read(body).unwrap().map(|asked| asked.grammar)
    }

    #[test]
    fn every_way_to_ask_is_a_grammar() {
        let ab = json!({ "type": "object", "properties": { "b": {}, "a": { "type": "string" } } });
        let schema = || Some(Grammar::JsonSchema(ab.to_string()));
        assert!(ab.to_string().find("\"b\"") < ab.to_string().find("\"a\""), "properties keep their order");
        for asks in [
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": ab } } }),
            json!({ "guided_json": ab }),
            json!({ "guided_json": ab.to_string(), "guided_decoding_backend": "outlines" }),
            json!({ "structured_outputs": { "json": ab, "regex": null, "disable_fallback": false } }),
        ] {
            assert_eq!(grammar(&asks), schema(), "{asks}");
        }
        let spaced = json!({ "type": "integer", "x-guidance": { "whitespace_pattern": "[ ]" } });
        for asks in [
            json!({ "guided_json": { "type": "integer" }, "guided_whitespace_pattern": "[ ]" }),
            json!({ "structured_outputs": { "json": { "type": "integer" }, "whitespace_pattern": "[ ]" } }),
        ] {
            assert_eq!(grammar(&asks), Some(Grammar::JsonSchema(spaced.to_string())), "{asks}");
        }
        let any = Some(any_object());
        assert_eq!(grammar(&json!({ "response_format": { "type": "json_object" } })), any);
        assert_eq!(grammar(&json!({ "structured_outputs": { "json_object": true } })), any);
        let regex = |text: &str| Some(Grammar::Regex(text.into()));
        assert_eq!(grammar(&json!({ "guided_regex": "[ab]+" })), regex("[ab]+"));
        assert_eq!(grammar(&json!({ "structured_outputs": { "regex": "[ab]+" } })), regex("[ab]+"));
        assert_eq!(grammar(&json!({ "guided_choice": ["yes", "<a.b|c/\n>"] })), regex(r"yes|<a\.b\|c/\n>"));
        let lark = Some(Grammar::Lark("start: \"a\"".into()));
        assert_eq!(grammar(&json!({ "guided_grammar": "start: \"a\"" })), lark);
        assert_eq!(grammar(&json!({ "structured_outputs": { "grammar": "start: \"a\"" } })), lark);
        let told = Some(Grammar::Lark("start: T_ROOT_0\nT_ROOT_0: (\"a\" | /[b-d]/)\n".into()));
        assert_eq!(grammar(&json!({ "guided_grammar": "root ::= \"a\" | [b-d]" })), told);
        for none in [json!({}), json!({ "response_format": { "type": "text" }, "guided_json": null })] {
            assert_eq!(grammar(&none), None, "{none}");
        }
    }

    #[test]
    fn what_is_none_is_said_with_its_field() {
        for (body, said) in [
            (json!({ "response_format": "json" }), "'response_format' must be an object"),
            (json!({ "response_format": { "type": "xml" } }), "must be text, json_object or json_schema"),
            (json!({ "response_format": { "type": "json_schema" } }), "json_schema' must be an object"),
            (
                json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x" } } }),
                "schema' is missing",
            ),
            (json!({ "guided_json": 7 }), "'guided_json': a JSON schema is an object"),
            (json!({ "guided_regex": ["a"] }), "'guided_regex' must be a string"),
            (json!({ "guided_choice": [] }), "'guided_choice' must be a list"),
            (json!({ "guided_choice": ["a", 1] }), "'guided_choice' must be a list"),
            (
                json!({ "guided_grammar": "# Letters\nroot ::= \"a\" b" }),
                "'guided_grammar' cannot be used: as EBNF: line 2, column 14: there is no rule 'b'",
            ),
            (
                json!({ "guided_json": {}, "guided_whitespace_pattern": 7 }),
                "'guided_whitespace_pattern' must be a string",
            ),
            (json!({ "guided_regex": "a", "guided_whitespace_pattern": " " }), "is for JSON schemas alone"),
            (json!({ "guided_whitespace_pattern": " " }), "is for JSON schemas alone"),
            (
                json!({ "structured_outputs": { "json": { "x-guidance": {} }, "whitespace_pattern": " " } }),
                "has its own 'x-guidance'",
            ),
            (json!({ "structured_outputs": { "json": {}, "regex": "a" } }), "must have one of"),
            (json!({ "structured_outputs": { "structural_tag": "{}" } }), "must have one of"),
            (json!({ "structured_outputs": {} }), "must have one of"),
            (json!({ "guided_json": {}, "guided_regex": "a" }), "'guided_regex' and 'guided_json' both say"),
        ] {
            let refused = read(&body).unwrap_err();
            assert!(refused.contains(said), "{refused:?} does not say {said:?}");
        }
    }
}
