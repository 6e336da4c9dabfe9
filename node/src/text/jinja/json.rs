//! `tojson` as transformers has it: Python's `json.dumps`, where Jinja's own is made for web pages and escapes `<`, `&` and `'`.
//! Models were trained on tools and calls that were written so, to the space.

use super::args::{Args, int, some, text, truth};
use super::display::{DEPTH, text as text_of};
use super::error::{Error, Result, refuse};
use super::numbers::float_text;
use super::value::Value;

/// The widest step of an indentation.
const INDENT: usize = 64;

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub fn tojson(value: &Value, given: Args) -> Result<String> {
    let mut writer = JsonWriter { style: Style::read(given)?, text: String::new() };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Style {
    ascii: bool,
    sorted: bool,
    /// What one step of an indentation is; without, all stands in one line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
}

impl Style {
    fn read(given: Args) -> Result<Self> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sorted] = given.bind("tojson", names, 0)?;
        let indent = some(indent).map(|indent| indentation(&indent)).transpose()?;
        let (between_items, after_key) = match some(separators) {
            Some(separators) => pair(&separators)?,
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        };
        let (ascii, sorted) = (truth(ascii.as_ref()), truth(sorted.as_ref()));
        Ok(Self { ascii, sorted, indent, between_items, after_key })
    }
}

/// As many spaces, or the text itself.
fn indentation(given: &Value) -> Result<String> {
    if let Some(text) = given.as_text() {
        return Ok(text.to_string());
    }
    let spaces = usize::try_from(int("tojson", given)?.max(0)).unwrap_or(usize::MAX);
    if spaces > INDENT {
        return refuse!("tojson indents by at most {INDENT} spaces, not {spaces}");
    }
    Ok(" ".repeat(spaces))
}

fn pair(separators: &Value) -> Result<(String, String)> {
    let texts = separators.iter()?.iter().map(|part| text("tojson", part)).collect::<Result<Vec<_>>>()?;
    match &texts[..] {
        [between_items, after_key] => Ok((between_items.to_string(), after_key.to_string())),
        _ => refuse!("the separators of tojson are two texts"),
    }
}

struct JsonWriter {
    style: Style,
    text: String,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        if depth > DEPTH {
            return refuse!("JSON within JSON, more than {DEPTH} deep");
        }
        match value {
            Value::Text(text) | Value::Markup(text) => self.string(text),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                let items = items.0.iter().collect();
                self.within(['[', ']'], items, depth, |writer, item| writer.value(item, depth + 1))?;
            }
            Value::Dict(dict) => {
                let mut pairs: Vec<_> =
                    dict.pairs().map(|(key, value)| Ok((key_text(key)?, value))).collect::<Result<_>>()?;
                if self.style.sorted {
                    if dict.keys().any(|key| key.as_text().is_none()) {
                        return refuse!("tojson sorts only keys that are texts");
                    }
                    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
                }
                self.within(['{', '}'], pairs, depth, |writer, (key, value)| {
                    writer.string(&key);
                    writer.text.push_str(&writer.style.after_key);
                    writer.value(value, depth + 1)
                })?;
            }
            _ => self.text.push_str(&scalar(value)?),
        }
        Ok(())
    }

    /// Items between brackets, each in a line of its own if they are indented. Empty brackets stay together.
    fn within<T>(
        &mut self,
        [open, close]: [char; 2],
        items: Vec<T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        let empty = items.is_empty();
        self.text.push(open);
        for (place, item) in items.into_iter().enumerate() {
            if place > 0 {
                self.text.push_str(&self.style.between_items);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.text.push('\n');
            (0..depth).for_each(|_| self.text.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                _ if letter < ' ' || (self.style.ascii && letter > '~') => {
                    let escape = |unit: &mut u16| format!("\\u{unit:04x}");
                    self.text.extend(letter.encode_utf16(&mut [0; 2]).iter_mut().map(escape));
                }
                _ => self.text.push(letter),
            }
        }
        self.text.push('"');
    }
}

/// Python turns what it takes for a key into text as it would write the value.
fn key_text(key: &Value) -> Result<String> {
    key.as_text().map_or_else(|| scalar(key), |text| Ok(text.to_string()))
}

fn scalar(value: &Value) -> Result<String> {
    Ok(match value {
        Value::None => "null".to_owned(),
        Value::Bool(truth) => if *truth { "true" } else { "false" }.to_owned(),
        Value::Int(_) => text_of(value)?,
        Value::Float(number) if number.is_nan() => "NaN".to_owned(),
        Value::Float(number) if number.is_infinite() => if *number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Value::Float(number) => float_text(*number),
        Value::Undefined(why) => return Err(Error::new(format!("it cannot be written as JSON: {why}"))),
        other => return refuse!("what is {} cannot be written as JSON", other.kind()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumps(value: Value, options: &[(&str, Value)]) -> Result<String> {
        let named = options.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        tojson(&value, Args { positional: Vec::new(), named })
    }

    #[test]
    fn text_is_escaped_no_more_than_it_must_be() {
        let text = Value::text("</script> & 'it' \"\\ \n\u{1}\u{7f}\u{2028}\u{e9}\u{1F600}");
        let plain = "\"</script> & 'it' \\\"\\\\ \\n\\u0001\u{7f}\u{2028}\u{e9}\u{1F600}\"";
        assert_eq!(dumps(text.clone(), &[]).unwrap(), plain);
        let ascii = r#""</script> & 'it' \"\\ \n\u0001\u007f\u2028\u00e9\ud83d\ude00""#;
        assert_eq!(dumps(text, &[("ensure_ascii", Value::Bool(true))]).unwrap(), ascii);
    }

    #[test]
    fn numbers_are_pythons() {
        let as_python_does = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, text) in as_python_does {
            assert_eq!(dumps(Value::Float(value), &[]).unwrap(), text);
        }
        assert_eq!(dumps(Value::Int(u64::MAX.into()), &[]).unwrap(), "18446744073709551615");
    }

    #[test]
    fn what_is_no_json_and_what_is_too_deep_is_refused() {
        let nested = |depth| (0..depth).fold(Value::Int(1), |inner, _| Value::list(vec![inner]));
        assert!(dumps(nested(DEPTH), &[]).is_ok());
        assert!(dumps(nested(DEPTH + 1), &[]).is_err());
        assert!(dumps(Value::undefined("gone"), &[]).is_err());
        assert!(dumps(Value::Blocks, &[]).is_err());
        let list = || Value::list(vec![Value::Int(1), Value::Int(2)]);
        assert_eq!(dumps(list(), &[("indent", Value::Int(-1))]).unwrap(), "[\n1,\n2\n]");
        assert!(dumps(list(), &[("indent", Value::Int(1 << 40))]).is_err());
        assert!(dumps(list(), &[("separators", Value::text(","))]).is_err());
        assert!(dumps(list(), &[("default", Value::Int(1))]).is_err());
    }
}
