//! Text in the columns of a terminal, as wide as terminals show it.

use tsnode_protocol::Seconds;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns that every line for people keeps to.
pub(super) const COLUMNS: usize = 80;

/// Columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Text of others as it may be shown: a name with control characters in it would drive the terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A text in so many columns at most; what is cut off is an ellipsis.
pub(super) fn fitted(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let (mut kept, mut columns) = (String::new(), 1);
    for c in text.chars() {
        columns += c.width().unwrap_or(0);
        if columns > most {
            break;
        }
        kept.push(c);
    }
    if most > 0 {
        kept.truncate(kept.trim_end().len());
        kept.push('…');
    }
    kept
}

/// A text in exactly so many columns, or as many as it takes.
pub(super) fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// A text behind a label of so many columns, in as many lines as it takes; a word that fits no line is cut.
pub(super) fn wrapped(label: &str, columns: usize, text: &str) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), padded(label, columns));
    for word in text.split_whitespace() {
        let word = fitted(word, COLUMNS - columns);
        if width(&line) > columns && width(&line) + 1 + width(&word) > COLUMNS {
            lines.push(std::mem::replace(&mut line, " ".repeat(columns)));
        } else if width(&line) > columns {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// A time in the unit that suits it.
pub(super) fn time(Seconds(seconds): Seconds) -> String {
    match seconds * 1e3 {
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 9999.5 => format!("{ms:.0} ms"),
        _ => format!("{seconds:.1} s"),
    }
}

/// A number of bytes in the unit that suits it.
pub(super) fn bytes(number: u64) -> String {
    let number = number as f64;
    match number {
        n if n < 1e3 => format!("{n:.0} B"),
        n if n < 1e6 => format!("{:.1} kB", n / 1e3),
        n if n < 1e9 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.1} GB", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns_and_are_never_cut_in_two() {
        assert_eq!((width("机器"), width("abc"), width("e\u{301}")), (4, 3, 1));
        assert_eq!(fitted("机器一号", 8), "机器一号");
        assert_eq!(fitted("机器一号", 7), "机器一…");
        assert_eq!(fitted("机器一号", 6), "机器…");
        assert_eq!((fitted("abc", 1), fitted("abc", 0)), ("…".into(), String::new()));
        assert_eq!(padded("机", 4), "机  ");
        assert_eq!(padded("abcde", 4), "abcde");
    }

    #[test]
    fn what_takes_more_than_a_line_goes_on_below() {
        let lines = wrapped("why", 5, &"four ".repeat(16));
        let expected = [format!("why  {}", ["four"; 15].join(" ")), "     four".to_owned()];
        assert_eq!(lines, expected);
        assert!(lines.iter().all(|line| width(line) <= COLUMNS));
        assert_eq!(wrapped("why", 5, ""), ["why"]);
        assert_eq!(width(&wrapped("", 5, &"机".repeat(80))[0]), COLUMNS);
    }

    #[test]
    fn names_drive_no_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn numbers_have_the_unit_that_suits_them() {
        let times = [0.000_42, 0.0099, 0.04, 9.9, 12.34].map(|s| time(Seconds(s)));
        assert_eq!(times, ["0.4 ms", "9.9 ms", "40 ms", "9900 ms", "12.3 s"]);
        assert_eq!([999, 124_900, 40_000_000].map(bytes), ["999 B", "124.9 kB", "40.0 MB"]);
    }
}
