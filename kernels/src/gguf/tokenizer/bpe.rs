//! Byte pairs merged in the order the file gives, after the text was cut into words.

use super::{
    super::{GgufError, Metadata, MetadataValue, at_most},
    split::Split,
    tokenizer_json::{BpeModel, Decoder, Ids, Normalizer, Pattern, PreTokenizer, TokenizerParts},
    vocabulary::Vocabulary,
};
use std::collections::HashSet;

/// Merges of a tokenizer.
pub(super) const MERGES: u64 = 1 << 22;

pub(super) fn parts<'v>(
    metadata: &Metadata<'v>,
    vocabulary: &'v Vocabulary<'v>,
) -> Result<TokenizerParts<'v>, GgufError> {
    let split = Split::of(metadata)?;
    let texts: Vec<&str> = vocabulary.iter().map(|(text, _)| text).collect();
    Ok(TokenizerParts {
        normalizer: split.composes.then_some(Normalizer::Nfc),
        pre_tokenizer: Some(pre_tokenizer(split)),
        decoder: Decoder::ByteLevel { add_prefix_space: false, trim_offsets: false, use_regex: false },
        model: BpeModel {
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: split.whole_words,
            merges: merges(metadata, &texts)?,
            vocab: Ids(texts),
        },
    })
}

fn pre_tokenizer(split: Split) -> PreTokenizer {
    let cut = |pattern: &&'static str| PreTokenizer::Split {
        pattern: Pattern::Regex(pattern),
        behavior: "Isolated",
        invert: false,
    };
    let bytes = PreTokenizer::ByteLevel { add_prefix_space: false, trim_offsets: false, use_regex: false };
    PreTokenizer::Sequence { pretokenizers: split.patterns.iter().map(cut).chain([bytes]).collect() }
}

/// Those that the file gives, of parts that are tokens.
pub(super) fn merges<'v>(metadata: &Metadata<'v>, texts: &[&str]) -> Result<Vec<(&'v str, &'v str)>, GgufError> {
    const KEY: &str = "tokenizer.ggml.merges";
    let list = metadata.array(KEY)?.ok_or_else(|| GgufError::Missing(KEY.to_owned()))?;
    at_most("merges", list.len() as u64, MERGES)?;
    let known: HashSet<&str> = texts.iter().copied().collect();
    let mut whole = String::new();
    let mut merge = |(index, value): (usize, MetadataValue<'v>)| {
        let wrong = |why: String| GgufError::Tokenizer(format!("merge {index} {why}"));
        let MetadataValue::Text(bytes) = value else { return Err(wrong("is no text".to_owned())) };
        let text = std::str::from_utf8(bytes).map_err(|_| GgufError::Text(format!("merge {index}")))?;
        let (left, right) = halves(text).ok_or_else(|| wrong(format!("is {text:?}, not two parts")))?;
        whole.clear();
        whole.extend([left, right]);
        match [left, right, &whole].into_iter().find(|part| !known.contains(part)) {
            Some(part) => Err(wrong(format!("needs {part:?}, which is no token"))),
            None => Ok((left, right)),
        }
    };
    list.iter().enumerate().map(&mut merge).collect()
}

/// A merge's parts: what is before and after the first space that is not the first character.
fn halves(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?.len_utf8();
    let space = text[first..].find(' ')?;
    Some((&text[..first + space], &text[first + space + 1..]))
}
