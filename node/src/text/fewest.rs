//! The fewest tokens that a text can be: what is too long for a model is refused without making tokens of it.
//!
//! A token stands for no more bytes than the longest of the vocabulary, unless the tokenizer leaves text out or has one
//! token for unknown text of any length. Where it may, nothing is said here.

use super::bytes::{ByteTokens, letter};
use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

/// How few tokens bytes can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fewest {
    /// Bytes of a text that one token can stand for.
    longest: usize,
    /// Tokens that take all white space beside them, so that it need not have tokens.
    swallowing: Vec<String>,
    /// Such may stand in a text in other words.
    always_swallows: bool,
}

impl Fewest {
    /// Of a tokenizer's tokens; nothing where one of them may stand for a text of any length.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let json = |part: serde_json::Result<Value>| part.ok();
        let normalizer = json(serde_json::to_value(tokenizer.get_normalizer()))?;
        let splitter = json(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
        let is_level = has(&normalizer, "normalizers", "ByteLevel") || has(&splitter, "pretokenizers", "ByteLevel");
        let shrinks = shrinks(&normalizer)?;
        if !keeps(&splitter) || !knows_all(tokenizer, is_level) {
            return None;
        }
        let spelled = if is_level { ByteTokens::Level } else { ByteTokens::None };
        let bytes = |token: &String| spelled.bytes(token).map_or(token.len(), |bytes| bytes.len());
        let added = tokenizer.get_added_tokens_decoder();
        let longest = tokenizer.get_vocab(false).keys().map(bytes).max()?;
        let longest = added.values().map(|token| token.content.len()).fold(longest, usize::max);
        let swallowing = added.values().filter(|token| token.lstrip || token.rstrip);
        let always_swallows = swallowing.clone().any(|token| token.normalized);
        let swallowing = swallowing.map(|token| token.content.clone()).collect();
        Some(Self { longest: longest.max(4) * shrinks, swallowing, always_swallows })
    }

    /// Tokens that a text is at least.
    pub fn tokens(&self, text: &str) -> usize {
        let swallows = self.always_swallows || self.swallowing.iter().any(|token| text.contains(token.as_str()));
        let bytes = if swallows { said(text) } else { text.len() };
        self.tokens_of(bytes)
    }

    /// Tokens that so many bytes are at least.
    pub fn tokens_of(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.longest)
    }
}

/// Bytes of a text that are no white space, or fewer: letters that begin with the same byte as a white one count as white.
pub(super) fn said(text: &str) -> usize {
    let white = |byte: u8| match byte {
        0..=b' ' => 1,
        0xc2 => 2,
        0xe1..=0xe3 => 3,
        _ => 0,
    };
    text.len() - text.bytes().map(white).sum::<usize>()
}

fn parts<'v>(value: &'v Value, list: &str) -> impl Iterator<Item = &'v Value> {
    value[list].as_array().into_iter().flatten()
}

/// Whether something is of a kind, or has such a part.
fn has(value: &Value, list: &str, kind: &str) -> bool {
    value["type"] == kind || parts(value, list).any(|part| has(part, list, kind))
}

/// Bytes that a normalizer may make one of; nothing where it may leave out any number.
fn shrinks(normalizer: &Value) -> Option<usize> {
    if normalizer.is_null() {
        return Some(1);
    }
    match normalizer["type"].as_str()? {
        "Sequence" => parts(normalizer, "normalizers").try_fold(1, |all, part| Some(all * shrinks(part)?)),
        "Prepend" | "ByteLevel" => Some(1),
        // Decomposed letters have up to three times the bytes; of capitals, KELVIN SIGN becomes one byte of three.
        "NFC" | "NFD" | "Lowercase" => Some(3),
        // A mathematical letter has four bytes and becomes a plain one.
        "NFKC" | "NFKD" => Some(4),
        "Replace" => {
            let replaced = normalizer["pattern"]["String"].as_str()?.len();
            let content = normalizer["content"].as_str()?.len();
            (content > 0).then(|| replaced.div_ceil(content).max(1))
        }
        _ => None,
    }
}

/// Whether what splits a text leaves nothing of it out.
fn keeps(splitter: &Value) -> bool {
    if splitter.is_null() {
        return true;
    }
    match splitter["type"].as_str() {
        Some("Sequence") => parts(splitter, "pretokenizers").all(keeps),
        Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts" | "FixedLength") => true,
        Some("Split" | "Punctuation") => splitter["behavior"].as_str().is_some_and(|what| what != "Removed"),
        _ => false,
    }
}

