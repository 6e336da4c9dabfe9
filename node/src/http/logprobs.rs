//! How likely tokens were, in the forms of both kinds of completion.
//!
//! Chat lists tokens with their bytes. The older form names alternatives by their texts, in an object, and texts are not
//! one to one with tokens: two may say the same, and one that is part of a character says nothing. So a token there has a
//! label: its text; `bytes:\xe2\x80` (OpenAI's) where its bytes are no whole characters; and `token_id:7` (vLLM's) where
//! the label is taken by a likelier one. The token that was chosen is always among them, and never gives way.

use crate::text::{Detokeniser, TokenText};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use tsnode_protocol::{Sampled, Token};

/// Of what has no probability: JSON has no minus infinity, and this is what OpenAI and vLLM say for it.
const NEVER: f32 = -9999.0;

/// What tokens are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TokenNames {
    #[default]
    Texts,
    /// `token_id:7`, as vLLM has it.
    Ids,
}

/// An entry of a chat answer's `logprobs.content`.
pub(super) fn chat(detokeniser: &Detokeniser<'_>, sampled: &Sampled, names: TokenNames) -> Value {
    let entry = |token: Token, logprob: f32| {
        let TokenText { text, bytes } = detokeniser.token_text(token);
        let text = if names == TokenNames::Ids { by_id(token) } else { text };
        json!({ "token": text, "logprob": finite(logprob), "bytes": bytes })
    };
    let mut one = entry(sampled.token, of_chosen(sampled));
    one["top_logprobs"] = sampled.top.iter().map(|t| entry(t.token, t.logprob)).collect();
    one
}

/// A row of the older form's columns, of the token that begins behind so many characters.
pub(super) fn older(detokeniser: &Detokeniser<'_>, sampled: &Sampled, offset: usize, names: TokenNames) -> Value {
    let label = |token: Token| match names {
        TokenNames::Texts => label(&detokeniser.token_text(token)),
        TokenNames::Ids => by_id(token),
    };
    let chosen = label(sampled.token);
    let mut top = Map::new();
    top.insert(chosen.clone(), json!(of_chosen(sampled)));
    for other in sampled.top.iter().filter(|t| t.token != sampled.token) {
        let label = label(other.token);
        let label = if top.contains_key(&label) { by_id(other.token) } else { label };
        top.insert(label, json!(finite(other.logprob)));
    }
    json!({ "token": chosen, "logprob": of_chosen(sampled), "top": top, "offset": offset })
}

/// The older form lists tokens, probabilities and offsets side by side.
pub(super) fn columns(rows: &[Value]) -> Value {
    let column = |name: &str| -> Vec<&Value> { rows.iter().map(|row| &row[name]).collect() };
    json!({
        "tokens": column("token"),
        "token_logprobs": column("logprob"),
        "top_logprobs": column("top"),
        "text_offset": column("offset"),
    })
}

pub(super) fn by_id(token: Token) -> String {
    format!("token_id:{}", token.0)
}

/// What a token is called in the older form, as long as no other has that name.
fn label(said: &TokenText) -> String {
    if said.text.as_bytes() == said.bytes {
        return said.text.clone();
    }
    said.bytes.iter().fold("bytes:".to_owned(), |mut label, byte| {
        // Writing to a string does not fail.
        let _ = write!(label, "\\x{byte:02x}");
        label
    })
}

fn of_chosen(sampled: &Sampled) -> f32 {
    finite(sampled.logprob.unwrap_or(NEVER))
}

