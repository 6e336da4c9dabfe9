//! The `tokenizers` crate behind a fence: gateways read tokenizers of models that any peer may have announced.
//!
//! Some broken files make it panic, when they are read or when text meets them; that is caught here, and is an error like
//! any other. What would take memory by a number in the file is left out or refused.

use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::{Decoder, PostProcessor, Tokenizer, TruncationParams, truncate_encodings};

/// Bytes that normalizers may make of one, all in a row. SentencePiece's make three: a space is written `▁`.
const GROWTH: usize = 64;

/// Reads `tokenizer.json`.
///
/// # Errors
/// When it is not of the form, or cannot be trusted with a text.
pub fn read(bytes: &[u8]) -> Result<Tokenizer, String> {
    let file: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if growth(&file["normalizer"]) > GROWTH {
        return Err(format!("its normalizers may make more than {GROWTH} bytes of one"));
    }
    drop(file);
    let mut tokenizer = fenced(|| Tokenizer::from_bytes(bytes))?.map_err(|e| e.to_string())?;
    // Both are for batches of texts as models are trained with; a padded prompt would be another prompt.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    Ok(tokenizer)
}

/// Tokens of a text.
///
/// # Errors
/// When the tokenizer cannot.
pub fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, String> {
    // Fast: without their places in the text.
    let encoding = fenced(|| tokenizer.encode_fast(text, special))?.map_err(|e| e.to_string())?;
    Ok(encoding.get_ids().to_vec())
}

/// A text, or a pair of texts, as an encoder reads it: with special tokens, cut to so many tokens at its end (of a pair at the end of
/// the longer). Each token's id, and which of the pair it is of.
///
/// # Errors
/// When the tokenizer cannot.
pub fn encode_whole(
    tokenizer: &Tokenizer,
    (text, second): (&str, Option<&str>),
    most: Option<usize>,
) -> Result<(Vec<u32>, Vec<u32>), String> {
    let encoded = || {
        let mut first = tokenizer.encode_fast(text, false)?;
        let mut second = second.map(|second| tokenizer.encode_fast(second, false)).transpose()?;
        if let Some(most) = most {
            let added = tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(second.is_some()));
            let max_length = most.saturating_sub(added);
            let params = TruncationParams { max_length, ..TruncationParams::default() };
            (first, second) = truncate_encodings(first, second, &params)?;
        }
        tokenizer.post_process(first, second, true)
    };
    let encoding = fenced(encoded)?.map_err(|e| e.to_string())?;
    Ok((encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec()))
}

/// A token, and the bytes of its text that it is made of: the first, and the one behind the last.
pub type TokenSpan = (u32, (usize, usize));

/// Tokens of a text that was rendered, and the bytes of it that each is made of.
///
/// # Errors
/// When the tokenizer cannot.
pub fn encode_with_places(tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenSpan>, String> {
    let encoding = fenced(|| tokenizer.encode(text, false))?.map_err(|e| e.to_string())?;
    Ok(encoding.get_ids().iter().copied().zip(encoding.get_offsets().iter().copied()).collect())
}

/// The text of tokens, special ones included.
///
/// # Errors
/// When the tokenizer cannot.
pub fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, String> {
    fenced(|| tokenizer.decode(ids, false))?.map_err(|e| e.to_string())
}

/// How a vocabulary spells a token; nothing where it has none, or only a special one and those are not wanted.
pub fn token(tokenizer: &Tokenizer, id: u32, skip_special: bool) -> Option<String> {
    let token = fenced(|| tokenizer.id_to_token(id)).ok().flatten()?;
    let skipped = skip_special && tokenizer.get_added_vocabulary().is_special_token(&token);
    (!skipped).then_some(token)
}

/// The text of tokens as a vocabulary spells them; nothing where the tokenizer cannot say.
pub fn join(tokenizer: &Tokenizer, tokens: &[&str]) -> Option<String> {
    let Some(decoder) = tokenizer.get_decoder() else { return Some(tokens.join(" ")) };
    let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
    fenced(|| decoder.decode(tokens)).ok()?.ok()
}

/// Work of the crate that may panic. It changes nothing that is used again but caches, which it looks after itself.
fn fenced<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| "the tokenizer is broken".to_owned())
}

/// At most so many bytes come of one by what is written in a normalizer's description.
fn growth(normalizer: &Value) -> usize {
    let replaced = normalizer["content"].as_str().map_or(1, |content| content.len().max(1));
    let parts = normalizer["normalizers"].as_array().into_iter().flatten();
    parts.map(growth).fold(replaced, usize::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(normalizer: &str, more: &str) -> String {
        format!(
            r#"{{"version":"1.0","added_tokens":[],"normalizer":{normalizer},{more}
            "model":{{"type":"BPE","vocab":{{"a":0,"b":1,"ab":2}},"merges":["a b"]}}}}"#
        )
    }

    #[test]
    fn a_file_that_makes_the_crate_panic_is_refused() {
        let cut = file(r#"{"type":"Precompiled","precompiled_charsmap":"ALQCAACEAAAAAACAAQAAgMz8AgC4BQAA"}"#, "");
        assert!(read(cut.as_bytes()).is_err_and(|error| error.contains("broken")));
    }

    #[test]
    fn numbers_in_a_file_ask_for_no_memory() {
        let padding = r#""padding":{"strategy":{"Fixed":1000000000000},"direction":"Left","pad_to_multiple_of":null,
            "pad_id":0,"pad_type_id":0,"pad_token":"a"},"#;
        let tokenizer = read(file("null", padding).as_bytes()).unwrap();
        assert_eq!(encode(&tokenizer, "abab", false), Ok(vec![2, 2]));
        assert_eq!((token(&tokenizer, 2, true), token(&tokenizer, 3, true)), (Some("ab".into()), None));
    }

    #[test]
    fn normalizers_that_multiply_a_text_are_refused() {
        let replace = |content: &str| {
            format!(r#"{{"type":"Replace","pattern":{{"Regex":"."}},"content":{}}}"#, serde_json::json!(content))
        };
        let three = |content| {
            let one = replace(content);
            file(&format!(r#"{{"type":"Sequence","normalizers":[{one},{one},{one}]}}"#), "")
        };
        assert!(read(three("\u{2581}").as_bytes()).is_ok(), "27 bytes of one");
        assert!(read(three("aaaaa").as_bytes()).is_err(), "125 of one");
        assert!(read(file(&replace(&"a".repeat(65)), "").as_bytes()).is_err());
    }
}
