//! How a value is laid out: what stands behind `%` and behind `:` in a format.

use super::display;
use super::error::{Error, Result, refuse};
use super::numbers::{exponent, float_text};
use super::value::Value;

/// The widest and most precise that is written; formats are by strangers.
pub const WIDEST: usize = 50_000;

#[derive(Clone, Debug, PartialEq)]
pub struct FormatSpec {
    pub fill: char,
    /// `<`, `>`, `^` or `=`
    pub align: Option<char>,
    /// `-`, `+` or a space
    pub sign: char,
    pub alternate: bool,
    pub width: usize,
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

impl Default for FormatSpec {
    fn default() -> Self {
        let (fill, sign) = (' ', '-');
        Self { fill, align: None, sign, alternate: false, width: 0, grouping: None, precision: None, kind: None }
    }
}

impl FormatSpec {
    /// `[[fill]align][sign][z][#][0][width][grouping][.precision][type]`
    pub fn read(text: &str) -> Result<Self> {
        let mut spec = Self::default();
        let letters: Vec<char> = text.chars().collect();
        let mut at = 0;
        let is_align = |at: usize| letters.get(at).is_some_and(|letter| "<>^=".contains(*letter));
        let filled = is_align(1);
        if filled {
            (spec.fill, spec.align, at) = (letters[0], Some(letters[1]), 2);
        } else if is_align(0) {
            (spec.align, at) = (Some(letters[0]), 1);
        }
        let next_is = |at: &mut usize, of: &str| {
            let found = letters.get(*at).copied().filter(|letter| of.contains(*letter));
            *at += usize::from(found.is_some());
            found
        };
        spec.sign = next_is(&mut at, "+- ").unwrap_or('-');
        spec.alternate = next_is(&mut at, "#").is_some();
        if !filled && next_is(&mut at, "0").is_some() {
            spec.fill = '0';
            spec.align = spec.align.or(Some('='));
        }
        let number = |at: &mut usize| -> Result<Option<usize>> {
            let digits: String = letters[*at..].iter().take_while(|letter| letter.is_ascii_digit()).collect();
            *at += digits.len();
            if digits.is_empty() { Ok(None) } else { bounded(&digits).map(Some) }
        };
        spec.width = number(&mut at)?.unwrap_or(0);
        spec.grouping = letters.get(at).copied().filter(|letter| ",_".contains(*letter));
        at += usize::from(spec.grouping.is_some());
        if letters.get(at) == Some(&'.') {
            at += 1;
            spec.precision = Some(number(&mut at)?.ok_or_else(|| Error::new("a format has a dot and no precision"))?);
        }
        spec.kind = letters.get(at).copied();
        if letters.len() > at + 1 {
            return refuse!("{text:?} is no format");
        }
        Ok(spec)
    }

    /// `format(value, spec)`
    pub fn format(&self, value: &Value) -> Result<String> {
        match value {
            Value::Text(text) | Value::Markup(text) => self.text(text),
            Value::Float(number) => self.float(*number),
            Value::Bool(_) if *self == Self::default() => display::text(value),
            Value::Int(_) | Value::Bool(_) => self.int(value.as_int().unwrap_or(0)),
            other if *self == Self::default() => display::text(other),
            other => refuse!("what is {} takes no format", other.kind()),
        }
    }

    fn text(&self, text: &str) -> Result<String> {
        if !matches!(self.kind, None | Some('s')) || self.sign != '-' || self.alternate || self.grouping.is_some() {
            return refuse!("a text is not formatted as {:?}", self.kind.unwrap_or(self.sign));
        }
        if self.align == Some('=') && self.fill != '0' {
            return refuse!("a text has no sign to align by");
        }
        let cut = self.precision.map(|precision| text.chars().take(precision).collect::<String>());
        let align = if self.align == Some('=') { Some('<') } else { self.align };
        Ok(pad(cut.as_deref().unwrap_or(text), self.fill, align.unwrap_or('<'), self.width))
    }

    fn int(&self, number: i128) -> Result<String> {
        let kind = match self.kind {
            None | Some('n') => 'd',
            Some(kind) => kind,
        };
        if "eEfFgG%".contains(kind) {
            return self.float(number as f64);
        }
        if self.precision.is_some() {
            return refuse!("a whole number has no precision");
        }
        let size = number.unsigned_abs();
        let (prefix, digits) = match kind {
            'd' => ("", size.to_string()),
            'b' => ("0b", format!("{size:b}")),
            'o' => ("0o", format!("{size:o}")),
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'c' => {
                let letter = u32::try_from(number).ok().and_then(char::from_u32);
                let letter = letter.ok_or_else(|| Error::new(format!("{number} is no letter")))?;
                return Ok(pad(&letter.to_string(), self.fill, self.align.unwrap_or('>'), self.width));
            }
            other => return refuse!("a whole number is not formatted as {other:?}"),
        };
        let every = if kind == 'd' { 3 } else { 4 };
        let prefix = if self.alternate { prefix } else { "" };
        Ok(self.number(number < 0, prefix, &digits, "", every))
    }

