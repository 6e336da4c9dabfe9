//! Letters as Python sorts them: what is a digit, a space, a title. Where Unicode's own tables say it they are asked; the
//! rest is few enough to be written out (from Python 3.11, Unicode 14).

use super::error::{Error, Result};
use fancy_regex::Regex;
use std::sync::LazyLock;

/// Digits that are no decimal ones: raised, circled and such.
const DIGITS: [(char, char); 20] = [
    ('\u{b2}', '\u{b3}'),
    ('\u{b9}', '\u{b9}'),
    ('\u{1369}', '\u{1371}'),
    ('\u{19da}', '\u{19da}'),
    ('\u{2070}', '\u{2070}'),
    ('\u{2074}', '\u{2079}'),
    ('\u{2080}', '\u{2089}'),
    ('\u{2460}', '\u{2468}'),
    ('\u{2474}', '\u{247c}'),
    ('\u{2488}', '\u{2490}'),
    ('\u{24ea}', '\u{24ea}'),
    ('\u{24f5}', '\u{24fd}'),
    ('\u{24ff}', '\u{24ff}'),
    ('\u{2776}', '\u{277e}'),
    ('\u{2780}', '\u{2788}'),
    ('\u{278a}', '\u{2792}'),
    ('\u{10a40}', '\u{10a43}'),
    ('\u{10e60}', '\u{10e68}'),
    ('\u{11052}', '\u{1105a}'),
    ('\u{1f100}', '\u{1f10a}'),
];
/// Numbers among what is otherwise a letter.
const NUMERALS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零參拾兩零六陸什𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭廾";
/// Letters that begin a word otherwise than they are capitals.
const TITLES: [(char, &str); 41] = [
    ('\u{df}', "\u{53}\u{73}"),
    ('\u{1c4}', "\u{1c5}"),
    ('\u{1c5}', "\u{1c5}"),
    ('\u{1c6}', "\u{1c5}"),
    ('\u{1c7}', "\u{1c8}"),
    ('\u{1c8}', "\u{1c8}"),
    ('\u{1c9}', "\u{1c8}"),
    ('\u{1ca}', "\u{1cb}"),
    ('\u{1cb}', "\u{1cb}"),
    ('\u{1cc}', "\u{1cb}"),
    ('\u{1f1}', "\u{1f2}"),
    ('\u{1f2}', "\u{1f2}"),
    ('\u{1f3}', "\u{1f2}"),
    ('\u{587}', "\u{535}\u{582}"),
    ('\u{1fb2}', "\u{1fba}\u{345}"),
    ('\u{1fb3}', "\u{1fbc}"),
    ('\u{1fb4}', "\u{386}\u{345}"),
    ('\u{1fb7}', "\u{391}\u{342}\u{345}"),
    ('\u{1fbc}', "\u{1fbc}"),
    ('\u{1fc2}', "\u{1fca}\u{345}"),
    ('\u{1fc3}', "\u{1fcc}"),
    ('\u{1fc4}', "\u{389}\u{345}"),
    ('\u{1fc7}', "\u{397}\u{342}\u{345}"),
    ('\u{1fcc}', "\u{1fcc}"),
    ('\u{1ff2}', "\u{1ffa}\u{345}"),
    ('\u{1ff3}', "\u{1ffc}"),
    ('\u{1ff4}', "\u{38f}\u{345}"),
    ('\u{1ff7}', "\u{3a9}\u{342}\u{345}"),
    ('\u{1ffc}', "\u{1ffc}"),
    ('\u{fb00}', "\u{46}\u{66}"),
    ('\u{fb01}', "\u{46}\u{69}"),
    ('\u{fb02}', "\u{46}\u{6c}"),
    ('\u{fb03}', "\u{46}\u{66}\u{69}"),
    ('\u{fb04}', "\u{46}\u{66}\u{6c}"),
    ('\u{fb05}', "\u{53}\u{74}"),
    ('\u{fb06}', "\u{53}\u{74}"),
    ('\u{fb13}', "\u{544}\u{576}"),
    ('\u{fb14}', "\u{544}\u{565}"),
    ('\u{fb15}', "\u{544}\u{56b}"),
    ('\u{fb16}', "\u{54e}\u{576}"),
    ('\u{fb17}', "\u{544}\u{56d}"),
];
/// Letters that are folded to the small of their capitals, and not to themselves.
const FOLDED: &str = "\u{b5}\u{df}\u{149}\u{17f}\u{1f0}\u{345}\u{390}\u{3b0}\u{3c2}\u{3d0}\u{3d1}\u{3d5}\u{3d6}\u{3f0}\u{3f1}\
    \u{3f5}\u{587}\u{1c80}\u{1c81}\u{1c82}\u{1c83}\u{1c84}\u{1c85}\u{1c86}\u{1c87}\u{1c88}\u{1e96}\u{1e97}\
    \u{1e98}\u{1e99}\u{1e9a}\u{1e9b}\u{1f50}\u{1f52}\u{1f54}\u{1f56}\u{1f80}\u{1f81}\u{1f82}\u{1f83}\u{1f84}\
    \u{1f85}\u{1f86}\u{1f87}\u{1f88}\u{1f89}\u{1f8a}\u{1f8b}\u{1f8c}\u{1f8d}\u{1f8e}\u{1f8f}\u{1f90}\u{1f91}\
    \u{1f92}\u{1f93}\u{1f94}\u{1f95}\u{1f96}\u{1f97}\u{1f98}\u{1f99}\u{1f9a}\u{1f9b}\u{1f9c}\u{1f9d}\u{1f9e}\
    \u{1f9f}\u{1fa0}\u{1fa1}\u{1fa2}\u{1fa3}\u{1fa4}\u{1fa5}\u{1fa6}\u{1fa7}\u{1fa8}\u{1fa9}\u{1faa}\u{1fab}\
    \u{1fac}\u{1fad}\u{1fae}\u{1faf}\u{1fb2}\u{1fb3}\u{1fb4}\u{1fb6}\u{1fb7}\u{1fbc}\u{1fbe}\u{1fc2}\u{1fc3}\
    \u{1fc4}\u{1fc6}\u{1fc7}\u{1fcc}\u{1fd2}\u{1fd3}\u{1fd6}\u{1fd7}\u{1fe2}\u{1fe3}\u{1fe4}\u{1fe6}\u{1fe7}\
    \u{1ff2}\u{1ff3}\u{1ff4}\u{1ff6}\u{1ff7}\u{1ffc}\u{fb00}\u{fb01}\u{fb02}\u{fb03}\u{fb04}\u{fb05}\u{fb06}\
    \u{fb13}\u{fb14}\u{fb15}\u{fb16}\u{fb17}";

