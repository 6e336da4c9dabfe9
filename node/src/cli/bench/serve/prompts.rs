//! Prompts of given lengths that share nothing but what they are to share, from a seed.

use serde_json::{Value, json};
use tsnode_coordinator::rng::Rng;

/// Ids of tokens that prompts are made of: behind the special ones, and within any model's vocabulary.
const IDS: std::ops::Range<u32> = 300..3300;
/// Words that most tokenizers have one token for.
const WORDS: [&str; 48] = [
    "time", "house", "water", "light", "night", "world", "place", "hand", "door", "road", "river", "stone", "white",
    "black", "small", "great", "young", "old", "long", "high", "open", "close", "turn", "come", "take", "give", "find",
    "keep", "hold", "stand", "walk", "speak", "hear", "look", "know", "think", "first", "last", "next", "same",
    "other", "part", "side", "line", "name", "year", "week", "hour",
];

/// What prompts are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum PromptContent {
    /// Ids of tokens, so that lengths are exact.
    Tokens,
    /// Words, as many as were found to be so many tokens.
    Words(TokenFit),
}

/// Tokens of a text: so many for each word, and some around all of them, as a chat template's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct TokenFit {
    pub per_word: f64,
    pub around: f64,
}

impl TokenFit {
    /// Every word is a token.
    pub const PLAIN: Self = Self { per_word: 1.0, around: 0.0 };

    /// The line through two texts of so many words and tokens; `None` where there is none that rises.
    pub fn through([a, b]: [(u32, u64); 2]) -> Option<Self> {
        let per_word = (b.1 as f64 - a.1 as f64) / (f64::from(b.0) - f64::from(a.0));
        let fit = Self { per_word, around: a.1 as f64 - per_word * f64::from(a.0) };
        (per_word.is_finite() && per_word > 0.0).then_some(fit)
    }

    /// Words of about so many tokens; one at least.
    fn words(&self, tokens: u32) -> u32 {
        ((f64::from(tokens) - self.around) / self.per_word).round().clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

/// The prompts of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Prompts {
    pub form: PromptContent,
    /// Tokens that all of them begin with.
    pub shared: u32,
    pub seed: u64,
}

impl Prompts {
    /// The n-th, of so many tokens; what is shared is a part of them.
    pub fn nth(&self, n: u64, tokens: u32) -> Value {
        let shared = self.shared.min(tokens);
        let own = self.seed ^ n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (mut begin, mut own) = (Rng::new(self.seed), Rng::new(own));
        match self.form {
            PromptContent::Tokens => {
                let id = |rng: &mut Rng| IDS.start + rng.below(IDS.len()) as u32;
                let ids = (0..tokens).map(|place| id(if place < shared { &mut begin } else { &mut own }));
                json!(ids.collect::<Vec<u32>>())
            }
            PromptContent::Words(fit) => {
                let (all, shared) = (fit.words(tokens), if shared == 0 { 0 } else { fit.words(shared) });
                let word = |rng: &mut Rng| WORDS[rng.below(WORDS.len())];
                let words = (0..all).map(|place| word(if place < shared { &mut begin } else { &mut own }));
                json!(words.collect::<Vec<&str>>().join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_lengths_and_share_what_they_are_to_share() {
        let prompts = Prompts { form: PromptContent::Tokens, shared: 16, seed: 3 };
        let ids = |n| prompts.nth(n, 100).as_array().unwrap().clone();
        let (a, b) = (ids(0), ids(1));
        assert_eq!((a.len(), &a, &a[..16]), (100, &ids(0), &b[..16]));
        assert_ne!(a[16..], b[16..]);
        assert_eq!(prompts.nth(0, 5).as_array().unwrap().len(), 5, "shorter than what is shared");
        assert_ne!(a, *Prompts { seed: 4, ..prompts }.nth(0, 100).as_array().unwrap());
    }

    #[test]
    fn words_are_as_many_as_were_found_to_be_the_tokens() {
        let fit = TokenFit::through([(32, 10 + 48), (256, 10 + 384)]).unwrap();
        assert_eq!(fit, TokenFit { per_word: 1.5, around: 10.0 });
        let text = |form, tokens| Prompts { form: PromptContent::Words(form), shared: 0, seed: 1 }.nth(0, tokens);
        let count = |text: Value| text.as_str().unwrap().split(' ').count();
        assert_eq!((count(text(fit, 160)), count(text(fit, 3)), count(text(TokenFit::PLAIN, 160))), (100, 1, 160));
        assert_eq!(TokenFit::through([(32, 5), (256, 5)]), None, "no count of tokens is the same for all texts");
        assert_eq!(TokenFit::through([(32, 5), (32, 9)]), None);
    }
}
