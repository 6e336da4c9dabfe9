//! Tokens that stand for bytes: a character may take several, so they are text only together.

use super::tokenizer_guard;
use tokenizers::Tokenizer;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteTokens {
    /// Its tokens are text.
    None,
    /// `<0xEA>`, beside tokens that are text: SentencePiece's byte fallback.
    Fallback,
    /// Every token is a row of bytes, each written as a character: GPT-2's byte level.
    Level,
}

impl ByteTokens {
    /// By what the tokenizer makes of tokens in either spelling.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let makes = |tokens: &[&str], text| tokenizer_guard::join(tokenizer, tokens).is_some_and(|made| made == text);
        if makes(&["<0x41>"], "A") {
            Self::Fallback
        } else if makes(&["Ã", "©"], "é") {
            Self::Level
        } else {
            Self::None
        }
    }

    /// The bytes that a token stands for; none if it is text.
    pub fn bytes(self, token: &str) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Fallback => fallback(token).map(|byte| vec![byte]),
            // What was added to the vocabulary may be spelled as it is.
            Self::Level => Some(token.chars().map(level).collect::<Option<_>>().unwrap_or_else(|| token.into())),
        }
    }

    /// Tokens that stand for a text's bytes.
    pub fn spell(self, text: &str) -> Vec<String> {
        match self {
            Self::None => vec![text.to_owned()],
            Self::Fallback => text.bytes().map(|byte| format!("<0x{byte:02X}>")).collect(),
            Self::Level => vec![text.bytes().map(letter).collect()],
        }
    }

    /// What stands for bytes that begin or go on with a character that is none: as SentencePiece has it one sign for each,
    /// at byte level one for all that could have been of one character.
    pub fn unreadable(self, bytes: &[u8]) -> String {
        "\u{FFFD}".repeat(if self == Self::Fallback { bytes.len() } else { 1 })
    }
}

fn fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The byte that a letter of GPT-2's alphabet stands for: Latin-1 as it is where that can be seen, the rest in order from
/// U+0100 on.
fn level(letter: char) -> Option<u8> {
    let byte = match letter {
        '!'..='~' | '¡'..='¬' | '®'..='ÿ' => u32::from(letter),
        '\u{100}'..='\u{120}' => u32::from(letter) - 0x100,
        '\u{121}'..='\u{142}' => u32::from(letter) - 0x121 + 0x7F,
        '\u{143}' => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// A byte's letter.
pub(super) fn letter(byte: u8) -> char {
    let beyond = match byte {
        0..=0x20 => u32::from(byte) + 0x100,
        0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x121,
        0xAD => 0x143,
        _ => u32::from(byte),
    };
    char::from_u32(beyond).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn letters_are_gpt_2s() {
        let letters: HashSet<char> = (0..=255).map(letter).collect();
        assert_eq!(letters, ByteLevel::alphabet().into_iter().collect());
        assert!((0..=255).all(|byte| level(letter(byte)) == Some(byte)));
        assert_eq!((letter(b' '), letter(b'\n'), level('é'), level('가')), ('Ġ', 'Ċ', Some(0xE9), None));
    }

    #[test]
    fn only_two_digits_are_a_byte() {
        assert_eq!((fallback("<0xEA>"), fallback("<0x0a>")), (Some(0xEA), Some(10)));
        assert!(["<0x>", "<0xEAB>", "<0xG0>", "0xEA", "<0xEA", "<s>", "<0xé>"].iter().all(|t| fallback(t).is_none()));
    }
}
