//! What Jinja reads and minijinja does not, written so that it does.
//!
//! transformers adds a tag to Jinja: `{% generation %}` … `{% endgeneration %}` is around what the model said, for those who
//! train. Where text is made it is a scope and nothing else, and minijinja, which takes no tags from outside, has that as
//! `{% with %}`. Only the name changes, so what dashes and line ends do to white space stays.

/// A tag's first and last letters, and the names of those that are read as others.
const OPEN: &str = "{%";
const CLOSE: &str = "%}";
const MARKS: [(&str, &str); 2] = [("generation", "with"), ("endgeneration", "endwith")];

/// The template as minijinja reads it. One that is broken stays so, for minijinja to say how.
pub fn readable(template: &str) -> String {
    // Jinja knows one end of line.
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut read = String::with_capacity(template.len());
    let mut rest = template.as_str();
    while let Some(start) = opening(rest) {
        let (text, tag) = rest.split_at(start);
        let (tag, after) = tag.split_at(length(tag));
        read.push_str(text);
        match MARKS.iter().find(|(name, _)| alone(tag, name).is_some()) {
            Some((name, known)) => read.push_str(&tag.replacen(name, known, 1)),
            None => read.push_str(tag),
        }
        rest = after;
    }
    read + rest
}

/// Where the next tag, expression or remark begins. Each letter is looked at once, however many of them there are.
fn opening(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|two| matches!(two, b"{%" | b"{{" | b"{#"))
}

/// Bytes of the tag, expression or remark at the beginning; of raw text to its end.
fn length(text: &str) -> usize {
    let to = |end: &str| text.find(end).map_or(text.len(), |at| at + end.len());
    if text.starts_with("{#") {
        to("#}")
    } else if text.starts_with("{{") {
        closing(text, "}}")
    } else if let Some(tag) = alone(text, "raw") {
        raw(text, tag)
    } else {
        closing(text, CLOSE)
    }
}

/// Bytes of a tag at the beginning which has this name, and nothing else.
fn alone(text: &str, name: &str) -> Option<usize> {
    let named = undashed(text.strip_prefix(OPEN)?).trim_start().strip_prefix(name)?;
    let after = undashed(named.trim_start()).strip_prefix(CLOSE)?;
    Some(text.len() - after.len())
}

fn undashed(text: &str) -> &str {
    text.strip_prefix(['-', '+']).unwrap_or(text)
}

/// Bytes of raw text, whose first tag has so many.
fn raw(text: &str, tag: usize) -> usize {
    let mut ends = text[tag..].match_indices(OPEN).map(|(at, _)| tag + at);
    ends.find_map(|at| alone(&text[at..], "endraw").map(|end| at + end)).unwrap_or(text.len())
}

/// Bytes up to the letters that close it, which may also stand in its texts and brackets.
fn closing(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut quote) = (OPEN.len(), 0, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, _) if depth == 0 && bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            (None, byte @ (b'\'' | b'"')) => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth -= 1,
            (None, _) => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_what_the_model_said_are_scopes() {
        for (text, read) in [
            ("{% generation %}a{% endgeneration %}", "{% with %}a{% endwith %}"),
            ("{%- generation -%}a{%+endgeneration+%}", "{%- with -%}a{%+endwith+%}"),
            ("{{ '%}' }}{%\ngeneration\t%}", "{{ '%}' }}{%\nwith\t%}"),
            ("{% if x == '%}' %}{%generation%}\u{e9}", "{% if x == '%}' %}{%with%}\u{e9}"),
            ("a\r\nb\rc\n", "a\nb\nc\n"),
        ] {
            assert_eq!(readable(text), read);
        }
    }

    #[test]
    fn what_only_looks_like_them_stays() {
        for text in [
            "",
            "{",
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            r#"{{ "\"{% generation %}" }}"#,
            "{{ {'a': {'b': '{% generation %}'}} }}",
            "{% set x = [{'%}': '{% generation %}'}] %}",
            "{% raw %}{% generation %}{% end %}{%- endraw -%}",
            "{% generations %}{% generation x %}{% set generation = 1 %}{{ generation }}",
            "generation %} { % generation % }",
        ] {
            assert_eq!(readable(text), text);
        }
    }

    #[test]
    fn long_ones_are_read_in_one_go() {
        let text = "{% generation %}{{ x }}{# y #}{% endgeneration %}".repeat(50_000);
        assert_eq!(readable(&text).len(), text.len() - 2 * 50_000 * ("generation".len() - "with".len()));
    }

    #[test]
    fn broken_ones_stay_broken() {
        for text in [
            "{% generation",
            "{{ '",
            "{{ \"\\",
            "{% raw %}{% generation %}",
            "{# \u{e9}",
            "{% \u{e9}\\'\u{e9}",
            "{{ ) }}",
        ] {
            assert_eq!(readable(text), text);
        }
    }
}