    fn float(&self, number: f64) -> Result<String> {
        let size = number.abs();
        let negative = number.is_sign_negative() && !number.is_nan();
        let kind = self.kind.unwrap_or('r');
        let body = match kind.to_ascii_lowercase() {
            'n' => general(size, self.precision.unwrap_or(6), self.alternate, false),
            'r' => match self.precision {
                None => float_text(size),
                Some(precision) => general(size, precision, self.alternate, true),
            },
            'e' => scientific(size, self.precision.unwrap_or(6), self.alternate),
            'f' => fixed(size, self.precision.unwrap_or(6), self.alternate),
            'g' => general(size, self.precision.unwrap_or(6), self.alternate, false),
            '%' => fixed(size * 100.0, self.precision.unwrap_or(6), self.alternate) + "%",
            _ => return refuse!("a number is not formatted as {kind:?}"),
        };
        let body = if kind.is_ascii_uppercase() { body.to_uppercase() } else { body };
        let whole = body.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(body.len());
        let (whole, rest) = body.split_at(whole);
        Ok(self.number(negative, "", whole, rest, 3))
    }

    /// A number of its parts: digits may be grouped, and naughts may fill what is wide.
    fn number(&self, negative: bool, prefix: &str, whole: &str, rest: &str, every: usize) -> String {
        let sign = match (negative, self.sign) {
            (true, _) => "-",
            (false, '+') => "+",
            (false, ' ') => " ",
            _ => "",
        };
        let outside = sign.len() + prefix.len() + rest.len();
        let fills = self.fill == '0' && self.align == Some('=');
        let whole = match self.grouping {
            Some(mark) if !whole.is_empty() => {
                let wide = if fills { self.width.saturating_sub(outside) } else { 0 };
                grouped(whole, mark, every, wide)
            }
            _ => whole.to_owned(),
        };
        let body = format!("{whole}{rest}");
        if self.align == Some('=') {
            let wide = self.width.saturating_sub(sign.len() + prefix.len());
            return format!("{sign}{prefix}{}", pad(&body, self.fill, '>', wide));
        }
        pad(&format!("{sign}{prefix}{body}"), self.fill, self.align.unwrap_or('>'), self.width)
    }
}

/// A width or a precision that is not too large.
pub fn bounded(digits: &str) -> Result<usize> {
    match digits.parse() {
        Ok(number) if number <= WIDEST => Ok(number),
        _ => refuse!("a format is at most {WIDEST} wide, not {digits}"),
    }
}

/// Fills a text up.
pub fn pad(text: &str, fill: char, align: char, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let before = match align {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    let repeated = |times: usize| std::iter::repeat_n(fill, times);
    repeated(before).chain(text.chars()).chain(repeated(missing - before)).collect()
}

/// Digits with a mark between groups of them, and naughts before them until they are so wide.
fn grouped(digits: &str, mark: char, every: usize, wide: usize) -> String {
    let mut backwards = Vec::new();
    let mut reversed = digits.chars().rev();
    let mut count = 0;
    loop {
        let next = reversed.next();
        if next.is_none() && backwards.len() >= wide {
            break;
        }
        if count > 0 && count % every == 0 {
            backwards.push(mark);
        }
        backwards.push(next.unwrap_or('0'));
        count += 1;
    }
    backwards.iter().rev().collect()
}

fn special(number: f64) -> Option<String> {
    (!number.is_finite()).then(|| float_text(number))
}

fn fixed(number: f64, precision: usize, alternate: bool) -> String {
    special(number).unwrap_or_else(|| {
        let text = format!("{number:.precision$}");
        if alternate && precision == 0 { text + "." } else { text }
    })
}

fn scientific(number: f64, precision: usize, alternate: bool) -> String {
    special(number).unwrap_or_else(|| {
        let text = exponent(&format!("{number:.precision$e}"));
        if alternate && precision == 0 { text.replacen('e', ".e", 1) } else { text }
    })
}

/// `g`: so many digits in all, with an exponent where the number is very small or large. Where a text must show that it is
/// no whole number, it has one digit behind the dot.
fn general(number: f64, precision: usize, alternate: bool, dotted: bool) -> String {
    if let Some(text) = special(number) {
        return text;
    }
    let precision = precision.max(1);
    let rounded = format!("{number:.*e}", precision - 1);
    let power: i32 = rounded.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let limit = i32::try_from(precision).unwrap_or(i32::MAX) - i32::from(dotted);
    if power < -4 || power >= limit {
        let (digits, _) = rounded.split_once('e').unwrap_or((&rounded, ""));
        let digits = if alternate { digits } else { bare(digits) };
        return exponent(&format!("{digits}e{power}"));
    }
    let behind = usize::try_from(i32::try_from(precision).unwrap_or(i32::MAX) - 1 - power).unwrap_or(0);
    let text = format!("{number:.behind$}");
    let text = if alternate { text.as_str() } else { bare(&text) };
    if dotted && !text.contains('.') { format!("{text}.0") } else { text.to_owned() }
}

/// Without naughts at the end of a fraction.
fn bare(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}
