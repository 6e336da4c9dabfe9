//! `%`: texts with places for values, as C writes them.

use super::display;
use super::error::{Error, Result, refuse};
use super::numbers::{too_large, truncated};
use super::spec::{FormatSpec, bounded, pad};
use super::value::Value;
use std::iter::Peekable;
use std::str::Chars;

/// What a place says.
#[derive(Default)]
struct Conversion {
    left: bool,
    plus: bool,
    space: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// Values that are still to be written.
struct PrintfValues<'v> {
    all: &'v Value,
    next: usize,
}

impl PrintfValues<'_> {
    fn next(&mut self) -> Result<Value> {
        let value = match self.all {
            Value::Tuple(items) | Value::Group(items) => items.0.get(self.next).cloned(),
            other => (self.next == 0).then(|| other.clone()),
        };
        self.next += 1;
        value.ok_or_else(|| Error::new("a format with % has more places than values"))
    }

    fn by_name(&mut self, name: &str) -> Result<Value> {
        let Value::Dict(dict) = self.all else { return refuse!("a format with %({name}) needs a dictionary") };
        // A dictionary has been used, whatever of it.
        self.next = 1;
        dict.get_text(name).cloned().ok_or_else(|| Error::new(format!("a format with % has no value for {name:?}")))
    }

    fn all_used(&self) -> bool {
        match self.all {
            Value::Tuple(items) | Value::Group(items) => self.next >= items.0.len(),
            Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Bytes(_) => true,
            _ => self.next > 0,
        }
    }
}

/// `format % values`; where the format is markup, what is written into it is escaped.
pub fn format(format: &str, values: &Value, escapes: bool) -> Result<String> {
    let mut values = PrintfValues { all: values, next: 0 };
    let mut out = String::with_capacity(format.len());
    let mut letters = format.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '%' { write_place(&mut out, &mut letters, &mut values, escapes)? } else { out.push(letter) }
    }
    if values.all_used() { Ok(out) } else { refuse!("a format with % has fewer places than values") }
}

fn write_place(
    out: &mut String,
    letters: &mut Peekable<Chars>,
    values: &mut PrintfValues,
    escapes: bool,
) -> Result<()> {
    let named = read_name(letters)?;
    let mut place = Conversion::default();
    while let Some(flag) = letters.next_if(|letter| "-+ 0#".contains(*letter)) {
        match flag {
            '-' => place.left = true,
            '+' => place.plus = true,
            ' ' => place.space = true,
            '0' => place.zero = true,
            _ => place.alternate = true,
        }
    }
    if let Some(width) = read_number(letters, values)? {
        place.left |= width < 0;
        place.width = bounded(&width.unsigned_abs().to_string())?;
    }
    if letters.next_if_eq(&'.').is_some() {
        let precision = read_number(letters, values)?.unwrap_or(0).max(0);
        place.precision = Some(bounded(&precision.to_string())?);
    }
    letters.next_if(|letter| "hlL".contains(*letter));
    let Some(kind) = letters.next() else { return refuse!("a format ends in an unfinished %") };
    if kind == '%' {
        out.push('%');
        return Ok(());
    }
    let value = match named {
        Some(name) => values.by_name(&name)?,
        None => values.next()?,
    };
    let text = place.text(kind, &value)?;
    out.push_str(&if escapes && !matches!(value, Value::Markup(_)) { display::escaped(&text) } else { text });
    Ok(())
}

/// `(name)`, whose brackets may stand in each other.
fn read_name(letters: &mut Peekable<Chars>) -> Result<Option<String>> {
    if letters.next_if_eq(&'(').is_none() {
        return Ok(None);
    }
    let (mut name, mut depth) = (String::new(), 1);
    for letter in letters.by_ref() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(Some(name));
        }
        name.push(letter);
    }
    refuse!("a format has %( without an end")
}

