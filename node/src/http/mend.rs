//! What programs send for JSON that strictly is none, and can only mean one thing.
//!
//! A byte order mark in front is left out, as RFC 8259 allows: programs on Windows write one. Half of a surrogate pair
//! (`"\ud83d"`) is an emoji that a JavaScript program cut in two; it becomes U+FFFD, as it does where the program sends its
//! text as UTF-8 and not as JSON's escapes, and in browsers' own encoder. To refuse it would fail the same program for one
//! conversation in a thousand.

/// UTF-8's byte order mark.
const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
/// The length of `\uXXXX`.
const ESCAPE: usize = 6;

/// JSON behind its byte order mark, if it has one, with whole characters only. Nothing moves: U+FFFD is as long as what it
/// stands for.
pub(super) fn json(body: &mut [u8]) -> &[u8] {
    let body = if body.starts_with(&MARK) { &mut body[MARK.len()..] } else { body };
    let mut at = 0;
    while let Some(next) = body[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        at += match (unit(body, at), unit(body, at + ESCAPE)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 2 * ESCAPE,
            (Some(0xD800..=0xDFFF), _) => {
                body[at + 2..at + ESCAPE].copy_from_slice(b"fffd");
                ESCAPE
            }
            (Some(_), _) => ESCAPE,
            // Of the two, the second may be a backslash.
            (None, _) => 2,
        };
        at = at.min(body.len());
    }
    body
}

/// The number of the escape that begins there, if one does.
fn unit(body: &[u8], at: usize) -> Option<u32> {
    let digits = body.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(body: &str) -> String {
        let mut body = body.as_bytes().to_vec();
        String::from_utf8(json(&mut body).to_vec()).unwrap()
    }

    #[test]
    fn half_of_a_pair_is_a_sign_for_what_is_lost() {
        let cases = [
            (r#""a\ud83d""#, "a\u{FFFD}"),
            (r#""a\uDE00b""#, "a\u{FFFD}b"),
            (r#""\uD83D\uDE00""#, "😀"),
            (r#""\ud83d\ud83d\ude00""#, "\u{FFFD}😀"),
            (r#""\ude00\ud83d""#, "\u{FFFD}\u{FFFD}"),
            (r#""\ud83d\n""#, "\u{FFFD}\n"),
            (r#""\\ud83d""#, r"\ud83d"),
            (r#""\\\ud83d""#, "\\\u{FFFD}"),
            (r#""\u00e9\ud83d""#, "é\u{FFFD}"),
        ];
        for (body, said) in cases {
            let read: Result<String, _> = serde_json::from_str(&mended(body));
            assert_eq!(read.ok().as_deref(), Some(said), "{body}");
        }
    }

    #[test]
    fn what_is_no_escape_stays_as_it_is() {
        for body in ["", "\\", "\\u", "\\ud83", r#"{"a":"\"#, r"\u+fff", "\\\\", r#""\u12g4\ud8""#, "\u{FFFD}"] {
            assert_eq!(mended(body), body);
        }
    }

    #[test]
    fn a_byte_order_mark_is_left_out_and_only_in_front() {
        assert_eq!((mended("\u{FEFF}{}").as_str(), mended("\u{FEFF}\u{FEFF}1").as_str()), ("{}", "\u{FEFF}1"));
        assert_eq!(mended("\"\u{FEFF}\""), "\"\u{FEFF}\"");
    }
}
