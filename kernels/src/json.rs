//! JSON as Python's `json` writes it, which all that makes models is written in.

use serde_json::error::Category;
use std::borrow::Cow;

/// What some editors begin a text with.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// Numbers that Python has a word for and JSON has none. The longer ones come first.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The same as plain JSON: without a byte order mark, and with such numbers as texts, so that who needs a number there
/// can say what it found, and who does not reads on.
pub(crate) fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut out = Vec::new();
    let (mut at, mut copied, mut quoted) = (0, 0, false);
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'-' | b'I' | b'N' if !quoted => {
                if let Some(word) = WORDS.into_iter().find(|word| text[at..].starts_with(word)) {
                    for part in [&text[copied..at], b"\"", word, b"\""] {
                        out.extend_from_slice(part);
                    }
                    (at, copied) = (at + word.len() - 1, at + word.len());
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// What is wrong with a text, in words for who has to mend it; `wanted` is what it should hold.
pub(crate) fn fault(error: &serde_json::Error, wanted: &str) -> String {
    match error.classify() {
        Category::Eof | Category::Io => "ends in the middle: get the file again".into(),
        Category::Syntax => {
            format!("is not JSON at line {}, column {}: get the file again", error.line(), error.column())
        }
        Category::Data => format!("{wanted} is expected: get the file again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_word_become_texts() {
        let cases = [
            (r#"{"a": NaN, "b": [Infinity,-Infinity]}"#, r#"{"a": "NaN", "b": ["Infinity","-Infinity"]}"#),
            (r#"{"NaN": "Infinity", "\"NaN": -1}"#, r#"{"NaN": "Infinity", "\"NaN": -1}"#),
            (r#"["\\", NaN]"#, r#"["\\", "NaN"]"#),
            ("NaN", "\"NaN\""),
            ("\u{feff}{}", "{}"),
            ("\u{feff}NaN", "\"NaN\""),
            ("", ""),
            ("\"\\", "\"\\"),
        ];
        for (python, plain_json) in cases {
            assert_eq!(std::str::from_utf8(&plain(python.as_bytes())).unwrap(), plain_json, "{python}");
        }
        assert!(matches!(plain(b"{\"a\": -1}"), Cow::Borrowed(_)), "what needs no change is not copied");
    }
}
