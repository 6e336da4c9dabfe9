//! Speculative decoding: an answer's next tokens proposed, and checked in the step that computes them.
//!
//! Text repeats itself: what followed the last occurrence of an answer's last tokens is likely to follow again (prompt
//! lookup). Of an answer that says something new a small model of the same vocabulary may know what comes next (a draft
//! model, `asking.rs`). The last stage chooses a token after each draft token as it would have without, by the same logits and the
//! same draw, and stops at the first that was proposed wrong: an answer has the tokens it would have had. Which way pays is
//! measured (`strategy.rs`).

use super::strategy::Strategy;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::AddAssign};
use tsnode_protocol::{RequestId, Sampling, Token};

/// Tokens that must occur again for what follows them to be proposed.
const GRAM: usize = 3;
/// Tokens proposed at a time.
pub(super) const MOST: usize = 4;

/// Whether an answer's next tokens are proposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// By what the answer repeats, where steps with draft tokens are measured to give more tokens in a second.
    #[default]
    Measured,
    /// By a draft model too, where that is measured to give more still.
    Drafted,
    /// Never: each step gives a sequence one token.
    Never,
}

/// What a draft model is asked about an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftRequest {
    /// The sequence whose answer it is.
    pub request: RequestId,
    /// Tokens of the sequence that it was told before; 0 for one it is to read anew.
    pub start: u32,
    /// Those after them, all that there are.
    pub tokens: Vec<Token>,
    /// How many it may propose.
    pub most: u32,
    /// How the answer's tokens are chosen: who proposes by the same draws is right more often.
    pub sampling: Sampling,
}

/// Draft tokens that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Draft tokens that were checked, right or not.
    pub made: u64,
    /// Those that were right.
    pub right: u64,
}

/// Draft tokens that were checked, by who made them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeculationTally {
    /// What occurred before.
    pub lookup: Checked,
    /// A draft model.
    pub draft: Checked,
}

impl SpeculationTally {
    pub(super) fn add(&mut self, by: Strategy, made: u64, right: u64) {
        let checked = match by {
            Strategy::Plain => return,
            Strategy::Lookup => &mut self.lookup,
            Strategy::Draft => &mut self.draft,
        };
        *checked += Checked { made, right };
    }
}

impl AddAssign for Checked {
    fn add_assign(&mut self, more: Self) {
        self.made += more.made;
        self.right += more.right;
    }
}

impl AddAssign for SpeculationTally {
    fn add_assign(&mut self, more: Self) {
        self.lookup += more.lookup;
        self.draft += more.draft;
    }
}

/// What may follow an answer's tokens.
#[derive(Debug, Default)]
pub(super) struct DraftTokens {
    lookup: Lookup,
    pub tokens: Vec<Token>,
    /// Who proposed them.
    pub by: Strategy,
    /// How many of them the step on its way checks.
    pub checked: u32,
    /// Tokens of the sequence that the draft model was told.
    pub told: u32,
}

impl DraftTokens {
    /// Proposes what these tokens repeat, so many at most; whether there is a draft.
    pub fn propose(&mut self, tokens: &[Token], most: usize) -> bool {
        self.tokens.clear();
        self.tokens.extend_from_slice(self.lookup.propose(tokens, most));
        self.by = Strategy::Lookup;
        !self.tokens.is_empty()
    }
}

/// Where an answer's tokens occurred before.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// What comes after the last occurrence of these tokens.
    after: BTreeMap<[Token; GRAM], usize>,
    seen: usize,
}

impl Lookup {
    /// What may follow these tokens, which are those of the call before and some more.
    pub fn propose<'t>(&mut self, tokens: &'t [Token], most: usize) -> &'t [Token] {
        let Some(last) = tokens.last_chunk::<GRAM>() else { return &[] };
        // All but the last tokens themselves, after which nothing is known.
        for end in (self.seen + 1).max(GRAM)..tokens.len() {
            if let Some(gram) = tokens[..end].last_chunk::<GRAM>() {
                self.after.insert(*gram, end);
            }
        }
        self.seen = tokens.len() - 1;
        let Some(&from) = self.after.get(last) else { return &[] };
        &tokens[from..tokens.len().min(from + most)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    #[test]
    fn what_followed_last_is_drafted() {
        let mut lookup = Lookup::default();
        let mut all = tokens(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 8, 8, 1, 2]);
        assert!(lookup.propose(&all, 4).is_empty());
        all.push(Token(3));
        assert_eq!(lookup.propose(&all, 4), &all[8..12]);
        assert_eq!(lookup.propose(&all, 2), &all[8..10]);
        all.push(Token(4));
        assert_eq!(lookup.propose(&all, 2), &all[4..6], "2, 3, 4 came once before");
        let mut same = Lookup::default();
        let all = tokens(&[7; 8]);
        assert_eq!(same.propose(&all, 4), &all[7..], "up to the last token, after which nothing is known");
        assert!(Lookup::default().propose(&tokens(&[7; 3]), 4).is_empty());
    }
}
