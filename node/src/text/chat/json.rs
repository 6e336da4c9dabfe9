//! `tojson` as transformers has it: Python's `json.dumps`, where Jinja's own is made for web pages and escapes `<`, `&` and `'`.
//! Models were trained on tools and calls that were written so, to the space.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args},
};

/// Lists and objects within each other; a template can put more into each other than a stack holds.
const DEPTH: usize = 200;
/// The widest step of an indentation.
const INDENT: usize = 64;

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub fn tojson(value: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut writer = Writer { style: Style::read(&given.into_values())?, text: String::new() };
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
    fn read(given: &[Value]) -> Result<Self, Error> {
        type Given = Option<Value>;
        let (ascii, indent, separators, sorted, named): (Given, Given, Given, Given, Kwargs) = from_args(given)?;
        let or_named = |given: Given, name| if given.is_some() { Ok(given) } else { named.get::<Given>(name) };
        let ascii = or_named(ascii, "ensure_ascii")?.is_some_and(|v| v.is_true());
        let indent = or_named(indent, "indent")?.map(indentation).transpose()?;
        let separators = or_named(separators, "separators")?;
        let sorted = or_named(sorted, "sort_keys")?.is_some_and(|v| v.is_true());
        named.assert_all_used()?;
        let (between_items, after_key) = match separators {
            Some(separators) => pair(&separators)?,
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        };
        Ok(Self { ascii, sorted, indent, between_items, after_key })
    }
}

/// As many spaces, or the text itself.
fn indentation(given: Value) -> Result<String, Error> {
    if let Some(text) = given.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = usize::try_from(i64::try_from(given)?.max(0)).unwrap_or(usize::MAX);
    if spaces > INDENT {
        return Err(refused(format!("tojson indents by at most {INDENT} spaces, not {spaces}")));
    }
    Ok(" ".repeat(spaces))
}

fn pair(separators: &Value) -> Result<(String, String), Error> {
    let texts: Vec<String> = separators.try_iter()?.filter_map(|text| text.as_str().map(str::to_owned)).collect();
    let [between_items, after_key] =
        texts.try_into().map_err(|_| refused("the separators of tojson are two texts".to_owned()))?;
    Ok((between_items, after_key))
}

struct Writer {
    style: Style,
    text: String,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(refused(format!("JSON within JSON, more than {DEPTH} deep")));
        }
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect();
                self.within(['[', ']'], items, depth, |writer, item| writer.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let pairs = self.pairs(value);
                self.within(['{', '}'], pairs, depth, |writer, (key, value)| {
                    writer.string(&key_text(&key)?);
                    writer.text.push_str(&writer.style.after_key);
                    writer.value(&value, depth + 1)
                })?;
            }
            _ => self.text.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn pairs(&self, map: &Value) -> Vec<(Value, Value)> {
        let pairs = map.as_object().and_then(|map| map.try_iter_pairs());
        let mut pairs: Vec<_> = pairs.into_iter().flatten().collect();
        if self.style.sorted {
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        pairs
    }

    /// Items between brackets, each in a line of its own if they are indented. Empty brackets stay together.
    fn within<T>(
        &mut self,
        [open, close]: [char; 2],
        items: Vec<T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
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
fn key_text(key: &Value) -> Result<String, Error> {
    key.as_str().map_or_else(|| scalar(key), |text| Ok(text.to_owned()))
}

fn scalar(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if value.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number if value.is_integer() => value.to_string(),
        ValueKind::Number => float(f64::try_from(value.clone())?),
        kind => return Err(refused(format!("what is {kind} cannot be written as JSON"))),
    })
}

/// The fewest digits that are read back as the same, as Python lays them out: Rust does it alike but for exponents.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{value:?}");
    let Some((digits, power)) = text.split_once('e') else { return text };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumps(value: Value, options: &[(&str, Value)]) -> Result<String, Error> {
        let named: Kwargs = options.iter().cloned().collect();
        tojson(&value, Rest(vec![ValueOrKwargs::from(Value::from(named))]))
    }

    #[test]
    fn text_is_escaped_no_more_than_it_must_be() {
        let text = Value::from("</script> & 'it' \"\\ \n\u{1}\u{7f}\u{2028}\u{e9}\u{1F600}");
        let plain = "\"</script> & 'it' \\\"\\\\ \\n\\u0001\u{7f}\u{2028}\u{e9}\u{1F600}\"";
        assert_eq!(dumps(text.clone(), &[]).unwrap(), plain);
        let ascii = r#""</script> & 'it' \"\\ \n\u0001\u007f\u2028\u00e9\ud83d\ude00""#;
        assert_eq!(dumps(text, &[("ensure_ascii", true.into())]).unwrap(), ascii);
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
            assert_eq!(dumps(value.into(), &[]).unwrap(), text);
        }
        assert_eq!(dumps(u64::MAX.into(), &[]).unwrap(), "18446744073709551615");
    }

    #[test]
    fn what_is_no_json_and_what_is_too_deep_is_refused() {
        let nested = |depth| (0..depth).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(dumps(nested(DEPTH), &[]).is_ok());
        assert!(dumps(nested(DEPTH + 1), &[]).is_err());
        assert!(dumps(Value::UNDEFINED, &[]).is_err());
        assert!(dumps(Value::from_function(|| 1), &[]).is_err());
        let list = || Value::from(vec![1, 2]);
        assert_eq!(dumps(list(), &[("indent", (-1).into())]).unwrap(), "[\n1,\n2\n]");
        assert!(dumps(list(), &[("indent", (1u64 << 40).into())]).is_err());
        assert!(dumps(list(), &[("separators", ",".into())]).is_err());
        assert!(dumps(list(), &[("default", 1.into())]).is_err());
    }
}