/// Whether every letter has a token of its own or tokens for its bytes: otherwise it is left out, or one with its neighbours.
fn knows_all(tokenizer: &Tokenizer, is_level: bool) -> bool {
    let all_bytes = || (0..=u8::MAX).all(|byte| tokenizer.token_to_id(&format!("<0x{byte:02X}>")).is_some());
    let all_letters = || (0..=u8::MAX).all(|byte| tokenizer.token_to_id(&letter(byte).to_string()).is_some());
    match tokenizer.get_model() {
        ModelWrapper::BPE(model) => {
            let is_plain = model.continuing_subword_prefix.is_none() && model.end_of_word_suffix.is_none();
            let one_each = model.unk_token.is_some() && !model.fuse_unk;
            one_each || is_plain && (is_level && all_letters() || model.byte_fallback && all_bytes())
        }
        ModelWrapper::Unigram(model) => model.byte_fallback() && all_bytes(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{model::tests::embedded, tokenizer_guard};
    use super::*;
    use serde_json::json;

    fn usual() -> Value {
        serde_json::from_slice(&embedded().files["tokenizer.json"]).unwrap()
    }

    fn read(file: &Value) -> Tokenizer {
        tokenizer_guard::read(&serde_json::to_vec(file).unwrap()).unwrap()
    }

    /// Of the embedded model, with some parts of its file in the place of its own.
    fn of(changes: &[(&str, Value)]) -> Option<Fewest> {
        let mut file = usual();
        for (at, value) in changes {
            *file.pointer_mut(at).unwrap() = value.clone();
        }
        Fewest::of(&read(&file))
    }

    #[test]
    fn no_text_is_fewer_tokens_than_is_said() {
        let tokenizers = [usual(), serde_json::from_slice(include_bytes!("byte_tokens.json")).unwrap(), {
            let mut file = usual();
            file["normalizer"] =
                json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Lowercase" }] });
            file
        }];
        let long = " circumstances".repeat(50);
        let texts = [
            "",
            "a",
            "It was a dark and windy night",
            &long,
            "\u{e9}\u{301}\u{1F600}가나다라",
            "hello hello hello",
            "e\u{301}o\u{308}\u{323}",
            "\u{1100}\u{1161}\u{11a8}\u{1100}\u{1161}\u{11a8}",
            "\u{212a}\u{212a}\u{212a}\u{212a}",
            "\u{3c9}\u{313}\u{342}\u{345}",
            "      \n\n\n\t\t   ",
            "<|bos|><|eos|><|user|>",
            "<unk><s></s>",
            "\0\u{1}\u{7f}",
        ];
        for file in tokenizers {
            let tokenizer = read(&file);
            let fewest = Fewest::of(&tokenizer).unwrap();
            for text in texts {
                for times in [1, 20] {
                    let text = text.repeat(times);
                    let tokens = tokenizer_guard::encode(&tokenizer, &text, false).unwrap().len();
                    assert!(fewest.tokens(&text) <= tokens, "{text:?}: {tokens} tokens, {fewest:?}");
                }
            }
        }
    }

    #[test]
    fn the_longest_token_says_how_few() {
        // Ġcircumstances
        let fewest = of(&[]).unwrap();
        assert_eq!((fewest.longest, fewest.swallowing.len()), (14, 0));
        assert_eq!((fewest.tokens(""), fewest.tokens(&"a".repeat(14)), fewest.tokens(&"é".repeat(8))), (0, 1, 2));
        let lower = of(&[("/normalizer", json!({ "type": "Lowercase" }))]).unwrap();
        assert_eq!(lower.longest, 42);
    }

    #[test]
    fn white_space_says_nothing() {
        let white: String =
            (0..=u32::from(char::MAX)).filter_map(char::from_u32).filter(|c| c.is_whitespace()).collect();
        assert_eq!((said(&white), said("a b\nc"), said("wörld 漢字 \u{1F600}")), (0, 3, 16));
    }

    #[test]
    fn white_space_that_a_token_swallows_has_none() {
        let fewest = of(&[("/added_tokens/2/rstrip", json!(true))]).unwrap();
        assert_eq!(fewest.swallowing, ["<|user|>"]);
        let spaces = " ".repeat(1400);
        assert_eq!((fewest.tokens(&spaces), fewest.tokens(&format!("<|user|>{spaces}"))), (100, 1));
        let everywhere = of(&[("/added_tokens/2/rstrip", json!(true)), ("/added_tokens/2/normalized", json!(true))]);
        assert_eq!(everywhere.unwrap().tokens(&spaces), 0);
    }

    #[test]
    fn nothing_is_said_where_text_is_left_out_or_one_token_may_be_any_text() {
        let split = |behavior: &str| json!({ "type": "Split", "pattern": { "String": "a" }, "behavior": behavior, "invert": false });
        let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let both = |first: Value| json!({ "type": "Sequence", "pretokenizers": [first, level.clone()] });
        let replace = |content: &str| json!({ "type": "Replace", "pattern": { "String": "abcd" }, "content": content });
        assert!(of(&[("/pre_tokenizer", both(split("Isolated")))]).is_some());
        assert_eq!(of(&[("/normalizer", replace("e"))]).unwrap().longest, 4 * 14);
        let cases = [
            ("/pre_tokenizer", both(split("Removed"))),
            ("/pre_tokenizer", both(json!({ "type": "WhitespaceSplit" }))),
            // Letters that have no token are left out.
            ("/pre_tokenizer", Value::Null),
            ("/normalizer", replace("")),
            ("/normalizer", json!({ "type": "StripAccents" })),
            ("/normalizer", json!({ "type": "Strip", "strip_left": true, "strip_right": true })),
            ("/normalizer", json!({ "type": "Replace", "pattern": { "Regex": " +" }, "content": " " })),
        ];
        for (at, value) in cases {
            assert_eq!(of(&[(at, value.clone())]), None, "{at} {value}");
        }
        let word_level = json!({ "type": "WordLevel", "vocab": { "a": 0, "<unk>": 1 }, "unk_token": "<unk>" });
        assert_eq!(of(&[("/model", word_level), ("/added_tokens", json!([]))]), None);
    }
}
