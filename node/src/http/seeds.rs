//! Which seed each answer of a request draws with.
//!
//! A client that says no seed asks for draws: every answer has one of its own, also those to equal prompts of one list. One
//! that says a seed asks for the same answer again: it follows from the seed, the prompt and the answer's number among
//! those to that prompt, whatever else the list holds, so that a prompt has the answers that it would have alone.
//!
//! The first answer draws with the seed itself. The others' seeds are hashes, and not the numbers after it: who asks with
//! seeds 7 and 8 must not be given one answer twice.

/// The seeds of a request's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seeds {
    first: u64,
    /// By the client; else it follows from the request's name, so that whoever is asked for it again draws the same.
    is_said: bool,
}

impl Seeds {
    /// As the client says.
    pub fn said(first: u64) -> Self {
        Self { first, is_said: true }
    }

    /// By the request's name.
    pub fn drawn(first: u64) -> Self {
        Self { first, is_said: false }
    }

    /// The first answer's.
    pub fn first(self) -> u64 {
        self.first
    }

    /// That of the answer with this number to the prompt with this number, of so many answers to each.
    pub fn of(self, prompt: u64, answer: u64, each: u64) -> u64 {
        let number = if self.is_said { answer } else { prompt * each + answer };
        if number == 0 { self.first } else { further(self.first, number) }
    }
}

fn further(seed: u64, number: u64) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("tsnode 2026 answer seed");
    hasher.update(&seed.to_le_bytes()).update(&number.to_le_bytes());
    let hash = hasher.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn without_a_seed_every_answer_is_its_own_draw() {
        let seeds = Seeds::drawn(7);
        let all: BTreeSet<u64> = (0..8).flat_map(|prompt| (0..8).map(move |n| seeds.of(prompt, n, 8))).collect();
        assert_eq!((all.len(), seeds.of(0, 0, 8)), (64, 7));
    }

    #[test]
    fn with_a_seed_a_prompt_has_the_answers_that_it_has_alone_and_none_of_another_seeds() {
        assert_eq!(Seeds::said(7).of(3, 2, 4), Seeds::said(7).of(0, 2, 8));
        assert_eq!((Seeds::said(7).of(3, 0, 4), Seeds::said(7).first()), (7, 7));
        let all: BTreeSet<u64> = (0..100).flat_map(|seed| (0..8).map(move |n| Seeds::said(seed).of(0, n, 8))).collect();
        assert_eq!(all.len(), 800, "not two of a hundred neighbours have one in common");
    }

    /// A gateway of another version goes on with the answer, so these are fixed.
    #[test]
    fn further_seeds_are_the_same_for_ever() {
        assert_eq!(Seeds::said(7).of(0, 1, 2), FIXED);
    }

    const FIXED: u64 = 13_957_715_204_445_953_996;
}
