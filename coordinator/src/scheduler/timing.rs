//! Times by what is computed: of prompts, and of decode iterations.

use tsnode_protocol::{Seconds, SecondsPerSquareToken, SecondsPerToken, Tokens};

/// Seconds for prompts: `fixed + per_token·ΣL + per_square·ΣL²`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prefill {
    /// Whatever the length.
    pub fixed: Seconds,
    /// For each token.
    pub per_token: SecondsPerToken,
    /// For each pair of tokens.
    pub per_square: SecondsPerSquareToken,
}

impl Prefill {
    /// Time for one prompt.
    #[must_use]
    pub fn time(&self, tokens: Tokens) -> Seconds {
        self.fixed + (self.per_token + self.per_square * tokens) * tokens
    }

    /// E[time] of prompts of E[L] tokens and E[L²] tokens².
    #[must_use]
    pub fn mean(&self, tokens: Tokens, squared: f64) -> Seconds {
        self.fixed + self.per_token * tokens + Seconds(self.per_square.0 * squared)
    }

    /// This and another after it.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        Self {
            fixed: self.fixed + next.fixed,
            per_token: self.per_token + next.per_token,
            per_square: self.per_square + next.per_square,
        }
    }

    pub(super) fn times(&self, n: f64) -> Self {
        Self { fixed: self.fixed * n, per_token: self.per_token * n, per_square: self.per_square * n }
    }
}

/// Seconds for one decode iteration: `fixed + per_context·Σctx + per_sequence·n`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decode {
    /// Whatever the batch.
    pub fixed: Seconds,
    /// For each token of context read.
    pub per_context: SecondsPerToken,
    /// For each sequence.
    pub per_sequence: Seconds,
}

impl Decode {
    /// Time for `n` sequences with `context` tokens each.
    #[must_use]
    pub fn time(&self, n: f64, context: Tokens) -> Seconds {
        self.fixed + (self.per_context * context + self.per_sequence) * n
    }

    /// This and another after it.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        Self {
            fixed: self.fixed + next.fixed,
            per_context: self.per_context + next.per_context,
            per_sequence: self.per_sequence + next.per_sequence,
        }
    }

    pub(super) fn times(&self, n: f64) -> Self {
        Self { fixed: self.fixed * n, per_context: self.per_context * n, per_sequence: self.per_sequence * n }
    }
}
