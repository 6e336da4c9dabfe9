//! Threads that compute, and which of them are a rank's.

use std::sync::Arc;

/// Threads that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// How many in all.
    pub count: usize,
    /// Ranks they are shared out to; each has at least one.
    pub ranks: usize,
}

impl Threads {
    /// So many, all in one rank.
    #[must_use]
    pub fn together(count: usize) -> Self {
        Self { count, ranks: 1 }
    }

    /// Of one rank.
    pub(super) fn of(self, rank: usize) -> usize {
        share_of(self.count, rank, self.ranks.max(1)).max(1)
    }

    /// Of all ranks before one: the number of its first.
    pub(super) fn before(self, rank: usize) -> usize {
        (0..rank).map(|rank| self.of(rank)).sum()
    }
}

/// A rank's share of so many.
pub(super) fn share_of(all: usize, rank: usize, ranks: usize) -> usize {
    all / ranks + usize::from(rank < all % ranks)
}

/// What a thread that computes does first, with its number: those of a rank follow each other, and the engine's caller is 0.
pub type Starting = Arc<dyn Fn(usize) + Send + Sync>;
