//! SentencePiece's byte pairs: spaces are written `▁`, and merges follow from the scores of what they make, or are given.

use super::{
    super::{GgufError, Metadata, at_most},
    bpe::{self, MERGES},
    special::Special,
    tokenizer_json::{BpeModel, Decoder, Ids, Normalizer, Pattern, TokenizerParts},
    vocabulary::{self, TokenType, Vocabulary},
};
use std::cmp::Reverse;
use std::collections::HashMap;
use tsnode_protocol::limits;

/// What a space is written as.
const SPACE: &str = "▁";

pub(super) fn parts<'v>(
    metadata: &Metadata<'v>,
    vocabulary: &'v Vocabulary<'v>,
    special: &Special,
) -> Result<TokenizerParts<'v>, GgufError> {
    let texts: Vec<&str> = vocabulary.iter().map(|(text, _)| text).collect();
    let prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    Ok(TokenizerParts {
        normalizer: Some(normalizer(prefix)),
        pre_tokenizer: None,
        decoder: decoder(prefix),
        model: BpeModel {
            dropout: (),
            unk_token: special.unknown.map(|id| vocabulary.text(id)),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            merges: match vocabulary.model {
                vocabulary::TokenizerModel::MergedPieces => bpe::merges(metadata, &texts)?,
                vocabulary::TokenizerModel::Pieces | vocabulary::TokenizerModel::Bytes => merges(vocabulary)?,
            },
            vocab: Ids(texts),
        },
    })
}

fn normalizer(prefix: bool) -> Normalizer {
    let spaces = Normalizer::Replace { pattern: Pattern::String(" "), content: SPACE };
    if prefix {
        Normalizer::Sequence { normalizers: vec![Normalizer::Prepend { prepend: SPACE }, spaces] }
    } else {
        spaces
    }
}

fn decoder(prefix: bool) -> Decoder {
    let spaces = Decoder::Replace { pattern: Pattern::String(SPACE), content: " " };
    let mut decoders = vec![spaces, Decoder::ByteFallback, Decoder::Fuse];
    if prefix {
        decoders.push(Decoder::Strip { content: " ", start: 1, stop: 0 });
    }
    Decoder::Sequence { decoders }
}

/// Every way to make a token out of two others, the best token first; of two ways the one with the longer left part,
/// as Hugging Face's converter has it.
fn merges<'v>(vocabulary: &'v Vocabulary<'v>) -> Result<Vec<(&'v str, &'v str)>, GgufError> {
    let normal = || vocabulary.iter().enumerate().filter(|(_, (_, kind))| *kind == TokenType::Normal);
    let ids: HashMap<&str, usize> = normal().map(|(id, (text, _))| (text, id)).collect();
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (id, (text, _)) in normal() {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                found.push((id, left, right));
                bytes += text.len() as u64;
            }
        }
        // A few long tokens that can be cut anywhere make merges without end.
        at_most("merges", found.len() as u64, MERGES)?;
        at_most("bytes of merges", bytes, limits::MODEL_FILE_BYTES as u64)?;
    }
    found.sort_by(|(a, left, _), (b, other, _)| {
        let score = vocabulary.score(*b).total_cmp(&vocabulary.score(*a));
        score.then(a.cmp(b)).then(Reverse(left.len()).cmp(&Reverse(other.len())))
    });
    Ok(found.into_iter().map(|(_, left, right)| (left, right)).collect())
}