/// Digits, or a star for the next value.
fn read_number(letters: &mut Peekable<Chars>, values: &mut PrintfValues) -> Result<Option<i128>> {
    if letters.next_if_eq(&'*').is_some() {
        return match values.next()? {
            Value::Int(number) => Ok(Some(number)),
            other => refuse!("* in a format takes a whole number, not {}", other.kind()),
        };
    }
    let mut digits = String::new();
    while let Some(digit) = letters.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    if digits.is_empty() { Ok(None) } else { bounded(&digits).map(|number| Some(number as i128)) }
}

impl Conversion {
    fn text(&self, kind: char, value: &Value) -> Result<String> {
        match kind {
            's' => Ok(self.cut(&display::text(value)?)),
            'r' => Ok(self.cut(&display::repr(value)?)),
            'a' => Ok(self.cut(&display::ascii(value)?)),
            'c' => Ok(self.padded(&letter(value)?)),
            'd' | 'i' | 'u' => self.int('d', int(value)?),
            'o' | 'x' | 'X' => match value.as_int() {
                Some(number) => self.int(kind, number),
                None => refuse!("%{kind} takes a whole number, not {}", value.kind()),
            },
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match value.as_float() {
                Some(number) => self.spec(kind).format(&Value::Float(number)),
                None => refuse!("%{kind} takes a number, not {}", value.kind()),
            },
            other => refuse!("a format has %{other}, which is none"),
        }
    }

    fn spec(&self, kind: char) -> FormatSpec {
        let zero = self.zero && !self.left;
        FormatSpec {
            fill: if zero { '0' } else { ' ' },
            align: Some(if self.left {
                '<'
            } else if zero {
                '='
            } else {
                '>'
            }),
            sign: if self.plus {
                '+'
            } else if self.space {
                ' '
            } else {
                '-'
            },
            alternate: self.alternate,
            width: self.width,
            grouping: None,
            precision: self.precision,
            kind: Some(kind),
        }
    }

    /// The precision of a whole number is how many digits it has at least.
    fn int(&self, kind: char, number: i128) -> Result<String> {
        let Some(digits) = self.precision else { return self.spec(kind).format(&Value::Int(number)) };
        let bare = FormatSpec { kind: Some(kind), ..FormatSpec::default() }.format(&Value::Int(number))?;
        let bare = bare.trim_start_matches('-');
        let sign = match (number < 0, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        };
        let prefix = match kind {
            'o' if self.alternate => "0o",
            'x' if self.alternate => "0x",
            'X' if self.alternate => "0X",
            _ => "",
        };
        let text = format!("{sign}{prefix}{}", pad(bare, '0', '>', digits));
        Ok(if self.zero && !self.left {
            pad_zero(&text, sign.len() + prefix.len(), self.width)
        } else {
            self.padded(&text)
        })
    }

    fn cut(&self, text: &str) -> String {
        match self.precision {
            Some(precision) => self.padded(&text.chars().take(precision).collect::<String>()),
            None => self.padded(text),
        }
    }

    fn padded(&self, text: &str) -> String {
        pad(text, ' ', if self.left { '<' } else { '>' }, self.width)
    }
}

/// Naughts between the sign and the digits.
fn pad_zero(text: &str, sign: usize, width: usize) -> String {
    let (sign, digits) = text.split_at(sign);
    format!("{sign}{}", pad(digits, '0', '>', width.saturating_sub(sign.len())))
}

fn int(value: &Value) -> Result<i128> {
    match value {
        Value::Float(number) if number.abs() >= 1.7e38 => too_large(),
        Value::Float(number) => truncated(*number),
        other => other.as_int().ok_or_else(|| Error::new(format!("%d takes a number, not {}", other.kind()))),
    }
}

fn letter(value: &Value) -> Result<String> {
    match (value, value.as_int()) {
        (_, Some(number)) => {
            let letter = u32::try_from(number).ok().and_then(char::from_u32);
            letter.map(String::from).ok_or_else(|| Error::new(format!("%c: {number} is no letter")))
        }
        (Value::Text(text) | Value::Markup(text), _) if text.chars().count() == 1 => Ok(text.to_string()),
        _ => refuse!("%c takes a letter or its number"),
    }
}