fn class(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

static ALPHA: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{L}\z"));
static DECIMAL: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{Nd}\z"));
static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{N}\z"));
static TITLE: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{Lt}\z"));
static HIDDEN: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A[\p{C}\p{Z}]\z"));
static FIRST: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A[\p{XID_Start}_]\z"));
static NEXT: LazyLock<Option<Regex>> = LazyLock::new(|| class(r"\A\p{XID_Continue}\z"));

/// Whether a letter outside of ASCII is of a class.
fn of(class: &LazyLock<Option<Regex>>, letter: char) -> bool {
    let mut bytes = [0; 4];
    let text = letter.encode_utf8(&mut bytes);
    class.as_ref().is_some_and(|class| class.is_match(text).unwrap_or(false))
}

/// `str.isspace` of one letter, which is also what `strip` and `split` take for space.
pub fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter)
}

pub fn is_alpha(letter: char) -> bool {
    if letter.is_ascii() { letter.is_ascii_alphabetic() } else { of(&ALPHA, letter) }
}

pub fn is_decimal(letter: char) -> bool {
    if letter.is_ascii() { letter.is_ascii_digit() } else { of(&DECIMAL, letter) }
}

pub fn is_digit(letter: char) -> bool {
    is_decimal(letter) || DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&letter))
}

pub fn is_numeric(letter: char) -> bool {
    if letter.is_ascii() { letter.is_ascii_digit() } else { of(&NUMBER, letter) || NUMERALS.contains(letter) }
}

/// What regular expressions call a word's letter, but for the underscore.
pub fn is_alnum(letter: char) -> bool {
    is_alpha(letter) || is_numeric(letter)
}

/// A letter that is neither small nor a capital, but both at once.
pub fn is_title(letter: char) -> bool {
    !letter.is_ascii() && of(&TITLE, letter)
}