/// What JSON says of it.
pub(super) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.max(NEVER) } else { NEVER }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::Tokenizer;
    use tsnode_protocol::TokenLogprob;

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_bytes(include_bytes!("../text/byte_tokens.json")).unwrap()
    }

    fn sampled(token: u32, logprob: f32, top: &[(u32, f32)]) -> Sampled {
        let top = top.iter().map(|(token, logprob)| TokenLogprob { token: Token(*token), logprob: *logprob });
        Sampled { token: Token(token), logprob: Some(logprob), top: top.collect() }
    }

    /// Bytes are at 3 to 258: 가 is EA B0 80.
    const BYTES: u32 = 3;

    #[test]
    fn a_token_that_is_part_of_a_character_has_its_own_bytes_and_a_label_that_says_them() {
        let tokenizer = tokenizer();
        let mut text = Detokeniser::new(&tokenizer, true);
        for (byte, label) in [(0xEA_u32, "bytes:\\xea"), (0xB0, "bytes:\\xb0"), (0x80, "bytes:\\x80")] {
            let sampled = sampled(BYTES + byte, -0.5, &[(BYTES + byte, -0.5), (BYTES + 0x41, -1.0)]);
            let entry = chat(&text, &sampled, TokenNames::Texts);
            assert_eq!((&entry["bytes"], &entry["token"]), (&json!([byte]), &json!("\u{FFFD}")));
            assert_eq!(entry["top_logprobs"][1]["bytes"], json!([0x41]));
            assert_eq!(older(&text, &sampled, 0, TokenNames::Texts)["token"], label);
            text.push(sampled.token);
        }
    }

    #[test]
    fn tokens_of_equal_text_are_all_there_and_the_chosen_one_has_it() {
        let tokenizer = tokenizer();
        let (letter, byte) = (tokenizer.token_to_id("▁the").unwrap(), BYTES + 0x41);
        let text = Detokeniser::new(&tokenizer, true);
        // No token of this vocabulary has this id, nor the next: both say nothing.
        let (odd, other) = (9_000, 9_001);
        let row =
            older(&text, &sampled(odd, -3.0, &[(letter, -0.1), (other, -1.0), (byte, -2.0)]), 7, TokenNames::Texts);
        assert_eq!((&row["token"], &row["logprob"], &row["offset"]), (&json!(""), &json!(-3.0), &json!(7)));
        let top = row["top"].as_object().unwrap();
        assert_eq!(top.len(), 4, "{top:?}");
        assert_eq!((&top[""], &top["token_id:9001"]), (&json!(-3.0), &json!(-1.0)));
    }

    #[test]
    fn the_chosen_token_is_among_them_however_few_are_asked_for() {
        let tokenizer = tokenizer();
        let text = Detokeniser::new(&tokenizer, true);
        let chosen = tokenizer.token_to_id("▁the").unwrap();
        for (top, all) in [(vec![], 1), (vec![(BYTES + 0x41, -0.1)], 2), (vec![(chosen, -2.0)], 1)] {
            let row = older(&text, &sampled(chosen, -2.0, &top), 0, TokenNames::Texts);
            assert_eq!(row["top"].as_object().unwrap().len(), all, "{row}");
            assert_eq!(row["top"][row["token"].as_str().unwrap()], json!(-2.0));
        }
    }

    #[test]
    fn tokens_are_called_by_their_ids_for_who_asks() {
        let tokenizer = tokenizer();
        let text = Detokeniser::new(&tokenizer, true);
        let sampled = sampled(BYTES + 0x41, -0.5, &[(BYTES + 0x42, -0.1)]);
        let entry = chat(&text, &sampled, TokenNames::Ids);
        assert_eq!((&entry["token"], &entry["bytes"]), (&json!("token_id:68"), &json!([0x41])));
        assert_eq!(entry["top_logprobs"][0]["token"], "token_id:69");
        let row = older(&text, &sampled, 0, TokenNames::Ids);
        assert_eq!(row["token"], "token_id:68");
        assert_eq!(row["top"], json!({ "token_id:68": -0.5, "token_id:69": -0.1_f32 }));
    }

    #[test]
    fn what_cannot_be_is_a_number_too() {
        let tokenizer = tokenizer();
        let text = Detokeniser::new(&tokenizer, true);
        let sampled = sampled(BYTES, f32::NEG_INFINITY, &[(BYTES + 1, f32::NEG_INFINITY)]);
        let entry = chat(&text, &sampled, TokenNames::Texts);
        assert_eq!((&entry["logprob"], &entry["top_logprobs"][0]["logprob"]), (&json!(-9999.0), &json!(-9999.0)));
        assert_eq!(older(&text, &sampled, 0, TokenNames::Texts)["logprob"], json!(-9999.0));
    }
}
