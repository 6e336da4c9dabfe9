//! Tokens by id: their texts, kinds and scores.

use super::super::{Array, GgufError, Metadata, MetadataValue, at_most};
use std::borrow::Cow;
use std::collections::HashMap;

/// Tokens of a model.
const TOKENS: u64 = 1 << 20;
/// Bytes of a token: pieces are found by trying every place one can be cut at.
const TEXT: u64 = 1024;

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TokenizerModel {
    /// Byte pairs merged in a given order, as GPT-2 does.
    Bytes,
    /// Characters merged by the scores of what they become, as SentencePiece does.
    Pieces,
    /// The same in a given order, as Gemma 4 does.
    MergedPieces,
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TokenType {
    /// Text.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Begins, ends or divides; has no text.
    Control,
    /// Text that is never cut.
    UserDefined,
    /// Nothing.
    Unused,
    /// One byte.
    Byte,
}

/// All tokens.
pub(in super::super) struct Vocabulary<'a> {
    pub model: TokenizerModel,
    texts: Vec<Cow<'a, str>>,
    kinds: Vec<TokenType>,
    scores: Vec<f64>,
}

/// Texts that end an answer in some model, whatever its file says of them.
const ENDS: [&str; 15] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
];

impl<'a> Vocabulary<'a> {
    /// Reads and checks all tokens.
    pub(in super::super) fn of(metadata: &Metadata<'a>) -> Result<Self, GgufError> {
        const MODEL: &str = "tokenizer.ggml.model";
        const LIST: &str = "tokenizer.ggml.tokens";
        let missing = |key: &str| GgufError::Missing(key.to_owned());
        let model = match metadata.text(MODEL)?.ok_or_else(|| missing(MODEL))? {
            "gpt2" => TokenizerModel::Bytes,
            "llama" => TokenizerModel::Pieces,
            "gemma4" => TokenizerModel::MergedPieces,
            other => {
                let (key, value) = (MODEL.to_owned(), other.chars().take(64).collect());
                return Err(GgufError::Unsupported { key, value, supported: "gpt2, llama and gemma4 are".to_owned() });
            }
        };
        let list = metadata.array(LIST)?.ok_or_else(|| missing(LIST))?;
        at_most("tokens", list.len() as u64, TOKENS)?;
        let texts = list.iter().enumerate().map(|(id, value)| text(id, value)).collect::<Result<Vec<_>, _>>()?;
        let mut vocabulary =
            Self { model, kinds: kinds(metadata, texts.len())?, scores: scores(metadata, texts.len())?, texts };
        vocabulary.refuse_twins()?;
        vocabulary.mark_ends();
        Ok(vocabulary)
    }

    pub(in super::super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Text and kind of every token by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, TokenType)> {
        self.texts.iter().map(AsRef::as_ref).zip(self.kinds.iter().copied())
    }

    /// The text of a token that is there.
    pub(super) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", AsRef::as_ref)
    }

    pub(super) fn score(&self, id: usize) -> f64 {
        self.scores.get(id).copied().unwrap_or(0.0)
    }

    /// Makes a token one that stands for itself wherever it is written.
    pub(super) fn set_control(&mut self, id: u32) {
        if let Some(kind) = self.kinds.get_mut(id as usize).filter(|kind| **kind == TokenType::Normal) {
            *kind = TokenType::Control;
        }
    }

    /// Tokens that end an answer by their text.
    pub(super) fn ends(&self) -> impl Iterator<Item = u32> {
        let is_end =
            |(text, kind): (&str, TokenType)| ENDS.contains(&text) || text == "</s>" && kind == TokenType::Control;
        (0..).zip(self.iter()).filter(move |(_, token)| is_end(*token)).map(|(id, _)| id)
    }

    fn mark_ends(&mut self) {
        let ends: Vec<u32> = self.ends().collect();
        ends.into_iter().for_each(|id| self.set_control(id));
    }

    fn refuse_twins(&self) -> Result<(), GgufError> {
        let mut seen = HashMap::with_capacity(self.texts.len());
        for (id, text) in self.texts.iter().enumerate() {
            if let Some(other) = seen.insert(text.as_ref(), id) {
                return Err(GgufError::Tokenizer(format!("tokens {other} and {id} are both {text:?}")));
            }
        }
        Ok(())
    }
}

fn text(id: usize, value: MetadataValue<'_>) -> Result<Cow<'_, str>, GgufError> {
    let MetadataValue::Text(bytes) = value else {
        return Err(GgufError::Tokenizer(format!("token {id} is no text")));
    };
    at_most(&format!("bytes of token {id}"), bytes.len() as u64, TEXT)?;
    match std::str::from_utf8(bytes) {
        // Nothing can be written as nothing; llama.cpp names such a token so too.
        Ok("") => Ok(Cow::Owned(format!("[EMPTY_{id}]"))),
        Ok(text) => Ok(Cow::Borrowed(text)),
        Err(_) => Err(GgufError::Text(format!("token {id}"))),
    }
}

/// A list with something for each of `tokens`, if there is one.
fn for_each<'a>(metadata: &Metadata<'a>, key: &str, tokens: usize) -> Result<Option<Array<'a>>, GgufError> {
    match metadata.array(key)? {
        Some(list) if list.len() < tokens => {
            Err(GgufError::Tokenizer(format!("{key} has {} entries, there are {tokens} tokens", list.len())))
        }
        list => Ok(list),
    }
}

fn kinds(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<TokenType>, GgufError> {
    let Some(list) = for_each(metadata, "tokenizer.ggml.token_type", tokens)? else {
        return Ok(vec![TokenType::Normal; tokens]);
    };
    let kind = |value| match value {
        MetadataValue::Integer(2) => TokenType::Unknown,
        MetadataValue::Integer(3) => TokenType::Control,
        MetadataValue::Integer(4) => TokenType::UserDefined,
        MetadataValue::Integer(5) => TokenType::Unused,
        MetadataValue::Integer(6) => TokenType::Byte,
        _ => TokenType::Normal,
    };
    Ok(list.iter().take(tokens).map(kind).collect())
}

fn scores(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<f64>, GgufError> {
    let Some(list) = for_each(metadata, "tokenizer.ggml.scores", tokens)? else {
        return Ok(Vec::new());
    };
    let score = |value| match value {
        MetadataValue::Real(score) => score,
        MetadataValue::Integer(score) => score as f64,
        _ => 0.0,
    };
    Ok(list.iter().take(tokens).map(score).collect())
}