pub fn is_cased(letter: char) -> bool {
    letter.is_lowercase() || letter.is_uppercase() || is_title(letter)
}

/// Whether `repr` writes it as it is.
pub fn is_printable(letter: char) -> bool {
    if letter.is_ascii() { (' '..='~').contains(&letter) } else { !of(&HIDDEN, letter) }
}

pub fn is_identifier(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|first| first == '_' || of(&FIRST, first)) && letters.all(|next| of(&NEXT, next))
}

/// The value of a decimal digit of any script: they stand in rows of ten.
pub fn decimal(letter: char) -> Option<u32> {
    if letter.is_ascii() {
        return letter.to_digit(10);
    }
    if !is_decimal(letter) {
        return None;
    }
    let before = (1..).map_while(|back| char::from_u32(u32::from(letter) - back).filter(|before| is_decimal(*before)));
    u32::try_from(before.count()).ok().map(|place| place % 10)
}

/// Adds a letter as it begins a word.
pub fn push_title(text: &mut String, letter: char) {
    let number = u32::from(letter);
    match number {
        // Georgian has capitals, but no word begins with them.
        0x10d0..=0x10ff => text.push(letter),
        0x1f80..=0x1faf => text.push(char::from_u32(number | 8).unwrap_or(letter)),
        _ => match TITLES.iter().find(|(small, _)| *small == letter) {
            Some((_, title)) => text.push_str(title),
            None => text.extend(letter.to_uppercase()),
        },
    }
}

pub fn upper(text: &str) -> String {
    text.to_uppercase()
}

pub fn lower(text: &str) -> String {
    text.to_lowercase()
}

/// Small letters from the second on; they know what stood before, for which a sigma is another at the end of a word.
fn push_lower(text: &mut String, whole: &str, at: usize, letter: char) {
    if letter == '\u{3a3}' {
        let end = at + letter.len_utf8();
        let small = whole[..end].to_lowercase();
        let goes_on = whole[end..].chars().find(|letter| !is_case_ignorable(*letter)).is_some_and(is_cased);
        text.push(if goes_on { '\u{3c3}' } else { small.chars().next_back().unwrap_or('\u{3c3}') });
    } else {
        text.extend(letter.to_lowercase());
    }
}

fn is_case_ignorable(letter: char) -> bool {
    matches!(letter, '\'' | '.' | ':' | '\u{ad}' | '\u{b7}' | '\u{2019}' | '\u{300}'..='\u{36f}')
}

pub fn capitalize(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        if at == 0 { push_title(&mut made, letter) } else { push_lower(&mut made, text, at, letter) }
    }
    made
}

/// `str.title`: a word begins after whatever has no case.
pub fn title(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut within = false;
    for (at, letter) in text.char_indices() {
        if within {
            push_lower(&mut made, text, at, letter)
        } else {
            push_title(&mut made, letter)
        }
        within = is_cased(letter);
    }
    made
}

pub fn swapcase(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        if letter.is_uppercase() {
            push_lower(&mut made, text, at, letter);
        } else if letter.is_lowercase() {
            made.extend(letter.to_uppercase());
        } else {
            made.push(letter);
        }
    }
    made
}

pub fn casefold(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{1e9e}' => made.push_str("ss"),
            // Cherokee is folded to capitals.
            '\u{13a0}'..='\u{13f5}' => made.push(letter),
            '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => made.extend(letter.to_uppercase()),
            _ if FOLDED.contains(letter) => made.extend(letter.to_uppercase().flat_map(char::to_lowercase)),
            _ => made.extend(letter.to_lowercase()),
        }
    }
    made
}

/// A number's text in ASCII: the digits of every script, without underscores and the space around it.
pub fn ascii_number(text: &str) -> Result<String> {
    let bad = || Error::new(format!("{text:?} is no number"));
    let trimmed = text.trim_matches(is_space);
    let mut plain = String::with_capacity(trimmed.len());
    let mut before = None;
    let mut letters = trimmed.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '_' {
            let parts = |side: Option<char>| side.is_some_and(char::is_alphanumeric);
            if !parts(before) || !parts(letters.peek().copied()) {
                return Err(bad());
            }
        } else if let Some(digit) = decimal(letter) {
            plain.extend(char::from_digit(digit, 10));
        } else {
            plain.push(letter);
        }
        before = Some(letter);
    }
    Ok(plain)
}
