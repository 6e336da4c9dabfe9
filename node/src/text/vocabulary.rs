//! Whether two models speak of the same tokens: only then can one draft for the other.

use std::collections::HashMap;
use tokenizers::Tokenizer;

/// Two models that speak of different tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyError {
    /// One word, two tokens.
    #[error("{text:?} is token {one} of the first and {other} of the second")]
    Moved {
        /// The word.
        text: String,
        /// What it is to the first.
        one: u32,
        /// And to the second.
        other: u32,
    },
    /// A word that only one of them has, among those that both should have.
    #[error("only one of them has {text:?}, its token {id}")]
    Lone {
        /// The word.
        text: String,
        /// What it is there.
        id: u32,
    },
}

/// Refuses two tokenizers of which neither goes on where the other ends: models of a family may have a few tokens more, as
/// padding or for what only the larger ones do.
///
/// # Errors
/// Names the first token that differs.
pub fn speak_alike(one: &Tokenizer, other: &Tokenizer) -> Result<(), VocabularyError> {
    let (one, other) = (one.get_vocab(true), other.get_vocab(true));
    let moved = one.iter().filter_map(|(text, id)| Some((text, *id, *other.get(text)?))).filter(|(_, a, b)| a != b);
    if let Some((text, one, other)) = moved.min_by_key(|(_, id, _)| *id) {
        return Err(VocabularyError::Moved { text: text.clone(), one, other });
    }
    let lone = lone(&one, &other).into_iter().chain(lone(&other, &one)).min_by_key(|(_, id)| *id);
    lone.map_or(Ok(()), |(text, id)| Err(VocabularyError::Lone { text: text.clone(), id }))
}

/// The first token that another does not have, but for those behind its last.
fn lone<'v>(of: &'v HashMap<String, u32>, other: &HashMap<String, u32>) -> Option<(&'v String, u32)> {
    let last = other.values().max().copied();
    let lone =
        of.iter().map(|(text, id)| (text, *id)).filter(|(text, id)| !other.contains_key(*text) && Some(*id) <= last);
    lone.min_by_key(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(words: &[(&str, u32)]) -> Tokenizer {
        let vocab: HashMap<&str, u32> = words.iter().copied().collect();
        let json = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null, "truncation": null, "padding": null,
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" },
        });
        serde_json::to_vec(&json).map(|bytes| Tokenizer::from_bytes(bytes).unwrap()).unwrap()
    }

    #[test]
    fn more_tokens_behind_the_last_are_no_others() {
        let (short, long) = (tokenizer(&[("a", 0), ("b", 1)]), tokenizer(&[("a", 0), ("b", 1), ("c", 2)]));
        assert_eq!(speak_alike(&short, &short), Ok(()));
        assert_eq!((speak_alike(&short, &long), speak_alike(&long, &short)), (Ok(()), Ok(())));
    }

    #[test]
    fn the_first_that_differs_is_named() {
        let one = tokenizer(&[("a", 0), ("b", 1), ("c", 2)]);
        let moved = tokenizer(&[("a", 0), ("c", 1), ("b", 2)]);
        let wrong = VocabularyError::Moved { text: "b".into(), one: 1, other: 2 };
        assert_eq!(speak_alike(&one, &moved), Err(wrong));
        let lone = tokenizer(&[("a", 0), ("d", 1), ("c", 2)]);
        assert!(matches!(speak_alike(&one, &lone), Err(VocabularyError::Lone { id: 1, .. })));
    }
}
